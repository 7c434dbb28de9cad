"""Mnemo: memory transformers. `out, state = model(tokens, state)`."""

__version__ = "0.1.0"
