"""Curves drawn with braille characters: each character has 2 x 4 dots.

Rows of the picture are lists of pieces, so that a terminal can colour every curve; `as_text` joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from mnemo.report.number_text import number, plain

BLANK = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column of the dot."""
SETTLED = 0.06
"""Values at the first steps, up to this share of them, may lie above the picture."""
LABEL = 8
"""Characters to the left of the picture for the labels of the y axis."""


class Curve(NamedTuple):
    label: str
    points: Sequence[tuple[float, float]]
    """(x, y), x ascending"""


class Piece(NamedTuple):
    text: str
    curve: int | None
    """The number of the curve that it belongs to; None for labels and axes"""


Row = list[Piece]


def draw(curves: Sequence[Curve], *, width: int = 72, height: int = 14, x_label: str = "step") -> list[Row]:
    """A legend, the curves, and labels of both axes; without points, a line that says so."""
    drawn = [(index, np.array(curve.points, dtype=float)) for index, curve in enumerate(curves) if len(curve.points)]
    if not drawn:
        return [[Piece("no points yet", None)]]
    every = np.concatenate([points for _, points in drawn])
    canvas = _Canvas(max(8, width - LABEL - 2), max(3, height - 3), every)
    for index, points in drawn:
        canvas.add(points, index)
    legend = [Piece(f"● {curves[index].label}   ", index) for index, _ in drawn]
    return [[Piece(" " * LABEL, None), *legend], *canvas.rows(), *canvas.x_axis(x_label)]


def as_text(rows: Sequence[Row]) -> str:
    return "\n".join("".join(piece.text for piece in row).rstrip() for row in rows)


class _Canvas:
    """Dots between the smallest and largest coordinates; x begins at 0."""

    def __init__(self, columns: int, lines: int, points: np.ndarray) -> None:
        self.dots = np.zeros((lines, columns), dtype=int)
        self.owner = np.full((lines, columns), -1)
        self.right = max(float(points[:, 0].max()), 1e-9)
        settled = points[points[:, 0] >= SETTLED * self.right, 1]
        self.low, self.high = float(points[:, 1].min()), float(settled.max())
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def add(self, points: np.ndarray, curve: int) -> None:
        """Draw a line through the points (N, 2)."""
        lines, columns = self.dots.shape
        x = points[:, 0] / self.right * (2 * columns - 1)
        y = (self.high - points[:, 1]) / (self.high - self.low) * (4 * lines - 1)
        y = np.maximum(y, -4 * lines)
        # At least one point for every column of dots and every step between neighbouring points.
        steps = np.concatenate([[0], np.cumsum(np.maximum(np.abs(np.diff(x)), np.abs(np.diff(y))))])
        places = np.unique(np.concatenate([steps, np.arange(0, steps[-1], 0.5)]))
        for column, row in zip(np.interp(places, steps, x).round(), np.interp(places, steps, y).round(), strict=True):
            if row >= 0:
                self._set(int(column), int(row), curve)

    def _set(self, column: int, row: int, curve: int) -> None:
        self.dots[row // 4, column // 2] |= DOTS[row % 4][column % 2]
        self.owner[row // 4, column // 2] = curve

    def rows(self) -> list[Row]:
        """The picture with labels at the top, in the middle and at the bottom."""
        lines = len(self.dots)
        places = {
            line: self.high - line / max(1, lines - 1) * (self.high - self.low) for line in (0, lines // 2, lines - 1)
        }
        return [
            [Piece(f"{number(places[line]) if line in places else '':>{LABEL - 2}} ┤", None), *self._pieces(line)]
            for line in range(lines)
        ]

    def _pieces(self, line: int) -> Row:
        """Neighbouring characters of one curve are one piece."""
        cells = zip(self.owner[line].tolist(), self.dots[line].tolist(), strict=True)
        return [
            Piece("".join(chr(BLANK + dots) if dots else " " for _, dots in part), None if owner < 0 else owner)
            for owner, part in groupby(cells, key=lambda cell: cell[0])
        ]

    def x_axis(self, label: str) -> list[Row]:
        columns = self.dots.shape[1]
        ends = f"0{f'{label} {plain(self.right)}':>{columns - 1}}"
        return [[Piece(" " * (LABEL - 1) + "└" + "─" * columns, None)], [Piece(" " * LABEL + ends, None)]]
