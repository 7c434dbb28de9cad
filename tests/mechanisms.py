"""Every mechanism and composition that the state contract is tested on, as changes to the small test model."""

from __future__ import annotations

from typing import Any

from mnemo.memory import XL, Plan

MECHANISMS: dict[str, dict[str, Any]] = {
    "xl": dict(memory=5),
    "xl-plan": dict(memory=Plan(long=XL(length=7), short=XL(length=2), num_long=1)),
}
