"""The examples run with small arguments, print what examples/README.md shows, and are short."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.doc_pages import ROOT
from helpers.own_memories import keep_mechanisms
from helpers.tiny_runs import tiny_run

import mnemo
from mnemo.cli import main
from tools.notebook import execute

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "memory_in_pictures.ipynb"
PLAIN = ("compare_memories", "read_and_continue", "own_memory", "where_memory_helps")
"""Examples that need no extras."""


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # as Python does for a script, so that examples can import each other
    keep_mechanisms(monkeypatch)


def run_example(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    script = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(script, run_name="__main__")


def shown_lines(name: str) -> list[str]:
    """The output that examples/README.md shows, without the lines of dots."""
    (block,) = re.findall(
        rf"    \$ python examples/{name}.py\n((?:    .*\n|\n)+)", (EXAMPLES / "README.md").read_text()
    )
    return [line for line in re.sub("^    ", "", block, flags=re.M).splitlines() if line and line != "..."]


def without_numbers(text: str) -> str:
    return re.sub(r"\s*[\d.,]+\s*|#+", " ", text)


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def assert_shown(name: str, printed: str) -> None:
    """Every line that examples/README.md shows was printed; numbers may be rounded differently on other machines."""
    lines = iter(printed.splitlines())
    for shown in shown_lines(name):
        found = next(line for line in lines if without_numbers(line) == without_numbers(shown))
        assert numbers(found) == pytest.approx(numbers(shown), rel=0.02), shown


@pytest.mark.parametrize("name", PLAIN)
def test_examples_are_short_and_need_no_extras(name: str) -> None:
    program = (EXAMPLES / f"{name}.py").read_text()
    assert len(program.splitlines()) < 60
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", program, re.MULTILINE)) - sys.stdlib_module_names
    assert imported <= {"mnemo", "numpy", "rich", "torch", "compare_memories"}
    assert f"python examples/{name}.py" in program.split('"""')[1]


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| \[(\S+)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))


@pytest.mark.parametrize("name", ["compare_memories", "own_memory"])
def test_comparisons_run_on_a_text_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mybook.txt").write_text("Once upon a time there was a fox who could read. " * 400)
    run_example(monkeypatch, name, "mybook.txt", "--steps", "2", "--slots", "8")
    printed, shown = capsys.readouterr().out.splitlines(), shown_lines(name)
    assert printed[0] == "mybook.txt: 17,644 bytes for training, 2 steps per memory"
    assert [without_numbers(line) for line in printed[1:]] == [without_numbers(line) for line in shown[1:]]
    assert list(tmp_path.iterdir()) == [tmp_path / "mybook.txt"]


def test_a_comparison_needs_no_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_example(monkeypatch, "compare_memories", "--steps", "1", "--slots", "4", "--memories", "rmt")
    first, shown = capsys.readouterr().out.splitlines()[0], shown_lines("compare_memories")[0]
    assert first == shown.replace("300 steps", "1 steps")


def test_commands_take_the_mechanism_of_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mybook.txt").write_text("Once upon a time there was a fox who could read. " * 400)
    imported = ["--memory", "pooled", "--import", str(EXAMPLES / "own_memory.py")]
    assert main(["train", "mybook.txt", *imported, "--dry-run"]) == 0
    assert "64 slots in every layer (Pooled)" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.thorough
def test_memory_pays_in_the_comparison(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_example(monkeypatch, "compare_memories")
    none, xl = (float(bits) for bits in re.findall(r"([\d.]+) bits per byte", capsys.readouterr().out))
    assert none > 2.8 and xl < 1.6


def test_a_document_is_continued_from_its_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(monkeypatch, "read_and_continue", "--tokens", "5")
    out = capsys.readouterr().out
    without, remembered = (float(bits) for bits in re.findall(r"([\d.]+) bits per byte", out))
    assert remembered < without - 0.3
    assert Path("document.memory").stat().st_size == 6_967_568
    assert_shown("read_and_continue", out)


def test_a_short_document_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "note.txt").write_text("Buy milk.")
    with pytest.raises(SystemExit, match="note.txt is too short"):
        run_example(monkeypatch, "read_and_continue", "note.txt")


@pytest.mark.thorough
def test_words_that_gain_most_are_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_example(monkeypatch, "where_memory_helps")
    out = capsys.readouterr().out
    assert_shown("where_memory_helps", out)
    assert out.rstrip().endswith('Oake carries the milk."')


def test_gains_of_characters_with_several_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mybook.txt").write_text("Zoë had a café. " * 50, encoding="utf-8")
    run_example(monkeypatch, "where_memory_helps", "mybook.txt", "--limit", "600")
    assert "[café]" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="needs more than 512 bytes"):
        run_example(monkeypatch, "where_memory_helps", "mybook.txt", "--limit", "100")


def kinds_of_output(notebook: dict[str, Any]) -> list[list[str]]:
    return [[output["output_type"] for output in cell.get("outputs", [])] for cell in notebook["cells"]]


def check_notebook() -> None:
    """All cells run, and their stored output is of the kinds that they produce."""
    kinds = kinds_of_output(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    assert kinds_of_output(execute(NOTEBOOK)) == kinds
    assert sum("display_data" in cell for cell in kinds) == 4
    assert NOTEBOOK.stat().st_size < 250_000


def test_the_notebook_runs_with_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small = mnemo.open_run(tiny_run(segment=64), device="cpu")
    monkeypatch.setattr(mnemo, "open_run", lambda name, device: small)
    check_notebook()


@pytest.mark.slow
@pytest.mark.thorough
def test_the_notebook_runs_and_its_stored_output_is_whole() -> None:
    check_notebook()
