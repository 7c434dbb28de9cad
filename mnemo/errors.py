"""The one exception that users meet: a single clear line, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SIMILAR = 0.6
"""How much of two names must agree, from 0 to 1, for one to be meant by the other."""

MOST_LISTED = 20
"""Names in a message."""


class MnemoError(Exception):
    """Wrong usage or input. The command line prints the message and exits with code 2."""


class CheckFailed(MnemoError):
    """A check ran and did not hold. The command line exits with code 1."""


def shorten(text: str, limit: int = 80) -> str:
    """Text for a message: what a file says may be as long as the file."""
    return text if len(text) <= limit else text[:limit] + "..."


def one_line(error: BaseException, limit: int = 300) -> str:
    """What a library's error says, without its later lines."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shorten(lines[0], limit)


def unknown(kind: str, name: str, known: Iterable[str], listing: str = "") -> MnemoError:
    """An error for a misspelt name that points at the nearest known ones, or else at all of them.

    `listing`: a command that shows all, where they are too many for a line.
    """
    known, name = sorted(known), shorten(name)
    near = difflib.get_close_matches(name, known, n=3 if listing else 1, cutoff=SIMILAR)
    where = f"; {listing} shows all" if listing else ""
    if near:
        hint = "did you mean " + " or ".join(f"'{other}'" for other in near) + "?"
        return MnemoError(f"unknown {kind} '{name}'; {hint}{where}")
    more = f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
    return MnemoError(f"unknown {kind} '{name}'{where or '; known: ' + ', '.join(known[:MOST_LISTED]) + more}")
