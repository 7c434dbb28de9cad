"""Shares of a GPU's peak that training has reached in measurements, and the one to expect for a model.

The rows are those of docs/speed.md; tests compare the numbers with docs/measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mnemo.cost.gpu_specs import ASSUMED, Efficiency, Gpu
from mnemo.memory.lookahead import Lookahead
from mnemo.model import ModelConfig
from mnemo.model.positions import Rotary


class Measured(NamedTuple):
    row: str
    """Name in the GPU table of `mnemo bench`."""
    share: float
    what: str
    resembles: Callable[[ModelConfig], bool]


def _looks_ahead(model: ModelConfig) -> bool:
    return any(isinstance(memory, Lookahead) for memory in model.memory.memories(model.num_layers))


DATE = "2026-11-18"
ALIGNED = 8
"""Products of widths that are no multiple of this run on slower kernels."""
H200: tuple[Measured, ...] = (
    Measured(
        "wikitext",
        0.071,
        "WikiText-103 base, width 410, which is no multiple of 8, batch 60, 176,995 tokens/s",
        lambda model: model.dim % ALIGNED > 0,
    ),
    Measured(
        "24x1024",
        0.433,
        "Transformer-XL, 24 layers of 1,024, memory 2,304, batch 16, 95,328 tokens/s",
        lambda model: model.dim >= 768,
    ),
    Measured(
        "rmt",
        0.229,
        "memory tokens, 12 layers of 512, segment 128, batch 32, 828,715 tokens/s",
        lambda model: model.tokens is not None,
    ),
    Measured("lamemo", 0.291, "LaMemo, 12 layers of 512, batch 22, 522,421 tokens/s", _looks_ahead),
    Measured(
        "speedrun",
        0.321,
        "rotary positions, 12 layers of 512, batch 64, 1,025,247 tokens/s",
        lambda model: isinstance(model.positions, Rotary),
    ),
    Measured("base", 0.297, "Transformer-XL base, 12 layers of 512, batch 22, 835,593 tokens/s", lambda model: True),
)
"""In bf16. A model is expected to reach the share of the first that it resembles."""
NARROWEST = 410
"""Width of the narrowest model in the table. `ptb-fast-context`, of width 384, takes 6.4 ms for an update
(docs/penn-treebank.md), and would take 1.3 ms at the assumed share."""
NARROW = Efficiency(ASSUMED.share, f"assumed; models narrower than {NARROWEST} reach less: times are lower limits")


def expected_efficiency(gpu: Gpu, precision: str, model: ModelConfig) -> Efficiency:
    if model.dim < NARROWEST:
        return NARROW
    if (gpu.name, precision) != ("h200", "bf16"):
        return ASSUMED
    found = next(each for each in H200 if each.resembles(model))
    return Efficiency(found.share, f"measured on the most similar model: {found.what}, docs/speed.md, {DATE}")
