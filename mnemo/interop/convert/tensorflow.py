"""Configuration and tensor map of the Transformer-XL authors' TensorFlow code; variables are given as .npz.

Their matrices have the input dimension first. Clusters are in the order of the bins; u and v are one pair, or one pair
per layer. A bin as wide as the model may lack a projection (`proj_same_dim` False): ours is then the identity, which
gives the same numbers. With `same_length` a query sees one key more than in PyTorch, so our memory is longer by one
(see `nvidia`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mnemo.interop.convert import transformer_xl
from mnemo.interop.convert.infer_arguments import Arguments, count, narrowing, shape
from mnemo.interop.convert.nvidia import one_key_more
from mnemo.interop.convert.tensor_map import TensorLocation, TensorMap
from mnemo.model import Model, ModelConfig
from mnemo.model.embedding import Bins
from mnemo.model.positions import Relative

NORM_EPS = 1e-12
"""Epsilon of tf.contrib.layers.layer_norm."""
EMBEDDING, SOFTMAX = "transformer/adaptive_embed/", "transformer/adaptive_softmax/"
_OPTIMIZER = re.compile(r"/(Adam|Adam_1|Momentum|adam_m|adam_v)$|^(global_step|beta[12]_power)$")


def variables(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the variables of the model, without optimizer state, by their names in the code."""
    named = {name.removesuffix(":0"): tensor for name, tensor in tensors.items()}
    inside = {re.sub(r"^.*?(?=transformer/)", "", name): tensor for name, tensor in named.items()}
    return {name: tensor for name, tensor in inside.items() if not _OPTIMIZER.search(name)}


