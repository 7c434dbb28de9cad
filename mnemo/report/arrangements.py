"""Memory plans side by side: which layer of which model keeps how much of the past."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mnemo.report import svg
from mnemo.report.scales import Axis

MOST_COLUMNS = 3
GAP, LEFT, HEADING, FOOT = 16.0, 26.0, 26.0, 42.0


def draw_arrangements(plans: Mapping[str, Sequence[int]], segment: int, slug: str, title: str, description: str) -> str:
    """A panel for each plan, the top layer at the top, all to one scale; long-range layers in full colour."""
    num_columns = min(len(plans), MOST_COLUMNS)
    width = (svg.WIDTH - LEFT - 4 - GAP * (num_columns - 1)) / num_columns
    most_layers = max(map(len, plans.values()))
    row = 22.0 if most_layers <= 6 else max(7.0, 150 / most_layers)
    panel = HEADING + most_layers * row + FOOT
    longest = max((length for lengths in plans.values() for length in lengths), default=0)
    body = []
    for index, (label, lengths) in enumerate(plans.items()):
        x = LEFT + index % num_columns * (width + GAP)
        reach = Axis(-float(longest), float(segment), x, x + width, ())
        body.append(_panel(label, lengths, reach, index // num_columns * panel, row, index % num_columns == 0))
    num_rows = -(-len(plans) // num_columns)
    return svg.drawing(slug, title, description, "".join(body), num_rows * panel)


def _panel(label: str, lengths: Sequence[int], reach: Axis, top: float, row: float, numbered: bool) -> str:
    drawn = [svg.text(reach.start, top + 14, svg.fit(label, (reach.end - reach.start) * 0.8))]
    first = top + HEADING
    for position, length in enumerate(lengths, 1):
        y = first + (len(lengths) - position) * row
        drawn.append(_layer(position, length, reach, y, row))
    if numbered:
        drawn += _numbering(len(lengths), reach, first, row)
    drawn.append(_scale(reach, first + len(lengths) * row))
    return "".join(drawn)


def _layer(position: int, length: int, reach: Axis, y: float, row: float) -> str:
    now, height = reach.place(0), row - (1.5 if row < 16 else 4)
    css = "fill c0" + ("" if 2 * length >= -reach.low else " short")
    tip = f"layer {position}: memory {length:,}"
    width = max(now - reach.place(-length) - 1, 1.5) if length else 0.0
    memory = svg.box(now - 1 - width, y, width, height, css, tip, radius=1) if length else ""
    return memory + svg.box(now + 1, y, reach.end - now - 1, height, "segment", tip, radius=1)


def _numbering(num_layers: int, reach: Axis, first: float, row: float) -> list[str]:
    """The first layer, the last one, and those between that leave room for their numbers."""
    stride = math.ceil(16 / row)
    shown = {1, *range(num_layers, stride, -stride)}
    return [
        svg.text(reach.start - 5, first + (num_layers - at) * row + row / 2 + 3, str(at), "tick", "end")
        for at in sorted(shown)
    ]


def _scale(reach: Axis, y: float) -> str:
    """What the widths stand for, flush with the edges, where also narrow ones leave room."""
    drawn = _measure(reach.end, y, "end", "segment", reach.high)
    return drawn + _measure(reach.start, y, "start", "memory", -reach.low) if reach.low < 0 else drawn


def _measure(x: float, y: float, anchor: str, name: str, length: float) -> str:
    return svg.text(x, y + 13, f"{length:,.0f}", "tick", anchor) + svg.text(x, y + 28, name, "tick", anchor)
