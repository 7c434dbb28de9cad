"""Thousands of broken files through the commands that read them: python tests/campaign/fuzz.py [COUNT] [SEED] [FIRST]

Prints what every target gave, as a table, and the first inputs that did not end decently; exit code 1 where any did
not. Failing inputs are kept in the folder that MNEMO_FUZZ_KEEP names.
"""

from __future__ import annotations

import collections
import faulthandler
import os
import random
import resource
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from helpers.fuzz_targets import PATIENCE, Hang, attempt_target, seeds, targets, workplace
from helpers.mutations import mutate


def main(count: int = 10_000, seed: int = 0, first: int = 0) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    ends: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    problems: dict[str, str] = {}
    slowest, whole, known = (0.0, ""), seeds(), targets()
    with pytest.MonkeyPatch.context() as patch, workplace(patch) as folder:
        for number in range(first, count):
            draw = random.Random(f"{seed}/{number}")
            target = known[number % len(known)]
            data = mutate(draw, (whole / target.file).read_bytes())
            faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
            start = time.monotonic()
            try:
                tried = attempt_target(folder, target, data)
                problem, end = tried.problem(), f"exit {tried.code}"
            except Hang as hang:
                problem, end = str(hang), "hang"
            slowest = max(slowest, (time.monotonic() - start, f"{target.name}, number {number}"))
            ends[target.name][end if problem is None else "problem"] += 1
            if problem is not None:
                problems.setdefault(f"{target.name} {problem[-60:]}", f"{number}: {target.file}: {problem}")
                print(f"{number}: {target.file}: {problem}", file=sys.stderr, flush=True)
                _keep(number, target.file, data)
            if number % 500 == 499:
                print(f"{number + 1:,} of {count:,} inputs", file=sys.stderr, flush=True)
    faulthandler.cancel_dump_traceback_later()
    _print(ends, problems, slowest)
    return 1 if problems else 0


def _keep(number: int, name: str, data: bytes) -> None:
    folder = os.environ.get("MNEMO_FUZZ_KEEP")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{number}-{Path(name).name}").write_bytes(data)


def _print(ends: dict[str, collections.Counter[str]], problems: dict[str, str], slowest: tuple[float, str]) -> None:
    columns = ["exit 0", "exit 1", "exit 2", "problem"]
    print(f"| command | inputs | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    total: collections.Counter[str] = collections.Counter()
    for name, counts in [*sorted(ends.items()), ("all", sum(ends.values(), total))]:
        print(f"| {name} | {sum(counts.values()):,} | {' | '.join(f'{counts[column]:,}' for column in columns)} |")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\nslowest input {slowest[0]:.1f} s ({slowest[1]}); largest resident memory of the process {peak:.2f} GiB")
    for problem in problems.values():
        print(f"- {problem}")


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
