"""Sphinx extension: docstrings of Mnemo, which are written like Markdown, become reStructuredText."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

_PARAMETER = re.compile(r"^`?(?P<name>\w+)`?(?P<shape> \([^)]*\))?:\s+(?P<text>\S.*)$")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", convert)
    app.connect("autodoc-process-signature", without_fields)
    return {"parallel_read_safe": True}


def convert(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring in place: indented blocks are code, lines of the form NAME: TEXT describe parameters."""
    groups = groupby(lines, key=lambda line: bool(line.strip()))
    paragraphs = [list(group) for filled, group in groups if filled]
    names = _parameters(value)
    converted = [line for paragraph in paragraphs for line in [*_convert(paragraph, names), ""]]
    lines[:] = converted


def _parameters(value: Any) -> Collection[str]:
    try:
        return inspect.signature(value).parameters.keys()
    except (TypeError, ValueError):
        return ()


def _convert(paragraph: list[str], names: Collection[str]) -> list[str]:
    if all(line.startswith("    ") for line in paragraph):
        return ["::", "", *paragraph]
    starts = [_PARAMETER.match(line) for line in paragraph if not line.startswith(" ")]
    if all(found and found["name"] in names for found in starts):
        return [_PARAMETER.sub(_field, line) for line in paragraph]
    return _with_gaps(paragraph)


def _field(found: re.Match[str]) -> str:
    shape = f"{found['shape'].strip()}; " if found["shape"] else ""
    return f":param {found['name']}: {shape}{found['text']}"


def _with_gaps(paragraph: list[str]) -> list[str]:
    """A list directly after a line of text needs an empty line before it."""
    listed = [place for place, line in enumerate(paragraph) if line.startswith("- ")]
    if not listed or listed[0] == 0:
        return paragraph
    return [*paragraph[: listed[0]], "", *paragraph[listed[0] :]]


def without_fields(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, None] | None:
    """Leave the fields of a dataclass out of its signature: they are listed below, with types and defaults."""
    listed = dataclasses.is_dataclass(value) or (inspect.isclass(value) and issubclass(value, tuple))
    return ("", None) if what == "class" and listed else None
