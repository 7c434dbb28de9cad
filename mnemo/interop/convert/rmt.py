"""Configuration and tensor map of the Recurrent Memory Transformer authors' code (LM-RMT)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.convert import transformer_xl
from mnemo.interop.convert.tensor_map import TensorLocation, TensorMap
from mnemo.memory import MemoryTokens
from mnemo.model import Model, ModelConfig


def config_from_authors(config: Mapping[str, Any]) -> ModelConfig:
    """Return our configuration, with published quirks, for the constructor arguments of their `MemTransformerLM`."""
    like_xl = transformer_xl.config_from_authors({"same_length": False, **config})
    try:
        tokens = MemoryTokens(
            num=config["num_mem_tokens"],
            write=bool(config.get("mem_at_end", False)),
            # In their code, same_length also hides later memory tokens of a block.
            mask="causal" if like_xl.same_length else "block",
            memory_sees_cache=bool(config.get("read_mem_from_cache", False)),
        )
        return replace(like_xl, tokens=tokens.published())
    except (KeyError, TypeError, ValueError) as error:
        raise MnemoError(f"configuration: {error}") from None


def authors_tensor_map(model: Model) -> TensorMap:
    """Map every name in the authors' state dict."""
    assert model.memory_tokens is not None
    num, dim = model.memory_tokens.initial.shape
    return {
        **transformer_xl.authors_tensor_map(model),
        "mem_tokens": TensorLocation(parts=("memory_tokens.initial",), shape=(num, 1, dim)),
    }


def weights_from_authors(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return our state dict, converted from the authors'."""
    return transformer_xl.import_weights(tensors, config, authors_tensor_map)
