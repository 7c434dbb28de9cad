"""Recurrent Memory Transformer (Bulatov et al., 2022): all models of its Tables 2 to 4 (Table 1 is a task).

    rmt-CORPUS-segN                  no memory (the tables' baseline)
    rmt-CORPUS-segN-xlM              Transformer-XL with M slots
    rmt-CORPUS-segN-mtM              Memory Transformer with M memory tokens, which are only read
    rmt-CORPUS-segN-mM-bpttK         RMT: M memory tokens, read and written, with gradient over K earlier segments

The paper gives layers, heads, memory sizes and depths, and otherwise refers to Transformer-XL's scripts. Batches,
steps, head sizes and dropout come from the authors' result files. Memory tokens add M * width parameters.
`NAME@published` trains like the published code: sliding windows start from a stale memory, positions of later keys wrap
around, initial memory rows are equal, and the Memory Transformer passes its read block to the next segment. One result
is not comparable: 25 memory tokens with segments of 150 and BPTT 0 was run with an older version of the code.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

from mnemo.memory import MemoryTokens
from mnemo.recipes.preset_table import Preset, Table
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.recipes.transformer_xl import enwik8_base, everywhere, in_training, wikitext103_base

PRESETS = Table()


def without_memory(recipe: Recipe, *, segment: int, batch: int) -> Recipe:
    """Return the recipe without memory, with the same segment length in training and evaluation."""
    return replace(
        recipe,
        model=replace(recipe.model, memory=everywhere(0)),
        train=replace(recipe.train, segment=segment, batch=batch),
        evaluation=EvalConfig(batch=10),
        test=EvalConfig(batch=10),
    )


@PRESETS.add("rmt-wikitext103-seg150")
def rmt_wikitext103_seg150() -> Recipe:
    """RMT's baseline, WikiText-103, segments of 150, no memory, 151M parameters: 29.95 ppl.

    Tables 2 and 4. wikitext103-base with batch 60 and 200,000 steps, as published; evaluated with the training segment.
    """
    return without_memory(wikitext103_base(), segment=150, batch=60)


@PRESETS.add("rmt-wikitext103-seg50")
def rmt_wikitext103_seg50() -> Recipe:
    """RMT's baseline, WikiText-103, segments of 50, no memory, 151M parameters: 39.05 ppl.

    Tables 2 and 4. wikitext103-base with batch 128 (not in the paper) and 200,000 steps; evaluated with the training
    segment.
    """
    return without_memory(wikitext103_base(), segment=50, batch=128)


@PRESETS.add("rmt-enwik8-seg128")
def rmt_enwik8_seg128() -> Recipe:
    """RMT's baseline, enwik8, segments of 128, no memory, 41M parameters: 1.402 bpc (not in Table 3).

    The result is from the authors' result files. enwik8-base with batch 64 (not in the paper) and 400,000 steps;
    evaluated with the training segment.
    """
    return without_memory(enwik8_base(), segment=128, batch=64)


@PRESETS.add("rmt-enwik8-seg512-xl512")
def rmt_enwik8_seg512_xl512() -> Recipe:
    """Transformer-XL as RMT's authors trained it, enwik8, segments and memory of 512: 1.071 bpc.

    Table 3. enwik8-base, tested with the settings of validation: segment 128 and memory 896.
    """
    return replace(enwik8_base(), test=in_training(512, 512, 128))


def with_cache(recipe: Recipe, length: int) -> Recipe:
    return replace(recipe, model=replace(recipe.model, memory=everywhere(length)))


def with_tokens(recipe: Recipe, num: int, *, write: bool = True, bptt: int | None = None) -> Recipe:
    """Add memory tokens; `bptt`: as in the recipe if None."""
    model = replace(recipe.model, tokens=MemoryTokens(num=num, write=write))
    train = recipe.train if bptt is None else replace(recipe.train, bptt=bptt)
    return replace(recipe, model=model, train=train)


def _add_caches(base: Preset, name: str, where: str, unit: str, results: Iterable[tuple[int, str]]) -> None:
    for length, result in results:
        PRESETS.add_variant(
            f"{name}-xl{length}",
            f"Transformer-XL, {where}, {length} slots: {result} {unit}.",
            base,
            functools.partial(with_cache, length=length),
        )


def _add_prefixes(base: Preset, name: str, where: str, unit: str, results: Iterable[tuple[int, str]]) -> None:
    for num, result in results:
        PRESETS.add_variant(
            f"{name}-mt{num}",
            f"Memory Transformer, {where}, {num} memory tokens: {result} {unit}.",
            base,
            functools.partial(with_tokens, num=num, write=False),
        )


def _add_tokens(base: Preset, name: str, where: str, unit: str, results: Iterable[tuple[int, int, str]]) -> None:
    for num, bptt, result in results:
        PRESETS.add_variant(
            f"{name}-m{num}-bptt{bptt}",
            f"RMT, {where}, memory tokens: {num}, BPTT: {bptt}: {result} {unit}.",
            base,
            functools.partial(with_tokens, num=num, bptt=bptt),
        )


_LONG = (rmt_wikitext103_seg150, "rmt-wikitext103-seg150", "WikiText-103, segments of 150", "ppl")
_add_caches(*_LONG, [(150, "24.12"), (75, "24.68"), (25, "25.57")])
_add_prefixes(*_LONG, [(10, "29.63"), (25, "29.67"), (75, "29.69"), (150, "29.82")])
_add_tokens(
    *_LONG,
    [
        (10, 0, "26.85"),
        (10, 1, "25.92"),
        (10, 2, "25.32"),
        (10, 3, "25.04"),
        (25, 0, "29.73 (older code)"),
        (25, 1, "24.91"),
        (25, 2, "24.85"),
    ],
)

_SHORT = (rmt_wikitext103_seg50, "rmt-wikitext103-seg50", "WikiText-103, segments of 50", "ppl")
_add_caches(
    *_SHORT,
    [
        (200, "25.14"),
        (100, "25.66"),
        (50, "26.54"),
        (25, "27.57"),
        (10, "28.98"),
        (5, "30.06"),
        (1, "32.35"),
    ],
)
_add_tokens(
    *_SHORT,
    [
        (1, 0, "31.33"),
        (1, 1, "28.71"),
        (1, 2, "28.44"),
        (1, 3, "28.40"),
        (5, 0, "30.32"),
        (5, 1, "27.05"),
        (5, 2, "26.83"),
        (5, 3, "26.75"),
        (5, 4, "26.67"),
        (10, 0, "30.69"),
        (10, 1, "27.95"),
        (10, 2, "26.62"),
        (10, 3, "26.37"),
        (10, 4, "26.25"),
        (25, 0, "29.75"),
        (25, 1, "26.32"),
        (25, 2, "27.31"),
        (50, 0, "29.75"),
        (50, 1, "26.03"),
    ],
)

_ENWIK8 = (rmt_enwik8_seg128, "rmt-enwik8-seg128", "enwik8, segments of 128", "bpc")
_add_caches(
    *_ENWIK8,
    [(200, "1.140"), (100, "1.178"), (75, "1.196"), (40, "1.230"), (20, "1.261"), (10, "1.283")],
)
_add_tokens(
    *_ENWIK8,
    [
        (5, 1, "1.241"),
        (5, 2, "1.231"),
        (10, 1, "1.240"),
        (10, 2, "1.228"),
        (20, 0, "1.301"),
        (20, 1, "1.229"),
        (20, 2, "1.222"),
    ],
)
