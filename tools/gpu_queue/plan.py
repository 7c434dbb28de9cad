"""A plan: jobs in a TOML file, checked before anything runs.

title = "Two more seeds of speedrun-enwik8"

[[job]]
name = "seed-1112"
run = ["mnemo train speedrun-enwik8 --name seed-1112 --train.seed 1112", "mnemo eval runs/seed-1112 --batch 1"]
minutes = 12                              # of all commands together
keep = ["runs/seed-1112/*.json*"]         # small files, copied to the results every few seconds
after = ["prepare"]                       # jobs that must have succeeded
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError, unknown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    run: tuple[str, ...]
    """Commands of a shell, one after the other; the first that fails ends the job."""
    minutes: float
    """Longest expected time. A job that could not end before the deadline is not started."""
    keep: tuple[str, ...] = ()
    """Patterns of the files to collect."""
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    title: str
    jobs: tuple[Job, ...]

    def only(self, names: Sequence[str]) -> Plan:
        """The plan with some of its jobs."""
        known = [job.name for job in self.jobs]
        for name in names:
            if name not in known:
                raise unknown("job", name, known)
        return Plan(self.title, tuple(job for job in self.jobs if job.name in names))


def read_plan(path: Path) -> Plan:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MnemoError(f"cannot read the plan {path}: {error}") from None
    if wrong := sorted(data.keys() - {"title", "job"}):
        raise MnemoError(f"{path}: unknown key {wrong[0]}")
    items = data.get("job")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise MnemoError(f"{path}: it has no [[job]]")
    jobs = tuple(_job(item, path) for item in items)
    for place, job in enumerate(jobs):
        before = {other.name for other in jobs[:place]}
        if job.name in before:
            raise MnemoError(f"{path}: two jobs are named {job.name}")
        if missing := sorted(set(job.after) - before):
            raise MnemoError(f"{path}: {job.name} is after {missing[0]}, which is no job before it")
    return Plan(str(data.get("title", path.stem)), jobs)


def _job(item: dict[str, Any], path: Path) -> Job:
    where = f"{path}, job {item.get('name', '?')}"
    known = {each.name: each for each in fields(Job)}
    if missing := [name for name, each in known.items() if each.default is MISSING and name not in item]:
        raise MnemoError(f"{where}: it has no {missing[0]}")
    if wrong := sorted(item.keys() - known.keys()):
        raise MnemoError(f"{where}: unknown key {wrong[0]}")
    for name, value in item.items():
        if not _is_right(name, value):
            raise MnemoError(f"{where}: {name} = {value!r} is wrong")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in item.items()}
    return Job(**values)


def _is_right(name: str, value: Any) -> bool:
    if name == "name":
        return isinstance(value, str) and NAME.fullmatch(value) is not None
    if name == "minutes":
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and (name != "run" or bool(value))
