"""Run folders: everything that belongs to one training run.

    runs/NAME/recipe.json     the recipe, the corpus and the origin of the first weights
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
from typing import Any, Literal, TextIO, get_args

import torch

from mnemo import __version__
from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError, unknown
from mnemo.files import atomic
from mnemo.files.json_file import load_json, write_json
from mnemo.files.safe_load import is_count, open_own, require
from mnemo.files.tensor_file import write_tensors
from mnemo.memory.state import Start, State
from mnemo.model import Model
from mnemo.model.model import Lengths
from mnemo.recipes.recipe import Recipe
from mnemo.storage.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    checkpoint_path,
    checkpoint_steps,
    evaluated_weights,
    last_whole_checkpoint,
    load_checkpoint,
    saving,
)
from mnemo.storage.shipped import DEFAULT, shipped_model
from mnemo.storage.weights import build_model, check_weights, load_weights, pick_device

try:
    import fcntl
except ImportError:  # Windows: two processes can then train in one folder
    fcntl = None

RUNS = Path("runs")
RECIPE, TOKENIZER, BEST, METRICS = "recipe.json", "tokenizer.json", "best.json", "metrics.jsonl"
LOCK = "lock"
LOOK_SECONDS = 0.1
"""How long `locked` waits before its second attempt."""
EXPORT = "export.json"
"""In the folder of an exported model: the run and step of its weights."""
Which = Literal["best", "last"]
STARTS: tuple[Start, ...] = get_args(Start)


@dataclass(frozen=True, kw_only=True)
class RunHeader:
    """The content of recipe.json."""

    recipe: Recipe
    corpus: dict[str, Any]
    """Name, unit, vocab_size and fingerprint of the corpus."""
    preset: str | None = None
    source: dict[str, Any] | None = None
    """Path and step of the run that the first weights came from; `starts_from` for converted weights."""

    @property
    def start(self) -> Start:
        return (self.source or {}).get("starts_from", "empty")


@dataclass(frozen=True)
class LoadedRun:
    path: Path
    recipe: Recipe
    model: Model
    step: int
    corpus: dict[str, Any]
    start: Start
    """`zeros` for converted weights whose original code starts from a memory full of zeros."""

    def first_state(self, batch: int, lengths: Lengths = None, cached: bool = False) -> State:
        """The state before a text; `lengths`: slots of the long-range layers, or of every layer."""
        return (self.model.zeros if self.start == "zeros" else self.model.init)(batch, lengths, cached)


def open_run(run: str | Path, which: Which = "best", device: str | torch.device = "auto") -> LoadedRun:
    """Load a trained model as it was evaluated: with averaged weights if the run has begun to average them.

    `run`: a folder, or a name under `runs`. Before the first evaluation the last checkpoint counts as the best.
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
    return LoadedRun(path, header.recipe, model.eval(), checkpoint.step, header.corpus, header.start)


def find_run(run: str | Path, runs: Path = RUNS) -> Path:
    """The folder of a run, given its path, its name under `runs`, or that of a model that comes with the package."""
    for path in (runs / run, Path(run)):
        if (path / RECIPE).is_file():
            return path
    if Path(run).is_dir():
        raise MnemoError(f"{run} is not a run: it has no {RECIPE}")
    if (model := shipped_model(str(run))) is not None:
        return model
    names = [path.name for path in run_folders(runs)]
    raise unknown("run", str(run), names) if names else MnemoError(f"no run '{run}': there are none in {runs}")


def last_run(runs: Path = RUNS) -> Path:
    """The folder under `runs` in which training has written last; only runs with a checkpoint count."""
    trained = [path for path in run_folders(runs) if (path / EXPORT).is_file() or checkpoint_steps(path)]
    if not trained:
        raise MnemoError(f"there is no trained run in {runs}: train one (mnemo train mybook.txt), or name its folder")
    return max(trained, key=last_written)


def default_run(runs: Path = RUNS) -> Path:
    """The run that was trained last; if there is none, a model that comes with the package."""
    model = shipped_model(DEFAULT)
    try:
        return last_run(runs)
    except MnemoError:
        if model is None:
            raise
        return model


def run_folders(runs: Path = RUNS) -> list[Path]:
    """Every run under `runs`, sorted by name; hidden folders are unfinished ones."""
    return sorted(path.parent for path in runs.glob(f"*/{RECIPE}") if not path.parent.name.startswith("."))


def last_written(run: Path) -> float:
    """When training last wrote to a run, in seconds since the epoch; results of other verbs do not count."""
    names = (RECIPE, BEST, EXPORT, METRICS, CHECKPOINTS)
    return max((run / name).stat().st_mtime for name in names if (run / name).exists())


