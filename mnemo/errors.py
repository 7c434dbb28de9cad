"""Exceptions for users' mistakes; the command line prints their message as one line, without a traceback."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

SIMILAR = 0.6
"""Smallest similarity, from 0 to 1, of a suggested name."""

MOST_LISTED = 20
"""Largest number of names in a message."""


class MnemoError(Exception):
    """Wrong usage or input. The command line exits with code 2."""


class CheckFailed(MnemoError):
    """A check failed. The command line exits with code 1."""


def shorten(text: str, limit: int = 80) -> str:
    """Shorten a text for a message: values from a file can be as long as the file."""
    return text if len(text) <= limit else text[:limit] + "..."


def plural(count: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def require_positive(name: str, value: float | None) -> None:
    """Raise an error for a number that is not positive and finite; None is no number."""
    if value is not None and not 0 < value < math.inf:
        raise MnemoError(f"{name} {value} must be positive" + ("" if math.isfinite(value) else " and finite"))


def require_not_negative(name: str, value: int | None) -> None:
    if value is not None and value < 0:
        raise MnemoError(f"{name} {value} is negative")


def one_line(error: BaseException, limit: int = 300) -> str:
    """Return the first line of another library's error message, and the second if the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    announced = lines[0].endswith(":") and len(lines) > 1
    return shorten(f"{lines[0]} {lines[1]}" if announced else lines[0], limit)


def install_command(extras: str) -> str:
    """Return how to install Mnemo with optional dependencies: from source, because no package index has it."""
    return f"in a checkout of Mnemo, pip install '.[{extras}]'"


def unknown(kind: str, name: str, known: Iterable[str], listing: str = "") -> MnemoError:
    """Return an error for an unknown name that suggests similar names, or else lists all known names.

    `listing`: a command that lists all names, if there are too many for one line.
    """
    known, name = sorted(known), shorten(name)
    # Dashes do not count: with them, any two short options would look similar.
    plain = {other.lstrip("-"): other for other in known}
    near = difflib.get_close_matches(name.lstrip("-"), plain, n=3 if listing else 1, cutoff=SIMILAR)
    near = [plain[other] for other in near]
    where = f"{listing} shows all" if listing else ""
    if near:
        hint = "did you mean " + " or ".join(f"'{other}'" for other in near) + "?"
        return MnemoError(f"unknown {kind} '{name}'; {hint} {where}".rstrip())
    more = f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
    return MnemoError(f"unknown {kind} '{name}'; {where or 'known: ' + ', '.join(known[:MOST_LISTED]) + more}")
