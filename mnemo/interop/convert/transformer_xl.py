"""Configurations and tensor maps of the Transformer-XL authors' PyTorch code and of Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.convert.infer_arguments import is_tied
from mnemo.interop.convert.tensor_map import TensorLocation, TensorMap, import_tensors
from mnemo.memory import XL, Plan
from mnemo.model import Model, ModelConfig
from mnemo.model.embedding import Bins, EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.layers.modules import TransformerLayer
from mnemo.model.positions import AnyPositions, Learned, Relative, Shaw, Sinusoidal

BUFFERS = {"pos_emb.inv_freq", "transformer.pos_emb.inv_freq"}
"""Stored in their files, but computed in our model."""
HUGGING_FACE_DEFAULTS = {
    "clamp_len": 1000,
    "cutoffs": [20000, 40000, 200000],
    "div_val": 4,
    "same_length": True,
    "untie_r": True,
}
"""Defaults of `TransfoXLConfig` that the meaning of the weights depends on."""


def config_from_authors(config: Mapping[str, Any]) -> ModelConfig:
    """Return our configuration for the constructor arguments of the authors' `MemTransformerLM`."""
    return _config(config, vocab_size=_get(config, "n_token"), tie_weights=_get(config, "tie_weight"))


def config_from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Return our configuration for a `TransfoXLConfig` in JSON form."""
    if config.get("attn_type", 0) != 0:
        raise MnemoError(f"Hugging Face supports attn_type 0 only, not {config['attn_type']}")
    config = {**HUGGING_FACE_DEFAULTS, **config}
    shared = bool(config.get("proj_share_all_but_first", True))
    ties = config.get("tie_projs") or [False, *[shared] * len(config["cutoffs"])]
    return _config(
        {**config, "tie_projs": ties},
        vocab_size=_get(config, "vocab_size"),
        tie_weights=bool(config.get("tie_word_embeddings", config.get("tie_weight", True))),
    )


def _config(config: Mapping[str, Any], *, vocab_size: int, tie_weights: bool) -> ModelConfig:
    try:
        return ModelConfig(
            vocab_size=vocab_size,
            num_layers=_get(config, "n_layer"),
            dim=_get(config, "d_model"),
            num_heads=_get(config, "n_head"),
            head_dim=_get(config, "d_head"),
            inner_dim=_get(config, "d_inner"),
            norm="pre" if config.get("pre_lnorm", False) else "post",
            norm_eps=config.get("layer_norm_epsilon", 1e-5),
            embedding=_embedding(config, tie_weights),
            positions=_positions(config),
            memory=Plan(long=XL(length=_get(config, "mem_len"))),
            same_length=_get(config, "same_length"),
            dropout=DropoutConfig.published(config.get("dropout", 0.0), config.get("dropatt", 0.0)),
        )
    except (ArithmeticError, TypeError, ValueError) as error:
        raise MnemoError(f"configuration: {error}") from None


def _get(config: Mapping[str, Any], name: str) -> Any:
    if name not in config:
        raise MnemoError(f"configuration has no '{name}'")
    return config[name]


def _embedding(config: Mapping[str, Any], tie_weights: bool) -> EmbeddingConfig:
    cutoffs = tuple(config.get("cutoffs") or ())
    given = [is_tied(entry) for entry in config.get("tie_projs") or ()]
    untied = [False] * (len(cutoffs) + 1)  # default of bins for which their list has no entry
    return EmbeddingConfig(
        dim=config.get("d_embed"),
        cutoffs=cutoffs,
        div_val=config.get("div_val", 1),
        tie_weights=tie_weights,
        tie_projections=tuple([*given, *untied][: len(untied)]),
    )


def _positions(config: Mapping[str, Any]) -> AnyPositions:
    kind, clamp = config.get("attn_type", 0), clamp_from_authors(config.get("clamp_len"))
    if kind == 0:
        return Relative(clamp=clamp, biases_per_layer=config.get("untie_r", False))
    if kind == 2:
        return Sinusoidal(clamp=clamp, countdown=True)
    rows = _get(config, "tgt_len") + config.get("ext_len", 0) + _get(config, "mem_len")
    if kind == 1:
        return Shaw(distances=rows, clamp=clamp)
    if kind == 3:
        if _get(config, "n_head") * _get(config, "d_head") != _get(config, "d_model"):
            raise ValueError("attn_type 3 adds n_head * d_head position features to d_model others")
        return Learned(length=rows, align_end=True)
    raise ValueError(f"attn_type {kind} is none of 0, 1, 2 and 3")


def clamp_from_authors(clamp_len: int | None) -> int | None:
    """Translate the authors' clamp_len, where any number that is not positive means no clamp."""
    return clamp_len if clamp_len is not None and clamp_len > 0 else None


def empty_model(config: ModelConfig) -> Model:
    """Return a model on the meta device: names and shapes without weights."""
    try:
        with torch.device("meta"):
            return Model(config)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise MnemoError(f"configuration: {error}") from None


def import_weights(
    tensors: Mapping[str, Tensor], config: ModelConfig, tensor_map: Callable[[Model], TensorMap]
) -> dict[str, Tensor]:
    """Return our state dict, converted from tensors with the names of another implementation."""
    model = empty_model(config)
    parameters = {name: tensor for name, tensor in tensors.items() if name not in BUFFERS}
    return import_tensors(tensor_map(model), parameters, dict(model.named_parameters()))


