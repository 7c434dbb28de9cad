"""Kill the processes of training runs at random moments, let the runs go on, and compare them with uninterrupted ones.

    python tests/campaign/kills.py --kills 50 --ranks 2

A life of a run ends by SIGKILL: of one process or of all, behind a random line of metrics or at a random file
operation of one of them, which is mostly inside a save (half a line of metrics, a rename, a flush to the disk). The
processes that are left must end by themselves. Every run that was killed has to give the metrics and the last
checkpoint of the one that was left alone, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers import ranks
from helpers.toy_runs import die_at, recipe

from mnemo.errors import MnemoError
from mnemo.memory import MemoryTokens
from mnemo.recipes.recipe import AverageConfig, Recipe
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.training import checkpoint_schedule, create_run, train

STEPS: dict[str, Any] = {"batch": 5, "log_every": 1, "eval_every": 6, "checkpoint_every": 3, "device": "cpu"}
CHANGES = {"train.optimizer.lr": 1e-3, "train.checkpoint_every": 2}
"""Changes of the recipe that every life of a run asks for; only the first one records them."""
LOST = 3
"""Exit code of a process whose job has lost another one."""


def recipes(steps: int) -> dict[str, Recipe]:
    """With dropout; the second with memory tokens, windows that reach back, and checkpoints by the clock."""
    return {
        "ddp": recipe(parallel="ddp", average=AverageConfig(start=4), steps=steps, **STEPS),
        "fsdp": recipe(
            {"tokens": MemoryTokens(num=2)}, parallel="fsdp", bptt=1, checkpoint_minutes=1e-9, steps=steps, **STEPS
        ),
    }


@dataclass
class Life:
    kind: str
    """one, all: killed behind a line of metrics; save: at a file operation"""
    victim: int
    moment: int
    """How many lines, or operations, later"""

    @staticmethod
    def draw(chance: random.Random, size: int) -> Life:
        kind, victim = chance.choice(["one", "all", "save", "save"]), chance.randrange(size)
        most = 8 if kind != "save" else 4 if victim else 30  # the main process does most of the work on files
        return Life(kind, victim, chance.randint(1, most))


def live(folder: Path, operations: dict[int, int]) -> None:
    """One process of a life; `operations`: at which of theirs processes are killed."""
    rank = int(os.environ["RANK"])
    checkpoint_schedule.LARGEST_SHARE = float("inf")  # a short interval means a checkpoint after every step
    if rank in operations:
        die_at(operations[rank])
    try:
        train(folder, overrides=CHANGES)
    except MnemoError:
        sys.exit(LOST)


def spend(life: Life, folder: Path, size: int) -> list[int]:
    """Let a run live until it is killed, or has reached its end; the exit codes of its processes."""
    operations = {life.victim: life.moment} if life.kind == "save" else {}
    processes = ranks.start(size, live, folder, operations)
    if life.kind != "save":
        behind = num_lines(folder) + life.moment
        wait(lambda: num_lines(folder) >= behind or any(p.exitcode is not None for p in processes))
        for process in processes if life.kind == "all" else processes[life.victim : life.victim + 1]:
            if process.exitcode is None:
                os.kill(process.pid or 0, signal.SIGKILL)
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    if None in codes:
        raise AssertionError(f"a process was left hanging: {codes}")
    return [code for code in codes if code is not None]


def wait(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"nothing has happened for {seconds} s")
        time.sleep(0.005)


def num_lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def campaign(
    kills: int, size: int, seed: int, folder: Path, say: Callable[[str], None], steps: int = 24
) -> Counter[str]:
    """How often runs were killed, by kind. Raises AssertionError where one is not what it should be."""
    chance, found = random.Random(seed), Counter[str]()
    for number, (name, wanted) in enumerate(cycle(recipes(steps).items())):
        whole, killed = folder / f"whole-{name}", folder / f"killed-{number}"
        if not whole.exists():
            create_run(wanted, whole)
            assert spend(Life("save", 0, 10**9), whole, size) == [0] * size
        create_run(wanted, killed)
        while True:
            left = kills - found.total()
            life = Life.draw(chance, size) if left else Life("save", 0, 10**9)
            codes = spend(life, killed, size)
            saved = checkpoints.checkpoint_steps(killed)
            if codes == [0] * size:
                break
            assert -signal.SIGKILL in codes and set(codes) <= {-signal.SIGKILL, LOST, 0}, codes
            found[life.kind] += 1
            say(f"{found.total():3} {name:5}{life.kind:5}rank {life.victim}  codes {codes}  checkpoints {saved}")
        compare(whole, killed, name)
        say(f"    {killed.name} ({name}) equals the uninterrupted run, bit for bit")
        if found.total() >= kills:
            return found
    raise AssertionError("unreachable")


def compare(whole: Path, killed: Path, name: str) -> None:
    metrics = [(path / "metrics.jsonl").read_bytes() for path in (whole, killed)]
    assert metrics[0] == metrics[1], f"{name}: {killed} has other metrics than {whole}"
    first, second = (tensors(path) for path in (whole, killed))
    assert first.keys() == second.keys()
    differing = [key for key in first if not torch.equal(first[key], second[key])]
    assert not differing, f"{name}: {killed} has other numbers in {differing[:3]}"


def tensors(folder: Path) -> dict[str, Any]:
    last = run_folder.last_checkpoint(folder)
    assert last is not None
    return {name: tensor for part in checkpoints.PARTS for name, tensor in last.tensors(part).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MNEMO_DATA"] = folder
        found = campaign(args.kills, args.ranks, args.seed, Path(folder), lambda line: print(line, flush=True))
    print(f"{found.total()} kills of {args.ranks} processes: {dict(found)}; every run went on and ended as it should")


if __name__ == "__main__":
    main()
