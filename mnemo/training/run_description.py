"""The lines that a run shows when it starts."""

from __future__ import annotations

from collections.abc import Iterator

from mnemo.errors import plural
from mnemo.evaluation.settings import trained_memory
from mnemo.recipes.memory_words import memory_hints, memory_in_words
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.storage.run_header import RunHeader
from mnemo.training.processes import Alone
from mnemo.training.resume_overrides import describe_overrides
from mnemo.training.trainer import Trainer

WEIGHTS_OF_A_PROCESS = {"DDP": "all weights", "FSDP": "a share of the weights"}


def describe_run(trainer: Trainer, header: RunHeader) -> Iterator[str]:
    """Model, memory, corpus, batch, validation, device and processes of a run, and hints."""
    model, train, corpus = header.recipe.model, header.recipe.train, header.corpus
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    yield f"model: {plural(model.num_layers, 'layer')} of width {model.dim}, {count:,} parameters"
    yield f"memory: {memory_in_words(model)}"
    yield f"corpus: {corpus['name']}, vocabulary of {plural(corpus['vocab_size'], corpus['unit'])}"
    yield f"batch: {train.batch} x {train.segment} tokens; {plural(train.steps, 'step')}"
    scored = header.recipe.evaluation
    yield f"validation: segment {scored.segment or train.segment}, {_validation_memory(header.recipe)}"
    yield f"device: {trainer.device}, {train.precision}"
    yield f"step: {trainer.engine.describe()}"
    if not isinstance(trainer.world, Alone):
        yield _describe_processes(trainer, train)
    yield from describe_overrides(header)
    yield f"run: {trainer.folder}"
    yield from (f"hint: {hint}" for hint in memory_hints(header.recipe))


def _validation_memory(recipe: Recipe) -> str:
    length = recipe.evaluation.memory
    if length is None or length == trained_memory(recipe.model):
        return "memory as in training"
    return f"memory {length:,}, trained at {trained_memory(recipe.model):,}"


def _describe_processes(trainer: Trainer, train: TrainConfig) -> str:
    least, more = divmod(train.batch, trainer.world.size)
    rows = f"{least} to {least + 1}" if more else str(least)
    parts = f" in {train.accumulate} parts" if train.accumulate > 1 else ""
    kind = trainer.device.type
    return (
        f"processes: {trainer.world.size} ({trainer.parallel.kind}), each with "
        f"{WEIGHTS_OF_A_PROCESS[trainer.parallel.kind]} and {rows} of the "
        f"{train.batch} rows{parts}, on its own {'GPU' if kind == 'cuda' else kind.upper()}"
    )
