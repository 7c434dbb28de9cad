"""Properties of this process that change the last digits of a run's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mnemo.errors import shorten

NAMES = {"torch": "torch version", "threads": "number of threads"}


def environment() -> dict[str, Any]:
    """Stored in every checkpoint."""
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def environment_note(saved: Mapping[str, Any]) -> str | None:
    """One line on what differs from the process that saved a checkpoint; None if nothing does, or it is unknown."""
    now = environment()
    changed = [
        f"{NAMES[name]} {shorten(str(saved[name]))} -> {now[name]}"
        for name in NAMES
        if name in saved and saved[name] != now[name]
    ]
    if not changed:
        return None
    return f"{', '.join(changed)}: the last digits can differ from those of an uninterrupted run"
