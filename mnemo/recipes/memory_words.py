"""The whole memory of a model in words, and hints about memories that cannot do what their paper does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mnemo.errors import plural
from mnemo.memory import AnyMemory
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import Recipe


def memory_in_words(model: ModelConfig) -> str:
    """All memory of a model: `64 slots in every layer (XL), 10 memory tokens`."""
    found: dict[AnyMemory, list[int]] = {}
    for index, memory in enumerate(model.memory.memories(model.num_layers)):
        found.setdefault(memory, []).append(index + 1)
    kept = {memory: layers for memory, layers in found.items() if memory.length or memory.traits.besides}
    parts = [_layers_in_words(memory, layers, model.num_layers) for memory, layers in kept.items()]
    if model.tokens is not None and model.tokens.num:
        parts.append(model.tokens.in_words)
    return ", ".join(parts) or "none"


def memory_without_slots(model: ModelConfig) -> str:
    """The memory of a model besides all slots, in short: `LSTM state`, `10 memory tokens`; empty if there is none."""
    besides = dict.fromkeys(memory.traits.besides for memory in model.memory.memories(model.num_layers))
    tokens = model.tokens if model.tokens is not None and model.tokens.carries else None
    return ", ".join(filter(None, (*besides, "" if tokens is None else plural(tokens.num, "memory token"))))


def _layers_in_words(memory: AnyMemory, layers: Sequence[int], num_layers: int) -> str:
    slots = plural(memory.length, "slot") if memory.length else ""
    contents = " and ".join(filter(None, (slots, memory.traits.besides)))
    where = "every layer" if len(layers) == num_layers else layer_ranges(layers)
    name = type(memory).__name__
    return f"{contents} in {where}" + ("" if name in contents else f" ({name})")


def layer_ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 -> layers 1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"layer {text}" if len(numbers) == 1 else f"layers {text}"


def memory_hints(recipe: Recipe) -> Iterator[str]:
    """What keeps memory tokens from being a Recurrent Memory Transformer, or an associative memory from learning."""
    model, tokens = recipe.model, recipe.model.tokens
    if tokens is None or not tokens.num:
        return
    if model.carries_gradient and not recipe.train.bptt:
        name = "rmt" if tokens.carries else "armt"
        yield (
            "memory tokens cannot learn what to pass on, because no gradient reaches earlier segments: "
            f"set --train.bptt 1 or more, or --model.memory {name} for the paper's method"
        )
    if any(memory.traits.carries_gradient for memory in model.memory.memories(model.num_layers)):
        return
    slots = max(model.memory.lengths(model.num_layers))
    if slots:
        yield (
            f"layers keep up to {slots:,} slots beside the memory tokens; RMT has memory tokens only: "
            "set --model.memory rmt, or the lengths to 0"
        )
