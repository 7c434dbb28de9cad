"""Configuration and tensor map of the LaMemo authors' code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mnemo.errors import MnemoError
from mnemo.interop.convert import transformer_xl
from mnemo.interop.convert.tensor_map import TensorLocation, TensorMap
from mnemo.memory import Lookahead, Plan
from mnemo.model import Model, ModelConfig

ATTENTION_TYPE = 3
"""Their `attn_type` of LaMemo; other numbers are Transformer-XL and ablations."""


def config_from_authors(config: Mapping[str, Any], memory: Lookahead | None = None) -> ModelConfig:
    """Return our configuration for their constructor arguments, with `memory` or by default the published one."""
    if config.get("attn_type", ATTENTION_TYPE) != ATTENTION_TYPE:
        raise MnemoError(f"attn_type {config['attn_type']} is not LaMemo's, which is {ATTENTION_TYPE}")
    norm_eps = config.get("layer_norm_eps", 1e-5)
    defaults = {"tie_weight": True, "same_length": False}
    like_xl = transformer_xl.config_from_authors({**defaults, **config, "attn_type": 0, "layer_norm_epsilon": norm_eps})
    try:
        if memory is None:
            memory = Lookahead(length=config["mem_len"], epsilon=config.get("eps", 1e-6)).published()
        return replace(like_xl, memory=Plan(long=memory))
    except (TypeError, ValueError) as error:
        raise MnemoError(f"configuration: {error}") from None


def authors_tensor_map(model: Model) -> TensorMap:
    """Map every name in the authors' state dict: as Transformer-XL's, with separate queries and a look-ahead bias."""
    ahead = "stages.0.v_minus"
    tensor_map = {"r_r_bias_future": TensorLocation(parts=(ahead,))} if ahead in dict(model.named_parameters()) else {}
    for name, location in transformer_xl.authors_tensor_map(model).items():
        if name.endswith("qkv_net.weight"):
            query, key_value = location.parts
            tensor_map[name.replace("qkv_net", "q_net")] = TensorLocation(parts=(query,))
            tensor_map[name.replace("qkv_net", "kv_net")] = TensorLocation(parts=(key_value,))
        else:
            tensor_map[name] = location
    return tensor_map
