"""Resume with changes of the recipe: which fields can change, how the learning rate goes on, and exact resume."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import os
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ranks
from helpers.divergence import Killed, contents, diverging, nan_at
from helpers.marks import few
from helpers.monitors import Notes, Signaller
from helpers.toy_runs import metrics, recipe, run, scored_as, train_and_die

from mnemo import cli
from mnemo.errors import MnemoError
from mnemo.recipes.recipe import AverageConfig, HealthConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.storage.overrides import OVERRIDES, Override, RateCourse, Rates, write_overrides
from mnemo.training import create_run, train
from mnemo.training.changeable_fields import CHANGEABLE, REFUSED, refuse
from mnemo.training.optimizers import scheduled_rate
from mnemo.training.resume_overrides import next_course

LONGER = {"train.steps": 20}
VERSION = '{"format_version": 1'
STEADY = ScheduleConfig(kind="constant")


def rates(folder: Path) -> dict[int, float]:
    lines = map(json.loads, metrics(folder).splitlines())
    return {line["step"]: line["lr"] for line in lines if line["split"] == "train"}


def leaf_names(kind: type, name: str) -> Iterator[str]:
    """The names of all fields of a configuration, at any depth."""
    for field in dataclasses.fields(kind):
        inner = {"optimizer": OptimizerConfig, "schedule": ScheduleConfig, "health": HealthConfig}.get(field.name)
        here = f"{name}.{field.name}"
        yield from leaf_names(inner, here) if inner else [here]


def test_every_field_either_changes_or_says_why_not() -> None:
    """A new field of TrainConfig needs a decision in training/changeable_fields.py."""
    names = {*leaf_names(TrainConfig, "train")}
    refused = {name for name in REFUSED if name.startswith("train.")}
    assert CHANGEABLE | refused == names and not CHANGEABLE & refused
    others = {field.name for field in dataclasses.fields(Recipe)} - {"train"}
    assert {name for name in REFUSED if "." not in name} == others


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refusal_is_one_line_with_a_reason(name: str) -> None:
    with pytest.raises(MnemoError) as error:
        refuse(name)
    flag = "--" + name.replace("_", "-")
    assert str(error.value) == f"{flag} cannot change on resume: {REFUSED[name]}" and "\n" not in str(error.value)
    with pytest.raises(MnemoError, match="cannot change on resume"):
        refuse(f"{name}.inner")


VALUES: dict[str, Any] = {
    "train.steps": 15,
    "train.accumulate": 2,
    "train.bptt_memory": "checkpoint",
    "train.device": "cpu",
    "train.compile": False,
    "train.cuda_graph": False,
    "train.recompute": "layer",
    "train.parallel": "ddp",
    "train.timeout": 60.0,
    "train.log_every": 3,
    "train.eval_every": 5,
    "train.checkpoint_every": 5,
    "train.checkpoint_minutes": 1.0,
    "train.keep": 1,
    "train.patience": 1,
    "train.goal": 0.1,
    "train.on_nan": "skip",
    "train.spike": 3.0,
    "train.z_loss": 1e-4,
    "train.health.loss_rise": 0.5,
    "train.health.norm_rise": None,
    "train.health.patience": 10,
    "train.health.weight_growth": 5.0,
    "train.health.rollbacks": 3,
    "train.health.slower": 0.7,
    "train.health.slower_steps": 100,
    "train.schedule.kind": "linear",
    "train.schedule.warmup": 3,
    "train.schedule.steps": 30,
    "train.schedule.min_lr": 1e-5,
    "train.schedule.factor": 0.1,
    "train.schedule.patience": 2,
    "train.schedule.published": True,
    "train.optimizer.lr": 1e-3,
    "train.optimizer.adam_lr": 1e-3,
    "train.optimizer.betas": (0.8, 0.99),
    "train.optimizer.eps": 1e-6,
    "train.optimizer.weight_decay": 0.1,
    "train.optimizer.momentum": 0.5,
    "train.optimizer.clip": None,
    "train.optimizer.clip_mean": 3.0,
    "train.optimizer.embedding_lr_factor": 2.0,
    "train.optimizer.scale_lr_by_length": True,
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "begun"
    run(folder, monitor=Signaller(signal.SIGTERM, step=10))
    return folder


def copy(source: Path, target: Path) -> Path:
    return shutil.copytree(source, target)


def test_the_table_of_values_is_whole() -> None:
    assert VALUES.keys() == CHANGEABLE - {"train.optimizer.update_clip"}, "which is for Muon only"


SOME_VALUES = sorted(VALUES)[::3]
"""Of every kind: of the run, its health, its schedule and its optimizer."""


@pytest.mark.parametrize("name", few(sorted(VALUES), lambda name: name in SOME_VALUES))
def test_every_changeable_field_changes(name: str, begun: Path, tmp_path: Path) -> None:
    folder, notes = copy(begun, tmp_path / "run"), Notes()
    outcome = train(folder, overrides={name: VALUES[name]}, monitor=notes)
    header = run_folder.load_header(folder)
    (override,) = header.overrides
    new = list(VALUES[name]) if isinstance(VALUES[name], tuple) else VALUES[name]
    assert (override.step, override.changes) == (10, {name: new})
    assert outcome.step == header.recipe.train.steps or name == "train.patience"
    assert any(line.startswith(f"changed at step 10: {name.removeprefix('train.')} ") for line in notes.lines)
    assert json.loads((folder / "recipe.json").read_text())["recipe"]["train"]["steps"] == 12


def test_the_updates_of_muon_can_be_limited_later(tmp_path: Path) -> None:
    muon = recipe(optimizer=OptimizerConfig(kind="muon", lr=0.02, momentum=0.95))
    run(tmp_path / "run", of=muon, monitor=Signaller(signal.SIGTERM, step=6))
    assert train(tmp_path / "run", overrides={"train.optimizer.update_clip": 0.05}).step == 12


def test_an_unknown_name_and_a_wrong_type_are_errors(begun: Path) -> None:
    for changes, said in (
        ({"train.stepz": 3}, "no field 'train.stepz'"),
        ({"train.steps": "many"}, "expected a whole number"),
    ):
        with pytest.raises(MnemoError, match=said):
            train(begun, overrides=changes)
    with pytest.raises(MnemoError, match="has already done 10 steps"):
        train(begun, overrides={"train.steps": 5})
    assert not (begun / OVERRIDES).exists()


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    run(tmp_path / "run")
    outcome = train(tmp_path / "run", overrides=LONGER)
    assert outcome.step == 20
    steps = [line["step"] for line in map(json.loads, metrics(tmp_path / "run").splitlines())]
    assert steps == sorted(steps) and steps[-1] == 20
    assert train(tmp_path / "run", overrides=LONGER).step == 20, "the same again is no change"
    assert len(run_folder.load_header(tmp_path / "run").overrides) == 1


def test_a_steady_rate_extends_to_the_longer_run(tmp_path: Path) -> None:
    """Nothing but the number of steps differs, so all numbers are those of the longer run."""
    steady: dict[str, Any] = {"schedule": STEADY, "checkpoint_every": 4}
    run(tmp_path / "long", of=recipe(steps=20, **steady))
    run(tmp_path / "extended", of=recipe(steps=12, **steady))
    train(tmp_path / "extended", overrides=LONGER)
    assert metrics(tmp_path / "extended") == metrics(tmp_path / "long")


def test_a_run_that_reached_its_goal_needs_another_goal(tmp_path: Path) -> None:
    wanted = recipe(goal=2.5)
    data = scored_as([2.0, 1.5, 1.0, 0.5], wanted)
    assert run(tmp_path / "run", of=wanted, data=data).step == 4
    with pytest.raises(MnemoError, match="has ended: --train.steps, --train.goal or --train.patience"):
        train(tmp_path / "run", overrides={"train.keep": 1})
    with pytest.raises(MnemoError, match="has ended by --train.goal or --train.patience"):
        train(tmp_path / "run", overrides=LONGER)
    assert train(tmp_path / "run", data=data, overrides={"train.goal": 1.2}).step == 12


KILLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "longer": ({}, {"train.steps": 20, "train.checkpoint_every": 4}),
    "parts": (
        {"average": AverageConfig(start=3), "schedule": ScheduleConfig(kind="plateau")},
        {"train.accumulate": 2, "train.steps": 18, "train.optimizer.lr": 1e-3, "train.schedule.kind": "linear"},
    ),
}


@pytest.mark.parametrize("name", few(KILLED, lambda name: name == "parts"))
def test_kills_after_an_override_change_nothing(name: str, tmp_path: Path) -> None:
    settings, changes = KILLED[name]
    for folder in ("whole", "killed"):
        run(tmp_path / folder, of=recipe(**settings), monitor=Signaller(signal.SIGTERM, step=10))
    train(tmp_path / "whole", overrides=changes)
    killed, deaths = tmp_path / "killed", 0
    train(killed, overrides=changes, monitor=Signaller(signal.SIGTERM, step=10 + 2))
    draw = random.Random(name)
    while _train_in(killed, draw.randint(1, 60)) == -signal.SIGKILL:
        deaths += 1
    assert deaths >= 1
    assert metrics(killed) == metrics(tmp_path / "whole")
    assert _tensors(killed) == _tensors(tmp_path / "whole")
    assert len(run_folder.load_header(killed).overrides) == 1


def _train_in(folder: Path, operation: int) -> int:
    process = ranks.parent().Process(target=train_and_die, args=(str(folder), os.environ["MNEMO_DATA"], operation))
    process.start()
    process.join()
    return process.exitcode


def _tensors(folder: Path) -> dict[str, bytes]:
    last = run_folder.last_checkpoint(folder)
    assert last is not None
    return {
        f"{last.step} {name}": tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for part in checkpoints.PARTS
        for name, tensor in last.tensors(part).items()
    }


@pytest.mark.parametrize("kill_at", few([1, 2, 3, 6], lambda kill_at: kill_at == 3))
def test_a_rollback_to_before_a_change_survives_kills(kill_at: int, tmp_path: Path) -> None:
    """The change is at step 10, the divergence after it, and the healthy checkpoint before both is of step 9."""
    changes = {"train.steps": 16, "train.optimizer.lr": 1e-3}
    for name in ("whole", "killed"):
        run(tmp_path / name, of=recipe(batch=4), monitor=Signaller(signal.SIGTERM, step=10))
    with diverging(nan_at(11)):
        train(tmp_path / "whole", overrides=changes)
    with diverging(nan_at(11), kill_at), pytest.raises(Killed):
        train(tmp_path / "killed", overrides=changes)
    with diverging(nan_at(11)):
        train(tmp_path / "killed")
    assert '"back_to": 9' in metrics(tmp_path / "whole").decode()
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def changed(folder: Path) -> list[str]:
    """Extend a run as one of several ranks."""
    notes = Notes()
    train(folder, overrides=LONGER, monitor=notes)
    return notes.lines


def test_two_processes_record_a_change_once(tmp_path: Path) -> None:
    create_run(recipe(batch=4, device="cpu", parallel="ddp"), tmp_path / "run")
    ranks.run(2, train, tmp_path / "run")
    lines, silent = ranks.run(2, changed, tmp_path / "run")
    assert "changed at step 12: steps 12 -> 20" in lines and not silent
    assert len(run_folder.load_header(tmp_path / "run").overrides) == 1
    assert checkpoints.checkpoint_steps(tmp_path / "run")[-1] == 20


COSINE = TrainConfig(steps=100, optimizer=OptimizerConfig(lr=1.0), schedule=ScheduleConfig(warmup=10, min_lr=0.1))


def longer(config: TrainConfig, steps: int = 200) -> TrainConfig:
    return replace(config, steps=steps)


def test_a_decay_goes_on_from_the_present_rate() -> None:
    course = next_course(COSINE, longer(COSINE), None, 55, 1.0, "auto")
    before = scheduled_rate(COSINE, 55)
    assert course == RateCourse(step=55, rate=before, peak=before)
    curve = [scheduled_rate(longer(COSINE), step, 1.0, course) for step in range(55, 201)]
    assert curve[0] == before and curve[-1] == pytest.approx(0.1)
    assert curve == sorted(curve, reverse=True)
    middle = 0.1 + (before - 0.1) * (1 + math.cos(math.pi * 45 / 145)) / 2
    assert curve[45] == pytest.approx(middle)
    assert scheduled_rate(longer(COSINE), 30, 1.0, course) == before, "a step before the change has its first rate"


def test_a_decay_that_has_ended_rises_again() -> None:
    course = next_course(COSINE, longer(COSINE), None, 100, 1.0, "auto")
    assert course is not None and course.rate == pytest.approx(0.1)
    assert course == RateCourse(step=100, rate=course.rate, warmup=10, peak=1.0)
    curve = [scheduled_rate(longer(COSINE), step, 1.0, course) for step in range(100, 201)]
    assert curve[0] == pytest.approx(0.1 + 0.9 / 10) and curve[9] == curve[10] == 1.0
    assert curve[-1] == pytest.approx(0.1) and curve[9:] == sorted(curve[9:], reverse=True)


@pytest.mark.parametrize(("added", "warmup"), [(200, 10), (50, 10), (49, 9), (20, 4), (9, 1), (3, 1)])
def test_a_rate_that_rises_again_falls_in_most_of_the_added_steps(added: int, warmup: int) -> None:
    more = longer(COSINE, 100 + added)
    course = next_course(COSINE, more, None, 100, 1.0, "auto")
    assert course is not None and course.warmup == warmup
    curve = [scheduled_rate(more, step, 1.0, course) for step in range(100, 100 + added)]
    assert curve[warmup - 1] == pytest.approx(1.0) and max(curve) == curve[warmup] == 1.0
    assert curve[-1] < 0.6 and curve[warmup:] == sorted(curve[warmup:], reverse=True)


def test_a_rise_is_as_short_as_a_schedule_that_ends_before_the_run() -> None:
    ends = replace(COSINE, steps=400, schedule=replace(COSINE.schedule, steps=125))
    course = next_course(COSINE, ends, None, 100, 1.0, "rewarm")
    assert course is not None and course.warmup == 5
    assert scheduled_rate(ends, 125, 1.0, course) == pytest.approx(0.1)
    over = replace(ends, schedule=replace(COSINE.schedule, steps=80))
    course = next_course(COSINE, over, None, 100, 1.0, "rewarm")
    assert course is not None and course.warmup == 10, "the end of a schedule that is over does not count"


WARM: dict[str, Any] = {"log_every": 1, "optimizer": OptimizerConfig(lr=0.01), "schedule": ScheduleConfig(warmup=6)}


def test_a_run_that_is_extended_by_few_steps_ends_at_a_low_rate(tmp_path: Path) -> None:
    run(tmp_path / "run", of=recipe(**WARM))
    notes = Notes()
    train(tmp_path / "run", overrides={"train.steps": 24}, monitor=notes)
    found = rates(tmp_path / "run")
    assert found[13] < found[14] == found[15] == 0.01 and found[24] < 0.0005
    rise = "up again from 0 to 0.01 in 2 steps (at most a fifth of those left; the schedule's warm-up has 6)"
    assert f"learning rate: from step 12 on {rise}, then cosine to 0 at step 24" in notes.lines


def test_two_more_steps_say_that_they_run_at_the_peak(tmp_path: Path) -> None:
    run(tmp_path / "run", of=recipe(**WARM))
    notes = Notes()
    train(tmp_path / "run", overrides={"train.steps": 14}, monitor=notes)
    found = rates(tmp_path / "run")
    assert found[13] == found[14] == 0.01
    assert any("from 0 to 0.01 in 1 step, where it stays to the end of the run" in line for line in notes.lines)


def test_a_run_that_an_earlier_version_extended_keeps_its_course(tmp_path: Path) -> None:
    """Its warm-up takes all added steps. The course is part of its record, and is not computed again."""
    folder = tmp_path / "run"
    run(folder, of=recipe(**WARM))
    old = RateCourse(step=12, rate=0.0, warmup=6, peak=0.01)
    changes: dict[str, Any] = {"before": {"train.steps": 12}, "changes": {"train.steps": 18}}
    write_overrides(folder, [Override(step=12, course=old, **changes)])
    notes = Notes()
    train(folder, overrides={"train.steps": 18}, monitor=notes)
    found = rates(folder)
    assert [found[step] for step in range(13, 19)] == pytest.approx([0.01 * part / 6 for part in range(1, 7)])
    assert run_folder.load_header(folder).course == old
    assert any("from 0 to 0.01 in 6 steps, where it stays to the end of the run" in line for line in notes.lines)


@pytest.mark.parametrize(("how", "rate"), [("continue", 0.1), ("rewarm", 0.1 + 0.9 / 10), ("recompute", None)])
def test_the_course_can_be_chosen(how: Rates, rate: float | None) -> None:
    course = next_course(COSINE, longer(COSINE), None, 100, 1.0, how)
    expected = scheduled_rate(longer(COSINE), 100) if rate is None else rate
    assert scheduled_rate(longer(COSINE), 100, 1.0, course) == pytest.approx(expected)


def test_a_rate_of_zero_does_not_go_on() -> None:
    zero = replace(COSINE, schedule=ScheduleConfig())
    with pytest.raises(MnemoError, match="--rates rewarm"):
        next_course(zero, longer(zero), None, 100, 1.0, "continue")


def test_a_new_peak_alone_scales_the_same_curve() -> None:
    lower = replace(COSINE, optimizer=OptimizerConfig(lr=0.5))
    assert next_course(COSINE, lower, None, 50, 1.0, "auto") is None
    course = RateCourse(step=40, rate=0.4, peak=0.4)
    assert next_course(COSINE, lower, course, 50, 1.0, "auto") == RateCourse(step=40, rate=0.2, peak=0.2)


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "plateau", "linear"])
def test_another_kind_begins_at_the_present_rate(kind: Any) -> None:
    other = replace(COSINE, schedule=replace(COSINE.schedule, kind=kind))
    course = next_course(COSINE, other, None, 55, 0.5, "auto")
    assert scheduled_rate(other, 55, 0.5, course) == pytest.approx(scheduled_rate(COSINE, 55))
    later = scheduled_rate(other, 80, 0.25, course)
    share = {"constant": 1.0, "inverse_sqrt": math.sqrt(56 / 81), "plateau": 0.5}.get(kind)
    expected = 0.1 + (scheduled_rate(COSINE, 55) - 0.1) * 20 / 45 if share is None else share * course.rate  # type: ignore[union-attr]
    assert later == pytest.approx(expected)


def test_a_change_inside_the_warm_up_keeps_the_schedule() -> None:
    assert next_course(COSINE, longer(COSINE), None, 5, 1.0, "auto") is None


def test_the_log_shows_the_chosen_rates(tmp_path: Path) -> None:
    run(tmp_path / "run", of=recipe(log_every=1, optimizer=OptimizerConfig(lr=0.01)))
    train(tmp_path / "run", overrides={"train.steps": 30})
    found = rates(tmp_path / "run")
    assert found[12] < found[13] == 0.01 and found[30] < found[29] < 0.01


def test_the_command_line_extends_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "runs" / "run")
    assert cli.main(["train", "--resume", "run", "--train.steps", "20", "--train.optimizer.clip", "None"]) == 0
    said = capfd.readouterr()
    assert "changed at step 12: steps 12 -> 20, optimizer.clip 0.25 -> none" in said.err
    assert (
        "learning rate: from step 12 on up again from 0 to 0.00025 in 1 step, then cosine to 0 at step 20" in said.err
    )
    assert cli.main(["train", "--resume", "run", "--train.batch", "7"]) == 2
    assert "--train.batch cannot change on resume" in capfd.readouterr().err
    assert cli.main(["train", "--resume", "run"]) == 0
    assert "changed at step 12" in capfd.readouterr().err, "a later resume keeps the changes and shows them"
    assert cli.main(["info", "runs/run"]) == 0
    assert "changed at step 12: steps 12 -> 20" in capfd.readouterr().out
    assert cli.main(["info", "runs/run", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["overrides"][0]["step"] == 12
    assert cli.main(["report", "runs/run", "--out", "page.html"]) == 0
    page = html.unescape(Path("page.html").read_text(encoding="utf-8"))
    assert "Changed at step 12" in page and "steps 12 -> 20, optimizer.clip 0.25 -> none" in page


@pytest.mark.parametrize(
    "content", ["{}", '{"format_version": 1}', '{"format_version": 1, "overrides": [{"step": -1}]}']
)
def test_a_damaged_file_is_one_clear_line(content: str, begun: Path, tmp_path: Path) -> None:
    folder = copy(begun, tmp_path / "run")
    (folder / OVERRIDES).write_text(content)
    with pytest.raises(MnemoError, match=OVERRIDES):
        run_folder.load_header(folder)
