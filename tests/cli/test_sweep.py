"""`mnemo sweep`: several memories and seeds on one text, resumed, extended, judged, reported."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.monitors import Signaller
from helpers.tiny_runs import sample_text

from mnemo import cli
from mnemo.cli.sweep_run import fastest
from mnemo.papers import jobs
from mnemo.storage.checkpoint import checkpoint_steps
from mnemo.storage.run_header import load_header
from mnemo.training import training_speed

CONFIG = """
[model]
num_layers = 1
dim = 16
num_heads = 2
head_dim = 8
inner_dim = 16
memory.long.length = 8
[train]
steps = 4
batch = 2
segment = 8
eval_every = 2
device = "cpu"
[evaluation]
batch = 2
limit = 100
[test]
batch = 2
"""
SWEEP = ["sweep", "book.txt", "--config", "small.toml", "--memory", "none,xl,rmt"]
TWO = [*SWEEP[:-1], "none,xl"]
CELLS = Path("runs/sweep-book/cells")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(sample_text(), encoding="utf-8")
    Path("small.toml").write_text(CONFIG)
    return tmp_path


def losses(runs: str = "runs") -> dict[str, float]:
    stored = json.loads(Path(f"{runs}/sweep-book/results.json").read_text())
    return {cell["cell"]: cell["values"]["scores"]["test"]["loss"] for cell in stored["cells"]}


def test_memories_and_seeds_end_in_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SWEEP, "--seeds", "2", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert [row["memory"] for row in found["table"]] == ["none", "xl", "rmt"]
    assert all(row["seeds"] == 2 and "±" in row["test bpc (95% interval)"] for row in found["table"])
    none, *_ = found["memories"]
    assert none["memory"] == "none" and none["unit"] == "bpc" and list(none["by_seed"]) == ["1111", "1112"]
    assert none["mean"] == pytest.approx(sum(none["by_seed"].values()) / 2) and none["half_width"] > 0
    assert none["parameters"] > 0 and none["tokens_per_second"] > 0
    claims = {each["claim"]: each["ours"] for each in found["verdicts"]}
    assert set(claims) == {"xl is better than none", "rmt is better than none"}
    assert all("preliminary, n = 2" in ours for ours in claims.values())
    assert "[6/6] rmt-seed1112" in shown.err and " left" in shown.err
    page = Path(found["page"]).read_text()
    for part in (
        "Memories on",
        "xl is better than none",
        "Learning curves",
        "Test bpc",
        "tokens/s",
        "mnemo sweep book.txt",
    ):
        assert part in page, part
    assert "The paper" not in page and "mnemo reproduce" not in page
    assert "--memory none,xl,rmt --seeds 2" in page and "--json" not in page
    recipes = {path.parent.parent.name: load_header(path.parent).recipe for path in CELLS.glob("*/run/recipe.json")}
    assert len(recipes) == 6
    assert {recipe.data.corpus for recipe in recipes.values()} == {recipes["xl-seed1111"].data.corpus}
    assert all(recipe.train.seed == int(name[-4:]) for name, recipe in recipes.items())
    assert recipes["rmt-seed1112"].train.bptt == 2 and recipes["none-seed1111"].model.memory.long.length == 0


def test_an_interrupted_sweep_goes_on_and_can_grow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [*TWO, "--seeds", "1"]
    assert cli.main([*whole, "--runs", "elsewhere"]) == 0
    train, calls = jobs.train, []

    def interrupted(*args: object, **options: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train", interrupted)
        assert cli.main(whole) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert set(losses()) == {"none-seed1111"}
    before = (CELLS / "none-seed1111/result.json").stat().st_mtime_ns
    assert cli.main(whole) == 0
    assert losses() == losses("elsewhere")
    assert cli.main([*TWO, "--seeds", "2"]) == 0
    assert len(losses()) == 4
    assert (CELLS / "none-seed1111/result.json").stat().st_mtime_ns == before


def test_the_exit_code_of_a_sweep_names_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    train = jobs.train
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train", lambda run, monitor: train(run, monitor=Signaller(signal.SIGTERM)))
        assert cli.main([*TWO, "--seeds", "1"]) == 128 + signal.SIGTERM
    assert checkpoint_steps(CELLS / "none-seed1111" / "run")[-1] == 2  # in the evaluation after it
    assert not Path("runs/sweep-book/results.json").exists()


def test_a_sweep_that_is_running_is_not_begun_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, codes, cells = jobs.train, [], []

    def disturbed(*args: object, **options: object) -> object:
        codes.append(cli.main([*TWO, "--seeds", "1"]))
        cells.append({path.name for path in CELLS.iterdir()})
        return train(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train", disturbed)
        assert cli.main([*TWO, "--seeds", "1"]) == 0
    assert codes == [2, 2] and cells[0] == {"none-seed1111"}
    assert capsys.readouterr().err.count("mnemo: error: runs/sweep-book is in use by another process\n") == 2
    assert set(losses()) == {"none-seed1111", "xl-seed1111"}


def test_a_dry_run_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SWEEP, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "9 runs of 4 steps" in text and "rmt-seed1113" in text and "in all" in text
    assert not Path("runs").exists()


def test_the_estimate_of_a_dry_run_is_that_of_the_fastest_update(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates take 30 seconds when another process has the cores, else 2 or 3."""
    begins_and_ends = itertools.cycle((0.0, 30.0, 30.0, 32.0, 32.0, 62.0, 62.0, 65.0))
    clock = SimpleNamespace(perf_counter=lambda: next(begins_and_ends))
    monkeypatch.setattr(training_speed, "time", clock)
    assert cli.main([*TWO, "--seeds", "1", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["seconds"] for each in found["memories"]] == [4 * 2.0, 4 * 2.0] and found["seconds"] == 16.0
    assert cli.main([*TWO, "--seeds", "1", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "about 16s in all, from the fastest of some updates of each memory: evaluations come on top, and" in said
    assert "other work on this machine during this estimate makes it too long" in said


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        ([0.9, 0.9, 0.9, 0.9, 0.1], (0.9, 4)),  # slow ones: four suffice
        ([5.0, 4.0, 6.0, 3.0, 1.0], (3.0, 4)),
        ([0.5, 0.5, 0.5, 0.4, 0.5, 0.2, 0.5, 0.1], (0.2, 7)),  # more, for three seconds
        ([0.5] * 5 + [0.11] * 10, (0.11, 10)),
        ([0.002] * 99 + [0.001, 0.0005], (0.001, 100)),
    ],
)
def test_how_many_updates_are_timed(timings: list[float], expected: tuple[float, int]) -> None:
    left = iter(timings)
    assert (fastest(left), len(timings) - len(list(left))) == expected


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*TWO, "--seeds", "1"]) == 0
    table = {
        (*TWO, "--seeds", "1", "--train.steps", "5"): "begun with another recipe (train.steps 4, now 5)",
        (*SWEEP, "--seeds", "0"): "--seeds 0 must be between 1 and 100",
        (*SWEEP, "--name", "a/b"): "cannot be a sweep's name",
        ("sweep", "book.txt", "--memory", "none,rtm"): "unknown memory 'rtm'; did you mean 'rmt'?",
        ("sweep", "book.txt", "--memory", "xl,transformer-xl"): "name two memories or more",
        ("sweep", "nosuch.txt", "--memory", "none,xl"): "no file or folder 'nosuch.txt'",
        ("sweep", "rmt-copy-seg72", "--memory", "none,xl"): "compares memories on text",
        ("eval", "sweep-book"): "such as runs/sweep-book/cells/none-seed1111/run",
        ("eval", "runs/sweep-book"): "such as runs/sweep-book/cells/none-seed1111/run",
        ("sweep", "tiny-bytes", "--from", "x"): "starts from new weights",
    }
    capsys.readouterr()
    for argv, said in table.items():
        assert cli.main(list(argv)) == 2, argv
        line = capsys.readouterr().err
        assert said in line.splitlines()[-1], (argv, line)
