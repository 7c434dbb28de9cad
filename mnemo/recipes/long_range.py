"""Do Transformers Need Deep Long-Range Memory? (Rae & Razavi, 2020): a few layers have a long memory."""

from __future__ import annotations

from dataclasses import replace

from mnemo.memory import XL, Plan
from mnemo.memory.plan import Arrangement
from mnemo.recipes.preset_table import Preset, Table
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.recipes.transformer_xl import enwik8_large, everywhere, wikitext103_large

PRESETS = Table()

SEGMENT, LONG, SHORT, TESTED = 384, 2304, 128, 6000
"""Section 3.2: segment, long memory in training, short memory, long memory at test time."""


def long_range(recipe: Recipe, limit: int | None) -> Recipe:
    train = replace(recipe.train, batch=32, segment=SEGMENT)
    return replace(
        recipe,
        model=replace(recipe.model, memory=everywhere(LONG)),
        train=train,
        evaluation=EvalConfig(batch=10, limit=limit),
        test=EvalConfig(batch=10, memory=TESTED),
    )


@PRESETS.add("long-enwik8")
def long_enwik8() -> Recipe:
    """Long-range memory, enwik8, all 24 layers long range, 277M parameters: 0.9846 bpc.

    Section 3.2 and Figure 3. "Identical model setup to Dai et al.": enwik8-large with batch 32, segment 384 and memory
    2304 (6000 in testing). Validation uses the first 500K characters. Unknown are the number of steps (training was
    stopped early), the segment in testing, and whether distances were clamped (the TPU code it is based on does not
    clamp); we use the training settings.
    """
    return long_range(enwik8_large(), limit=500_000)


@PRESETS.add("long-wikitext103")
def long_wikitext103() -> Recipe:
    """Long-range memory, WikiText-103, all 18 layers long range, 285M parameters ("257M"): 18.3 ppl.

    Section 4: "the same 18-layer parameters" as Dai et al. Batch, segment and memory lengths are those of section 3.2;
    the paper does not give others for this corpus.
    """
    return long_range(wikitext103_large(), limit=None)


def planned(recipe: Recipe, num_long: int, arrangement: Arrangement, short: int = SHORT) -> Recipe:
    plan = Plan(long=XL(length=LONG), short=XL(length=short), num_long=num_long, arrangement=arrangement)
    return replace(recipe, model=replace(recipe.model, memory=plan))


def _add(
    corpus: str, base: Preset, count: int, arrangement: Arrangement, *, result: str = "", short: int = SHORT
) -> None:
    layers = base().model.num_layers
    name = f"long-{corpus}-{count}-{arrangement}" + ("" if short == SHORT else f"-short{short}")
    PRESETS.add_variant(
        name,
        f"Long-range memory, {corpus}, {count} of {layers} layers ({arrangement}), {short} in the others{result}.",
        base,
        lambda recipe: planned(recipe, count, arrangement, short),
    )


_add("enwik8", long_enwik8, 12, "interleaved")
_add("enwik8", long_enwik8, 12, "last")
_add("enwik8", long_enwik8, 12, "first")
_add("enwik8", long_enwik8, 4, "interleaved", result=": 0.9916 bpc")
_add("enwik8", long_enwik8, 4, "interleaved", result=": 0.974 bpc (Figure 4)", short=512)
_add("enwik8", long_enwik8, 4, "last")
_add("enwik8", long_enwik8, 4, "middle", result=": 1.01 bpc")
_add("enwik8", long_enwik8, 4, "first")
_add("enwik8", long_enwik8, 1, "last")
_add("enwik8", long_enwik8, 1, "first")
PRESETS.add_variant(
    "long-enwik8-0",
    f"Long-range memory, enwik8, none of 24 layers: {SHORT} everywhere.",
    long_enwik8,
    lambda recipe: planned(recipe, 0, "interleaved"),
)
_add("wikitext103", long_wikitext103, 3, "interleaved", result=": 18.4 ppl")
_add("wikitext103", long_wikitext103, 3, "last", result=": 18.6 ppl")
_add("wikitext103", long_wikitext103, 3, "first", result=": 20.1 ppl")
