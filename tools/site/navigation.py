"""The order of the pages, taken from the tables of docs/README.md: there is no second list."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
INDEX = PurePosixPath("docs/README.md")
HOME = PurePosixPath("README.md")

_HEADING = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)#]+\.md)\)")


class Entry(NamedTuple):
    title: str
    page: PurePosixPath
    """Path from the root of the repository."""


class Chapter(NamedTuple):
    title: str
    entries: tuple[Entry, ...]


def chapters(root: Path = ROOT) -> list[Chapter]:
    """Chapters of the documentation: headings of docs/README.md with the pages linked in the tables below them."""
    found: list[tuple[str, list[Entry]]] = []
    for line in (root / INDEX).read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.match(line):
            found.append((heading[1], []))
        elif row := _ROW.match(line):
            found[-1][1].append(Entry(row[1], resolve(INDEX, row[2])))
    return [Chapter(title, tuple(entries)) for title, entries in found]


def resolve(page: PurePosixPath, link: str) -> PurePosixPath:
    """The path from the root of the repository that a relative link on a page leads to."""
    return PurePosixPath(os.path.normpath(page.parent / link))


def document(page: PurePosixPath) -> str:
    """Sphinx's name of a page: the path without its suffix; README.md is the home page of the site."""
    return "index" if page == HOME else str(page.with_suffix(""))


def contents(entries: tuple[Entry, ...], caption: str = "") -> str:
    """A hidden table of contents in MyST's syntax: it puts the entries into the side bar."""
    lines = [f"{entry.title} </{document(entry.page)}>" for entry in entries]
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *lines, "```", ""])
