"""Pages of the documentation, and the Python blocks in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md"]


def blocks(page: Path) -> list[str]:
    """All Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run_block(block: str) -> dict[str, Any]:
    """Run a Python block and return the names that it defines."""
    names: dict[str, Any] = {"__name__": "__docs__"}
    exec(compile(block, "<block>", "exec", dont_inherit=True), names)
    return names
