"""Changing the recipe of a run when it is resumed: which fields can change, and how the learning rate goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError, plural
from mnemo.recipes.recipe import TrainConfig
from mnemo.storage.checkpoint import checkpoint_path, last_whole_checkpoint, load_checkpoint
from mnemo.storage.overrides import Override, RateCourse, Rates, differences, overridden, write_overrides
from mnemo.storage.run_folder import divergence, locked
from mnemo.storage.run_header import RunHeader, load_header
from mnemo.training.changeable_fields import refuse
from mnemo.training.checkpointing import remove_after
from mnemo.training.optimizers import scheduled_rate
from mnemo.training.run_progress import Progress

ENDED = 0.01
"""A schedule counts as ended when its rate is within this share of the way from its peak to its minimum."""
REWARM_SHARE = 0.01
"""Warm-up of a new beginning, as a share of the steps that are left, in recipes without a warm-up."""
LONGEST_REWARM_SHARE = 0.2
"""The warm-up of a new beginning takes at most this share of the steps that are left.

The schedule's warm-up is sized for the whole run and can be longer than the steps that are added: the run would then
end at the peak rate. A fifth is more than the share of the warm-up in any preset (at most 7%), and leaves most of the
steps to the fall.
"""


def plan_override(folder: Path, header: RunHeader, changes: Mapping[str, Any], rates: Rates) -> RunHeader:
    """The header with one more override at the last checkpoint; the same header if nothing changes.

    After a divergence that ended the run, the override is at the last healthy checkpoint.
    """
    wanted = overridden(header.recipe, dict(changes))
    found = differences(header.recipe, wanted)
    if not found:
        return header
    for name in found:
        refuse(name)
    progress = _progress_to_change(folder)
    step, plateau = (0, 1.0) if progress is None else (progress.step, progress.plateau.factor)
    if wanted.train.steps < step:
        raise MnemoError(f"--train.steps {wanted.train.steps}: {folder} has already done {step:,} steps")
    if progress is not None and progress.is_finished(wanted.train) and wanted.train.steps == header.recipe.train.steps:
        raise MnemoError(f"{folder} has ended: --train.steps, --train.goal or --train.patience can extend it")
    if progress is not None and progress.is_finished(wanted.train) and wanted.train.steps > step:
        raise MnemoError(f"{folder} has ended by --train.goal or --train.patience: change these to extend it")
    override = Override(
        step=step,
        before={name: old for name, (old, _) in found.items()},
        changes={name: new for name, (_, new) in found.items()},
        course=next_course(header.recipe.train, wanted.train, header.course, step, plateau, rates),
    )
    return replace(header, recipe=wanted, overrides=(*header.overrides, override))


def _progress_to_change(folder: Path) -> Progress | None:
    """The progress of the last checkpoint or, if the run has diverged, of the last healthy one."""
    last, _ = last_whole_checkpoint(folder)
    if last is None:
        return None
    progress = Progress.from_json(last.progress, last.path)
    if divergence(folder) is None:
        return progress
    for step in reversed(progress.healthy):
        with suppress(MnemoError):  # damaged: an earlier one may be whole
            found = load_checkpoint(checkpoint_path(folder, step))
            found.verify()
            return Progress.from_json(found.progress, found.path)
    return progress


def record_override(folder: Path, planned: RunHeader) -> None:
    """Write the overrides of a header, unless another process trains the run; remove checkpoints after a divergence."""
    with locked(folder):
        if load_header(folder).overrides != planned.overrides[:-1]:
            raise MnemoError(f"{folder} was changed by another process")
        if divergence(folder) is not None and (begin := _progress_to_change(folder)) is not None:
            remove_after(folder, begin.step, begin.best)
        write_overrides(folder, planned.overrides)


def next_course(
    now: TrainConfig, new: TrainConfig, course: RateCourse | None, step: int, plateau: float, rates: Rates
) -> RateCourse | None:
    """The course of the learning rate after a change at `step`; None for the whole schedule of `new`."""
    course = _scaled(course, new.optimizer.lr / now.optimizer.lr if now.optimizer.lr else 1.0)
    if not _is_moved(now, new):
        return course
    if rates == "recompute" or (rates == "auto" and course is None and step <= now.schedule.warmup):
        return None
    rate = scheduled_rate(replace(now, optimizer=new.optimizer), step, plateau, course)
    peak, least = new.optimizer.lr, new.schedule.min_lr
    if rates == "rewarm" or (rates == "auto" and rate - least <= ENDED * (peak - least)):
        warmup = new.schedule.warmup or max(1, round(REWARM_SHARE * (new.steps - step)))
        warmup = min(warmup, _longest_rewarm(new, step))
        return RateCourse(step=step, rate=rate, warmup=warmup, peak=peak, plateau=plateau)
    if rate == 0:
        raise MnemoError("the learning rate has reached 0: --rates rewarm raises it again")
    return RateCourse(step=step, rate=rate, peak=rate, plateau=plateau)


def _longest_rewarm(train: TrainConfig, step: int) -> int:
    """The longest warm-up of a new beginning at `step`, so that the rate falls in most of the steps to its end."""
    return max(1, int(LONGEST_REWARM_SHARE * _steps_left(train, step)))


def _steps_left(train: TrainConfig, step: int) -> int:
    """Steps from `step` to the end of the run, or to that of its schedule if it comes before."""
    ends = (train.steps, train.schedule.steps or train.steps)
    return min((end - step for end in ends if end > step), default=0)


def _scaled(course: RateCourse | None, factor: float) -> RateCourse | None:
    if course is None or factor == 1.0:
        return course
    return replace(course, rate=course.rate * factor, peak=course.peak * factor)


def _is_moved(now: TrainConfig, new: TrainConfig) -> bool:
    """Whether a change affects the schedule, and not only the rate that it multiplies."""
    old, schedule = now.schedule, new.schedule
    if replace(old, factor=schedule.factor, patience=schedule.patience) != schedule:
        return True
    follows = schedule.kind in ("cosine", "linear") and schedule.steps is None
    return follows and now.steps != new.steps


def describe_overrides(header: RunHeader) -> Iterator[str]:
    """A line for each change of a run, and one for the learning rate."""
    for override in header.overrides:
        yield f"changed at step {override.step:,}: {override.describe()}"
    if header.overrides:
        yield f"learning rate: {describe_rates(header)}"


def _describe_rise(train: TrainConfig, course: RateCourse, fall: str) -> str:
    rise = f"up again from {course.rate:.3g} to {course.peak:.3g} in {plural(course.warmup, 'step')}"
    if course.warmup >= _steps_left(train, course.step) - 1:
        return f"{rise}, where it stays to the end of the run"
    is_shortened = course.warmup == _longest_rewarm(train, course.step) < train.schedule.warmup
    if is_shortened and course.warmup <= LONGEST_REWARM_SHARE * _steps_left(train, course.step):
        rise += f" (at most a fifth of those left; the schedule's warm-up has {train.schedule.warmup:,})"
    return f"{rise}, then {fall}"


def describe_rates(header: RunHeader) -> str:
    train, course = header.recipe.train, header.course
    step = header.overrides[-1].step
    kind, end, least = train.schedule.kind, train.schedule.steps or train.steps, train.schedule.min_lr
    decay = f" to {least:g} at step {end:,}" if kind in ("cosine", "linear") else ""
    if course is None:
        return f"the recipe's {kind} schedule{decay}; {scheduled_rate(train, step):.3g} at step {step:,}"
    if course.warmup:
        return f"from step {course.step:,} on {_describe_rise(train, course, kind + decay)}"
    return f"from step {course.step:,} on {kind} from {course.rate:.3g}{decay}"
