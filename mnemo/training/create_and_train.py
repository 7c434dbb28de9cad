"""Creating run folders and training them: `create_run` and `train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.model.memory_limits import require_training_room
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.tied_lengths import settle_lengths
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.storage.checkpoint import Checkpoint
from mnemo.storage.overrides import Rates
from mnemo.storage.run_header import RunHeader, find_run, load_header
from mnemo.storage.run_tokenizer import load_tokenizer
from mnemo.storage.weights import build_model, check_weights, pick_device
from mnemo.training.data import Data, check_rows, open_data
from mnemo.training.distributed import check_parallel
from mnemo.training.divergence import Diverged
from mnemo.training.metrics_log import NoTracker, Tracker
from mnemo.training.monitor import Monitor, Unwatched, with_unit
from mnemo.training.precision import safe_kernels
from mnemo.training.processes import AnyWorld, joined
from mnemo.training.resume_overrides import plan_override, record_override
from mnemo.training.run_description import describe_run
from mnemo.training.stop_signals import stop_on_signals
from mnemo.training.trainer import Outcome, Trainer


def create_run(
    recipe: Recipe,
    folder: str | Path,
    *,
    data: Data | None = None,
    preset: str | None = None,
    source: str | Path | None = None,
    monitor: Monitor | None = None,
) -> Path:
    """Check a recipe, and write a new run folder for it; `train` then trains that folder.

    Raise MnemoError if the folder is not empty, or if the recipe does not fit the data.

    `data`: training data in place of the recipe's corpus
    `preset`: name of the recipe, for the record
    `source`: a run whose best weights training starts from
    `monitor`: receives notes and progress
    """
    monitor, folder = monitor or Unwatched(), Path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise MnemoError(f"{folder} exists: 'mnemo train --resume {folder}' continues it, --name starts another")
    recipe = settle_lengths(recipe)
    data = data or open_data(recipe, monitor.show)
    given, recipe = recipe, _with_vocabulary(recipe, data.info["vocab_size"])
    check(recipe)
    check_rows(recipe, data)
    with torch.device("meta"):
        model = build_model(recipe.model, recipe.train.precision)
    origin = None
    if source is not None:
        first = find_run(source)
        start = _first_checkpoint(first)
        _check_tokenizer(first, data)
        check_weights(model, _weights(start, model), start.file("weights"))
        origin = {"run": str(first.resolve()), "step": start.step}
    if recipe != given:
        sizes = f"{recipe.model.vocab_size:,} as in the corpus, not the recipe's {given.model.vocab_size:,}"
        monitor.note(f"vocabulary: {sizes}")
    header = RunHeader(recipe=recipe, corpus=data.info, preset=preset, source=origin)
    run_folder.write_header(folder, header, data.tokenizer)
    return folder


def train(
    folder: str | Path,
    *,
    data: Data | None = None,
    monitor: Monitor | None = None,
    tracker: Tracker | None = None,
    world: AnyWorld | None = None,
    overrides: Mapping[str, Any] | None = None,
    rates: Rates = "auto",
) -> Outcome:
    """Train the run in `folder`, which `create_run` has made, from its last intact checkpoint or from the beginning.

    Return the last step, the best validation loss, whether the run is finished, and the first signal, if any came.
    Processes started by torchrun train the run together.

    `data`: training data in place of the recipe's corpus
    `monitor`: receives notes, losses and progress
    `tracker`: receives every line of the metrics
    `world`: the processes, if they are already connected
    `overrides`: new values of the recipe from here on, such as `{"train.steps": 400, "train.optimizer.lr": 1e-4}`; the
        run keeps them
    `rates`: how the learning rate goes on after a change of steps or schedule
    """
    folder = Path(folder)
    header = load_header(folder)
    monitor = with_unit(monitor or Unwatched())
    if world is None:
        config = header.recipe.train
        with joined(config.device, config.timeout) as world:
            return train(
                folder, data=data, monitor=monitor, tracker=tracker, world=world, overrides=overrides, rates=rates
            )
    if world.rank:
        monitor, tracker = Unwatched(), None
    tracker = tracker or NoTracker()
    monitor.started(str(header.corpus.get("unit")))
    if overrides:
        header = _override(folder, header, overrides, rates, world, monitor)
    world.together(lambda: _check_run(folder, header, world))
    data = data or world.first(lambda: open_data(header.recipe, monitor.show, world))
    if data.info != header.corpus:
        raise MnemoError(f"corpus '{header.corpus.get('name')}' has changed since {folder} was started on it")
    config = header.recipe.train
    kernels = safe_kernels(config.precision, pick_device(config.device), monitor)
    with ExitStack() as stack, kernels, stop_on_signals(world.size == 1, tell=world.rank == 0) as stop:
        world.main(lambda: stack.enter_context(run_folder.locked(folder)))
        trainer = Trainer(folder, header, data, monitor, tracker, world)
        for line in describe_run(trainer, header):
            monitor.note(line)
        with trainer.started(lambda: _first_weights(trainer.model, header)), _recorded_divergence(folder, world):
            outcome = trainer.run(stop)
    return replace(outcome, signal=outcome.signal or stop.signal)  # one may have come during the last save


@contextmanager
def _recorded_divergence(folder: Path, world: AnyWorld) -> Iterator[None]:
    """Note in the run's folder that it has diverged, which `mnemo runs` shows; resuming removes the note."""
    if world.rank:
        yield
        return
    run_folder.write_divergence(folder, None)
    try:
        yield
    except Diverged as error:
        run_folder.write_divergence(folder, str(error))
        raise


