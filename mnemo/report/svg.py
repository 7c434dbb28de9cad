"""From a Matplotlib figure to SVG for a page or a file.

Text stays text. Colours become CSS variables, so that a figure follows the page into dark mode and print.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mnemo.files import atomic
from mnemo.report.style import CHART_CSS, DARK, LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NAMESPACE = "http://www.w3.org/2000/svg"
LINK = "{http://www.w3.org/1999/xlink}href"
IMAGES = ("light", "dark")
"""Names of images that show the same in the colours of one mode each."""
_VARIABLES = {color: f"var(--{name})" for name, color in LIGHT.items()}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True)
class Drawing:
    canvas: Canvas
    tips: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Words that appear over the marks of an artist, by the artist's `gid`."""


def clean(text: str) -> str:
    """Text that HTML and SVG may contain: control characters become visible symbols, lone surrogates a `?`."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    code = ord(char)
    if char in "\n\t" or 0x20 <= code < 0x7F or 0xA0 <= code < 0xFFFE:
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    return char if code > 0xFFFF else "\ufffd"


def slugify(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:60] or "x"


def for_page(drawing: Drawing, slug: str, title: str, description: str) -> str:
    """The picture as SVG with its text alternative; `slug` makes its ids unique in the page."""
    # Without their namespace, elements are written without prefixes; the root gets it back below.
    root = ElementTree.fromstring(_saved(drawing.canvas, slug).replace(f' xmlns="{NAMESPACE}"', ""))
    for group in root.iter("g"):
        _add_tips(group, drawing.tips.get(group.attrib.pop("id", ""), ()))
    for element in root.iter():
        _simplify(element)
    width, height = (float(length) * 72 for length in drawing.canvas.get_size_inches())
    root.attrib = {
        "xmlns": NAMESPACE,
        "class": "chart",
        "viewBox": f"0 0 {width:.0f} {height:.0f}",
        "role": "img",
        "aria-labelledby": f"{slug}-title {slug}-desc",
    }
    named = (_element("title", title, id=f"{slug}-title"), _element("desc", description, id=f"{slug}-desc"))
    root[:] = [*named, *_without_style(root)]
    return ElementTree.tostring(root, encoding="unicode")


def save_picture(drawing: Drawing, path: Path, kind: str) -> None:
    """Write the picture on white, as PNG, SVG or PDF."""
    drawing.canvas.patch.set(visible=True, facecolor="white")
    with atomic.new_file(path) as partial:
        drawing.canvas.savefig(partial, format=kind, dpi=160, bbox_inches="tight", pad_inches=0.15)


def _saved(canvas: Canvas, slug: str) -> str:
    import matplotlib

    buffer = io.StringIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": slug}):
        warnings.filterwarnings("ignore", r"Glyph \d+")  # only widths are taken from this font; the reader's has more
        canvas.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return buffer.getvalue()


def _add_tips(group: ElementTree.Element, tips: Sequence[str]) -> None:
    if tips:
        for mark, tip in zip(group.iter("use"), tips, strict=True):
            mark.append(_element("title", tip))


def _element(tag: str, text: str, **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(tag, attributes)
    element.text = clean(text)
    return element


def _simplify(element: ElementTree.Element) -> None:
    """Style as attributes with variables for colours, fewer digits, no font and no white space of Matplotlib."""
    attributes = {"href" if name == LINK else name: value for name, value in element.attrib.items()}
    style = re.findall(r"([\w-]+): ?([^;]+)", attributes.pop("style", ""))
    attributes |= {name: value for name, value in style if name not in ("font-size", "font-family")}
    if attributes.get("id") in IMAGES:
        attributes["class"] = attributes.pop("id")
    element.attrib = {name: _short(value) for name, value in attributes.items()}
    element.tail = None
    if element.tag not in ("text", "title"):
        element.text = None


def _short(value: str) -> str:
    if value.startswith("data:"):
        return "".join(value.split())
    digits = 5 if value.startswith("matrix") else 2  # scales are multiplied by the number of cells
    return _VARIABLES.get(value, re.sub(rf"(\.\d{{{digits}}})\d+", r"\1", " ".join(value.split())))


def _without_style(root: ElementTree.Element) -> Iterable[ElementTree.Element]:
    """Matplotlib's style sheet would apply to the whole page."""
    return (child for child in root if child.find("style") is None)


def standalone(svg: str, *, dark: bool = False) -> str:
    """The same picture for a file: style inside, colours instead of variables, a background."""
    colors, css = (DARK, CHART_CSS.replace(".dark", ".light")) if dark else (LIGHT, CHART_CSS)
    colored = re.sub(r"var\(--([a-z0-9]+)\)", lambda found: colors[found[1]], svg)
    ground = f'<rect width="100%" height="100%" fill="{colors["card"]}"/>'
    head, tail = colored.split(">", 1)
    return f"{head}><style>{css}</style>{ground}{tail}\n"
