"""Mechanisms that a test adds are forgotten after it."""

from __future__ import annotations

import pytest

from mnemo import config
from mnemo.memory import own, plan


def keep_mechanisms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the known mechanisms when the test ends."""
    monkeypatch.setattr(own, "_origins", dict(own._origins))
    monkeypatch.setattr(plan, "AnyMemory", plan.AnyMemory)
    monkeypatch.setattr(config, "_field_types", {})


def forget_mechanisms() -> None:
    """As in a new process, which has imported nothing."""
    own._origins.clear()
    plan.set_mechanisms(*plan.BUILT_IN)