def _override(
    folder: Path, header: RunHeader, changes: Mapping[str, Any], rates: Rates, world: AnyWorld, monitor: Monitor
) -> RunHeader:
    """Check and record changes of the recipe."""
    planned = world.together(lambda: plan_override(folder, header, changes, rates))
    world.together(lambda: _check_run(folder, planned, world))
    if planned.overrides != header.overrides:
        if run_folder.divergence(folder) is not None:
            step = planned.overrides[-1].step
            monitor.note(f"{folder} has diverged: continuing from step {step:,}, its last healthy checkpoint")
        world.main(lambda: record_override(folder, planned))
    return planned


def _check_run(folder: Path, header: RunHeader, world: AnyWorld) -> None:
    check(header.recipe)
    check_parallel(header.recipe, world)
    if run_folder.exported(folder) is not None:
        raise MnemoError(f"{folder} is an export, without what training depends on: start from it with --from")


def check(recipe: Recipe) -> None:
    """Raise MnemoError for recipes that cannot be trained, or not on this machine."""
    from_json(Recipe, to_json(recipe), "recipe")  # refuses numbers that are not finite
    train, model = recipe.train, recipe.model
    recurrent = len(model.memory.attending(model.num_layers)) < model.num_layers
    if train.bptt and train.bptt_window == "sliding" and not model.carries_gradient:
        raise MnemoError(
            f"bptt {train.bptt} needs memory tokens that are carried on, or an associative memory: no other memory "
            f"takes gradient back to earlier segments (with --train.bptt-window tumbling, {train.bptt} more segments "
            "share one update)"
        )
    if train.context and (recurrent or model.tokens is not None or any(model.memory.lengths(model.num_layers))):
        raise MnemoError(
            f"the context of {train.context} tokens is encoded again for every segment: "
            "with it, all memory lengths must be 0, without recurrent layers and memory tokens"
        )
    device = pick_device(train.device)
    require_training_room(model, device, batch=train.batch, segment=train.segment + train.context)
    if train.precision == "fp16" and device.type != "cuda":
        raise MnemoError(f"precision fp16 needs a CUDA device, not {device.type}: use bf16 or fp32")


def _with_vocabulary(recipe: Recipe, size: int) -> Recipe:
    cutoffs = recipe.model.embedding.cutoffs
    if cutoffs and cutoffs[-1] >= size:
        raise MnemoError(
            f"the adaptive softmax's cutoff {cutoffs[-1]:,} is not below the corpus's vocabulary of {size:,}: "
            "set --model.embedding.cutoffs"
        )
    return replace(recipe, model=replace(recipe.model, vocab_size=size))


def _check_tokenizer(source: Path, data: Data) -> None:
    """Tokens of two vocabularies have other meanings, also if there are equally many."""
    known = load_tokenizer(source)
    if known is not None and data.tokenizer is not None and known.to_json() != data.tokenizer:
        raise MnemoError(
            f"{source} has another vocabulary ({known.vocab_size:,} {known.unit}s) than corpus '{data.info['name']}' "
            f"({data.info['vocab_size']:,} {data.info['unit']}s): its weights do not fit other tokens"
        )


def _first_checkpoint(folder: Path) -> Checkpoint:
    found = run_folder.best_checkpoint(folder)
    if found is None:
        raise MnemoError(f"{folder} has no checkpoint to start from")
    return found


def _first_weights(model: Model, header: RunHeader) -> dict[str, Tensor] | None:
    if header.source is None or "run" not in header.source:
        return None
    folder, step = Path(header.source["run"]), header.source["step"]
    found = run_folder.exported(folder) or checkpoints.load_checkpoint(checkpoints.checkpoint_path(folder, step))
    return _weights(found, model)


def _weights(source: Checkpoint, model: Model) -> dict[str, Tensor]:
    """The weights that were evaluated, in the type of this model."""
    dtype = next(model.parameters()).dtype
    return {name: weight.to(dtype) for name, weight in checkpoints.evaluated_weights(source).items()}