def arguments_of_shapes(tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Arguments:
    """Infer the constructor arguments that shapes determine."""
    per_layer = tensors["transformer/r_w_bias"].dim() == 3
    *_, heads, head_dim = shape(tensors, "transformer/r_w_bias", 3 if per_layer else 2)
    dim, inner = shape(tensors, "transformer/layer_0/ff/layer_1/kernel", 2)
    return {
        "n_layer": count(tensors, "transformer/layer_{}/ff/layer_1/kernel"),
        "n_head": heads,
        "d_head": head_dim,
        "d_model": dim,
        "d_inner": inner,
        "untie_r": per_layer,
        "tie_weight": True,
        **_bins(tensors, given, dim),
    }


def _bins(tensors: Mapping[str, Tensor], given: Mapping[str, Any], dim: int) -> Arguments:
    tables = count(tensors, f"{EMBEDDING}cutoff_{{}}/lookup_table")
    scopes = [f"{EMBEDDING}cutoff_{i}/" for i in range(tables)] or [EMBEDDING]
    widths = [shape(tensors, f"{scope}lookup_table", 2)[1] for scope in scopes]
    sizes = [shape(tensors, f"{SOFTMAX}cutoff_{i}/b", 1)[0] for i in range(count(tensors, f"{SOFTMAX}cutoff_{{}}/b"))]
    arguments: Arguments = {
        "d_embed": widths[0],
        "div_val": narrowing(widths, given.get("div_val")) if tables > 1 else 1,
    }
    arguments["cutoffs"] = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    arguments["n_token"] = sum(sizes) or shape(tensors, f"{SOFTMAX}bias", 1)[0]
    projected = tables > 0 or widths[0] != dim
    arguments["tie_projs"] = [
        projected and f"{SOFTMAX}cutoff_{i}/proj" not in tensors for i in range(max(1, len(sizes)))
    ]
    return arguments


def with_identities(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add identities for the projections that `proj_same_dim` False omits from an adaptive embedding."""
    result = dict(tensors)
    for i in range(count(tensors, f"{EMBEDDING}cutoff_{{}}/lookup_table")):
        table = tensors[f"{EMBEDDING}cutoff_{i}/lookup_table"]
        identity = torch.eye(shape(tensors, f"{EMBEDDING}cutoff_{i}/lookup_table", 2)[1], dtype=table.dtype)
        result.setdefault(f"{EMBEDDING}cutoff_{i}/proj_W", identity)
    return result


def config_from_tensorflow(config: Mapping[str, Any]) -> ModelConfig:
    ours = transformer_xl.config_from_authors({"same_length": False, **config})
    positions = Relative(
        clamp=transformer_xl.clamp_from_authors(config.get("clamp_len")), biases_per_layer=bool(config["untie_r"])
    )
    return one_key_more(replace(ours, positions=positions, norm_eps=NORM_EPS))


def tensorflow_tensor_map(model: Model) -> TensorMap:
    """Map every variable, derived from the PyTorch names."""
    config = model.config
    bins = Bins.of(config.embedding, config.vocab_size, config.dim)
    split = config.embedding.div_val > 1
    tensor_map = {}
    for name, location in transformer_xl.hugging_face_tensor_map(model).items():
        tensor_map |= _variable(name.removeprefix("transformer."), location, bins, split)
    if isinstance(config.positions, Relative):
        for kind, ours in (("r_w_bias", "positions.u"), ("r_r_bias", "positions.v")):
            index = None if config.positions.biases_per_layer else 0
            tensor_map[f"transformer/{kind}"] = TensorLocation(parts=(ours,), index=index)
    return tensor_map


_LAYER = {
    "dec_attn.qkv_net.weight": "rel_attn/qkv/kernel",
    "dec_attn.r_net.weight": "rel_attn/r/kernel",
    "dec_attn.o_net.weight": "rel_attn/o/kernel",
    "dec_attn.layer_norm.weight": "rel_attn/LayerNorm/gamma",
    "dec_attn.layer_norm.bias": "rel_attn/LayerNorm/beta",
    "pos_ff.CoreNet.0.weight": "ff/layer_1/kernel",
    "pos_ff.CoreNet.0.bias": "ff/layer_1/bias",
    "pos_ff.CoreNet.3.weight": "ff/layer_2/kernel",
    "pos_ff.CoreNet.3.bias": "ff/layer_2/bias",
    "pos_ff.layer_norm.weight": "ff/LayerNorm/gamma",
    "pos_ff.layer_norm.bias": "ff/LayerNorm/beta",
}


def _variable(name: str, location: TensorLocation, bins: Bins, split: bool) -> TensorMap:
    """Return the variables of the PyTorch tensor `name`: none, one, or one per bin."""
    kind, _, rest = name.partition(".")
    if kind == "layers":
        layer, _, inner = rest.partition(".")
        if inner.endswith(("r_w_bias", "r_r_bias")):
            return {}
        variable = _LAYER[inner]
        return {f"transformer/layer_{layer}/{variable}": replace(location, transposed=variable.endswith("kernel"))}
    if kind == "word_emb":
        _, number, *_ = rest.split(".")
        scope = f"{EMBEDDING}cutoff_{number}/" if split else EMBEDDING
        is_table = rest.startswith("emb_layers")
        return {f"{scope}{'lookup_table' if is_table else 'proj_W'}": replace(location, transposed=not is_table)}
    return _softmax_variable(rest, location, bins, split) if kind == "crit" else {}


def _softmax_variable(rest: str, location: TensorLocation, bins: Bins, split: bool) -> TensorMap:
    if rest.startswith("cluster_"):
        return {f"{SOFTMAX}cutoff_0/cluster_{'W' if rest.endswith('weight') else 'b'}": location}
    kind, number, *last = rest.split(".")
    if kind == "out_projs":
        tied = location.parts[0].startswith("embedding.")
        return {} if tied else {f"{SOFTMAX}cutoff_{number}/proj": replace(location, transposed=True)}
    if last == ["weight"]:
        return {}
    if len(bins) == 1:
        return {f"{SOFTMAX}bias": location}
    if split:
        return {f"{SOFTMAX}cutoff_{number}/b": location}
    edges = zip(bins.edges, bins.edges[1:], strict=False)
    return {f"{SOFTMAX}cutoff_{i}/b": replace(location, rows=rows) for i, rows in enumerate(edges)}
