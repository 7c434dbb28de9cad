"""`mnemo.open_run`: an object that writes, scores, reads, plots and shows itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.run_folders import make_run, recipe
from helpers.tiny_runs import tiny_run

import mnemo
from mnemo.errors import MnemoError
from mnemo.report.run_curves import RunCurves
from mnemo.report.runs import read_run
from mnemo.run import Run
from mnemo.training.run_progress import Best
from mnemo.training.trainer import Outcome

BOOK = "the cat sat under a tree\n" * 3


@pytest.fixture(scope="module")
def run() -> Run:
    return mnemo.open_run(tiny_run(), device="cpu")


def test_it_is_a_loaded_run(run: Run) -> None:
    assert isinstance(run, mnemo.LoadedRun)
    assert run.step == 2 and run.recipe.train.segment == 8 and run.path == tiny_run()
    assert run.first_state(3)[0].length.tolist() == [0, 0, 0]


def test_generate_equals_the_command(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    from mnemo.cli import main

    text = run.generate("the cat", 12, seed=5)
    assert text.startswith("the cat")
    options = ["--prompt", "the cat", "--tokens", "12", "--seed", "5", "--no-save", "--device", "cpu"]
    assert main(["generate", str(tiny_run()), *options]) == 0
    assert capsys.readouterr().out == text + "\n"
    assert len(run.generate(num_tokens=3, temperature=0, top_k=2, top_p=0.9)) <= 3


def test_score(run: Run) -> None:
    loss = run.score(BOOK)
    assert loss.tokens == len(BOOK) and loss.predicted == len(BOOK) - 1
    assert loss.bits_per_token == pytest.approx(loss.nats / loss.predicted / 0.6931471805599453)
    assert run.score(BOOK, memory_length=0).nats != loss.nats
    assert repr(loss).splitlines()[0] == f"loss of {len(BOOK)} tokens (byte)"
    alone = run.score("t")
    assert alone.loss is None and alone.perplexity is None and "not predicted" in repr(alone)


def test_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    memory = run.read(tmp_path / "book.txt", memory_length=20)
    assert memory.num_tokens == len(BOOK) and memory.memory().layers[0].slots == 20
    assert memory.generate(4)
    with pytest.raises(MnemoError, match="is not a file"):
        run.read(tmp_path / "none.txt")


def test_it_shows_itself(run: Run) -> None:
    lines = repr(run).splitlines()
    assert lines[0] == "run run, step 2"
    facts = {line.split()[0]: line for line in lines[1:]}
    assert "2 layers of 16" in facts["model"] and "8 in all 2 layers" in facts["memory"]
    assert "tiny-bytes (bytes)" in facts["trained"] and "bpc at step 2" in facts["best"]
    assert "<caption>run run, step 2</caption>" in run._repr_html_()


def test_plot(run: Run, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    curves = run.plot()
    assert isinstance(curves.figure, Figure) and len(curves.figure.axes) == 1
    assert "● training, bpc" in repr(curves) and curves._repr_svg_().startswith("<svg")
    for kind, head in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert curves.save(tmp_path / f"curves.{kind}").read_bytes().startswith(head)
    with pytest.raises(MnemoError, match="ends with .png, .svg, .pdf"):
        curves.save(tmp_path / "curves.doc")


def test_a_run_without_losses_has_no_curves(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "mine", recipe())
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(MnemoError, match="no losses to draw"):
        RunCurves(read_run(folder, "mine"))


def test_the_last_run_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(tiny_run())
    assert mnemo.open_run(device="cpu").path == Path("runs/mine")


def test_an_outcome_shows_itself() -> None:
    shown = repr(Outcome(Path("runs/x"), 40, Best(20, 1.0), None)).splitlines()
    assert shown[0] == "finished after step 40" and "1.0000 nats (1.4427 bits) per token at step 20" in shown[2]
    assert 'mnemo.open_run("runs/x")' in shown[3]
    stopped = Outcome(Path("x"), 7, None, 15, finished=False)
    assert repr(stopped).startswith("stopped by signal 15 after step 7")
    assert repr(Outcome(Path("x"), 40, None, 15)).startswith("finished after step 40")


def test_a_score_shows_itself(run: Run) -> None:
    score = mnemo.evaluate(run.model, mnemo.Corpus.open("tiny-bytes").split("valid"), run.recipe.evaluation, segment=8)
    shown = repr(score)
    assert shown.startswith("score on valid\n  bits per token   ") and "<table>" in score._repr_html_()
