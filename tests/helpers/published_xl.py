"""A slow, literal Transformer-XL with the published code's names, which writes reference files for any configuration.

Time is the first dimension, distances are explicit, the memory is a growing list; no code of the package is used.
Shapes: q queries, k keys, B batch, n heads, d head size, D model width.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

Config = dict[str, Any]
Parameters = dict[str, Tensor]

DEFAULTS: Config = {
    "n_token": 19,
    "n_layer": 2,
    "n_head": 2,
    "d_model": 8,
    "d_head": 4,
    "d_inner": 10,
    "d_embed": 8,
    "tie_weight": True,
    "div_val": 1,
    "tie_projs": [False],
    "cutoffs": [],
    "pre_lnorm": False,
    "tgt_len": 4,
    "ext_len": 0,
    "mem_len": 5,
    "same_length": False,
    "attn_type": 0,
    "clamp_len": -1,
    "batch": 2,
    "seg_lens": [4, 4, 4],
    "resets": {},
    "untie_r": False,
}


def ends(config: Config) -> list[int]:
    return [0, *config["cutoffs"], config["n_token"]]


def ties(config: Config) -> dict[str, str]:
    """Map every tied name to its canonical name."""
    tied = {}
    tables = len(ends(config)) - 1 if config["div_val"] > 1 else 1
    if config["tie_weight"]:
        tied |= {f"crit.out_layers.{i}.weight": f"word_emb.emb_layers.{i}.weight" for i in range(tables)}
    if config["div_val"] > 1 or config["d_embed"] != config["d_model"]:
        for i, tie in enumerate(config["tie_projs"]):
            if tie:
                tied[f"crit.out_projs.{i}"] = f"word_emb.emb_projs.{i if config['div_val'] > 1 else 0}"
    return tied


def parameters(config: Config) -> Parameters:
    """Random values under the authors' names, tied ones under their canonical name only."""
    dim, width = config["d_model"], config["n_head"] * config["d_head"]
    heads = (config["n_head"], config["d_head"])
    edges, embed, div = ends(config), config["d_embed"], config["div_val"]
    widths = [embed // div**i for i in range(len(edges) - 1)]
    sizes = [(edges[i + 1] - edges[i], w) for i, w in enumerate(widths)] if div > 1 else [(config["n_token"], embed)]
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (rows, w) in enumerate(sizes):
        shapes[f"word_emb.emb_layers.{i}.weight"] = shapes[f"crit.out_layers.{i}.weight"] = (rows, w)
        shapes[f"crit.out_layers.{i}.bias"] = (rows,)
        if div > 1 or embed != dim:
            shapes[f"word_emb.emb_projs.{i}"] = (dim, w)
    if div > 1 or embed != dim:
        shapes |= {f"crit.out_projs.{i}": (dim, w) for i, w in enumerate(widths)}
    if config["cutoffs"]:
        shapes |= {"crit.cluster_weight": (len(widths) - 1, embed), "crit.cluster_bias": (len(widths) - 1,)}
    for i in range(config["n_layer"]):
        attention, inner = f"layers.{i}.dec_attn", f"layers.{i}.pos_ff"
        if config["attn_type"] < 2:
            shapes[f"{attention}.qkv_net.weight"] = (3 * width, dim)
        else:
            shapes |= {f"{attention}.q_net.weight": (width, dim), f"{attention}.kv_net.weight": (2 * width, dim)}
        if config["attn_type"] == 0:
            shapes[f"{attention}.r_net.weight"] = (width, dim)
        shapes[f"{attention}.o_net.weight"] = (dim, width)
        shapes |= {
            f"{inner}.CoreNet.0.weight": (config["d_inner"], dim),
            f"{inner}.CoreNet.0.bias": (config["d_inner"],),
        }
        shapes |= {f"{inner}.CoreNet.3.weight": (dim, config["d_inner"]), f"{inner}.CoreNet.3.bias": (dim,)}
        for block in (attention, inner):
            shapes |= {f"{block}.layer_norm.weight": (dim,), f"{block}.layer_norm.bias": (dim,)}
    rows = config["tgt_len"] + config["ext_len"] + config["mem_len"]
    if config["attn_type"] == 0:
        shape = (config["n_layer"], *heads) if config["untie_r"] else heads
        shapes |= {"r_w_bias": shape, "r_r_bias": shape}
    if config["attn_type"] == 1:
        shapes |= {"r_w_bias": (config["n_layer"], *heads), "r_bias": (config["n_layer"], rows, heads[0])}
    if config["attn_type"] in (1, 3):
        shapes["r_emb"] = (config["n_layer"], rows, *heads)
    tied = ties(config)
    random = {name: 0.5 * torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items() if name not in tied}
    return {name: value + ("layer_norm.weight" in name) for name, value in random.items()}


def embed(p: Parameters, config: Config, ids: Tensor) -> Tensor:
    rows = []
    for token in ids.reshape(-1).tolist():
        i = sum(token >= end for end in ends(config)[1:-1]) if config["div_val"] > 1 else 0
        begin = ends(config)[i] if config["div_val"] > 1 else 0
        row = p[f"word_emb.emb_layers.{i}.weight"][token - begin]
        projection = p.get(f"word_emb.emb_projs.{i}")
        rows.append(row if projection is None else projection @ row)
    return torch.stack(rows).view(*ids.shape, -1) * config["d_model"] ** 0.5


def sinusoid(distance: Tensor, config: Config) -> Tensor:
    dim, distance = config["d_model"], distance.double()
    if config["clamp_len"] > 0:
        distance = distance.clamp(max=config["clamp_len"])
    angle = distance[..., None] / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.cat([angle.sin(), angle.cos()], -1)


def trainable(config: Config, canonical: Parameters) -> tuple[Parameters, Parameters]:
    """The parameters with gradient: by canonical names, and by all names including tied ones."""
    canonical = {name: value.requires_grad_() for name, value in canonical.items()}
    return canonical, {**canonical, **{alias: canonical[name] for alias, name in ties(config).items()}}


def gradients(loss: Tensor, p: Parameters) -> Parameters:
    """Gradients of all parameters, zeros for unused ones."""
    found = torch.autograd.grad(loss, list(p.values()), retain_graph=True, allow_unused=True)
    return {n: torch.zeros_like(v) if g is None else g for (n, v), g in zip(p.items(), found, strict=True)}


def project(p: Parameters, config: Config, layer: int, rows: Tensor) -> list[Tensor]:
    """Queries, keys and values (rows, B, n, d) of all rows (rows, B, D)."""
    name, heads = f"layers.{layer}.dec_attn", (config["n_head"], config["d_head"])
    if config["pre_lnorm"]:
        rows = F.layer_norm(rows, rows.shape[-1:], p[f"{name}.layer_norm.weight"], p[f"{name}.layer_norm.bias"])
    weight = p.get(f"{name}.qkv_net.weight")
    if weight is None:
        weight = torch.cat([p[f"{name}.q_net.weight"], p[f"{name}.kv_net.weight"]])
    return [x.view(*x.shape[:2], *heads) for x in (rows @ weight.T).chunk(3, -1)]


def attention_output(p: Parameters, config: Config, layer: int, h: Tensor, context: Tensor) -> Tensor:
    """The residual sum of rows h (rows, B, D) and their projected contexts (rows, B, n, d)."""
    name = f"layers.{layer}.dec_attn"
    out = h + context.flatten(2) @ p[f"{name}.o_net.weight"].T
    if config["pre_lnorm"]:
        return out
    return F.layer_norm(out, out.shape[-1:], p[f"{name}.layer_norm.weight"], p[f"{name}.layer_norm.bias"])


def attend(p: Parameters, config: Config, layer: int, h: Tensor, memory: Tensor) -> Tensor:
    q, k, v = project(p, config, layer, torch.cat([memory, h]))
    q = q[len(memory) :]
    distance = torch.arange(len(h))[:, None] + len(memory) - torch.arange(len(k))
    score = position_scores(p, config, layer, q, k, distance) / config["d_head"] ** 0.5  # (q, k, B, n)
    hidden = distance < 0
    if config["same_length"]:
        hidden = hidden | (distance >= config["mem_len"])
    share = score.masked_fill(hidden[..., None, None], float("-inf")).softmax(1)
    return attention_output(p, config, layer, h, torch.einsum("ijbn,jbnd->ibnd", share, v))


def position_scores(p: Parameters, config: Config, layer: int, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
    kind, heads = config["attn_type"], (config["n_head"], config["d_head"])
    if kind in (2, 3):
        return torch.einsum("ibnd,jbnd->ijbn", q, k)
    u = p["r_w_bias"][layer] if kind == 1 or config["untie_r"] else p["r_w_bias"]
    content = torch.einsum("ibnd,jbnd->ijbn", q + u, k)
    if kind == 0:
        v = p["r_r_bias"][layer] if config["untie_r"] else p["r_r_bias"]
        r = sinusoid(distance.clamp(min=0), config) @ p[f"layers.{layer}.dec_attn.r_net.weight"].T
        return content + torch.einsum("ibnd,ijnd->ijbn", q + v, r.view(*distance.shape, *heads))
    table, bias = p["r_emb"][layer], p["r_bias"][layer]
    if config["clamp_len"] > 0:
        table, bias = table[-config["clamp_len"] :], bias[-config["clamp_len"] :]
    row = (len(table) - 1 - distance).clamp(0, len(table) - 1)
    return content + torch.einsum("ibnd,ijnd->ijbn", q, table[row]) + bias[row][:, :, None]


def feed_forward(p: Parameters, config: Config, layer: int, h: Tensor) -> Tensor:
    name = f"layers.{layer}.pos_ff"
    norm = (h.shape[-1:], p[f"{name}.layer_norm.weight"], p[f"{name}.layer_norm.bias"])
    x = F.layer_norm(h, *norm) if config["pre_lnorm"] else h
    x = F.relu(x @ p[f"{name}.CoreNet.0.weight"].T + p[f"{name}.CoreNet.0.bias"])
    out = h + x @ p[f"{name}.CoreNet.3.weight"].T + p[f"{name}.CoreNet.3.bias"]
    return out if config["pre_lnorm"] else F.layer_norm(out, *norm)


def hidden_states(p: Parameters, config: Config, ids: Tensor, memory: list[Tensor]) -> list[Tensor]:
    """The input and every layer's output, each (q, B, D)."""
    h = embed(p, config, ids)
    if config["attn_type"] == 2:
        h = h + sinusoid(torch.arange(len(ids) - 1, -1, -1), config)[:, None]
    states = [h]
    for layer in range(config["n_layer"]):
        if config["attn_type"] == 3:
            h = h + p["r_emb"][layer, -len(ids) :].flatten(1)[:, None]
        h = feed_forward(p, config, layer, attend(p, config, layer, h, memory[layer]))
        states.append(h)
    return states


def log_probabilities(p: Parameters, config: Config, h: Tensor) -> Tensor:
    """(..., D) -> (..., V). Cluster rows are in reverse bin order."""
    edges, parts = ends(config), []
    head = None
    for i in range(len(edges) - 1):
        table = i if config["div_val"] > 1 else 0
        rows = slice(None) if config["div_val"] > 1 else slice(edges[i], edges[i + 1])
        weight, bias = p[f"crit.out_layers.{table}.weight"][rows], p[f"crit.out_layers.{table}.bias"][rows]
        projection = p.get(f"crit.out_projs.{i}")
        x = h if projection is None else h @ projection
        if i == 0 and config["cutoffs"]:
            weight, bias = torch.cat([weight, p["crit.cluster_weight"]]), torch.cat([bias, p["crit.cluster_bias"]])
        logits = (x @ weight.T + bias).log_softmax(-1)
        head = logits if head is None else head
        parts.append(logits[..., : edges[1]] if i == 0 else head[..., -i, None] + logits)
    return torch.cat(parts, -1)


def by_bin(values: Tensor, targets: Tensor, config: Config) -> Tensor:
    bins = [sum(token >= end for end in config["cutoffs"]) for token in targets.reshape(-1).tolist()]
    order = sorted(range(len(bins)), key=lambda index: bins[index])
    return values.reshape(-1)[order].view(values.shape)


def compute(changes: Config, zeros: bool = False) -> tuple[Config, dict[str, Tensor]]:
    """The configuration in full and all tensors of its reference file, under the authors' names.

    Hugging Face's outputs are there too, under its keys but time first.
    """
    config = {**DEFAULTS, **changes}
    canonical, p = trainable(config, parameters(config))
    tensors = {f"param/{name}": value.detach().clone() for name, value in p.items()}
    now, dim = dict(config), config["d_model"]
    start = config["mem_len"] if zeros else 0
    memory = [torch.zeros(start, config["batch"], dim, dtype=torch.float64) for _ in range(config["n_layer"] + 1)]
    loss, remembers = torch.zeros(0), False
    for k, length in enumerate(config["seg_lens"]):
        now.update(config["resets"].get(str(k), {}))
        again = min(now["ext_len"], sum(config["seg_lens"][:k]))
        text = torch.randint(config["n_token"], (again + length + 1, config["batch"]))
        ids, targets = text[:-1], text[again + 1 :]
        states = hidden_states(p, now, ids, memory)
        scores = log_probabilities(p, config, states[-1])
        loss = -scores[again:].gather(-1, targets[..., None]).squeeze(-1)
        end = len(ids) + max(0, len(memory[0]) - now["ext_len"])
        begin = max(0, end - now["mem_len"])
        memory = [torch.cat([m, h]).detach()[begin:end] for m, h in zip(memory, states, strict=True)]
        found = {"input": ids, "target": targets, "loss": loss, "log_probs": scores}
        found["loss_authors_order"] = by_bin(loss, targets, config)
        found["hf_all"] = -scores[:-1].gather(-1, ids[1:, :, None]).squeeze(-1)
        remembers = remembers or now["mem_len"] > 0
        if remembers:
            found["mems"] = torch.stack(memory)
        tensors |= {f"seg{k}/{name}": value.detach().clone() for name, value in found.items()}
    tensors |= {f"grad/{name}": gradient for name, gradient in gradients(loss.mean(), canonical).items()}
    return {**config, "tied": ties(config), "n_segments": len(config["seg_lens"])}, tensors


def save(path: Path, kind: str | None, config: Config, tensors: dict[str, Tensor]) -> Path:
    """Write a reference file; files of LM-RMT have no format."""
    contiguous = {name: value.detach().contiguous().clone() for name, value in tensors.items()}
    metadata = {"config": json.dumps(config)} | ({} if kind is None else {"format": kind})
    save_file(contiguous, path, metadata)
    return path


def write(path: Path, **changes: Any) -> Path:
    """Write a reference file like the authors' code."""
    config, tensors = compute(changes)
    only_theirs = {k: v for k, v in tensors.items() if not k.endswith(("/log_probs", "/hf_all"))}
    if not config["cutoffs"]:
        only_theirs = {k: v for k, v in only_theirs.items() if not k.endswith("_order")}
    return save(path, "txl-golden-1", config, only_theirs)


def write_hugging_face(path: Path, *, zeros: bool, **changes: Any) -> Path:
    """Write the same with Hugging Face's names and order of dimensions."""
    config, tensors = compute(changes, zeros)
    result: dict[str, Tensor] = {}
    for key, value in tensors.items():
        group, _, name = key.partition("/")
        if group in ("param", "grad"):
            result |= _hugging_face_parameter(group, name, value, config)
        elif name == "mems":
            result[key] = value[:-1]
        elif name == "hf_all":
            targets = tensors[f"{group}/input"][1:].T
            result[f"{group}/hf_losses"] = by_bin(value.T, targets, config)
            result[f"{group}/hf_loss"] = value.mean().view(1)
        elif name != "loss_authors_order":
            result[f"{group}/input_ids" if name == "input" else key] = value.transpose(0, 1)
    names = {"n_token": "vocab_size", "tie_weight": "tie_word_embeddings"}
    described = {names.get(name, name): value for name, value in config.items() if name in DEFAULTS}
    outer = {
        "batch": config["batch"],
        "n_segments": config["n_segments"],
        "initial_mems": "zeros" if zeros else "empty",
    }
    return save(path, "txl-golden-hf-1", {"hf_config": described, **outer}, result)


def _hugging_face_parameter(group: str, name: str, value: Tensor, config: Config) -> dict[str, Tensor]:
    if name.startswith("crit.cluster"):
        return {f"{group}/{name}": value.flip(0)}
    if name.startswith("crit."):
        return {f"{group}/{name}": value}
    if name in ("r_w_bias", "r_r_bias") and config["untie_r"]:
        return {f"{group}/transformer.layers.{i}.dec_attn.{name}": value[i] for i in range(config["n_layer"])}
    return {f"{group}/transformer.{name}": value}
