"""The state of the GPU, and the versions and the commit that a measurement belongs to."""

from __future__ import annotations

import subprocess
from pathlib import Path

FIELDS = {
    "name": "name",
    "driver": "driver_version",
    "sm_mhz": "clocks.sm",
    "sm_max_mhz": "clocks.max.sm",
    "memory_mhz": "clocks.mem",
    "watts": "power.draw",
    "watts_limit": "power.limit",
    "celsius": "temperature.gpu",
    "used_mib": "memory.used",
}
TEXTS = ("name", "driver")


def card_state() -> dict[str, str | float]:
    """Return name, driver, clocks, power and temperature of the first GPU; empty without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS.values())}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_state(answer)


def parse_state(line: str) -> dict[str, str | float]:
    """Parse a line of comma-separated values in the order of `FIELDS`; values that are not available are left out."""
    found: dict[str, str | float] = {}
    for field, text in zip(FIELDS, line.strip().split(","), strict=False):
        text = text.strip()
        if field in TEXTS:
            found[field] = text
        elif text.replace(".", "", 1).isdigit():
            found[field] = float(text)
    return found


def describe(state: dict[str, str | float]) -> str:
    """Return one line, such as `NVIDIA H200, driver 580.1, 1980 of 1980 MHz, 650 of 700 W, 55 C`."""
    if not state:
        return "state of the card unknown (no nvidia-smi)"

    def shown(field: str) -> str:
        value = state.get(field, "?")
        return value if isinstance(value, str) else f"{value:.0f}"

    clocks = f"{shown('sm_mhz')} of {shown('sm_max_mhz')} MHz, memory {shown('memory_mhz')} MHz"
    power = f"{shown('watts')} of {shown('watts_limit')} W, {shown('celsius')} C"
    return f"{shown('name')}, driver {shown('driver')}, {clocks}, {power}"


def git_commit() -> str | None:
    """Return the commit of this package's checkout, with `+` if files differ from it; None without git."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")
