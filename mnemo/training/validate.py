"""What a checkpoint says besides its tensors, checked before anything goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnemo.files.safe_load import is_count, is_finite, require

COUNTS = ("step", "tokens", "stale", "evaluated", "average_count", "metrics_bytes", "timing_bytes")


def check_progress(data: Mapping[str, Any], path: Path) -> None:
    best, plateau = data.get("best"), data.get("plateau")
    require(
        {
            **{name: is_count(data.get(name)) for name in COUNTS},
            "seconds": is_finite(data.get("seconds")),
            "cursor": _is_cursor(data.get("cursor")),
            "past": isinstance(data.get("past"), list) and all(map(_is_cursor, data["past"])),
            "interval": isinstance(data.get("interval"), list) and all(map(_is_loss, data["interval"])),
            "best": best is None or (_is_list(best, 2) and is_count(best[0]) and is_finite(best[1])),
            "plateau": isinstance(plateau, dict) and _is_plateau(plateau),
        },
        path,
    )


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _is_loss(value: Any) -> bool:
    return _is_list(value, 2) and is_finite(value[0]) and is_count(value[1])


def _is_plateau(value: Mapping[str, Any]) -> bool:
    known = {"factor": is_finite, "best": lambda best: best is None or is_finite(best), "bad": is_count}
    return value.keys() == known.keys() and all(holds(value[name]) for name, holds in known.items())


def _is_cursor(value: Any) -> bool:
    """Counts, or lists of them; a stream knows which it needs, and how large they may be."""
    if not isinstance(value, dict) or not all(is_count(value.get(name)) for name in ("epoch", "step")):
        return False
    return all(map(_is_counts, value.values()))


def _is_counts(value: Any) -> bool:
    return all(map(_is_counts, value)) if isinstance(value, list) else is_count(value)
