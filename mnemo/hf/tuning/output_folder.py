"""The folder that `mnemo tune` writes."""

from __future__ import annotations

from pathlib import Path

from mnemo.errors import MnemoError
from mnemo.hf.tuning.results import RESULTS
from mnemo.recipes.tuning import Tuning

MODEL, ADAPTER = "model", "adapter"
CHECKPOINT = "checkpoint-"


def require_free(options: Tuning) -> None:
    """Refuse a folder with results, a model or checkpoints of an earlier call, unless these are resumed."""
    if options.out.is_file():
        raise MnemoError(f"{options.out} is a file; --out names a folder")
    training = [options.out / name for name in (MODEL, ADAPTER) if (options.out / name).exists()] + checkpoints(options)
    if options.zero_shot and training:
        raise MnemoError(f"{training[0]} is of a trained model: name another --out for a test without training")
    found = [path for path in (options.out / RESULTS,) if path.exists()] + training
    if found and not options.resume:
        resumable = options.zero_shot or checkpoints(options)
        further = "continue with --resume, or name another --out" if resumable else "name another --out"
        raise MnemoError(f"{found[0]} is of an earlier call, and would be replaced: {further}")


def checkpoints(options: Tuning) -> list[Path]:
    """Return the checkpoints of a folder, oldest first."""
    found = [path for path in options.out.glob(f"{CHECKPOINT}*") if _step(path).isdecimal()]
    return sorted(found, key=lambda path: int(_step(path)))


def last_checkpoint(options: Tuning) -> Path:
    found = checkpoints(options)
    if not found:
        raise MnemoError(f"{options.out} has no checkpoint to resume")
    return found[-1]


def step_of(checkpoint: Path) -> int:
    return int(_step(checkpoint))


def _step(checkpoint: Path) -> str:
    return checkpoint.name.removeprefix(CHECKPOINT)