def authors_tensor_map(model: Model) -> TensorMap:
    """Map every name in the authors' state dict. Their cluster rows are in reverse order of the bins."""
    return {
        **_embedding_tensor_map(model),
        **_softmax_tensor_map(model, reverse_clusters=True),
        **_layers_tensor_map(model),
        **_positions_tensor_map(model),
    }


def hugging_face_tensor_map(model: Model) -> TensorMap:
    """Map every name in Hugging Face's state dict. Its cluster rows are in the order of the bins, as ours."""
    inner = {**_embedding_tensor_map(model), **_layers_tensor_map(model), **_positions_tensor_map(model)}
    tensor_map = {f"transformer.{name}": location for name, location in inner.items()}
    return {**tensor_map, **_hugging_face_biases(model), **_softmax_tensor_map(model, reverse_clusters=False)}


def _place(*parts: str) -> TensorLocation:
    return TensorLocation(parts=parts)


def _embedding_tensor_map(model: Model) -> TensorMap:
    tables, projections = len(model.embedding.tables), len(model.embedding.projections)
    return {
        **{f"word_emb.emb_layers.{i}.weight": _place(f"embedding.tables.{i}") for i in range(tables)},
        **{f"word_emb.emb_projs.{i}": _place(f"embedding.projections.{i}") for i in range(projections)},
    }


def _softmax_tensor_map(model: Model, reverse_clusters: bool) -> TensorMap:
    config = model.config.embedding
    bins = Bins.of(config, model.config.vocab_size, model.config.dim)
    weights = "embedding.tables" if config.tie_weights else "softmax.weights"
    tensor_map = {}
    for i in range(len(model.softmax.biases)):
        tensor_map[f"crit.out_layers.{i}.weight"] = _place(f"{weights}.{i}")
        tensor_map[f"crit.out_layers.{i}.bias"] = _place(f"softmax.biases.{i}")
    for i, tied in enumerate(config.ties()):
        if bins.projected:
            shared = f"embedding.projections.{i if config.div_val > 1 else 0}"
            tensor_map[f"crit.out_projs.{i}"] = _place(shared if tied else f"softmax.projections.{i}")
    if len(bins) > 1:
        for kind in ("weight", "bias"):
            tensor_map[f"crit.cluster_{kind}"] = TensorLocation(
                parts=(f"softmax.cluster_{kind}",), reverse=reverse_clusters
            )
    return tensor_map


def _layers_tensor_map(model: Model) -> TensorMap:
    tensor_map = {}
    for prefix, module in model.named_modules():
        if isinstance(module, TransformerLayer):
            tensor_map |= _layer_tensor_map(f"layers.{module.index}.", f"{prefix}.", model.config)
    return tensor_map


def _layer_tensor_map(theirs: str, ours: str, config: ModelConfig) -> TensorMap:
    query, key_value = f"{ours}attention.query.weight", f"{ours}attention.key_value.weight"
    attention, feed_forward = f"{theirs}dec_attn.", f"{theirs}pos_ff."
    if isinstance(config.positions, (Relative, Shaw)):
        tensor_map = {f"{attention}qkv_net.weight": _place(query, key_value)}
    else:
        tensor_map = {f"{attention}q_net.weight": _place(query), f"{attention}kv_net.weight": _place(key_value)}
    tensor_map[f"{attention}o_net.weight"] = _place(f"{ours}attention.output.weight")
    for kind in ("weight", "bias"):
        tensor_map[f"{attention}layer_norm.{kind}"] = _place(f"{ours}norm_attention.{kind}")
        tensor_map[f"{feed_forward}layer_norm.{kind}"] = _place(f"{ours}norm_feed_forward.{kind}")
        tensor_map[f"{feed_forward}CoreNet.0.{kind}"] = _place(f"{ours}feed_forward.inner.{kind}")
        tensor_map[f"{feed_forward}CoreNet.3.{kind}"] = _place(f"{ours}feed_forward.outer.{kind}")
    return tensor_map


def _positions_tensor_map(model: Model) -> TensorMap:
    config, positions = model.config, model.config.positions
    if isinstance(positions, Shaw):
        return {
            "r_emb": _place("positions.table"),
            "r_bias": _place("positions.bias"),
            "r_w_bias": _place("positions.u"),
        }
    if isinstance(positions, Learned):
        shape = (config.num_layers, positions.length, config.num_heads, config.head_dim)
        return {"r_emb": TensorLocation(parts=("positions.table",), shape=shape)}
    if not isinstance(positions, Relative):
        return {}
    tensor_map = {
        f"layers.{i}.dec_attn.r_net.weight": _place(f"positions.projections.{i}.weight")
        for i in range(config.num_layers)
    }
    if not positions.biases_per_layer:
        tensor_map["r_w_bias"] = TensorLocation(parts=("positions.u",), index=0)
        tensor_map["r_r_bias"] = TensorLocation(parts=("positions.v",), index=0)
    return tensor_map


def _hugging_face_biases(model: Model) -> TensorMap:
    """Map u and v, which every layer has a name for; without `untie_r` all names are one pair."""
    per_layer = isinstance(model.config.positions, Relative) and model.config.positions.biases_per_layer
    tensor_map = {}
    for i in range(model.config.num_layers):
        attention, index = f"transformer.layers.{i}.dec_attn.", i if per_layer else 0
        tensor_map[f"{attention}r_w_bias"] = TensorLocation(parts=("positions.u",), index=index)
        tensor_map[f"{attention}r_r_bias"] = TensorLocation(parts=("positions.v",), index=index)
    return tensor_map
