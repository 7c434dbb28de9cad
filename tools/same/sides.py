"""The two sides of a comparison: BASE, extracted and cached by commit, and the working tree."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from tools.same.cases import Case
from tools.same.texts import write_texts

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "same"
DRIVER = Path(__file__).with_name("run_cases.py")
DECIDING = ("cases.py", "texts.py", "run_cases.py", "sides.py")
"""Files of this folder that decide what a case produces."""
PARTIAL = ".partial-"


class SameError(Exception):
    """A mistake in the call, or a case that cannot run; one line."""


@dataclass(frozen=True)
class Side:
    name: str
    root: Path
    """Folder that holds the package `mnemo`."""
    output: Path
    """Holds one folder a case."""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SameError(f"git {' '.join(arguments)}: {done.stderr.strip() or 'failed'}")
    return done.stdout.strip()


def is_ancestor(one: str, other: str) -> bool:
    """Whether commit `other` is `one` or comes after it."""
    return git("merge-base", one, other) == git("rev-parse", f"{one}^{{commit}}")


def base_side(commit: str) -> Side:
    """BASE: its package is extracted once; outputs stay valid while commit, cases and installed packages do."""
    folder = CACHE / f"{commit[:12]}-{_key()}"
    for stale in set(CACHE.glob(f"{commit[:12]}-*")) - {folder}:
        shutil.rmtree(stale)
    if not (folder / "source").exists():
        partial = folder / f"{PARTIAL}source"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _extract(commit, partial)
        partial.rename(folder / "source")
    return Side("BASE", folder / "source", folder / "output")


def tree_side() -> Side:
    """The working tree; its outputs are made anew at every call and kept until the next."""
    output = CACHE / "working-tree"
    shutil.rmtree(output, ignore_errors=True)
    return Side("working tree", ROOT, output)


def _extract(commit: str, folder: Path) -> None:
    done = subprocess.run(["git", "archive", commit, "mnemo"], cwd=ROOT, capture_output=True)
    if done.returncode:
        raise SameError(f"{commit} has no package mnemo: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def _key() -> str:
    """Changes with what decides a case's output besides the commit."""
    packages = sorted(f"{each.name} {each.version}" for each in distributions())
    described = "\n".join([sys.version, platform.machine(), platform.processor(), *packages])
    digest = hashlib.sha256(described.encode())
    for name in DECIDING:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:8]


def missing(side: Side, cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if not (side.output / case.name).exists()]


def run_sides(work: Sequence[tuple[Side, Sequence[Case]]], jobs: int) -> None:
    """Run the cases of all sides, divided among `jobs` processes; a folder takes its name when it is complete."""
    tasks = [(side, case) for side, cases in work for case in cases]
    running = []
    for side, cases in _shares(tasks, jobs):
        running.append((side, cases, _start(side, cases)))
    failed = [side for side, _, process in running if process.wait()]
    if failed:
        raise SameError(f"the cases of the {failed[0].name} ended with an error, shown above")
    for side, cases, _ in running:
        for case in cases:
            _partial(side, case).rename(side.output / case.name)


def _shares(tasks: Sequence[tuple[Side, Case]], jobs: int) -> list[tuple[Side, list[Case]]]:
    """What each process does: cases of one side, dealt out in turns."""
    sides = list(dict.fromkeys(side for side, _ in tasks))
    each = max(1, jobs // max(1, len(sides)))
    shares = []
    for side in sides:
        cases = [case for owner, case in tasks if owner == side]
        shares += [(side, cases[start::each]) for start in range(min(each, len(cases)))]
    return shares


def _start(side: Side, cases: Sequence[Case]) -> subprocess.Popen[bytes]:
    plan = []
    for case in cases:
        folder = _partial(side, case)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_texts(folder)
        plan.append({**case.to_json(), "folder": str(folder)})
    plan_file = side.output / f"{PARTIAL}plan-{cases[0].name}.json"
    plan_file.write_text(json.dumps(plan))
    command = [sys.executable, "-P", str(DRIVER), str(plan_file), str(side.root)]
    return subprocess.Popen(command, env=_environment(side))


def _environment(side: Side) -> dict[str, str]:
    """One thread, no GPU, data below the case's folder; settings of the caller's shell have no influence."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MNEMO_", "PYTHON"))}
    fixed = {
        "PYTHONPATH": str(side.root),
        "PYTHONHASHSEED": "0",
        "MNEMO_DATA": "data",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MPLBACKEND": "Agg",
        "COLUMNS": "120",
    }
    return kept | fixed


def _partial(side: Side, case: Case) -> Path:
    return side.output / f"{PARTIAL}{case.name}"
