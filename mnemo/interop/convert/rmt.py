"""The Recurrent Memory Transformer of its authors (LM-RMT): their configuration and weights as ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.convert import transformer_xl
from mnemo.interop.convert.tensor_map import TensorLocation, TensorMap, import_tensors
from mnemo.memory import MemoryTokens
from mnemo.model import Model, ModelConfig


def config_from_authors(config: Mapping[str, Any]) -> ModelConfig:
    """Our configuration, published quirks included, for the constructor arguments of their `MemTransformerLM`."""
    like_xl = transformer_xl.config_from_authors({"same_length": False, **config})
    try:
        tokens = MemoryTokens(
            num=config["num_mem_tokens"],
            write=bool(config.get("mem_at_end", False)),
            # same_length takes away what memory tokens may see ahead of them
            mask="causal" if like_xl.same_length else "block",
            memory_sees_cache=bool(config.get("read_mem_from_cache", False)),
        )
        return replace(like_xl, tokens=tokens.published())
    except (KeyError, TypeError, ValueError) as error:
        raise MnemoError(f"configuration: {error}") from None


def authors_tensor_map(model: Model) -> TensorMap:
    """Every name in the authors' state dict."""
    assert model.memory_tokens is not None
    num, dim = model.memory_tokens.initial.shape
    return {
        **transformer_xl.authors_tensor_map(model),
        "mem_tokens": TensorLocation(parts=("memory_tokens.initial",), shape=(num, 1, dim)),
    }


def weights_from_authors(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our state dict, from the authors'."""
    model = transformer_xl.empty_model(config)
    parameters = {name: tensor for name, tensor in tensors.items() if name not in transformer_xl.BUFFERS}
    return import_tensors(authors_tensor_map(model), parameters, dict(model.named_parameters()))
