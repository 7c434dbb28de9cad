"""Marks of single cases of a parametrised test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

FURTHER: Any = () if torch.cuda.is_available() else pytest.mark.thorough
"""For cases that are fast on a GPU, and slow without one: natively, they are tested at once."""


def few(cases: Iterable[Any], is_quick: Callable[..., bool], mark: Any = pytest.mark.thorough) -> list[Any]:
    """All cases, each a tuple of arguments or a single one; those that are not quick are thorough."""
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if is_quick(*case) else mark) for case in tuples]
