"""Results of benchmarks, as rows of a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnemo.bench.cases import Case
from mnemo.bench.timing import Timing

STEADY = 1.5
"""A larger spread of timings means that the machine was busy."""
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of one contender."""

    timing: Timing
    """Times of one call"""
    tokens: int | None = None
    """Tokens of one call; None for a single operation"""
    peak: int | None = None
    """Peak GPU memory in bytes, without what was allocated before; for an op, without inputs and forward results"""
    weights: int = 0
    """Bytes of weights, gradients and optimizer state, included in `peak`"""

    @property
    def rate(self) -> float | None:
        return None if self.tokens is None else self.tokens / self.timing.median

    @property
    def working(self) -> int | None:
        """Bytes of activations and state."""
        return None if self.peak is None else self.peak - self.weights

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens_per_second": self.rate,
            "median_seconds": self.timing.median,
            "fastest_seconds": self.timing.fastest,
            "seconds": list(self.timing.seconds),
            "peak_bytes": self.peak,
            "weights_bytes": self.weights,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    section: str
    name: str
    summary: str
    setting: dict[str, Any]
    error: float
    """Largest difference between the formulations in float64; for an op, the largest error against float64"""
    contenders: Mapping[str, Measured]
    required: float | None = None
    """Required speed of Mnemo's fastest option as a multiple of the published formulation's"""
    narrow_error: float | None = None
    """Largest difference of options with fewer bits from the published formulation in fp32; None without them"""
    not_narrow: str | None = None
    """Why options with fewer bits were not measured, where they could have been"""

    @staticmethod
    def of(case: Case, error: float, contenders: Mapping[str, Measured]) -> Comparison:
        return Comparison(
            section=case.section,
            name=case.name,
            summary=case.summary,
            setting=case.to_json(),
            error=error,
            contenders=contenders,
            required=case.required,
        )

    @property
    def ratio(self) -> float | None:
        """Speed of Mnemo as a multiple of the published formulation's, by medians."""
        return self.times("published")

    @property
    def multiples(self) -> dict[str, float]:
        """Speed of each of Mnemo's options as a multiple of the published formulation's, by medians."""
        if "published" not in self.contenders:
            return {}
        published = per_token(self.contenders["published"])
        ours = {name: measured for name, measured in self.contenders.items() if is_ours(name)}
        return {name: published / per_token(measured) for name, measured in ours.items()}

    @property
    def verdict(self) -> str:
        """How many times as fast Mnemo is in each precision, and what is required."""
        by_bits = {_bits(name, self.setting): multiple for name, multiple in self.multiples.items()}
        found = ", ".join(f"{multiple:.2f} times as fast in {bits}" for bits, multiple in by_bits.items())
        if len(by_bits) == 1:
            wanted = f"{found} (required: {self.required:.1f})"
        else:
            wanted = f"{found} (required of the fastest: {self.required:.1f}; the published one in fp32 counts as 1)"
        narrow = "" if self.narrow_error is None else f" in float64, to {self.narrow_error:.1e} with fewer bits"
        missing = "" if self.not_narrow is None else f"; not measured in bf16: {self.not_narrow}"
        return f"{wanted}, both agree to {self.error:.1e}{narrow}{missing}"

    def times(self, other: str) -> float | None:
        """Return the time of another contender as a multiple of Mnemo's."""
        if other not in self.contenders or "mnemo" not in self.contenders:
            return None
        return per_token(self.contenders[other]) / per_token(self.contenders["mnemo"])

    @property
    def holds(self) -> bool:
        return self.required is None or max(self.multiples.values(), default=0.0) >= self.required

    @property
    def steady(self) -> bool:
        """Whether the timings are consistent enough to be trusted."""
        return max(measured.timing.spread for measured in self.contenders.values()) < STEADY

    def to_json(self) -> dict[str, Any]:
        return {
            "section": self.section,
            "case": self.name,
            "summary": self.summary,
            "setting": self.setting,
            "error": self.error,
            "narrow_error": self.narrow_error,
            "not_narrow": self.not_narrow,
            "ratio": self.ratio,
            "multiples": self.multiples,
            "required": self.required,
            "holds": self.holds,
            "steady": self.steady,
            "contenders": {name: measured.to_json() for name, measured in self.contenders.items()},
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of the table for each contender."""
        return [self._row(name, measured) for name, measured in self.contenders.items()]

    def _row(self, name: str, measured: Measured) -> tuple[str, ...]:
        times = None if name == "mnemo" else self.times(name)
        return (
            self.name,
            name,
            f"{1e3 * measured.timing.median:.4g}",
            "" if measured.rate is None else f"{measured.rate:,.0f}",
            "" if measured.peak is None else f"{measured.peak / MIB:,.0f}",
            "" if times is None else f"{times:.2f}x",
        )


def is_ours(contender: str) -> bool:
    return contender.partition(",")[0] == "mnemo"


def _bits(contender: str, setting: Mapping[str, Any]) -> str:
    """The precision of a contender, which its name tells unless it is the case's own."""
    return contender.partition(", ")[2] or setting["precision"]


HEADERS = ("case", "formulation", "ms a call", "tokens/s", "peak MiB", "times Mnemo's")


def per_token(measured: Measured) -> float:
    """Return the median seconds per token, or per call for a single operation."""
    return measured.timing.median / (measured.tokens or 1)


@dataclass(frozen=True)
class LongRange:
    """Savings of a plan with few long-range layers, compared with long memories in all layers."""

    formulation: str
    faster: float
    """Speed as a multiple"""
    lighter: float | None
    """Factor by which activation and state memory is smaller"""

    @property
    def text(self) -> str:
        memory = "" if self.lighter is None else f", {self.lighter:.2f}x less activation and state memory"
        return f"{self.formulation}: few long-range layers are {self.faster:.2f}x as fast{memory}"


def long_range(results: Sequence[Comparison], plan: str = "xl-24-plan", everywhere: str = "xl-24") -> list[LongRange]:
    """Return the savings for each formulation, if both cases were measured."""
    by_name = {result.name: result for result in results}
    if plan not in by_name or everywhere not in by_name:
        return []
    found = []
    for name, few in by_name[plan].contenders.items():
        every = by_name[everywhere].contenders.get(name)
        if every is not None:
            lighter = every.working / few.working if every.working and few.working else None
            found.append(LongRange(name, per_token(every) / per_token(few), lighter))
    return found
