"""A checkpoint by one process, or by all of a job, of which the main one gives it its name when all have written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import sharded as shards
from mnemo.training.processes import Alone, AnyWorld


def save_together(folder: Path, progress: dict[str, Any], parts: dict[str, dict[str, Tensor]], world: AnyWorld) -> Path:
    """Write the checkpoint of `progress["step"]`; where one process fails all do, and earlier ones stay as they are."""
    if isinstance(world, Alone):
        return checkpoints.save_checkpoint(folder, progress, parts)
    target = checkpoints.checkpoint_path(folder, progress["step"])
    partial = Path(world.main(lambda: str(checkpoints.begin_checkpoint(target))))
    tensors = {name: tensor for part in parts.values() for name, tensor in part.items()}

    def write() -> None:
        with checkpoints.saving(target):
            shards.write(partial, tensors, world.group)

    try:
        world.together(write)
        whole = {**progress, "ranks": world.size}
        world.main(lambda: checkpoints.commit_checkpoint(partial, target, whole))
    finally:
        if world.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
    return target
