"""What a measurement belongs to: the card, its driver, versions and commit."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mnemo import __version__
from mnemo.bench.gpu_table.card import card_state, git_commit

PACKAGES = ("torch", "triton")


def machine() -> dict[str, Any]:
    """Card and versions. torch is not asked for the card: it would open a context on the GPU that is measured."""
    card = card_state()
    versions = {"mnemo": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    commit = os.environ.get("COMMIT") or git_commit()
    return {"gpu": card.get("name"), "driver": card.get("driver"), "versions": versions, "commit": commit}
