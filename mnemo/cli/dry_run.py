"""`mnemo train --dry-run`: the recipe of a run and facts about it, without training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from mnemo.cli.console import print_json
from mnemo.config import to_json
from mnemo.cost.model_cost import describe
from mnemo.cost.training_cost import checkpoint_bytes, cpu_seconds, cpu_time_in_words, trained_tokens, training_bytes
from mnemo.data import corpus as corpora
from mnemo.data.known_corpora import PYTHON, missing
from mnemo.errors import plural
from mnemo.inference.narrow_weights import has_bf16_products
from mnemo.model.memory_limits import bytes_if_too_small
from mnemo.model.shapes import num_parameters
from mnemo.recipes.config_file import to_toml
from mnemo.recipes.memory_words import memory_hints, memory_in_words
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.tied_lengths import settle_lengths
from mnemo.storage.weights import pick_device
from mnemo.training.create_and_train import check

MOST_CPU_SECONDS = 86400
"""Longer training is meant for a GPU."""


class TextSize(NamedTuple):
    num_train: int
    vocab_size: int
    unit: str


def show(recipe: Recipe, text: TextSize | None, source: str | None, as_json: bool) -> None:
    """Print the recipe as TOML that --config accepts, after facts about it as comments.

    `text`: the text of the run; None: look for its corpus among the prepared ones. `source`: file of the user's own
    text, whose corpus does not exist yet.
    """
    recipe = settle_lengths(recipe)
    text = text or _prepared(recipe)
    if text is not None:
        recipe = replace(recipe, model=replace(recipe.model, vocab_size=text.vocab_size))
    check(recipe)
    facts = _facts(recipe, text)
    if as_json:
        print_json({"facts": facts, "recipe": to_json(recipe)})
        return
    command = "mnemo train --config FILE" if source is None else f"mnemo train {source} --config FILE"
    print(f"# Nothing is trained. Saved to a file (.toml), this is a configuration: {command}")
    for line in _banner(recipe, facts):
        print(f"# {line}")
    print()
    print(to_toml(recipe), end="")


def _prepared(recipe: Recipe) -> TextSize | None:
    if recipe.data.task is not None or corpora.find(recipe.data.corpus) is None:
        return None
    corpus = corpora.Corpus.open(recipe.data.corpus)
    return TextSize(corpus.splits["train"].count, corpus.vocab_size, corpus.tokenizer.unit)


def _facts(recipe: Recipe, text: TextSize | None) -> dict[str, Any]:
    train = recipe.train
    parameters = num_parameters(recipe.model)
    tokens = trained_tokens(train)
    needed, flops = training_bytes(recipe), tokens * describe("", recipe).training_step
    return {
        "parameters": parameters,
        "memory": memory_in_words(recipe.model),
        "steps": train.steps,
        "tokens": tokens,
        "corpus_tokens": None if text is None else text.num_train,
        "unit": None if text is None else text.unit,
        "epochs": None if text is None else tokens / text.num_train,
        "checkpoint_bytes": checkpoint_bytes(recipe),
        "training_bytes": round(needed),
        "training_flops": flops,
        "machine": _machine_remarks(recipe, needed, flops),
        "hints": list(memory_hints(recipe)),
    }


def _machine_remarks(recipe: Recipe, needed: float, flops: float) -> list[str]:
    """What this machine lacks for the recipe."""
    device = pick_device(recipe.train.device)
    slow = [*_slow_products(recipe), *_too_long(flops)] if device.type == "cpu" else []
    return [*_too_little_memory(device, needed), *slow]


def _too_little_memory(device: torch.device, needed: float) -> Iterator[str]:
    available = bytes_if_too_small(device, needed)
    if available is not None:
        name = "this machine" if device.type == "cpu" else f"device {device}"
        yield (
            f"{name} has {_megabytes(available)} of memory: too little; fewer rows at a time (--train.batch, or more "
            "parts with --train.accumulate) need less"
        )


def _slow_products(recipe: Recipe) -> Iterator[str]:
    if recipe.train.precision == "bf16" and not has_bf16_products():
        yield "bf16 is slow on this processor; --train.precision fp32 is faster"


def _too_long(flops: float) -> Iterator[str]:
    if cpu_seconds(flops) > MOST_CPU_SECONDS:
        yield f"the device is a CPU, and this recipe is meant for a GPU: {cpu_time_in_words(flops)}"


def _banner(recipe: Recipe, facts: dict[str, Any]) -> list[str]:
    model, train = recipe.model, recipe.train
    epochs = "" if facts["epochs"] is None else f", {facts['epochs']:.3g} times the text"
    last = "one" if train.keep == 1 else f"{train.keep:,}"
    one, all_kept = (_megabytes(count * facts["checkpoint_bytes"]) for count in (1, 1 + train.keep))
    return [
        f"model: {plural(model.num_layers, 'layer')} of width {model.dim}, {facts['parameters']:,} parameters",
        f"memory: {facts['memory']}",
        _corpus(recipe, facts),
        f"training: {plural(train.steps, 'step')} of {train.batch} x {train.segment} tokens, {facts['tokens']:,} tokens"
        + epochs,
        f"checkpoints: about {one} each, {all_kept} for the best and the last {last}",
        f"memory of the device: about {_megabytes(facts['training_bytes'])} in training",
        *(f"machine: {remark}" for remark in facts["machine"]),
        *(f"hint: {hint}" for hint in facts["hints"]),
    ]


def _corpus(recipe: Recipe, facts: dict[str, Any]) -> str:
    if recipe.data.task is not None:
        return f"task: {type(recipe.data.task).__name__.lower()}"
    if facts["corpus_tokens"] is None:
        return _unprepared(recipe.data.corpus)
    return f"corpus: {recipe.data.corpus}, {plural(facts['corpus_tokens'], facts['unit'])} to train on"


def _unprepared(corpus: str) -> str:
    """What training would do about a corpus that is missing: prepare the default one, or end with an error."""
    return f"corpus: {corpus}, prepared when training starts" if corpus == PYTHON else str(missing(corpus))


def _megabytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
