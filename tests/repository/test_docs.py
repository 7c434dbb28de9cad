"""What the documents show works: Python blocks run, commands and their flags exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import test_model as contract

from mnemo.cli import VERBS, main
from mnemo.memory import Plan

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Lines of indented or fenced blocks that begin with the command, comments dropped."""
    lines = (line.strip().removeprefix("$ ").removeprefix(".venv/bin/") for line in page.read_text().splitlines())
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("mnemo ")]


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__docs__"}
    exec(compile(block, "<block>", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize(("page", "number"), [(p, n) for p in PAGES for n in range(len(blocks(p)))], ids=str)
def test_python_blocks_run(page: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(blocks(page)[number])


@pytest.fixture(scope="module")
def flags() -> dict[str, str]:
    return {}


@pytest.mark.parametrize("command", sorted({command for page in PAGES for command in commands(page)}))
def test_commands_exist(command: str, flags: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    verb = words[1]
    assert verb in VERBS, f"no verb '{verb}'"
    target = [words[2]] if verb == "train" and len(words) > 2 and not words[2].startswith("-") else []
    key = " ".join([verb, *target])
    if key not in flags:
        assert main([verb, *target, "--help"]) == 0
        flags[key] = capsys.readouterr().out
    for word in words[2:]:
        if word.startswith("--"):
            assert re.search(re.escape(word.partition("=")[0]) + r"\b", flags[key]), f"{verb} has no {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_the_mechanism_of_the_guide_keeps_the_contract() -> None:
    (block,) = [block for block in blocks(ROOT / "CONTRIBUTING.md") if "class Average" in block]
    assert len([line for line in block.splitlines() if line.strip()]) < 60
    changes = dict(memory=Plan(long=run(block)["Average"]()))
    for test in (
        contract.test_rows_are_independent,
        contract.test_rows_of_different_lengths_equal_rows_alone,
        contract.test_a_row_reset_equals_a_fresh_start_of_that_row,
        contract.test_no_token_influences_an_earlier_loss,
        contract.test_decoding_equals_the_parallel_segment,
        contract.test_decoding_rows_out_of_step_equals_rows_alone,
        contract.test_the_given_state_is_never_changed,
    ):
        test(changes)
