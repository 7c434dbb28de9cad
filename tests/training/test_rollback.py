"""A run that diverges goes back to a healthy checkpoint, and is the same whether or not it is interrupted."""

from __future__ import annotations

import json
import math
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ranks
from helpers.divergence import Fault, Killed, contents, diverging, drift_from, last, nan_at, spike_at
from helpers.marks import few
from helpers.monitors import Notes, Signaller
from helpers.recorders import Rerun
from helpers.toy_runs import metrics, recipe, scored_as

from mnemo.memory import MemoryTokens
from mnemo.memory.state import leaves
from mnemo.recipes.recipe import AverageConfig, HealthConfig, OptimizerConfig, Recipe, ScheduleConfig
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage.run_folder import open_run
from mnemo.storage.run_header import load_header
from mnemo.training import Diverged, create_run, train
from mnemo.training import trainer as trainer_module
from mnemo.training.checkpointing import RunCheckpoints
from mnemo.training.engine import Engine
from mnemo.training.processes import joined
from mnemo.training.training_log import TrainingLog

STEPS: dict[str, Any] = {
    "steps": 18,
    "batch": 4,
    "log_every": 2,
    "eval_every": 6,
    "checkpoint_every": 3,
    "device": "cpu",
    "health": HealthConfig(patience=3, slower_steps=4),
}
PLAIN = recipe(**STEPS)
HARD = recipe({"tokens": MemoryTokens(num=2)}, bptt=1, accumulate=2, average=AverageConfig(start=5), **STEPS)
"""With memory tokens, a window that reaches back, parts of the batch and averaged weights."""
FAULTS: dict[str, Fault] = {"nan": nan_at(7), "spike": spike_at(7, 10), "drift": drift_from(5, 11)}


def trained(folder: Path, wanted: Recipe, fault: Fault, kill_at: int | None = None, **options: Any) -> None:
    """Train to the end; if the process is killed before, resume."""
    create_run(wanted, folder)
    for moment in (kill_at, None) if kill_at else (None,):
        with diverging(fault, moment):
            try:
                train(folder, **options)
            except Killed:
                assert moment


def events(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in metrics(folder).splitlines()]
    return [line for line in lines if line["split"] == "event"]


GOING_BACK = [(recipe, name) for recipe in ("plain", "bptt") for name in FAULTS]


@pytest.mark.parametrize(("kind", "name"), few(GOING_BACK, lambda kind, name: (kind == "bptt") == (name == "spike")))
def test_a_run_goes_back_and_on_to_its_end(kind: str, name: str, tmp_path: Path) -> None:
    wanted = {"plain": PLAIN, "bptt": HARD}[kind]
    notes = Notes()
    trained(tmp_path / "run", wanted, FAULTS[name], monitor=notes)
    end = last(tmp_path / "run")
    assert end.step == 18 and all(bool(tensor.isfinite().all()) for tensor in end.tensors("weights").values())
    (event,) = events(tmp_path / "run")
    assert event["back_to"] == event["step"] and event["back_to"] % 3 == 0
    assert event["passed"] == event["bad_step"] - event["back_to"] and event["rate_factor"] == 1.0
    expected = {"nan": (8, 6), "spike": (10, 6), "drift": (11, 6)}[name]  # step 9 is saved, but not healthy
    assert (event["bad_step"], event["back_to"]) == expected
    assert [line for line in notes.lines if line.startswith("rollback 1 of at most 10: ")]
    steps = [json.loads(line)["step"] for line in metrics(tmp_path / "run").splitlines()]
    assert steps == sorted(steps)


def test_batches_of_the_bad_steps_are_passed_over_with_empty_memories(tmp_path: Path) -> None:
    seen = []
    real = trainer_module.Trainer._update

    def update(self: Any, inputs: Any, lr: float) -> Any:
        used = any(bool(leaf.any()) for state in self.state.states for _, leaf in leaves(state))
        seen.append((self.state.progress.step, self.state.progress.cursor["step"], used))
        return real(self, inputs, lr)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "_update", update)
        trained(tmp_path / "run", PLAIN, nan_at(7))
    assert [(step, batch) for step, batch, _ in seen[:8]] == [(step, step) for step in range(8)]
    assert seen[8] == (6, 8, False) and seen[9] == (7, 9, True)
    assert seen[-1][:2] == (17, 19)


