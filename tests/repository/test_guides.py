"""The commands of docs/own-text.md and docs/long-documents.md run one after another, on a small text."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import pytest
from helpers.doc_pages import ROOT
from helpers.tiny_runs import WORDS

from mnemo.cli import main
from mnemo.storage.run_header import run_folders

OWN_TEXT, LONG_DOCUMENTS = ROOT / "docs" / "own-text.md", ROOT / "docs" / "long-documents.md"
SMALL = [
    *("--train.steps", "2", "--train.batch", "2", "--train.segment", "16", "--evaluation.limit", "60"),
    *("--model.num-layers", "1", "--model.dim", "8", "--model.num-heads", "1", "--model.head-dim", "4"),
    *("--model.inner-dim", "8", "--train.device", "cpu"),
]
"""Appended to every training, so that it takes seconds."""
FEW_TOKENS = "20"
"""Are written by each command that writes text."""
VERBS = {"train", "generate", "read", "eval", "analyse", "report", "runs"}


def guide_commands(guide: Path) -> list[list[str]]:
    lines = guide.read_text().splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("    mnemo ")]


def test_the_guide_shows_every_step() -> None:
    assert {command[0] for command in guide_commands(OWN_TEXT)} == VERBS


def test_the_commands_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_guide(OWN_TEXT, 100, tmp_path, monkeypatch, capsys)
    out = capsys.readouterr().out
    assert "renamed runs/rmt to runs/tokens" in out and "removed runs/without" in out
    assert [path.name for path in run_folders()] == ["mybook-1", "tokens"]


def test_the_commands_for_long_documents_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_guide(LONG_DOCUMENTS, 20, tmp_path, monkeypatch, capsys)
    sizes = {name: (tmp_path / f"{name}.memory").stat().st_size for name in ("mybook", "twice")}
    assert sizes["twice"] < 1.5 * sizes["mybook"]  # only the open segments differ
    assert "saved twice.memory" in capsys.readouterr().out


def run_guide(
    guide: Path, num_lines: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MNEMO_DATA", str(folder / "data"))
    draw = random.Random(0)
    Path("mybook.txt").write_text("".join(" ".join(draw.choices(WORDS, k=9)) + ".\n" for _ in range(num_lines)))
    for command in guide_commands(guide):
        if "--tokens" in command:
            command[command.index("--tokens") + 1] = FEW_TOKENS
        options = SMALL if command[0] == "train" and "--help" not in command else []
        assert main([*command, *options]) == 0, (command, capsys.readouterr().err)
