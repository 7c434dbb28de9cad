"""What the playground needs to know about a model: units, colour scales, and the memory lengths to choose from."""

from __future__ import annotations

from typing import Any

from mnemo.report.shaded_text import EDGES
from mnemo.serving.served_model import ServedModel
from mnemo.session.text_run import OpenedRun

SMALL_UNITS = ("byte", "char")
SURPRISE = {True: (1, 2, 4, 6, 8), False: (2, 4, 7, 10, 14)}
"""Bits at which the shades begin: for bytes and characters, and for longer tokens."""
SHORTEST = 16
FURTHER = 4
"""Times that the longest memory on offer is longer than in training."""


def model_json(model: ServedModel) -> dict[str, Any]:
    unit = str(model.about.get("unit", "token"))
    return {
        "name": model.name,
        "unit": unit,
        "edges": {"surprise": SURPRISE[unit in SMALL_UNITS], "saved": EDGES},
        **_memory(model.run),
    }


def _memory(opened: OpenedRun | None) -> dict[str, Any]:
    """The length in training, and the lengths of the slider; none if the memory has no slots."""
    if opened is None:
        return {"trained": 0, "lengths": []}
    config = opened.run.model.config
    trained = max(config.memory.lengths(config.num_layers))
    if not trained or trained == max(config.memory.lengths(config.num_layers, 0)):
        return {"trained": trained, "lengths": []}
    return {"trained": trained, "lengths": lengths(trained)}


def lengths(trained: int) -> list[int]:
    """0, and halves and doubles of the length in training."""
    found = {trained * FURTHER, trained * FURTHER // 2, trained}
    half = trained // 2
    while half >= SHORTEST or (half and len(found) < 4):
        found.add(half)
        half //= 2
    return sorted({0, *found})
