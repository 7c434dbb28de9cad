"""Numbers as text: measured values, counts, durations, labels of an axis."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

NO_VALUE = "–"
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float | None, digits: int = 3) -> str:
    """A measured value: `1.234`, `12.35`, `1,235`; a dash if there is none."""
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return "∞" if value > 0 else "not a number"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3g}"
    return f"{value:.{max(0, digits - (size >= 10) - (size >= 100))}f}"


def plain(value: float) -> str:
    """A number without trailing digits: `3`, `0.250`, `1,024`, `0.00012`."""
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return number(value) if abs(value) >= 0.1 else _short_exponent(f"{value:.2g}")


def _short_exponent(text: str) -> str:
    """`1e-06` as `1e-6`."""
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", text).replace("e+", "e")


def amount(value: float | None) -> str:
    """A count with at most three digits: `950`, `12.3k`, `41.1M`."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    size, suffix = next((pair for pair in _SUFFIXES if abs(value) >= 0.9995 * pair[0]), (1.0, ""))
    scaled = value / size
    digits = 0 if not suffix or abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:.{digits}f}{suffix}"


def percent(share: float) -> str:
    """A share in whole percent; 100% and 0% only if the share is exactly 1 or 0."""
    return f"{share:.0%}" if share in (0, 1) or 0.005 <= share < 0.995 else f"{min(max(share, 0.001), 0.999):.1%}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return NO_VALUE
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Labels of an axis, all with the same number of decimals; thousands as k, millions as M.

    Where this would need more than one decimal of thousands or millions, each label has its own suffix.
    """
    short = [amount(tick) for tick in ticks]
    step = min((abs(b - a) for a, b in zip(ticks, ticks[1:], strict=False)), default=1.0)
    largest = max((abs(tick) for tick in ticks), default=0.0)
    size, suffix = next((pair for pair in _SUFFIXES if largest >= 10 * pair[0]), (1.0, ""))
    if len(ticks) > 1 and 0 < min(ticks) < 1e-3 and largest > 999 * min(ticks):
        return [_short_exponent(f"{tick:g}") for tick in ticks]
    if step / size < 1e-6:
        return [f"{tick:.15g}" for tick in ticks]
    if suffix and _decimals(step / size) > 1 and len(set(short)) == len(ticks):
        return short
    return [f"{tick / size:,.{_decimals(step / size)}f}{suffix if tick else ''}" for tick in ticks]


def _decimals(step: float) -> int:
    return next((digits for digits in range(7) if abs(step * 10**digits - round(step * 10**digits)) < 1e-6), 7)
