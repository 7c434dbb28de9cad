"""Runs that move between numbers of processes, and runs of several processes that stop and go on."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ranks
from helpers.monitors import Signaller
from helpers.tolerances import TOLERANCES
from helpers.toy_runs import exact, losses, metrics, recipe, run

from mnemo import cli
from mnemo.errors import MnemoError
from mnemo.memory import MemoryTokens
from mnemo.recipes.recipe import AverageConfig, Recipe
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.storage.checkpoint import Checkpoint
from mnemo.storage.run_folder import export_run, open_run
from mnemo.training import Outcome, create_run, train
from mnemo.training.data import open_data
from mnemo.training.processes import Ranks, joined

KINDS: tuple[Any, ...] = ("ddp", "fsdp")
STEPS: dict[str, Any] = {
    "steps": 4,
    "batch": 9,
    "log_every": 1,
    "eval_every": 4,
    "checkpoint_every": 4,
    "device": "cpu",
}
MOVING = recipe(**exact(accumulate=2, average=AverageConfig(start=2), **STEPS))
STOPPED = recipe({"tokens": MemoryTokens(num=2)}, bptt=1, accumulate=2, **STEPS)
"""With dropout, memory tokens and a window that reaches back."""


def of(wanted: Recipe, kind: Any) -> Recipe:
    return replace(wanted, train=replace(wanted.train, parallel=kind))


def go_on(folder: Path, world: Ranks, until: int | None = None) -> Outcome:
    """Train until a signal reaches the main process, or to the end."""
    monitor = Signaller(signal.SIGTERM, step=until) if until else None
    return train(folder, monitor=monitor, world=world)


def first_two(folder: Path) -> list[int | None]:
    """Two processes: the moving runs' first steps, the last ones of runs that one process began, and runs that stop
    and go on with a whole one beside them."""
    signals = []
    with joined("cpu", 60) as world:
        assert isinstance(world, Ranks)
        for kind in KINDS:
            world.main(lambda kind=kind: str(create_run(of(MOVING, kind), folder / f"moving-{kind}")))
            signals.append(go_on(folder / f"moving-{kind}", world, until=1).signal)
            go_on(folder / f"begun-{kind}", world)
            whole_and_stopped(folder, kind, world)
    return signals


def then_four(folder: Path) -> None:
    """Four processes: the moving runs' last steps, of which the first were done by two and by one."""
    with joined("cpu", 60) as world:
        assert isinstance(world, Ranks)
        for kind in KINDS:
            go_on(folder / f"moving-{kind}", world)
        whole_and_stopped(folder, "ddp", world)


def whole_and_stopped(folder: Path, kind: str, world: Ranks) -> None:
    paths = [folder / f"{name}-{kind}-{world.size}" for name in ("whole", "stopped")]
    for path in paths:
        world.main(lambda path=path: str(create_run(of(STOPPED, kind), path)))
    go_on(paths[0], world)
    for until in (2, None):
        go_on(paths[1], world, until)


def end_of(folder: Path) -> Checkpoint:
    found = run_folder.last_checkpoint(folder)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run(folder / "alone", of=MOVING)
    for kind in KINDS:
        create_run(of(MOVING, kind), folder / f"begun-{kind}")
        assert train(folder / f"begun-{kind}", monitor=Signaller(signal.SIGTERM, step=2)).step == 2
    assert ranks.run(2, first_two, folder) == [[signal.SIGTERM] * 2] * 2
    for kind in KINDS:
        path = folder / f"moving-{kind}"
        assert checkpoints.checkpoint_steps(path) == [0, 1]
        shutil.copytree(path, folder / f"home-{kind}")
        assert train(folder / f"home-{kind}").step == STEPS["steps"]
    return folder


@pytest.fixture(scope="module")
def runs_of_four(runs: Path) -> Path:
    for kind in KINDS:
        assert train(runs / f"moving-{kind}", monitor=Signaller(signal.SIGTERM, step=3)).step == 3
    ranks.run(4, then_four, runs)
    return runs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "size"), [("home", 1), ("begun", 2)])
def test_a_run_moves_from_two_to_one_and_from_one_to_two(name: str, size: int, kind: str, runs: Path) -> None:
    check_moved(runs, f"{name}-{kind}", size)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_moves_from_two_to_one_to_four(kind: str, runs_of_four: Path) -> None:
    check_moved(runs_of_four, f"moving-{kind}", 4)


def check_moved(runs: Path, name: str, size: int) -> None:
    """The run has the numbers of one process that did everything; its last steps were done by `size` processes."""
    tolerance = TOLERANCES[torch.float64]
    moved = runs / name
    assert losses(moved) == pytest.approx(losses(runs / "alone"), rel=tolerance.rtol, abs=tolerance.atol)
    ends = [end_of(path) for path in (moved, runs / "alone")]
    assert [end.num_ranks for end in ends] == [size, 1]
    for name in ("cursor", "tokens", "step", "stale", "evaluated"):
        assert ends[0].progress[name] == ends[1].progress[name]
    for part in ("weights", "training"):
        own, expected = (end.tensors(part) for end in ends)
        names = [name for name in expected if not name.startswith("rng/")]
        assert {name for name in own if not name.startswith("rng/")} == set(names)
        for name in names:
            torch.testing.assert_close(own[name], expected[name], rtol=tolerance.rtol, atol=tolerance.atol)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_go_on_bit_for_bit(kind: str, runs: Path) -> None:
    check_went_on(runs, kind, 2)


@pytest.mark.thorough
def test_four_processes_go_on_bit_for_bit(runs_of_four: Path) -> None:
    check_went_on(runs_of_four, "ddp", 4)


def check_went_on(runs: Path, kind: str, size: int) -> None:
    whole, stopped = runs / f"whole-{kind}-{size}", runs / f"stopped-{kind}-{size}"
    assert metrics(stopped) == metrics(whole)
    ends = [end_of(path) for path in (whole, stopped)]
    for part in checkpoints.PARTS:
        first, second = (end.tensors(part) for end in ends)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_processes_draw_their_own_dropout(runs: Path) -> None:
    generators = end_of(runs / "whole-ddp-2").tensors("training", "rng/")
    assert sorted(generators) == ["rng/cpu", "rng/cpu.1"]
    assert not torch.equal(generators["rng/cpu"], generators["rng/cpu.1"])


def test_an_export_stands_for_its_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = runs / "begun-fsdp", runs / "exported"
    assert cli.main(["export", str(source), "--output", str(target), "--json"]) == 0
    loaded, expected = open_run(target), open_run(source)
    assert json.loads(capsys.readouterr().out) == {"folder": str(target), "step": expected.step}
    assert loaded.step == expected.step
    for name, weight in expected.model.state_dict().items():
        assert torch.equal(weight, loaded.model.state_dict()[name])
    data = open_data(loaded.recipe)
    best = run_folder.best_checkpoint(source)
    assert data.score is not None and best is not None
    scored = data.score(loaded.model, Signaller(0).show)
    assert scored.loss == pytest.approx(best.progress["best"][1], rel=1e-10)
    with pytest.raises(MnemoError, match="exists"):
        export_run(source, target)
    with pytest.raises(MnemoError, match="--from"):
        train(target)
    fine = create_run(recipe(**exact(steps=1)), runs / "fine-tuned", source=target)
    assert train(fine).step == 1


def test_an_export_needs_a_checkpoint(runs: Path) -> None:
    create_run(MOVING, runs / "new")
    with pytest.raises(MnemoError, match="no whole checkpoint"):
        export_run(runs / "new", runs / "nothing")
    assert not (runs / "nothing").exists()
