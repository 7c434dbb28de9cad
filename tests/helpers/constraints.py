"""The exact versions in constraints.txt."""

from __future__ import annotations

from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

FILE = Path(__file__).resolve().parents[2] / "constraints.txt"


def constraints() -> dict[str, Version]:
    """Pinned versions by canonical name."""
    pins = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert canonicalize_name(name) not in pins, f"{name} is pinned twice"
            pins[canonicalize_name(name)] = Version(version)
    return pins
