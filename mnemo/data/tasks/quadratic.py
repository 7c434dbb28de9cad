"""Quadratic equations (Bulatov et al., 2022), solved step by step in six parts of 30 symbols; the last is the answer.

    -4*x^2+392*x-2208=0
    x^2-98*x+552=0
    D=98^2-4*1*552=7396=86^2
    x=(98-86)/2=6
    x=(98+86)/2=92
    6,92

Roots are drawn from -100 to 100 and truncated to integers; the factor is drawn from 1 to 10, rounded, with random sign.
A fifth of the equations have no real roots: their last three parts are empty. No equation is repeated, in any split.
Terms with a coefficient of 0 are left out, and coefficients of 1 are not written: x^2-x=0.
Equations with smaller roots are for a curriculum: none of them is in the validation or test set of the published task.
Ids: 0 pads the parts, 1 is unused, digits from 2, then + - * / ^ = ( ) x D ; and the comma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mnemo.data.tasks.task import Task
from mnemo.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

ALPHABET = "0123456789+-*/^=()xD;,"
FIRST = 2
PARTS, PART = 6, 30
WITHOUT_ROOTS = 0.2
LARGEST_ROOT, LARGEST_FACTOR = 100, 10
"""Bounds of the roots and of the factor; longer numbers would not fit into the parts."""
SAMPLES_BY_ROOT = 30
"""Samples by the square of the largest root: three quarters of the different equations that have roots."""


@dataclass(frozen=True, kw_only=True)
class Quadratic(Task):
    """Solve a quadratic equation, with intermediate steps."""

    valid: int = 10_000
    """Samples for validation."""
    test: int = 20_000
    """Samples for the final accuracy."""
    largest_root: int = LARGEST_ROOT
    """Bound of the roots; smaller ones make an easier task to begin with."""

    def check(self) -> None:
        if not 2 <= self.largest_root <= LARGEST_ROOT:
            raise ValueError(f"largest_root must be from 2 to {LARGEST_ROOT}, not {self.largest_root}")
        most = SAMPLES_BY_ROOT * self.largest_root**2
        if self.count > most:
            raise ValueError(
                f"there are not enough different equations with roots up to {self.largest_root} for more than {most:,} "
                "samples"
            )

    @property
    def count(self) -> int:
        return self.train + self.valid + self.test

    @property
    def label(self) -> str:
        return "quadratic" if self.largest_root == LARGEST_ROOT else f"quadratic-{self.largest_root}"

    @property
    def vocab_size(self) -> int:
        return FIRST + len(ALPHABET)

    @property
    def num_tokens(self) -> int:
        return PARTS * PART

    @property
    def predicted(self) -> np.ndarray:
        """All positions from the first character after the padded equation to the end of the last part."""
        positions = np.arange(self.num_tokens)
        return (positions >= PART - 1) & (positions < self.num_tokens - 1)

    @property
    def padding(self) -> int | None:
        return 0

    @property
    def answer_begin(self) -> int:
        return (PARTS - 1) * PART - 1

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        equations = _different(random, count, self.largest_root, without=self._held_out(random))
        written = "".join(_solved(*equation) for equation in equations.tolist())
        table = np.zeros(128, dtype=np.uint8)
        table[[ord(character) for character in ALPHABET]] = FIRST + np.arange(len(ALPHABET))
        rows = table[np.frombuffer(written.encode("ascii"), dtype=np.uint8)].reshape(count, -1)
        return np.pad(rows, [(0, 0), (0, 1)])

    def _held_out(self, random: np.random.Generator) -> np.ndarray:
        """Equations (N, 3) that must not be drawn: of smaller roots, those that the published task is tested with.

        `random` is at its start, so that they are the same equations.
        """
        if self.largest_root == LARGEST_ROOT:
            return np.zeros((0, 3), dtype=np.int64)
        published = Quadratic(seed=self.seed)
        return _different(random, published.count)[: published.test + published.valid]


def _different(
    random: np.random.Generator, count: int, largest_root: int = LARGEST_ROOT, without: np.ndarray | None = None
) -> np.ndarray:
    """Return factor, b and c (count, 3) of different equations, in the order in which they were drawn."""
    found = np.zeros((0, 3), dtype=np.int64) if without is None else without
    known = len(found)
    while len(found) < known + count:
        found = np.concatenate([found, _equations(random, count, largest_root)])
        factor, b, c = found.T
        _, first = np.unique((factor * 1_000 + b) * 1_000_000 + c, return_index=True)
        found = found[np.sort(first)]
    return found[known : known + count]


def _equations(random: np.random.Generator, count: int, largest_root: int) -> np.ndarray:
    """Draw factor, b and c of equations factor * (x^2 + b*x + c) = 0; they may repeat."""
    first, second = random.uniform(-largest_root, largest_root, size=(2, count)).astype(np.int64)
    b, c = -(first + second), first * second
    other_b = random.integers(2 * largest_root, size=count)
    other_c = random.integers(other_b**2 // 4 + 1, largest_root**2)
    no_roots = random.random(count) < WITHOUT_ROOTS
    factor = np.round(random.uniform(1, LARGEST_FACTOR, size=count)).astype(np.int64)
    factor *= random.choice(np.array([-1, 1]), size=count)
    return np.column_stack([factor, np.where(no_roots, other_b, b), np.where(no_roots, other_c, c)])


def _solved(factor: int, b: int, c: int) -> str:
    """Return all parts, padded."""
    discriminant = b * b - 4 * c
    parts = [_equation(factor, b, c), _equation(1, b, c), f"D={abs(b)}^2-4*1*{c}={discriminant}"]
    if discriminant >= 0:
        root = round(discriminant**0.5)
        low, high = (-b - root) // 2, (-b + root) // 2
        parts[2] += f"={root}^2"
        parts += [f"x=({-b}-{root})/2={low}", f"x=({-b}+{root})/2={high}", f"{low},{high}" if root else str(low)]
    return "".join([part.ljust(PART) for part in parts]).ljust(PARTS * PART)


def _equation(factor: int, b: int, c: int) -> str:
    terms = _term(factor, "x^2") + _term(factor * b, "x") + _term(factor * c, "")
    return f"{terms.removeprefix('+')}=0"


def _term(coefficient: int, power: str) -> str:
    """A signed term as in the authors' notebook: without a coefficient of 1, and nothing if the coefficient is 0."""
    if coefficient == 0:
        return ""
    if not power:
        return f"{coefficient:+}"
    sign = "-" if coefficient < 0 else "+"
    return sign + power if abs(coefficient) == 1 else f"{coefficient:+}*{power}"
