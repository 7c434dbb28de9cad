"""What a stranger stumbled over, once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.golden import GOLDEN
from helpers.run_folders import make_run, recipe, score, write_lines, write_result
from helpers.tiny_runs import MODEL, tiny_run

from mnemo import cli
from mnemo.data.corpus import Corpus
from mnemo.errors import unknown
from mnemo.memory import LSTM, Plan
from mnemo.model.positions import NoPositions
from mnemo.recipes.recipe import DataConfig, Recipe, TrainConfig
from mnemo.report.run_page import write_report
from mnemo.training import create_run, train


def complaint(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert cli.main([str(word) for word in argv]) == 2
    return capsys.readouterr().err


def test_a_file_is_no_corpus_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "book.txt").write_text("text")
    assert f"mnemo prepare NAME --from {tmp_path / 'book.txt'}" in complaint(capsys, "prepare", tmp_path / "book.txt")


def test_a_corpus_is_replaced_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("abc\n" * 100)
    second.write_text("xyz\n" * 200)
    argv = ["prepare", "mine", "--root", str(tmp_path / "data"), "--from"]
    assert cli.main([*argv, str(first)]) == 0
    capsys.readouterr()
    assert "prepared already" in complaint(capsys, *argv, second)
    assert Corpus.open("mine", tmp_path / "data").source == str(first)
    assert cli.main([*argv, str(second), "--replace"]) == 0
    assert Corpus.open("mine", tmp_path / "data").source == str(second)


def test_unknown_names_point_to_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "info", "nosuch")
    assert line == "mnemo: error: unknown preset or run 'nosuch'; mnemo info --list shows all\n"
    line = complaint(capsys, "info", "enwik8-bas")
    assert "did you mean 'enwik8-base'" in line and line.endswith("? mnemo info --list shows all\n")


def test_errors_name_flags_not_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model.num-layers = 0 must be positive" in complaint(
        capsys, "train", "tiny-bytes", "--model.num-layers", 0
    )


def test_far_fetched_names_are_not_suggested() -> None:
    assert str(unknown("verb", "cat", ["train", "eval"])) == "unknown verb 'cat'; known: eval, train"
    many = str(unknown("thing", "qqq", [f"name{i}" for i in range(100)]))
    assert many.endswith(" and 80 more")
    assert len(str(unknown("thing", "x" * 10**6, ["a"]))) < 200


def test_messages_are_short_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "info", "\x1b[31m" + "x" * 10**5)
    assert len(line) < 2100 and "\x1b" not in line


def test_reference_files_may_lie_beside_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = GOLDEN / "transformer-xl"
    files = [folder / "README.md", folder / "data_40_iterators.safetensors"]
    assert cli.main(["parity", *map(str, files)]) == 0
    assert "left out, not safetensors: README.md" in capsys.readouterr().err
    assert "not a complete safetensors file" in complaint(capsys, "parity", files[0])


def test_a_length_chosen_on_test_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["eval", str(tiny_run()), "--find-length", "--split", "test", "--limit", "40"])
    assert "choose it on valid" in capsys.readouterr().err


def test_a_memory_without_length_is_not_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tiny_run().parent  # prepares tiny-bytes
    assert corpus.is_dir()
    model = replace(MODEL, memory=Plan(long=LSTM()), positions=NoPositions())
    plan = TrainConfig(steps=1, batch=2, segment=8, device="cpu")
    train(create_run(Recipe(model=model, data=DataConfig(corpus="tiny-bytes"), train=plan), tmp_path / "lstm"))
    assert "has no length" in complaint(capsys, "eval", tmp_path / "lstm", "--sweep-memory", "0,8")


def test_scores_say_how_they_came_about(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    write_result(run, "score-a", kind="score", score=score(0, 1.5, sliding=True, tokens=1234))
    write_result(run, "score-b", kind="score", score=score(64, 1.5, tokens=1235))
    write_report([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert ">segment 64, sliding window, 1,234 tokens<" in text and ">memory 64, segment 64, 1,235 tokens<" in text


def test_a_perplexity_beyond_drawing_leaves_its_sweep(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    scores = [score(memory, 9.0, word_perplexity=1e22) for memory in (0, 64)]
    write_result(run, "sweep-a", kind="sweep", scores=scores)
    assert write_report([run], tmp_path / "page.html") == []
    assert "What memory is worth" in (tmp_path / "page.html").read_text()


def test_a_diverged_run_stays_in_the_picture(tmp_path: Path) -> None:
    from mnemo.report.plots import Line
    from mnemo.report.run_figures import _settled_maximum

    good = Line("good", [(float(step), 2.0) for step in range(0, 1000, 10)])
    diverged = Line("bad", [(0.0, 2.0), (5.0, 2.0), (10.0, 50.0)])
    assert _settled_maximum([good, diverged]) == 50.0


def test_a_pipe_among_results_does_not_block(tmp_path: Path) -> None:
    import os

    run = make_run(tmp_path / "run", recipe())
    write_result(run, "a", kind="score", score=score(64, 1.5))
    os.mkfifo(run / "results" / "b.json")
    (note,) = write_report([run], tmp_path / "page.html")
    assert "b.json is not a regular file" in note
    shutil.rmtree(run / "results")
    write_lines(run / "timing.jsonl", [{"step": 1e300, "seconds": 1e300, "tokens_per_second": -1e300}])
    assert write_report([run], tmp_path / "page.html")
