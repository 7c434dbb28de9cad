"""A mechanism of the user's own, by --import and by an entry point: the example of docs/adding-memory.md."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from helpers.doc_pages import ROOT, blocks
from helpers.own_memories import forget_mechanisms, keep_mechanisms
from helpers.tiny_runs import sample_text

from mnemo import cli
from mnemo.errors import MnemoError
from mnemo.memory import XL, Plan, own
from mnemo.storage.run_header import load_header

(EXAMPLE,) = (block for block in blocks(ROOT / "docs" / "adding-memory.md") if "@mechanism" in block)
SMALL = "--model.num-layers 2 --model.dim 16 --model.num-heads 2 --model.head-dim 8 --model.inner-dim 16".split()
TRAIN = ["train", "book.txt", *SMALL, "--train.batch", "2", "--train.segment", "8", "--train.device", "cpu"]
IMPORT = ["--import", "my_memory.py"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keep_mechanisms(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(sample_text(), encoding="utf-8")
    Path("my_memory.py").write_text(EXAMPLE)
    return tmp_path


def mnemo(*argv: str) -> None:
    """Run a command as in a new process."""
    forget_mechanisms()
    assert cli.main(list(argv)) == 0


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    forget_mechanisms()
    assert cli.main(list(argv)) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_train_resume_eval_read_and_generate(capsys: pytest.CaptureFixture[str]) -> None:
    mnemo(*TRAIN, *IMPORT, "--memory", "average", "--train.steps", "2", "--name", "own")
    shown = capsys.readouterr()
    assert "memory: 1 slot in every layer (Average)" in shown.err
    assert "next: mnemo chat --import my_memory.py, mnemo generate --import my_memory.py, " in shown.out
    stored = json.loads(Path("runs/own/recipe.json").read_text())
    assert stored["imports"] == [{"name": "Average", "file": "my_memory.py"}]
    mnemo("train", "--resume", "own", "--train.steps", "4", *IMPORT)
    mnemo("train", "tiny-bytes", *IMPORT, "--model.memory.long", "average", "--dry-run")
    mnemo("eval", "own", "--import=my_memory.py", "--json")
    mnemo("read", "own", "book.txt", "--save", "book.mem", *IMPORT)
    mnemo("generate", "own", "--memory", "book.mem", "--tokens", "3", *IMPORT)
    mnemo("export", "own", *IMPORT)
    mnemo("info", "runs/own/export", *IMPORT)
    capsys.readouterr()
    mnemo("runs", "--json")
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["state"] == "needs an import" and "--import my_memory.py" in shown["note"]
    needed = "runs/own needs --import my_memory.py: its memory 'Average' is defined there"
    for verb in ("eval own", "generate own", "info own", "train --resume own", "train --from own"):
        assert needed in complaint(capsys, *verb.split()), verb


def test_a_run_never_executes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mnemo(*TRAIN, *IMPORT, "--memory", "average", "--train.steps", "1", "--name", "own")
    Path("my_memory.py").write_text("raise SystemExit('executed')")
    capsys.readouterr()
    assert "needs --import my_memory.py" in complaint(capsys, "eval", "own")


def test_in_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["sweep", *TRAIN[1:], *IMPORT, "--memory", "none,average", "--seeds", "1", "--train.steps", "2"]
    mnemo(*sweep)
    assert "average is better than none" in capsys.readouterr().out
    (stored,) = Path("runs").glob("sweep-*/sweep.json")
    command = json.loads(stored.read_text())["command"]
    assert command.startswith("mnemo sweep ") and command.endswith("--train.steps 2 --import my_memory.py")


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "site" / "averages.dist-info"
    package.mkdir(parents=True)
    (package.parent / "averages.py").write_text(EXAMPLE)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: averages\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[mnemo.memories]\naverage = averages:Average\nbad = averages:Nothing\n")
    own.load_installed.cache_clear()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(package.parent))
        importlib.invalidate_caches()
        mnemo(*TRAIN, "--memory", "average", "--train.steps", "1", "--name", "own")
        assert "'bad' of the package averages fails: AttributeError" in capsys.readouterr().err
        assert isinstance(load_header(Path("runs/own")).recipe.model.memory.long, own.own_mechanisms()["average"])
    sys.modules.pop("averages", None)
    own.load_installed.cache_clear()
    assert "needs the package averages" in complaint(capsys, "info", "own")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "defines no memory: put @mnemo.memory.mechanism"),
        ("import nosuch_library", "--import mine.py fails: ModuleNotFoundError: No module named 'nosuch_library'"),
        ("def (", "fails: SyntaxError"),
        ("from mnemo.memory import mechanism\n@mechanism\nclass A: ...", "A is not the configuration of a memory"),
        (EXAMPLE.replace("class Average:", "class XL:"), "there is a memory 'xl' already"),
    ],
)
def test_files_that_are_no_memory(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(text)
    assert said in complaint(capsys, "runs", "--import", "mine.py")


@pytest.mark.parametrize("argv", [["--import", "book.txt"], ["--import", "nosuch.py"], ["--import"]])
def test_an_import_needs_a_python_file(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs a Python file" in complaint(capsys, "runs", *argv)


def test_recorded_imports_are_checked() -> None:
    forget_mechanisms()
    assert own.origins(Plan(long=XL(length=8))) == []
    with pytest.raises(MnemoError, match="imports are not a list"):
        own.require_imports("x", "runs/own")
    with pytest.raises(own.ImportNeeded, match="the Python module elsewhere"):
        own.require_imports([{"name": "Mine", "module": "elsewhere"}], "runs/own")
