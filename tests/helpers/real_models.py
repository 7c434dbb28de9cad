"""Small trained models that come with the tests (tests/models)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

transformers.utils.logging.disable_progress_bar()

TINY_LLAMA = Path(__file__).parent.parent / "models" / "tinystories-656K"


def tiny_llama() -> Any:
    """A Llama of 656,000 parameters that writes stories for children."""
    return transformers.AutoModelForCausalLM.from_pretrained(TINY_LLAMA)


def tiny_tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(TINY_LLAMA)
