"""Files in the layouts of published code, made from the literal Transformer-XL of `published_xl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers import published_xl as xl
from helpers.models import set_seed
from helpers.published_xl import Config, Parameters
from safetensors.torch import save_file
from torch import Tensor

ADAPTIVE: Config = {"n_token": 17, "cutoffs": [5, 11], "div_val": 2, "tie_projs": [False, True, True]}


def full(config: Config, seed: int = 3) -> Parameters:
    """Every name of the authors' state dict; tied names share a tensor."""
    set_seed(seed)
    canonical = xl.parameters(config)
    return canonical | {alias: canonical[name] for alias, name in xl.ties(config).items()}


def save_tensors(path: Path, tensors: Parameters) -> Path:
    """A safetensors file, tied names written out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)
    return path


def save_config(folder: Path, config: Config) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def hugging_face(folder: Path, config: Config, p: Parameters, **changes: Any) -> Path:
    """The folder that `save_pretrained` would write: cluster rows in the order of the bins."""
    names = {"n_token": "vocab_size", "tie_weight": "tie_word_embeddings"}
    save_config(folder, {"model_type": "transfo-xl", **{names.get(k, k): v for k, v in config.items()}, **changes})
    tensors = {}
    for name, value in p.items():
        if name in ("r_w_bias", "r_r_bias") and config["untie_r"]:
            tensors |= {f"transformer.layers.{i}.dec_attn.{name}": row for i, row in enumerate(value)}
        elif name.startswith("crit."):
            tensors[name] = value.flip(0) if "cluster" in name else value
        else:
            tensors[f"transformer.{name}"] = value
    save_tensors(folder / "model.safetensors", tensors)
    return folder


def nvidia(config: Config, p: Parameters) -> dict[str, Any]:
    """The entries of a checkpoint that hold the model."""
    state: dict[str, Tensor] = {}
    for name, value in p.items():
        parts = name.split(".")
        tied = name in xl.ties(config)
        if name.startswith("crit.out_layers") and parts[-1] == "bias":
            state[f"crit.out_layers_biases.{parts[2]}"] = value
        elif name.startswith("crit.out_layers") and not tied:
            state[f"crit.out_layers_weights.{parts[2]}"] = value
        elif not tied:
            state[name] = value
        if name.startswith("word_emb.emb_projs"):
            state[f"crit.shared_out_projs.{parts[2]}"] = value
    model_config = {
        name: value for name, value in config.items() if name not in ("batch", "seg_lens", "resets", "untie_r")
    }
    return {"model_config": model_config, "model_state": state}


def tensorflow(path: Path, config: Config, p: Parameters, leave_out: tuple[str, ...] = ()) -> Path:
    """The variables of a checkpoint, an optimizer's among them."""
    variables = {"global_step": torch.tensor(7), "beta1_power": torch.tensor(0.9)}
    for name, value in p.items():
        if name not in leave_out:
            variables |= _variables(name, value, config)
    variables["transformer/r_w_bias/Adam"] = torch.zeros_like(p["r_w_bias"])
    np.savez(path, **{name: value.numpy() for name, value in variables.items()})  # type: ignore[arg-type]
    return path


def _variables(name: str, value: Tensor, config: Config) -> dict[str, Tensor]:
    parts, edges = name.split("."), xl.ends(config)
    embedding, softmax = "transformer/adaptive_embed", "transformer/adaptive_softmax"
    if name.startswith("word_emb"):
        scope = f"{embedding}/cutoff_{parts[2]}" if config["div_val"] > 1 else embedding
        return {f"{scope}/lookup_table": value} if parts[1] == "emb_layers" else {f"{scope}/proj_W": value.T}
    if name.startswith("crit.cluster"):
        return {f"{softmax}/cutoff_0/cluster_{'W' if 'weight' in name else 'b'}": value.flip(0)}
    if name.startswith("crit.out_projs"):
        return {} if name in xl.ties(config) else {f"{softmax}/cutoff_{parts[2]}/proj": value.T}
    if name.endswith("bias") and name.startswith("crit"):
        if not config["cutoffs"]:
            return {f"{softmax}/bias": value}
        if config["div_val"] > 1:
            return {f"{softmax}/cutoff_{parts[2]}/b": value}
        return {f"{softmax}/cutoff_{i}/b": value[edges[i] : edges[i + 1]] for i in range(len(edges) - 1)}
    if name.startswith("crit"):
        return {}
    if parts[0] != "layers":
        return {f"transformer/{name}": value}
    kinds = {"qkv_net": "qkv", "r_net": "r", "o_net": "o"}
    scope = f"transformer/layer_{parts[1]}/{'rel_attn' if parts[2] == 'dec_attn' else 'ff'}"
    if parts[3] in kinds:
        return {f"{scope}/{kinds[parts[3]]}/kernel": value.T}
    if parts[3] == "layer_norm":
        return {f"{scope}/LayerNorm/{'gamma' if parts[4] == 'weight' else 'beta'}": value}
    layer = "layer_1" if parts[4] == "0" else "layer_2"
    return {f"{scope}/{layer}/kernel": value.T} if parts[5] == "weight" else {f"{scope}/{layer}/bias": value}