def write_header(folder: Path, header: RunHeader, tokenizer: dict[str, Any] | None = None) -> None:
    """Create a run folder with its recipe and tokenizer, atomically."""
    with atomic.new_folder(folder) as partial:
        if tokenizer is not None:
            write_json(partial / TOKENIZER, {"tokenizer": tokenizer})
        write_json(
            partial / RECIPE,
            {
                "mnemo_version": __version__,
                "torch_version": torch.__version__,
                "preset": header.preset,
                "source": header.source,
                "corpus": header.corpus,
                "recipe": to_json(header.recipe),
            },
        )


def load_header(folder: Path) -> RunHeader:
    path = folder / RECIPE
    data = load_json(path)
    if not isinstance(data.get("corpus"), dict):
        raise MnemoError(f"{path} is damaged: it does not describe the corpus")
    recipe = from_json(Recipe, data.get("recipe"), f"{path}: recipe")
    preset, source = data.get("preset"), data.get("source")
    known = source is None or (isinstance(source, dict) and isinstance(source.get("run"), str | None))
    require(
        {
            "preset": preset is None or isinstance(preset, str),
            "source": known and (source is None or is_count(source.get("step", 0))),
            "source.starts_from": not isinstance(source, dict) or source.get("starts_from", "empty") in STARTS,
        },
        path,
    )
    return RunHeader(recipe=recipe, corpus=data["corpus"], preset=preset, source=source)


def exported(folder: Path) -> Checkpoint | None:
    """The weights of an exported model; None if the folder is a run."""
    if not (folder / EXPORT).is_file():
        return None
    data = load_json(folder / EXPORT)
    if type(data.get("step")) is not int:
        raise MnemoError(f"{folder / EXPORT} is damaged")
    require({"half": type(data.get("half", False)) is bool}, folder / EXPORT)
    return Checkpoint(folder, {"step": data["step"], "average_count": 0, "half": data.get("half", False)})


def export_run(run: Path, target: Path, which: Which = "best", half: bool = False) -> Checkpoint:
    """Write a folder with a run's recipe, tokenizer and weights as they were evaluated.

    `half`: store the weights in bfloat16, in half the space; they are loaded as float32.
    """
    found = chosen_checkpoint(run, which)
    if target.exists():
        raise MnemoError(f"{target} exists: choose another folder with --output")
    with saving(target), atomic.new_folder(target) as partial:
        for name in (RECIPE, TOKENIZER):
            if (run / name).is_file():
                shutil.copyfile(run / name, partial / name)
        weights = evaluated_weights(found)
        stored = {name: weight.bfloat16() for name, weight in weights.items()} if half else weights
        write_tensors(partial / "weights.safetensors", stored)
        write_json(partial / EXPORT, {"run": run.name, "step": found.step} | ({"half": True} if half else {}))
    return found


def chosen_checkpoint(folder: Path, which: Which) -> Checkpoint:
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
    if not (folder / BEST).exists():
        return last_checkpoint(folder)
    step = load_json(folder / BEST).get("step")
    require({"step": is_count(step)}, folder / BEST)
    assert is_count(step)
    return _load_or_name_complete(folder, step)


def _load_or_name_complete(folder: Path, step: int) -> Checkpoint:
    """Load the checkpoint of a step; if it is damaged, the error names the newest whole one."""
    try:
        return load_checkpoint(checkpoint_path(folder, step))
    except MnemoError as error:
        whole, newer = last_whole_checkpoint(folder)
        if whole is None:
            raise
        condition = " once newer ones are removed" if newer else ""
        raise MnemoError(f"{error}; step {whole.step} is whole: --which last uses it{condition}") from None


def write_best(folder: Path, step: int, loss: float) -> None:
    write_json(folder / BEST, {"step": step, "loss": loss})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in this folder; the operating system drops the lock when the process ends."""
    with os.fdopen(open_own(folder / LOCK), "w") as file:
        if not _takes_lock(file):
            time.sleep(LOOK_SECONDS)  # `is_training` of another process holds the lock for an instant
            if not _takes_lock(file):
                raise MnemoError(f"{folder} is in use by another process")
        yield


def _takes_lock(file: TextIO, shared: bool = False) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_training(folder: Path) -> bool | None:
    """Whether a process of this machine trains the run now; None if this system cannot tell."""
    if fcntl is None:
        return None
    if not (folder / LOCK).is_file():
        return False
    with os.fdopen(open_own(folder / LOCK, os.O_RDONLY)) as file:
        return not _takes_lock(file, shared=True)
