"""Transformer-XL's ablation of recurrence and relative positions on WikiText-103 (Tables 5 and 8)."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Literal

from mnemo.model.positions import AnyPositions, Learned, Relative, Shaw, Sinusoidal
from mnemo.recipes.preset_table import Table
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.recipes.transformer_xl import everywhere, wikitext103_base

PRESETS = Table()

SEGMENT = 128


@PRESETS.add("wikitext103-ablation")
def wikitext103_ablation() -> Recipe:
    """Transformer-XL, WikiText-103 ablation, 128M parameters, backpropagation length 128: 27.02, best 26.77 ppl.

    Tables 5 and 8, first row. No script is published; the paper gives the size, the backpropagation length and the best
    attention length (500). Our choice: wikitext103-base with 7 instead of 16 layers (128,007,688 parameters) and a
    memory as long as the segment. Other training settings are unknown; those of wikitext103-base are used.
    """
    base = wikitext103_base()
    return replace(
        base,
        model=replace(base.model, num_layers=7, memory=everywhere(SEGMENT)),
        train=replace(base.train, segment=SEGMENT),
        evaluation=EvalConfig(batch=10),
        test=EvalConfig(batch=10),
    )


def row(
    recipe: Recipe,
    *,
    positions: AnyPositions = Relative(),
    loss: Literal["full", "half"] = "full",
    memory: int = 0,
    segment: int = SEGMENT,
) -> Recipe:
    model = replace(recipe.model, positions=positions, memory=everywhere(memory))
    return replace(recipe, model=model, train=replace(recipe.train, loss=loss, segment=segment))


SHAW_WITH_MEMORY, SHAW = Shaw(distances=2 * SEGMENT), Shaw(distances=SEGMENT)
LEARNED = Learned(length=SEGMENT)

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "shaw": ("Shaw's positions: 27.94 ppl", {"positions": SHAW_WITH_MEMORY, "memory": SEGMENT}),
    "half": ("loss on the last half: 28.69, best 28.33 ppl", {"loss": "half", "memory": SEGMENT}),
    "no-memory": ("no memory: 29.59, best 29.02 ppl", {}),
    "no-memory-half": ("no memory, loss on the last half: 30.10 ppl", {"loss": "half"}),
    "no-memory-shaw": ("no memory, Shaw's positions: 29.75 ppl", {"positions": SHAW}),
    "no-memory-shaw-half": ("no memory, Shaw's positions, half: 30.50 ppl", {"positions": SHAW, "loss": "half"}),
    "sinusoidal": ("no memory, sinusoidal positions (not in the table)", {"positions": Sinusoidal()}),
    "sinusoidal-half": ("no memory, sinusoidal, half: 30.97 ppl", {"positions": Sinusoidal(), "loss": "half"}),
    "vanilla": ("no memory, Al-Rfou's positions (not in the table)", {"positions": LEARNED}),
    "vanilla-half": ("no memory, Al-Rfou's positions, half: 31.16 ppl", {"positions": LEARNED, "loss": "half"}),
    "no-memory-176": ("no memory, segment 176 (Table 8): 28.43, best 27.98 ppl", {"segment": 176}),
    "no-memory-half-172": ("no memory, half of 172 (Table 8): 28.83 ppl", {"segment": 172, "loss": "half"}),
}
for _name, (_summary, _changes) in ROWS.items():
    PRESETS.add_variant(
        f"wikitext103-ablation-{_name}",
        f"WikiText-103 ablation, 128M: {_summary}.",
        wikitext103_ablation,
        functools.partial(row, **_changes),
    )
