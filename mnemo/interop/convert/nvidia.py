"""Configuration and tensor map of NVIDIA's Transformer-XL (DeepLearningExamples, PyTorch).

Their model is the authors', including the reverse order of cluster rows, but the softmax has separate lists of weights
and biases and does not store weights that it shares with the embedding. With `same_length` a query sees one key more
than in the authors' code: `mem_len` + 1, itself included. We reproduce that attention with a memory longer by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.convert import transformer_xl
from mnemo.interop.convert.tensor_map import TensorMap
from mnemo.memory import XL, Plan
from mnemo.model import Model, ModelConfig

_NAMES = {
    r"crit\.out_layers_weights\.(\d+)": r"crit.out_layers.\1.weight",
    r"crit\.out_layers_biases\.(\d+)": r"crit.out_layers.\1.bias",
    r"crit\.shared_out_projs\.(\d+)": r"word_emb.emb_projs.\1",
}


def authors_name(name: str) -> str:
    """Translate one of NVIDIA's names to the authors' name."""
    for pattern, replacement in _NAMES.items():
        name = re.sub(pattern, replacement, name)
    return name


def authors_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {authors_name(name): tensor for name, tensor in tensors.items()}


def config_from_nvidia(config: Mapping[str, Any]) -> ModelConfig:
    """Return our configuration for the `model_config` of a checkpoint."""
    if config.get("attn_type", 0) != 0:
        raise MnemoError(f"NVIDIA's models are supported with attn_type 0 only, not {config['attn_type']}")
    return one_key_more(transformer_xl.config_from_authors(config))


def one_key_more(config: ModelConfig) -> ModelConfig:
    """With `same_length`, lengthen the memory by one key."""
    return _longer(config, 1)


def one_key_less(config: ModelConfig) -> ModelConfig:
    return _longer(config, -1)


def _longer(config: ModelConfig, extra: int) -> ModelConfig:
    long = config.memory.long
    if not config.same_length or not isinstance(long, XL):
        return config
    return replace(config, memory=Plan(long=replace(long, length=max(0, long.length + extra))))


def nvidia_tensor_map(model: Model) -> TensorMap:
    """Map every name in their state dict. Of the weights shared with the embedding, only projections occur twice."""
    tensor_map, shared = {}, set()
    for name, location in transformer_xl.authors_tensor_map(model).items():
        if name.startswith("word_emb."):
            shared.add(location)
        elif location in shared:
            continue
        name = re.sub(r"^crit\.out_layers\.(\d+)\.weight$", r"crit.out_layers_weights.\1", name)
        tensor_map[re.sub(r"^crit\.out_layers\.(\d+)\.bias$", r"crit.out_layers_biases.\1", name)] = location
    projections = {name: location for name, location in tensor_map.items() if name.startswith("word_emb.emb_projs.")}
    return tensor_map | {
        name.replace("word_emb.emb_projs", "crit.shared_out_projs"): location for name, location in projections.items()
    }
