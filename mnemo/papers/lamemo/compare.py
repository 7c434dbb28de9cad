"""From measured losses to numbers in a table and to verdicts on which of two models is better.

Seeds are compared in pairs: two models of one seed start from the same text. A gain counts when it is larger than twice
its standard error over the seeds and larger than a margin below which nobody would care; so does a loss. Few seeds,
which may agree by chance, must differ by more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mnemo.papers.claims import Claim
from mnemo.papers.experiment import CellResult, Results, Verdict, look_up
from mnemo.units import bits, perplexity

DECIDES_NOTHING = " (a smoke run decides nothing)"
NOT_MEASURED = "not measured yet"


class Unit(NamedTuple):
    name: str
    of: Callable[[float], float]
    """From nats per token."""
    digits: int
    margin: float
    """The smallest difference that counts."""
    alone: Callable[[float], float]
    """The smallest difference from a value that counts with one seed; it falls with the root of their number. Between
    what seeds of `small` deviate by (0.001 to 0.024 bpc, 0.6% to 0.8% of ppl) and the differences that the paper rests
    on (0.021 bpc, 1.9%)."""

    def tell(self, values: Sequence[float]) -> str:
        """The mean, and the deviation where there are several."""
        mean = f"{statistics.fmean(values):.{self.digits}f}"
        return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{self.digits}f}"

    def needed(self, differences: Sequence[float], value: float) -> float:
        """What differences from a value, one of each seed, must reach in the mean."""
        return max(self.margin, self.alone(value) / math.sqrt(len(differences)), 2 * standard_error(differences))


BPC = Unit("bpc", bits, 4, 0.002, lambda _: 0.02)
PPL = Unit("ppl", perplexity, 2, 0.1, lambda value: 0.015 * value)
NATS = Unit("nats", float, 4, 0.002, lambda _: 0.015)


def score(result: CellResult, name: str, unit: Unit) -> float | None:
    """A score of a trained cell; None where it has none, or none that is a number."""
    loss = look_up(result.values, f"scores.{name}.loss")
    value = unit.of(loss) if isinstance(loss, (int, float)) else math.inf
    return value if math.isfinite(value) else None


def by_seed(results: Results, name: str, unit: Unit, **labels: Any) -> dict[int, float]:
    """Scores of the cells with these labels."""
    found = {result.labels["seed"]: score(result, name, unit) for result in results.select(**labels)}
    return {seed: value for seed, value in found.items() if value is not None}


def told(results: Results, name: str, unit: Unit, **labels: Any) -> str:
    values = list(by_seed(results, name, unit, **labels).values())
    return unit.tell(values) if values else ""


def counted(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"


def standard_error(values: Sequence[float]) -> float:
    """Of a mean; 0 where there is one value alone, of whose chance nothing is known."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


class Gain(NamedTuple):
    """How much lower one of two models scores, over seeds that both were trained with."""

    better: tuple[float, ...]
    worse: tuple[float, ...]
    unit: Unit

    @property
    def differences(self) -> list[float]:
        """Of each seed."""
        return [above - below for above, below in zip(self.worse, self.better, strict=True)]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def needed(self) -> float:
        return self.unit.needed(self.differences, statistics.fmean(self.worse))

    @property
    def holds(self) -> bool | None:
        """None where the difference may be chance."""
        if self.mean >= self.needed:
            return True
        return None if self.mean > -self.needed else False

    def __str__(self) -> str:
        values = f"{self.unit.tell(self.better)} against {self.unit.tell(self.worse)} {self.unit.name}"
        digits, direction = self.unit.digits, "lower" if self.mean >= 0 else "higher"
        chance = f"; less than {self.needed:.{digits}f} decides nothing" if self.holds is None else ""
        return f"{values} ({counted(len(self.better))}): {direction} by {abs(self.mean):.{digits}f}{chance}"


def gain(better: Mapping[int, float], worse: Mapping[int, float], unit: Unit) -> Gain | None:
    seeds = sorted(better.keys() & worse.keys())
    if not seeds:
        return None
    return Gain(tuple(better[seed] for seed in seeds), tuple(worse[seed] for seed in seeds), unit)


def verdict(results: Results, claim: str, paper: str, ours: str | None, holds: bool | None) -> Verdict:
    """`ours`: None where nothing is measured. A smoke run shows its numbers and decides nothing."""
    stated = Claim(claim, paper)
    return stated.open(NOT_MEASURED) if ours is None else stated.judged(results, ours, holds, smoke=DECIDES_NOTHING)


def lower(results: Results, claim: str, paper: str, better: str, worse: str, unit: Unit, name: str = "test") -> Verdict:
    """Whether one model's score is below another's."""
    found = gain(
        by_seed(results, name, unit, model=better),
        by_seed(results, name, unit, model=worse),
        unit,
    )
    return verdict(results, claim, paper, None if found is None else str(found), None if found is None else found.holds)
