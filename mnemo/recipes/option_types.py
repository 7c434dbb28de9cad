"""Types of options of several verbs."""

from __future__ import annotations

from typing import Annotated, TypeVar

import tyro

T = TypeVar("T")
Several = Annotated[tuple[T, ...], tyro.conf.arg(help_behavior_hint="")]
"""Any number of values, none by default, for which tyro would show `(default: )` in help texts."""
