"""Changes of a run's recipe on resume: the file overrides.json of a run folder.

recipe.json stays as the run began. Every entry of overrides.json holds the fields that changed at a step, and the
course of the learning rate from there on. An entry applies to all updates that are computed after it was written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json
from mnemo.files.safe_load import is_count, require
from mnemo.recipes.recipe import Recipe
from mnemo.storage import run_identity

OVERRIDES = "overrides.json"
Rates = Literal["auto", "continue", "rewarm", "recompute"]
"""How the learning rate goes on after a change of its schedule, as in the help of `mnemo train --resume`."""


@dataclass(frozen=True, kw_only=True)
class RateCourse:
    """A new beginning of the learning-rate schedule in the course of a run."""

    step: int
    """The first update that it applies to."""
    rate: float
    """The rate at its beginning."""
    warmup: int = 0
    """Updates in which the rate rises to the peak."""
    peak: float
    """The rate after the warm-up, from which the schedule decays."""
    plateau: float = 1.0
    """The factor of the plateau schedule at its beginning, which `rate` includes."""


@dataclass(frozen=True, kw_only=True)
class Override:
    step: int
    """Number of updates before the change."""
    before: dict[str, Any]
    """The old values by name of the field, such as `train.optimizer.lr`."""
    changes: dict[str, Any]
    """The new values."""
    course: RateCourse | None = None
    """The course of the learning rate from now on; None: the whole schedule of the recipe with its changes."""

    def to_json(self) -> dict[str, Any]:
        course = None if self.course is None else dataclasses.asdict(self.course)
        return {"step": self.step, "before": self.before, "changes": self.changes, "course": course}

    def describe(self) -> str:
        """`steps 200 -> 400, optimizer.lr 0.001 -> 0.0005`."""
        pairs = {name: (_text(self.before.get(name)), _text(new)) for name, new in self.changes.items()}
        return ", ".join(f"{name.removeprefix('train.')} {old} -> {new}" for name, (old, new) in pairs.items())


def _text(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "none" if value is None else str(value)


def load_overrides(folder: Path) -> tuple[Override, ...]:
    """The overrides of a run, oldest first; none without the file."""
    path = folder / OVERRIDES
    if not path.exists():
        return ()
    data = load_json(path)
    run_identity.require_own(path, data)
    entries = data.get("overrides")
    require({"overrides": isinstance(entries, list) and all(map(_is_entry, entries))}, path)
    assert isinstance(entries, list)
    return tuple(_override(entry, path) for entry in entries)


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not is_count(entry.get("step")):
        return False
    return isinstance(entry.get("before"), dict) and isinstance(entry.get("changes"), dict)


def _override(entry: dict[str, Any], path: Path) -> Override:
    found = entry.get("course")
    course = None if found is None else from_json(RateCourse, found, f"{path}: course")
    return Override(step=entry["step"], before=entry["before"], changes=entry["changes"], course=course)


def write_overrides(folder: Path, overrides: Sequence[Override]) -> None:
    entries = [each.to_json() for each in overrides]
    write_json(folder / OVERRIDES, {**run_identity.of_run(folder), "overrides": entries})


def overridden(recipe: Recipe, changes: dict[str, Any], where: str = "override") -> Recipe:
    """The recipe with new values, by names such as `train.optimizer.lr`; every name and type is checked."""
    data = to_json(recipe)
    for name, value in changes.items():
        *path, last = name.split(".")
        place = data
        for part in path:
            place = place.get(part) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise MnemoError(f"{where}: a recipe has no field '{name}'")
        place[last] = to_json(value)
    return from_json(Recipe, data, where)


def differences(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """Old and new values of the fields that differ, by name."""
    return dict(_differences(to_json(before), to_json(after), ""))


def _differences(before: Any, after: Any, name: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    same_kind = isinstance(before, dict) and isinstance(after, dict) and before.get("type") == after.get("type")
    if not same_kind:
        if before != after:
            yield name, (before, after)
        return
    for key in after:
        yield from _differences(before.get(key), after[key], f"{name}.{key}" if name else key)
