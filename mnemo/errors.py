"""The one exception that users meet: a single clear line, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MnemoError(Exception):
    """Wrong usage or input. The command line prints the message and exits with code 2."""


class CheckFailed(MnemoError):
    """A check ran and did not hold. The command line exits with code 1."""


def unknown(kind: str, name: str, known: Iterable[str]) -> MnemoError:
    """An error for a misspelt name that points at the nearest known one."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else "known: " + ", ".join(known)
    return MnemoError(f"unknown {kind} '{name}'; {hint}")
