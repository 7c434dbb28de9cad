"""Small trained models that come with the tests (tests/models)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mnemo.memory import Associative

transformers = pytest.importorskip("transformers")

transformers.utils.logging.disable_progress_bar()

TINY_LLAMA = Path(__file__).parent.parent / "models" / "tinystories-656K"


def tiny_llama() -> Any:
    """A Llama of 656,000 parameters that writes stories for children."""
    return transformers.AutoModelForCausalLM.from_pretrained(TINY_LLAMA)


def tiny_tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(TINY_LLAMA)


def llama_with_filled_memory(bounded: bool) -> Any:
    """A model whose memory is not empty: the values of a new memory are zero."""
    from mnemo.hf import add_memory

    changes = Associative(key_dim=16, bounded=bounded, row_size=3.0)
    torch.manual_seed(0)
    model: Any = add_memory(tiny_llama(), tokens=4, segment=32, bptt=None, kind="associative", associative=changes)
    for layer in model.memory_tokens.layers:
        torch.nn.init.normal_(layer.value.weight, 0.0, 0.05)
    return model.double().train()
