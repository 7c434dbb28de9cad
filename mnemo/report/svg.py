"""A few words of SVG: elements, escaped text, markers, legends. Colours are CSS variables, so that a figure
follows the page into dark mode and print; `standalone` writes them out for viewers that know no variables.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mnemo.report.style import CHART_CSS, LIGHT, NUM_COLORS

WIDTH = 480
CHAR_WIDTH = 6.8
"""Average width of a character at the size of labels; fonts differ, so layouts leave room."""
WIDE_CHAR = 8.2
"""The same on a phone, where the page enlarges the text of figures."""


SIDES = (0, 4, 3, -4)
"""Of markers: circle, square, triangle, and a square on its corner."""


class Margins(NamedTuple):
    top: float
    right: float
    bottom: float
    left: float


@dataclass(frozen=True)
class LegendEntry:
    label: str
    color: int
    """Number of the run in the page: decides colour, marker and dashes."""
    marked: bool = True
    joined: bool = True
    """Whether its points are one line."""


def clean(text: str) -> str:
    """Text that HTML and SVG may contain: control characters become visible symbols, broken ones a sign."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    code = ord(char)
    if char in "\n\t" or 0x20 <= code < 0x7F or 0xA0 <= code < 0xFFFE:
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    return char if code > 0xFFFF else "\ufffd"


def escape(text: object) -> str:
    return html.escape(clean(str(text)), quote=True)


def slugify(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:60] or "x"


def element(tag: str, content: str = "", /, **attributes: object) -> str:
    """`content` is markup; attribute names may end in an underscore (`class_`) and hold one for a dash."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return escape(value)


def text(x: float, y: float, words: str, css: str = "label", anchor: str = "start") -> str:
    return element("text", escape(words), x=float(x), y=float(y), class_=css, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=css)


def path(points: Sequence[tuple[float, float]], css: str) -> str:
    drawn = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("path", d=drawn, class_=css)


def area(corners: Sequence[tuple[float, float]], css: str) -> str:
    return element("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners), class_=css)


def box(x: float, y: float, width: float, height: float, css: str, tip: str = "", radius: float = 2) -> str:
    title = element("title", escape(tip)) if tip else ""
    return element(
        "rect",
        title,
        x=float(x),
        y=float(y),
        width=float(max(width, 0)),
        height=float(height),
        rx=float(radius),
        class_=css,
    )


def color_class(color: int) -> str:
    return f"c{color % NUM_COLORS}"


def dash_class(color: int) -> str:
    """Dashes change where shapes begin again, so that lines differ by more than their colour."""
    return f"dash{color // len(SIDES) % 3}"


def marker(x: float, y: float, color: int, tip: str = "", size: float = 3.2) -> str:
    """A point whose shape tells runs apart without colour."""
    title = element("title", escape(tip)) if tip else ""
    css = f"marker {color_class(color)}"
    sides = SIDES[color % len(SIDES)]
    if not sides:
        return element("circle", title, cx=float(x), cy=float(y), r=float(size), class_=css)
    turn = -math.pi / 2 if sides == 3 else (math.pi / 4 if sides > 0 else 0.0)
    angles = [turn + 2 * math.pi * index / abs(sides) for index in range(abs(sides))]
    corners = [(x + 1.3 * size * math.cos(angle), y + 1.3 * size * math.sin(angle)) for angle in angles]
    return element("polygon", title, points=" ".join(f"{a:.1f},{b:.1f}" for a, b in corners), class_=css)


def fit(label: str, width: float) -> str:
    """The label, shortened in the middle where it is too long for `width`."""
    room = max(4, int(width / CHAR_WIDTH))
    if len(label) <= room:
        return label
    head = (room - 1) // 2
    return label[:head] + "…" + label[len(label) - (room - 1 - head) :]


def legend(entries: Sequence[LegendEntry], left: float, width: float) -> tuple[str, float]:
    """The drawn legend and its height: columns of equal width, as many as fit."""
    if not entries:
        return "", 4.0
    labels = [fit(entry.label, width - 60) for entry in entries]
    column = 36 + max(map(len, labels)) * WIDE_CHAR
    num_columns = max(1, int((width + 10) // column))
    drawn = []
    for index, (entry, label) in enumerate(zip(entries, labels, strict=True)):
        x, y = left + index % num_columns * column, 12.0 + index // num_columns * 20
        drawn.append(_swatch(x, y, entry) + text(x + 26, y + 4, label))
    return "".join(drawn), 26.0 + (len(entries) - 1) // num_columns * 20


def _swatch(x: float, y: float, entry: LegendEntry) -> str:
    stroke = line(x, y, x + 20, y, f"series {color_class(entry.color)} {dash_class(entry.color)}")
    return (stroke if entry.joined else "") + (marker(x + 10, y, entry.color) if entry.marked else "")


def drawing(slug: str, title: str, description: str, body: str, height: float) -> str:
    """The finished picture, with its text alternative."""
    named = element("title", escape(title), id=f"{slug}-title") + element(
        "desc", escape(description), id=f"{slug}-desc"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-labelledby="{slug}-title {slug}-desc">{named}{body}</svg>'
    )


def standalone(svg: str) -> str:
    """The same picture as a file of its own: style inside, light colours written out, a ground to stand on."""
    css = re.sub(r"var\(--([a-z0-9]+)\)", lambda found: LIGHT[found[1]], CHART_CSS)
    ground = f'<rect width="100%" height="100%" fill="{LIGHT["card"]}"/>'
    head, tail = svg.split(">", 1)
    return f"{head}><style>{css}</style>{ground}{tail}\n"
