"""The documentation site builds without a warning, and every page is in its navigation exactly once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from mnemo.cli import VERBS
from tools.site.command_pages import help_text, verb_page
from tools.site.navigation import INDEX, ROOT, chapters


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    places = ["--root", str(root), "--out", str(out / "site"), "--work", str(out / "work")]
    command = [sys.executable, "-m", "tools.site", *places]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    result = build(ROOT, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert str(tmp_path / "site" / "index.html") in result.stdout
    documented = (tmp_path / "site" / "docs" / "api" / "memories.html").read_text(encoding="utf-8")
    assert 'id="mnemo.XL.length"' in documented and "Slots of memory of each layer" in documented
    assert (tmp_path / "site" / "files" / "mnemo" / "ops" / "reference.py.html").is_file()
    verb = (tmp_path / "site" / "docs" / "command-line" / "eval.html").read_text(encoding="utf-8")
    assert re.search(r'toctree-l2 current[^>]*><a class="current reference internal" href="#">mnemo eval</a>', verb)
    assert 'href="../own-text.html">Your own text</a>' in verb
    results = (tmp_path / "site" / "docs" / "RESULTS.html").read_text(encoding="utf-8")
    assert results.count('<figure class="results">') >= 5 and 'href="results/xl-ptb.html"' in results
    assert "<details>" in results and '<a id="experiment-long-profile"></a>' in results
    assert (tmp_path / "site" / "docs" / "results" / "xl-ptb.html").is_file()


def test_broken_links_anchors_and_pages_without_a_way_to_them_are_errors(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Home\n\n[gone](docs/gone.md) [section](docs/one.md#two)\n")
    table = "| [One](one.md) | a page |\n| [API](api.md) | names |\n| [Verbs](command-line.md) | verbs |\n"
    (tmp_path / "docs" / "README.md").write_text(f"# Documentation\n\n## Pages\n\n| page | |\n|---|---|\n{table}")
    for name in ("one", "lost", "api", "command-line"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# {name}\n")
    result = build(tmp_path, tmp_path / "build")
    assert result.returncode == 1
    for problem in (
        "'docs/gone.md'",
        "doc 'docs/one': 'two'",
        "lost.md: WARNING: document isn't included in any toctree",
    ):
        assert problem in result.stderr


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
