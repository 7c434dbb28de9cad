"""Where numbers go on an axis, and how they are written there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Axis:
    """Maps values to the range `start`..`end` of the drawing."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    transform: Callable[[float], float] = float

    def place(self, value: float) -> float:
        low, high = self.transform(self.low), self.transform(self.high)
        if high == low:
            return self.start
        return self.start + (self.transform(value) - low) / (high - low) * (self.end - self.start)


def linear(values: Sequence[float], start: float, end: float, *, zero: bool = False, count: int = 5) -> Axis:
    """An axis around the values, with round ticks; `zero` makes it begin at 0."""
    low, high = (0.0 if zero else min(values)), max(values)
    if high <= low:
        low, high = (0.0, 1.0) if low == 0 else (low - abs(low) * 0.05, low + abs(low) * 0.05)
    pad = 0.0 if zero else (high - low) * 0.04
    low, high = (max(low - pad, 0.0) if low >= 0 else low - pad), high + pad
    return Axis(low, high, start, end, tuple(round_ticks(low, high, count)))


def logarithmic(values: Sequence[float], start: float, end: float) -> Axis:
    """An axis of ratios around positive values, with ticks at 1, 2 and 5 times powers of ten."""
    low, high = min(values), max(values)
    pad = max((high / low) ** 0.04, 1.02)
    low, high = low / pad, high * pad
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    shown = _sparse([tick for tick in ticks if low <= tick <= high])
    if len(shown) < 3:
        shown = tuple(round_ticks(low, high))
    return Axis(low, high, start, end, shown, math.log)


def _sparse(ticks: Sequence[float], most: int = 9) -> tuple[float, ...]:
    """Powers of ten alone, or some of them, where all ticks would be too many."""
    if len(ticks) <= most:
        return tuple(ticks)
    powers = [tick for tick in ticks if math.isclose(math.log10(tick), round(math.log10(tick)), abs_tol=1e-9)]
    return tuple(powers[:: -(-len(powers) // most)])


def doubling(values: Sequence[float], start: float, end: float) -> Axis:
    """An axis for lengths that double, 0 included; ticks are the values themselves."""
    distinct = sorted(set(values))
    unit = next((value for value in distinct if value > 0), 1.0)
    high = distinct[-1] if distinct[-1] > distinct[0] else distinct[0] + unit
    axis = Axis(distinct[0], high, start, end, (), lambda value: math.log2(1 + value / unit))
    return Axis(axis.low, axis.high, start, end, tuple(_spread(distinct, axis)), axis.transform)


def _spread(values: Sequence[float], axis: Axis, room: float = 34.0) -> list[float]:
    """Those values whose labels do not touch, the last one always among them."""
    kept: list[float] = []
    for value in reversed(values):
        if not kept or abs(axis.place(kept[-1]) - axis.place(value)) >= room:
            kept.append(value)
    return kept[::-1]


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between low and high."""
    step = _round_step((high - low) / max(count, 1))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _round_step(rough: float) -> float:
    """The round number nearest to `rough`, as ratios go."""
    power = 10.0 ** math.floor(math.log10(rough))
    return min((power * factor for factor in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / rough)))


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """All with the same number of decimals; thousands as k and M."""
    step = min((abs(b - a) for a, b in zip(ticks, ticks[1:], strict=False)), default=1.0)
    largest = max((abs(tick) for tick in ticks), default=0.0)
    size, suffix = next((pair for pair in _SUFFIXES if largest >= 10 * pair[0]), (1.0, ""))
    if len(ticks) > 1 and 0 < min(ticks) < 1e-3 and largest > 999 * min(ticks):
        return [_plain_exponent(f"{tick:g}") for tick in ticks]
    if step / size < 1e-6:
        return [f"{tick:.15g}" for tick in ticks]
    return [f"{tick / size:,.{_decimals(step / size)}f}{suffix if tick else ''}" for tick in ticks]


def _decimals(step: float) -> int:
    return next((digits for digits in range(7) if abs(step * 10**digits - round(step * 10**digits)) < 1e-6), 7)


def number(value: float | None, digits: int = 3) -> str:
    """A measured value for a reader: `1.234`, `12.35`, `1,235`; a dash where there is none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "∞" if value > 0 else "not a number"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3g}"
    return f"{value:.{max(0, digits - (size >= 10) - (size >= 100))}f}"


def plain(value: float) -> str:
    """A number as somebody would write it: `3`, `0.25`, `1,024`, `0.00012`."""
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return number(value) if abs(value) >= 0.1 else _plain_exponent(f"{value:.2g}")


def _plain_exponent(written: str) -> str:
    """`1e-06` as `1e-6`."""
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", written).replace("e+", "e")


def amount(value: float | None) -> str:
    """A count, short: `950`, `12.3k`, `41.1M`."""
    if value is None or not math.isfinite(value):
        return "–"
    size, suffix = next((pair for pair in _SUFFIXES if abs(value) >= 0.9995 * pair[0]), (1.0, ""))
    scaled = value / size
    digits = 0 if not suffix or abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:.{digits}f}{suffix}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
