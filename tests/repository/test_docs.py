"""What the documents show works: Python blocks run, commands and their flags exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from helpers.doc_pages import PAGES, blocks, run_block
from helpers.marks import few
from helpers.own_memories import keep_mechanisms

from mnemo.cli import VERBS, main


def commands(page: Path) -> list[str]:
    """Lines of indented or fenced blocks that begin with the command, continued lines joined, comments dropped."""
    text = re.sub(r" \\\n +", " ", page.read_text())
    lines = (line.strip().removeprefix("$ ").removeprefix(".venv/bin/") for line in text.splitlines())
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("mnemo ")]


BLOCKS = [(page, number) for page in PAGES for number in range(len(blocks(page)))]
SLOW = {("experiments.md", 0), ("SCALE.md", 0), ("python.md", 2)}
"""Blocks that train, measure or estimate for seconds what other tests do in small"""


@pytest.mark.parametrize(("page", "number"), few(BLOCKS, lambda page, number: (page.name, number) not in SLOW), ids=str)
def test_python_blocks_run(page: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keep_mechanisms(monkeypatch)
    run_block(blocks(page)[number])


@pytest.fixture(scope="module")
def flags() -> dict[str, str]:
    return {}


@pytest.mark.parametrize("command", sorted({command for page in PAGES for command in commands(page)}))
def test_commands_exist(
    command: str,
    flags: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mybook.txt").write_text("a line of text\n" * 200)
    words = shlex.split(command)
    verb = words[1]
    if verb in ("--help", "--version"):
        assert main([verb]) == 0
        return
    assert verb in VERBS, f"no verb '{verb}'"
    target = [words[2]] if verb == "train" and len(words) > 2 and not words[2].startswith("-") else []
    key = " ".join([verb, *(target or words[2:3] * ("--resume" in words))])
    if key not in flags:
        assert main([verb, *target, "--help"]) == 0
        if "--resume" in words:  # takes the fields of a recipe as well
            assert main([verb, "tiny-bytes", "--help"]) == 0
        flags[key] = capsys.readouterr().out
    for word in words[2:]:
        if word.startswith("--"):
            assert re.search(re.escape(word.partition("=")[0]) + r"\b", flags[key]), f"{verb} has no {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Targets of links inside a page: its headings, as code-hosting pages name them, and what it marks itself."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#{1,4} (.+)$", re.sub(r"\]\([^)]*\)", "]", text), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_of_links_exist(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", page.read_text())
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]
    missing = [(to.name, anchor) for to, anchor in targets if to.suffix == ".md" and anchor not in anchors(to)]
    assert missing == []
