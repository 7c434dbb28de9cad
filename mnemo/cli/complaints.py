"""What the parser complains of, without the frame that it draws around it."""

from __future__ import annotations

from itertools import groupby

SIDES = "│┃║| "
RULE = "─━═-+╭╮╰╯┌┐└┘├┤ "


def paragraphs(text: str) -> list[list[str]]:
    """The lines inside a frame of any characters, parted where it has a rule; a title is left out."""
    lines = text.splitlines()
    rows = [line.strip(SIDES) for line in lines if not _is_edge(line)]
    is_framed = any(line and _is_edge(line) for line in lines)
    if not is_framed and len(rows) > 1 and _is_rule(rows[1]):  # then the title stands on a line of its own
        rows = rows[2:]
    parts = [list(part) for rule, part in groupby(rows, key=_is_rule) if not rule]
    return [part for part in parts if any(part)]


def _is_edge(line: str) -> bool:
    """The frame's first or last line, which may carry a title."""
    return line[:1] in "╭╰┌└+" and line.rstrip()[-1:] in "╮╯┐┘+"


def _is_rule(row: str) -> bool:
    return bool(row) and not row.strip(RULE)


def first_line(text: str) -> str:
    """The first paragraph as one line."""
    parts = paragraphs(text)
    words = " ".join(parts[0]) if parts else text
    return " ".join(words.split()).rstrip(".").removeprefix("Error parsing ")


def nearest_flag(text: str) -> str | None:
    """The flag that the parser thinks was meant."""
    rows = [row for part in paragraphs(text)[1:] for row in part]
    return next((row.split()[0] for row in rows if row.startswith("--")), None)
