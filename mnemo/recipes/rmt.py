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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from mnemo.memory import MemoryTokens
from mnemo.recipes.preset_table import Preset, Table
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.recipes.transformer_xl import enwik8_base, everywhere, in_training, wikitext103_base

PRESETS = Table()

BASELINE, XL, MT, RMT = MODELS = "Baseline", "Transformer-XL", "MT", "RMT"
WIKITEXT, ENWIK8 = "wikitext-103", "enwik8"
LANGUAGE: Mapping[tuple[str, int, str, int], Sequence[str]] = {
    (WIKITEXT, 150, BASELINE, 0): ("29.95 ± 0.15",),
    (WIKITEXT, 150, MT, 10): ("29.63 ± 0.06",),
    (WIKITEXT, 150, MT, 25): ("29.67 ± 0.03",),
    (WIKITEXT, 150, MT, 75): ("29.69 ± 0.02",),
    (WIKITEXT, 150, MT, 150): ("29.82 ± 0.35",),
    (WIKITEXT, 150, XL, 150): ("24.12 ± 0.05",),
    (WIKITEXT, 150, XL, 75): ("24.68 ± 0.01",),
    (WIKITEXT, 150, XL, 25): ("25.57 ± 0.02",),
    (WIKITEXT, 150, RMT, 10): ("26.85 ± 0.02", "25.92 ± 1.07", "25.32 ± 0.61", "25.04 ± 0.07"),
    (WIKITEXT, 150, RMT, 25): ("29.73", "24.91", "24.85 ± 0.31"),
    (WIKITEXT, 50, BASELINE, 0): ("39.05 ± 0.01",),
    (WIKITEXT, 50, XL, 200): ("25.14",),
    (WIKITEXT, 50, XL, 100): ("25.66 ± 0.01",),
    (WIKITEXT, 50, XL, 50): ("26.54 ± 0.01",),
    (WIKITEXT, 50, XL, 25): ("27.57 ± 0.09",),
    (WIKITEXT, 50, XL, 10): ("28.98 ± 0.11",),
    (WIKITEXT, 50, XL, 5): ("30.06 ± 0.07",),
    (WIKITEXT, 50, XL, 1): ("32.35 ± 0.03",),
    (WIKITEXT, 50, RMT, 1): ("31.33 ± 1.26", "28.71 ± 0.03", "28.44", "28.40 ± 0.03"),
    (WIKITEXT, 50, RMT, 5): ("30.32 ± 0.18", "27.05 ± 0.20", "26.83 ± 0.18", "26.75 ± 0.26", "26.67 ± 0.03"),
    (WIKITEXT, 50, RMT, 10): ("30.69 ± 0.01", "27.95 ± 1.32", "26.62 ± 0.34", "26.37 ± 0.01", "26.25 ± 0.19"),
    (WIKITEXT, 50, RMT, 25): ("29.75", "26.32", "27.31"),
    (WIKITEXT, 50, RMT, 50): ("29.75", "26.03"),
    (ENWIK8, 512, XL, 512): ("1.071",),
    (ENWIK8, 128, BASELINE, 0): ("1.402 (result files)",),
    (ENWIK8, 128, XL, 200): ("1.140",),
    (ENWIK8, 128, XL, 100): ("1.178",),
    (ENWIK8, 128, XL, 75): ("1.196",),
    (ENWIK8, 128, XL, 40): ("1.230 ± 0.001",),
    (ENWIK8, 128, XL, 20): ("1.261",),
    (ENWIK8, 128, XL, 10): ("1.283 ± 0.001",),
    (ENWIK8, 128, RMT, 5): ("", "1.241 ± 0.002", "1.231 ± 0.002"),
    (ENWIK8, 128, RMT, 10): ("", "1.240 ± 0.006", "1.228 ± 0.003"),
    (ENWIK8, 128, RMT, 20): ("1.301", "1.229", "1.222"),
}
"""Tables 2 to 4, perplexity or bits per character by corpus, segment, model and memory; a value for each BPTT depth."""
OLDER = {(WIKITEXT, 150, RMT, 25, 0): " (older code)"}
"""Results that are not comparable with the others."""


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


def _add_variants(base: Preset, name: str, place: tuple[str, int], where: str, unit: str) -> None:
    """Add the models with memory on one text and segment length, as the tables list them."""
    rows = {key[2:]: values for key, values in LANGUAGE.items() if key[:2] == place}
    for (model, size), values in sorted(rows.items(), key=lambda row: MODELS.index(row[0][0])):
        for depth, value in enumerate(values):
            result = f"{value.partition(' ±')[0]}{OLDER.get((*place, model, size, depth), '')} {unit}"
            added = {
                XL: (f"xl{size}", f"Transformer-XL, {where}, {size} slots", partial(with_cache, length=size)),
                MT: (
                    f"mt{size}",
                    f"Memory Transformer, {where}, {size} memory tokens",
                    partial(with_tokens, num=size, write=False),
                ),
                RMT: (
                    f"m{size}-bptt{depth}",
                    f"RMT, {where}, memory tokens: {size}, BPTT: {depth}",
                    partial(with_tokens, num=size, bptt=depth),
                ),
            }
            if value and model in added:
                ending, summary, change = added[model]
                PRESETS.add_variant(f"{name}-{ending}", f"{summary}: {result}.", base, change)


for _base, _place, _corpus, _unit in (
    (rmt_wikitext103_seg150, (WIKITEXT, 150), "WikiText-103", "ppl"),
    (rmt_wikitext103_seg50, (WIKITEXT, 50), "WikiText-103", "ppl"),
    (rmt_enwik8_seg128, (ENWIK8, 128), "enwik8", "bpc"),
):
    _name = f"rmt-{_place[0].replace('-', '')}-seg{_place[1]}"
    _add_variants(_base, _name, _place, f"{_corpus}, segments of {_place[1]}", _unit)