KILLS = [(name, kill) for name in FAULTS for kill in (2, 7, 8, 9, 10, 11, 12, 15)]


@pytest.mark.parametrize(("name", "kill_at"), few(KILLS, lambda *kill: kill == ("spike", 11)))
def test_a_killed_and_resumed_run_equals_the_uninterrupted_one(name: str, kill_at: int, tmp_path: Path) -> None:
    wanted = HARD if kill_at % 2 else PLAIN
    trained(tmp_path / "whole", wanted, FAULTS[name])
    trained(tmp_path / "killed", wanted, FAULTS[name], kill_at)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RunCheckpoints, "go_back"),
        pytest.param(checkpoints, "remove_after", marks=pytest.mark.thorough),
        (TrainingLog, "go_back"),
    ],
)
def test_a_kill_in_the_middle_of_a_rollback_changes_nothing(owner: Any, name: str, tmp_path: Path) -> None:
    trained(tmp_path / "whole", PLAIN, nan_at(7))
    create_run(PLAIN, tmp_path / "killed")
    with diverging(nan_at(7)):
        train(tmp_path / "killed", monitor=Signaller(signal.SIGTERM, 4))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(owner, name, kill)
            train(tmp_path / "killed")
        train(tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def kill(*args: Any) -> None:
    raise Killed


@pytest.mark.parametrize(
    ("name", "step"), few([("spike", 8), ("nan", 8), ("drift", 10)], lambda name, _: name == "spike")
)
def test_a_run_stopped_by_a_signal_equals_the_uninterrupted_one(name: str, step: int, tmp_path: Path) -> None:
    """A signal saves a checkpoint between the intervals, which a rollback must not use."""
    trained(tmp_path / "whole", PLAIN, FAULTS[name])
    create_run(PLAIN, tmp_path / "stopped")
    with diverging(FAULTS[name]):
        assert train(tmp_path / "stopped", monitor=Signaller(signal.SIGTERM, step)).signal == signal.SIGTERM
        train(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_repeated_divergence_lowers_the_rate_for_a_while(tmp_path: Path) -> None:
    rate: dict[str, Any] = {"optimizer": OptimizerConfig(lr=0.01), "schedule": ScheduleConfig(kind="constant")}
    wanted = recipe(**{**STEPS, **rate, "log_every": 1})
    trained(tmp_path / "run", wanted, nan_at(7, 9, 10))
    found = events(tmp_path / "run")
    assert [(each["bad_step"], each["back_to"], each["rate_factor"]) for each in found] == [
        (8, 6, 1.0),
        (8, 6, 0.5),
        (7, 3, 0.25),
    ]
    lines = [json.loads(line) for line in metrics(tmp_path / "run").splitlines()]
    rates = {line["step"]: line["lr"] for line in lines if line["split"] == "train"}
    assert [rates[step] for step in (3, 4, 11, 12)] == [0.01, 0.0025, 0.0025, 0.01]


@pytest.mark.parametrize("kill_at", [11, pytest.param(14, marks=pytest.mark.thorough)])
def test_repeated_rollbacks_survive_kills(kill_at: int, tmp_path: Path) -> None:
    trained(tmp_path / "whole", PLAIN, nan_at(7, 9, 12))
    trained(tmp_path / "killed", PLAIN, nan_at(7, 9, 12), kill_at)
    assert len(events(tmp_path / "whole")) == 3
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_after_the_last_rollback_the_run_stops_and_names_remedies(tmp_path: Path) -> None:
    wanted = recipe(**{**STEPS, "health": HealthConfig(rollbacks=2)})
    with pytest.raises(Diverged) as error:
        trained(tmp_path / "run", wanted, lambda number: math.nan if number > 6 else 1.0)
    message = str(error.value)
    assert message.startswith("the loss is nan at step ") and "training stops after 2 rollbacks" in message
    assert "keeps the checkpoint of step" in message and "--train.z-loss" in message and "\n" not in message
    assert len(events(tmp_path / "run")) == 2
    weights = open_run(tmp_path / "run", "last", "cpu").model.state_dict().values()
    assert all(bool(weight.isfinite().all()) for weight in weights)


@pytest.mark.parametrize("kill_at", few([None, 2, 5], lambda kill_at: kill_at == 2))
def test_a_remedy_continues_from_the_last_healthy_checkpoint(kill_at: int | None, tmp_path: Path) -> None:
    """The loss rises until the run ends: its last checkpoint cannot be remedied, the one of step 6 can."""
    health = HealthConfig(patience=4, rollbacks=0)
    with pytest.raises(Diverged):
        trained(tmp_path / "run", recipe(**{**STEPS, "health": health}), drift_from(5, 99))
    assert last(tmp_path / "run").step > 6 and (tmp_path / "run" / "diverged.json").exists()
    notes, remedy = Notes(), {"train.optimizer.lr": 1e-3}
    for moment in (kill_at, None) if kill_at else (None,):
        with diverging(nan_at(), moment), suppress(Killed):
            train(tmp_path / "run", overrides=remedy, monitor=notes)
    assert any("has diverged: continuing from step 6, its last healthy checkpoint" in line for line in notes.lines)
    assert last(tmp_path / "run").step == 18 and load_header(tmp_path / "run").overrides[0].step == 6
    create_run(PLAIN, tmp_path / "same")
    train(tmp_path / "same", monitor=Signaller(signal.SIGTERM, step=6))
    train(tmp_path / "same", overrides=remedy)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "same")


def test_a_divergence_before_the_first_checkpoint_goes_back_to_the_start(tmp_path: Path) -> None:
    trained(tmp_path / "run", PLAIN, nan_at(1))
    (event,) = events(tmp_path / "run")
    assert (event["bad_step"], event["back_to"], last(tmp_path / "run").step) == (2, 0, 18)


def test_a_ruined_state_is_not_saved_even_if_all_losses_are_finite(tmp_path: Path) -> None:
    """The last update before a checkpoint ruins the weights: no loss has shown it yet."""
    calls = [0]
    real = trainer_module.Trainer._update

    def update(self: Any, *args: Any) -> Any:
        calls[0] += 1
        done = real(self, *args)
        if calls[0] == 6:
            with torch.no_grad():
                next(self.model.parameters()).fill_(math.nan)
        return done

    for name, on_nan in (("rollback", "rollback"), ("skip", "skip")):
        calls[0] = 0
        create_run(recipe(**{**STEPS, "eval_every": 18, "on_nan": on_nan}), tmp_path / name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer_module.Trainer, "_update", update)
            if on_nan == "rollback":
                train(tmp_path / name)
            else:
                with pytest.raises(Diverged, match="not finite after step 6; .* keeps the checkpoint of step 3"):
                    train(tmp_path / name)
    assert [each["cause"] for each in events(tmp_path / "rollback")] == [
        "weights, optimizer moments or memories are not finite after step 6"
    ]
    assert last(tmp_path / "skip").step == 3


def test_the_best_checkpoint_is_that_of_the_state_gone_back_to(tmp_path: Path) -> None:
    """Step 8 is the best of the part of the run that is given up."""
    wanted = recipe(**{**STEPS, "eval_every": 4, "keep": 1})
    data = scored_as([3.0, 2.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4], wanted)
    create_run(wanted, tmp_path / "run")
    with diverging(nan_at(8)):
        outcome = train(tmp_path / "run", data=data)
    assert [event["back_to"] for event in events(tmp_path / "run")] == [6]
    assert outcome.best is not None and outcome.best.loss < 2.9 and outcome.best.step != 4
    assert open_run(tmp_path / "run").step == outcome.best.step


def test_an_unhealthy_checkpoint_does_not_push_out_the_healthy_one(tmp_path: Path) -> None:
    """The loss drifts, for longer than `keep` checkpoints."""
    wanted = recipe(**{**STEPS, "keep": 1, "health": HealthConfig(patience=9)})
    create_run(wanted, tmp_path / "run")
    with diverging(drift_from(5, 40), kill_at=15), pytest.raises(Killed):
        train(tmp_path / "run")
    assert checkpoints.checkpoint_steps(tmp_path / "run") == [6, 12]
    end = last(tmp_path / "run")
    assert end.progress["healthy"] == [6] and "recent course" in end.progress["health"]["problem"]


def test_a_checkpoint_with_grown_weights_is_not_healthy(tmp_path: Path) -> None:
    calls = [0]
    real = trainer_module.Trainer._update

    def update(self: Any, *args: Any) -> Any:
        calls[0] += 1
        done = real(self, *args)
        if calls[0] == 9:
            with torch.no_grad():
                self.model.stages[0].layer.attention.query.weight.mul_(1e4)
        return done

    create_run(PLAIN, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "_update", update)
        with diverging(lambda number: 1.0, kill_at=11), pytest.raises(Killed):
            train(tmp_path / "run")
    end = last(tmp_path / "run")
    assert (end.step, end.progress["healthy"]) == (9, [3, 6])
    assert end.progress["health"]["problem"].startswith("the norm of the weights is ")


def test_a_single_spike_with_a_threshold_rolls_back(tmp_path: Path) -> None:
    trained(tmp_path / "run", recipe(**STEPS, spike=3.0), spike_at(7, 8))
    (event,) = events(tmp_path / "run")
    assert event["bad_step"] == 8 and event["cause"].endswith("--train.spike 3, at step 8")


def test_a_validation_loss_that_is_not_finite_rolls_back(tmp_path: Path) -> None:
    create_run(PLAIN, tmp_path / "run")
    outcome = train(tmp_path / "run", data=scored_as([3.0, math.nan, 2.0, 1.9], PLAIN))
    assert outcome.step == 18 and outcome.best == (18, 1.9)
    (event,) = events(tmp_path / "run")
    assert (event["bad_step"], event["back_to"]) == (12, 9)


def test_recorded_updates_roll_back_and_resume_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def engine(*args: Any, **options: Any) -> Engine:
        made.append(Engine(*args, recorder=Rerun(), **options))
        return made[-1]

    monkeypatch.setattr(trainer_module, "Engine", engine)
    trained(tmp_path / "whole", PLAIN, nan_at(7))
    trained(tmp_path / "killed", PLAIN, nan_at(7), 12)
    assert made[0].not_recorded is None and made[0]._recorded is not None
    assert len(events(tmp_path / "whole")) == 1
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAULTS)
def test_cuda_graphs_roll_back_and_resume_alike(name: str, tmp_path: Path) -> None:
    wanted = recipe(**{**STEPS, "device": "cuda"})
    trained(tmp_path / "whole", wanted, FAULTS[name])
    trained(tmp_path / "killed", wanted, FAULTS[name], 12)
    assert len(events(tmp_path / "whole")) == 1
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def in_ranks(folder: Path, cases: list[tuple[str, Recipe]], kill_at: int) -> int:
    """Whole runs, and runs in which all processes are killed and resumed."""
    with joined("cpu", 60) as world:
        for name, wanted in cases:
            for kind, moments in (("whole", (None,)), ("killed", (kill_at, None))):
                path = folder / f"{kind}-{name}-{wanted.train.parallel}"
                world.main(partial(create, wanted, path))
                for moment in moments:
                    with diverging(FAULTS[name], moment), suppress(Killed):
                        train(path, world=world)
    return world.size


def create(wanted: Recipe, path: Path) -> str:
    return str(create_run(wanted, path))


@pytest.mark.parametrize(
    ("of", "faults"),
    [
        (PLAIN, {"nan": "ddp"}),
        pytest.param(HARD, {"nan": "fsdp"}, marks=pytest.mark.thorough),
        pytest.param(HARD, dict.fromkeys(FAULTS, "ddp"), marks=pytest.mark.thorough),
    ],
    ids=["plain", "divided", "replicated"],
)
def test_two_processes_roll_back_together(of: Recipe, faults: dict[str, Any], tmp_path: Path) -> None:
    cases = [(name, replace(of, train=replace(of.train, parallel=kind))) for name, kind in faults.items()]
    assert ranks.run(2, in_ranks, tmp_path, cases, 11) == [2, 2]
    for name, wanted in cases:
        whole, killed = (tmp_path / f"{kind}-{name}-{wanted.train.parallel}" for kind in ("whole", "killed"))
        (event,) = events(whole)
        assert event["back_to"] == 6 and last(whole).step == 18
        assert contents(killed) == contents(whole)
