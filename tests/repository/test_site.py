"""The documentation site builds without a warning, and every page is in its navigation exactly once."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest
from helpers import commands

from mnemo.cli import VERBS
from tools.site.__main__ import main
from tools.site.command_pages import help_text, verb_page
from tools.site.navigation import INDEX, ROOT, chapters


class Built(NamedTuple):
    code: int | None
    printed: str
    messages: str


def build(root: Path, out: Path) -> Built:
    out.mkdir(exist_ok=True)
    places = ["--root", str(root), "--out", str(out / "site"), "--work", str(out / "work")]
    process = commands.start(places, out, main)
    process.join()
    return Built(process.exitcode, *((out / name).read_text() for name in (commands.PRINTED, commands.MESSAGES)))


@pytest.mark.slow
@pytest.mark.thorough
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    result = build(ROOT, tmp_path)
    assert (result.code, result.messages) == (0, "")
    documented = (tmp_path / "site" / "docs" / "api" / "memories.html").read_text(encoding="utf-8")
    assert 'id="mnemo.XL.length"' in documented
    assert (tmp_path / "site" / "files" / "mnemo" / "ops" / "reference.py.html").is_file()
    results = (tmp_path / "site" / "docs" / "RESULTS.html").read_text(encoding="utf-8")
    assert results.count('<figure class="results">') >= 5 and 'href="results/xl-ptb.html"' in results
    assert "<details>" in results and '<a id="experiment-long-profile"></a>' in results
    assert (tmp_path / "site" / "docs" / "results" / "xl-ptb.html").is_file()


def write_pages(root: Path, home: str, **more: str) -> None:
    """A documentation of short pages: one that is new, and all that the help of verbs may link to."""
    (root / "docs").mkdir()
    (root / "README.md").write_text(f"# Home\n\n{home}\n")
    names = ["one", *sorted(path.stem for path in (ROOT / INDEX).parent.glob("*.md") if path.name != INDEX.name)]
    table = "".join(f"| [{name}]({name}.md) | a page |\n" for name in names)
    (root / "docs" / "README.md").write_text(f"# Documentation\n\n## Pages\n\n| page | |\n|---|---|\n{table}")
    for name, text in {**{name: f"# {name}\n" for name in names}, **more}.items():
        (root / "docs" / f"{name}.md").write_text(text)


def test_a_small_site_has_all_kinds_of_pages(tmp_path: Path) -> None:
    one = "# one\n\n## Two\n\n[Code](../code.py), and [eval](command-line.md)\n"
    names = "# api\n\n## Memories\n\nConfigurations, as on [the page](one.md#two).\n\n`mnemo.XL` `mnemo.Plan`\n"
    write_pages(tmp_path, "[section](docs/one.md#two)", one=one, api=names)
    (tmp_path / "code.py").write_text("print('hello')\n")
    result = build(tmp_path, tmp_path / "build")
    assert (result.code, result.messages) == (0, "")
    site = tmp_path / "build" / "site"
    assert str(site / "index.html") in result.printed
    documented = (site / "docs" / "api" / "memories.html").read_text(encoding="utf-8")
    assert 'id="mnemo.XL.length"' in documented and "Slots of memory of each layer" in documented
    assert "hello" in (site / "files" / "code.py.html").read_text(encoding="utf-8")
    verb = (site / "docs" / "command-line" / "eval.html").read_text(encoding="utf-8")
    assert re.search(r'toctree-l2 current[^>]*><a class="current reference internal" href="#">mnemo eval</a>', verb)
    assert 'href="../one.html">one</a>' in verb


def test_broken_links_anchors_and_pages_without_a_way_to_them_are_errors(tmp_path: Path) -> None:
    write_pages(tmp_path, "[gone](docs/gone.md) [section](docs/one.md#two)", lost="# lost\n")
    result = build(tmp_path, tmp_path / "build")
    assert result.code == 1
    for problem in (
        "'docs/gone.md'",
        "doc 'docs/one': 'two'",
        "lost.md: WARNING: document isn't included in any toctree",
    ):
        assert problem in result.messages


def test_every_page_is_in_the_order_once() -> None:
    listed = [entry.page for chapter in chapters() for entry in chapter.entries]
    inside = {PurePosixPath(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert inside - {INDEX} <= set(listed)
    assert [page for page in listed if not (ROOT / page).is_file()] == []


def test_pages_have_the_title_of_the_navigation() -> None:
    entries = [entry for chapter in chapters() for entry in chapter.entries]
    titles = [(ROOT / entry.page).read_text(encoding="utf-8").partition("\n")[0] for entry in entries]
    assert titles == [f"# {entry.title}" for entry in entries]


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_of_a_verb_has_all_options_of_its_help(verb: str) -> None:
    text, page = help_text([verb]), verb_page(verb)
    flags = re.findall(r"^│ (--[a-z][\w-]*)", text, re.MULTILINE)
    described = set(re.findall(r"^`(?:-h, )?(--[a-z][\w-]*)[^\n]*`\n: \S", page, re.MULTILINE))
    assert set(flags) <= described and bool(flags) == ("[OPTIONS]" in text or "╭─ options" in text)
    assert not re.search("[│╭╰]", page)
