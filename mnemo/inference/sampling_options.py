"""The options of sampling; they import no torch."""

from __future__ import annotations

from typing import NamedTuple

from mnemo.errors import MnemoError, require_positive


class Sampling(NamedTuple):
    """How the next token is drawn from the model's distribution."""

    temperature: float = 1.0
    """0 takes the likeliest token"""
    top_k: int | None = None
    """Choose among the k likeliest tokens"""
    top_p: float | None = None
    """Choose among the likeliest tokens whose sum reaches p, the one that passes it included; after top_k"""

    def check(self) -> None:
        """Raise MnemoError for values that make no sense."""
        if not self.temperature >= 0:
            raise MnemoError(f"temperature {self.temperature} is negative")
        require_positive("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise MnemoError(f"top_p {self.top_p} is not in (0, 1]")
