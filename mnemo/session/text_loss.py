"""The loss of a text that a model has read."""

from __future__ import annotations

from dataclasses import dataclass

from mnemo.display import Shown, Summary
from mnemo.units import bits, perplexity


@dataclass(frozen=True, repr=False)
class TextLoss(Shown):
    nats: float
    """Sum over all predicted tokens."""
    predicted: int
    """Predicted tokens: all tokens except the very first of a text."""
    tokens: int
    """Tokens of the text."""
    unit: str
    """Unit of a token: byte, char, word or bpe."""

    @property
    def loss(self) -> float | None:
        """Nats per predicted token; None for a text of one token, of which nothing is predicted."""
        return self.nats / self.predicted if self.predicted else None

    @property
    def bits_per_token(self) -> float | None:
        return None if self.loss is None else bits(self.loss)

    @property
    def perplexity(self) -> float | None:
        return None if self.loss is None else perplexity(self.loss)

    def summary(self) -> Summary:
        title = f"loss of {self.tokens:,} {'token' if self.tokens == 1 else 'tokens'} ({self.unit})"
        if self.loss is None or self.perplexity is None:
            return Summary(title, [("no loss", "the first token of a text is not predicted")])
        facts = [
            (f"bits per {self.unit}", f"{bits(self.loss):.4f}"),
            ("perplexity", f"{self.perplexity:,.4g}"),
            ("nats per token", f"{self.loss:.4f}"),
        ]
        return Summary(title, facts)
