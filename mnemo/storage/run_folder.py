"""Run folders: everything that belongs to one training run.

    runs/NAME/recipe.json     the recipe, the corpus and the origin of the first weights
    runs/NAME/overrides.json  changes of the recipe on resume, see `mnemo.storage.overrides`
    runs/NAME/tokenizer.json  how its text was cut into tokens
    runs/NAME/checkpoints/    see `mnemo.storage.checkpoint`
    runs/NAME/best.json       the step with the lowest validation loss

An export is a folder with recipe, tokenizer and one set of weights: enough to evaluate, not to resume.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mnemo import __version__
from mnemo.config import to_json
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.json_file import load_json, write_json
from mnemo.files.lock import takes_lock
from mnemo.files.safe_load import is_count, open_own, require
from mnemo.files.tensor_file import stored_checksum, write_tensors
from mnemo.memory.configuration import Decoding, Start
from mnemo.memory.own import origins
from mnemo.memory.state import State
from mnemo.model import Model
from mnemo.model.model import Lengths
from mnemo.recipes.recipe import Recipe
from mnemo.storage import run_identity
from mnemo.storage.checkpoint import (
    Checkpoint,
    checkpoint_path,
    checkpoint_steps,
    evaluated_weights,
    last_whole_checkpoint,
    load_checkpoint,
    saving,
)
from mnemo.storage.overrides import OVERRIDES
from mnemo.storage.run_header import BEST, EXPORT, RECIPE, TOKENIZER, RunHeader, Which, find_run, load_header
from mnemo.storage.weights import build_model, check_weights, load_weights, pick_device

DIVERGED = "diverged.json"
"""Why the run has ended by a divergence; removed when it is resumed."""
LOCK = "lock"
LOOK_SECONDS = 0.1
"""How long `locked` waits before its second attempt."""
WEIGHTS = "weights.safetensors"
"""In the folder of an exported model."""


@dataclass(frozen=True)
class LoadedRun:
    """A trained model as `mnemo eval` uses it, with the recipe and the step of its checkpoint."""

    path: Path
    """Folder of the run."""
    recipe: Recipe
    """The recipe, with the changes that were made on resume."""
    model: Model
    """The model, in evaluation mode."""
    step: int
    """Updates before the checkpoint."""
    corpus: dict[str, Any]
    """Name and tokenizer of the corpus that the run was trained on."""
    start: Start
    """`zeros` for converted weights whose original code starts from a memory full of zeros."""
    decoding: Decoding = "segments"
    """`calls` for converted weights whose original code takes the prompt, then every token, as a segment."""

    def first_state(self, batch: int, lengths: Lengths = None, cached: bool = False) -> State:
        """The state before a text; `lengths`: slots of the long-range layers, or of every layer."""
        return (self.model.zeros if self.start == "zeros" else self.model.init)(batch, lengths, cached)


def open_run(run: str | Path, which: Which | int = "best", device: str | torch.device = "auto") -> LoadedRun:
    """Load a trained model as it was evaluated: with averaged weights if the run has begun to average them.

    `run`: a folder, or a name under `runs`. `which`: a checkpoint, or its step. Before the first evaluation the last
    checkpoint counts as the best.
    """
    path = find_run(run)
    header = load_header(path)
    checkpoint = chosen_checkpoint(path, which)
    with torch.device("meta"):
        model = build_model(header.recipe.model, header.recipe.train.precision)
    weights, path_of_weights = evaluated_weights(checkpoint), checkpoint.file("weights")
    check_weights(model, weights, path_of_weights)  # before memory for a model of the recipe's size is allocated
    model.to_empty(device=pick_device(device))
    load_weights(model, weights, path_of_weights)
    return LoadedRun(path, header.recipe, model.eval(), checkpoint.step, header.corpus, header.start, header.decoding)


def write_header(folder: Path, header: RunHeader, tokenizer: dict[str, Any] | None = None) -> None:
    """Create a run folder with its recipe and tokenizer, atomically."""
    imports = origins(header.recipe.model.memory)
    with atomic.new_folder(folder) as partial:
        checksums = {}
        if tokenizer is not None:
            checksums[TOKENIZER] = write_json(partial / TOKENIZER, {"tokenizer": tokenizer})
        write_json(
            partial / RECIPE,
            {
                run_identity.FIELD: header.run_id or run_identity.new(),
                "checksums": checksums,
                "mnemo_version": __version__,
                "torch_version": torch.__version__,
                "preset": header.preset,
                "source": header.source,
                "corpus": header.corpus,
                "settled_lengths": True,
                **({"imports": imports} if imports else {}),
                "recipe": to_json(header.recipe),
            },
        )


def exported(folder: Path) -> Checkpoint | None:
    """The weights of an exported model; None if the folder is a run."""
    if not (folder / EXPORT).is_file():
        return None
    data = load_json(folder / EXPORT)
    if not is_count(data.get("step")) or not isinstance(data.get("checksums", {}), dict):
        raise MnemoError(f"{folder / EXPORT} is damaged")
    require({"half": type(data.get("half", False)) is bool}, folder / EXPORT)
    if "checksums" in data:
        run_identity.require_same(folder / EXPORT, folder, data)
    about = {"step": data["step"], "average_count": 0, "files": [WEIGHTS], "checksums": data.get("checksums", {})}
    return Checkpoint(folder, about | {"half": data.get("half", False)})


def export_run(run: Path, target: Path, which: Which = "best", half: bool = False) -> Checkpoint:
    """Write a folder with a run's recipe, tokenizer and weights as they were evaluated.

    `half`: store the weights in bfloat16, in half the space; they are loaded as float32.
    """
    found = chosen_checkpoint(run, which)
    if target.exists():
        raise MnemoError(f"{target} exists: choose another folder with --out")
    with saving(target), atomic.new_folder(target) as partial:
        for name in (RECIPE, OVERRIDES, TOKENIZER):
            if (run / name).is_file():
                shutil.copyfile(run / name, partial / name)
        weights = evaluated_weights(found)
        stored = {name: weight.bfloat16() for name, weight in weights.items()} if half else weights
        write_tensors(partial / WEIGHTS, stored)
        checksums = {WEIGHTS: stored_checksum(partial / WEIGHTS)}
        about = {"run": run.name, **run_identity.of_run(run), "step": found.step, "checksums": checksums}
        write_json(partial / EXPORT, about | ({"half": True} if half else {}))
    return found


def chosen_checkpoint(folder: Path, which: Which | int) -> Checkpoint:
    if isinstance(which, int):
        return _load_or_name_complete(folder, which)
    found = best_checkpoint(folder) if which == "best" else last_checkpoint(folder)
    if found is None:
        raise MnemoError(f"{folder} has no whole checkpoint yet")
    return found


def last_checkpoint(folder: Path) -> Checkpoint | None:
    if (found := exported(folder)) is not None:
        return found
    steps = checkpoint_steps(folder)
    return _load_or_name_complete(folder, steps[-1]) if steps else None


def best_checkpoint(folder: Path) -> Checkpoint | None:
    if (found := exported(folder)) is not None:
        return found
    if (folder / BEST).exists():
        return _load_or_name_complete(folder, best_step(folder))
    last = last_checkpoint(folder)
    # The file is written after the checkpoint, so that a power failure can leave a checkpoint without it.
    best = None if last is None else last.progress.get("best")
    if isinstance(best, list) and best and best[0] in checkpoint_steps(folder):
        return _load_or_name_complete(folder, best[0])
    return last


def best_step(folder: Path) -> int:
    """The step in the file that names the best checkpoint."""
    data = load_json(folder / BEST)
    run_identity.require_own(folder / BEST, data)
    step = data.get("step")
    require({"step": is_count(step)}, folder / BEST)
    assert is_count(step)
    return step


def _load_or_name_complete(folder: Path, step: int) -> Checkpoint:
    """Load the checkpoint of a step; if it is damaged, the error names the newest whole one."""
    try:
        found = load_checkpoint(checkpoint_path(folder, step))
        found.verify(found.evaluated_files)
        return found
    except MnemoError as error:
        whole, newer = last_whole_checkpoint(folder)
        if whole is None:
            raise
        condition = " once newer ones are removed" if newer else ""
        raise MnemoError(f"{error}; step {whole.step} is whole: --which last uses it{condition}") from None


def write_best(folder: Path, step: int, loss: float) -> None:
    write_json(folder / BEST, {**run_identity.of_run(folder), "step": step, "loss": loss})


def remove_best(folder: Path) -> None:
    (folder / BEST).unlink(missing_ok=True)


class InUse(MnemoError):
    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is in use by another process")
        self.folder = folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in this folder; the operating system drops the lock when the process ends."""
    with os.fdopen(open_own(folder / LOCK), "w") as file:
        if not takes_lock(file):
            time.sleep(LOOK_SECONDS)  # `in_use` of another process holds the lock for an instant
            if not takes_lock(file):
                raise InUse(folder)
        yield


def in_use(folder: Path) -> bool:
    """Whether a process holds the lock of a run."""
    if not (folder / LOCK).is_file():
        return False
    with (folder / LOCK).open() as file:
        return not takes_lock(file, shared=True)


def divergence(folder: Path) -> str | None:
    """Why training in this folder has ended by a divergence; None if it has not."""
    if not (folder / DIVERGED).is_file():
        return None
    return str(load_json(folder / DIVERGED).get("reason"))


def write_divergence(folder: Path, reason: str | None) -> None:
    """Record that a run has diverged; None: it has not, or is being trained again."""
    if reason is None:
        (folder / DIVERGED).unlink(missing_ok=True)
    else:
        write_json(folder / DIVERGED, {"reason": reason})
