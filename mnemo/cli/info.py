"""Show parameters, FLOPs, state size and memory plan of a preset or a run, without loading weights."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mnemo.cli import console
from mnemo.errors import MnemoError
from mnemo.recipes.memory_words import layer_ranges
from mnemo.recipes.presets import documentation, format_presets, grouped_listing, is_preset
from mnemo.storage.run_header import find_overrides, find_recipe
from mnemo.storage.shipped import load_card, shipped_model
from mnemo.units import size_text

if TYPE_CHECKING:
    from mnemo.cost.flops import Flops
    from mnemo.cost.model_cost import ModelCost
    from mnemo.cost.state_size import MemoryKind

WIDTH = 100
"""Characters of a line of wrapped text."""


@dataclass(frozen=True, kw_only=True)
class Args:
    name: Annotated[str | None, tyro.conf.Positional] = None
    """A preset, a run's name or folder (runs/NAME if a preset has the same name), or a model that comes with mnemo."""
    memory: int | None = None
    """Memory length of the long-range layers; if unset, as in training."""
    segment: int | None = None
    """Segment length; if unset, as in training."""
    batch: int | None = None
    """Rows of text in a batch; if unset, as in training."""
    list: bool = False
    """List the presets in groups; with a name, those that match it: `--list enwik8`."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    if args.list:
        return _list_presets([] if args.name is None else [args.name], args.json)
    if args.name is None:
        raise MnemoError("name a preset or a run; mnemo info --list shows the presets")
    recipe, overrides = find_recipe(args.name), find_overrides(args.name)
    from mnemo.cost.model_cost import describe

    info = describe(args.name, recipe, memory=args.memory, segment=args.segment, batch=args.batch)
    if args.json:
        recorded = {"overrides": [each.to_json() for each in overrides]} if overrides else {}
        console.print_json({**info.to_json(), **recorded})
    else:
        changes = "\n".join(f"changed at step {each.step:,}: {each.describe()}" for each in overrides)
        print("\n\n".join(part for part in (_about(args.name), *_sections(info), changes) if part))
    return 0


def _list_presets(words: Sequence[str], as_json: bool) -> int:
    if as_json:
        groups = grouped_listing(words)
        console.print_json({name: about for rows in groups.values() for name, about in rows})
    else:
        print(format_presets(words))
    return 0


def _about(name: str) -> str:
    """The documentation of a preset, and the card of a model that comes with mnemo; both may have one name."""
    parts = []
    if is_preset(name):
        parts.append("\n".join(line.strip() for line in documentation(name).strip().splitlines()))
    if (model := shipped_model(name)) is not None:
        parts.append("\n".join(_fact(*fact) for fact in load_card(model).items()))
    return "\n\n".join(parts)


def _fact(name: str, text: str) -> str:
    return textwrap.fill(f"{name}: {text}", WIDTH, subsequent_indent="  ")


def _sections(info: ModelCost) -> list[str]:
    return [_parameters(info), _flops(info), _activations(info), _state(info), f"attention: {info.attention}"]


def _parameters(info: ModelCost) -> str:
    rows = [
        ("embedding and softmax", info.parameters.embedding),
        ("layers", info.parameters.layers),
        ("shared by all layers", info.parameters.shared),
        ("total", info.parameters.total),
    ]
    return console.format_table([(name, f"{count:>13,}") for name, count in rows], ("parameters", ""))


def _flops(info: ModelCost) -> str:
    headers = ("forward FLOPs a token", "    training", "cached inference")
    rows = [
        (name.replace("_", "-"), _mega(info.training, name), _mega(info.inference, name).rjust(len(headers[2])))
        for name in (*info.training._fields, "total")
    ]
    step = f"{info.training_step / 1e6:,.2f} M ({info.training_step / info.training.total:.3g} times the forward pass)"
    adds = f"{info.training.multiply_adds / 1e6:,.2f} M and {info.inference.multiply_adds / 1e6:,.2f} M"
    return "\n".join(
        [
            f"segment {info.segment:,}, memory {info.memory:,}, batch {info.batch:,}",
            console.format_table(rows, headers),
            f"A training step takes {step} a token.",
            f"A multiply-add counts as 2: {adds} multiply-adds, which many papers call FLOPs.",
            "Matrix products only; memory full; mean over a causal segment.",
        ]
    )


def _activations(info: ModelCost) -> str:
    kept = info.activations
    lines = [
        f"an update of {info.batch:,} rows keeps about {size_text(kept.all)} of activations; computed again instead,",
        f"  layers (--train.recompute layer): {size_text(kept.layers)} for {_more(kept.layers_work)} FLOPs",
    ]
    if kept.segments < kept.all:
        lines.append(
            f"  segments (--train.bptt-memory replay): {size_text(kept.segments)} for {_more(kept.segments_work)} FLOPs"
        )
    return "\n".join(lines)


def _more(share: float) -> str:
    return f"{100 * (share - 1):.0f}% more"


def _mega(flops: Flops, name: str) -> str:
    return f"{getattr(flops, name) / 1e6:>10,.2f} M"


def _state(info: ModelCost) -> str:
    from mnemo.cost.plan_picture import draw_plan

    tokens = [] if info.tokens is None else [(info.tokens.state_bytes, info.tokens.state_bytes)]
    sizes = [*tokens, *zip(info.state_bytes, info.cached_bytes, strict=True)]
    shared = {f"{layer:>5}" for kind in info.memories if kind.together for layer in kind.layers}
    rows = [
        (*row, *("" if row[0] in shared and not size else size_text(size).rjust(9) for size in pair))
        for row, pair in zip(draw_plan(info), sizes, strict=True)
    ]
    headers = ("layer", "", "memory", "", "slots", "    state", "   cached")
    total, cached = info.total_bytes(info.state_bytes), info.total_bytes(info.cached_bytes)
    all_rows = f"; of {info.batch:,} rows: {size_text(total * info.batch)}" if info.batch > 1 else ""
    return "\n".join(
        [
            console.format_table(rows, headers),
            *_marks(info),
            f"memory: {info.memory_in_words}",
            *map(_kind, info.memories),
            *_tokens(info),
            f"state of one row in 32-bit numbers: {size_text(total)} "
            f"({size_text(cached)} cached for inference){all_rows}",
            *(f"hint: {hint}" for hint in info.hints),
        ]
    )


def _marks(info: ModelCost) -> list[str]:
    more = any(layer.slots > layer.length for layer in info.plan)
    return ["L marks long-range layers" + (", = slots besides the memory's own." if more else ".")]


def _kind(kind: MemoryKind) -> str:
    """One kind of memory in words; a name and its value stay on one line."""
    how = " together" if kind.together else " each" if kind.tensors else ""
    keep = "keeps" if len(kind.layers) == 1 else f"keep{how}"
    tensors = [f"{name} {' x '.join(map(str, shape))}" for name, shape in kind.tensors.items()]
    settings = [f"{name} {_value(value)}" for name, value in kind.settings.items()]
    kept = [f"{keep} {_list(tensors)}", f"({size_text(kind.state_bytes)} in all)"] if tensors else [keep, "nothing"]
    text = " ".join([f"{kind.memory}: {layer_ranges(kind.layers)}", *kept])
    text += f"; {_list(settings)}" if settings else ""
    return textwrap.fill(text, WIDTH, subsequent_indent="  ").replace("\xa0", " ")


def _list(items: Sequence[str]) -> str:
    return ", ".join(item.replace(" ", "\xa0") for item in items)


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _tokens(info: ModelCost) -> list[str]:
    if info.tokens is None:
        return []
    tokens, kept = info.tokens, size_text(info.tokens.state_bytes) if info.tokens.state_bytes else "nothing"
    return [f"memory tokens: {tokens.read} read, {tokens.written} written by every segment; {kept} carried on"]
