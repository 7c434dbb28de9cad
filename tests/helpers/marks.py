"""Marks of single cases of a parametrised test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], is_quick: Callable[..., bool]) -> list[Any]:
    """All cases, each a tuple of arguments or a single one; those that are not quick are thorough."""
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if is_quick(*case) else pytest.mark.thorough) for case in tuples]
