"""A slow, literal LaMemo with the published code's names: one row at a time, with a growing memory.

It writes reference files for any configuration. No code of the package is used.
Shapes: q segment, m memory, B batch, n heads, d head size, D model width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from helpers import published_xl as xl
from helpers.published_xl import Config, Parameters
from torch import Tensor

DEFAULTS: Config = {
    **{name: value for name, value in xl.DEFAULTS.items() if name not in ("batch", "resets", "untie_r")},
    "d_head": 3,
    "mem_len": 6,
    "bsz": 2,
    "seg_lens": [4, 4, 4, 4],
    "attn_type": 3,
    "eps": 1e-6,
    "layer_norm_eps": 1e-5,
}
CHOICES: Config = {"alpha": "interpolated", "encoding": "disentangled", "window": "current", "masks": None}
"""Variants that their code has no option for; `masks`: those of `PositionMasks` of each segment, or None."""


class PositionMasks(NamedTuple):
    """Factors of dropout on the sinusoids of each distance from 0 on, one table for each direction."""

    past: Tensor
    ahead: Tensor
    """(distances, D) each"""


class Memory(NamedTuple):
    embedded: Tensor
    """(m, B, D)"""
    contexts: list[Tensor]
    """(m, B, n, d) of each layer"""
    denominators: list[Tensor]
    """(m, B, n), as logarithms"""


def parameters(config: Config) -> Parameters:
    p = xl.parameters({**config, "attn_type": 0, "untie_r": False})
    for layer in range(config["n_layer"]):
        name = f"layers.{layer}.dec_attn"
        q, k, v = p.pop(f"{name}.qkv_net.weight").chunk(3)
        p |= {f"{name}.q_net.weight": q.clone(), f"{name}.kv_net.weight": torch.cat([k, v])}
    if config["encoding"] == "disentangled":
        p["r_r_bias_future"] = 0.5 * torch.randn(config["n_head"], config["d_head"], dtype=torch.float64)
    return p


def attend(q: Tensor, keys: Tensor, values: Tensor, r: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Context and log-sum-exp of one row's q (B, n, d) over J keys (J, B, n, d) with positions r (J, n, d)."""
    score = ((q + u) * keys + (q + v) * r[:, None]).sum(-1) / q.shape[-1] ** 0.5
    weight = score.exp() / score.exp().sum(0)
    return (weight[..., None] * values).sum(0), score.exp().sum(0).log()


def interpolate(config: Config, old: Tensor, new: Tensor, old_lse: Tensor, new_lse: Tensor) -> tuple[Tensor, ...]:
    """Context, log-sum-exp and memorising coefficient of a memory row."""
    if config["alpha"] == "one":
        return old, old_lse, torch.ones_like(old_lse)
    if config["alpha"] == "zero":
        return new, new_lse, torch.zeros_like(old_lse)
    top = torch.max(old_lse, new_lse)
    alpha = (old_lse - top).exp() / ((old_lse - top).exp() + (new_lse - top).exp() + config["eps"])
    share = alpha[..., None].detach() if config["alpha"] == "detached" else alpha[..., None]
    return share * old + (1 - share) * new, (old_lse.exp() + new_lse.exp()).log(), alpha


def layer_rows(p: Parameters, config: Config, layer: int, x: Tensor, memory: Memory, num_new: int):
    """All m + q rows x (m + q, B, D) through one layer: output, contexts, denominators, coefficients of memory rows."""
    name, heads = f"layers.{layer}.dec_attn", (config["n_head"], config["d_head"])
    q, k, v = xl.project(p, config, layer, x)
    signed = config["encoding"] == "signed"
    u, past, ahead = p["r_w_bias"], p["r_r_bias"], p["r_r_bias" if signed else "r_r_bias_future"]

    def positions(distance: Tensor, direction: str) -> Tensor:
        table = xl.sinusoid(distance, config)
        if config["masks"] is not None:
            table = table * getattr(config["masks"], direction)[distance]
        return (table @ p[f"{name}.r_net.weight"].T).unflatten(-1, heads)

    m, contexts, lses, alphas = len(memory.embedded), [], [], []
    for i in range(len(x)):
        if i >= m:
            keys = torch.arange(0, i + 1)
            context, lse = attend(q[i], k[keys], v[keys], positions(i - keys, "past"), u, past)
        else:
            keys = torch.arange(max(i + 1, m - num_new + 1), m + 1)
            r = positions(i - keys if signed else keys - i, "ahead")
            found = attend(q[i], k[keys], v[keys], r, u, ahead)
            old = memory.contexts[layer][i], memory.denominators[layer][i]
            context, lse, alpha = interpolate(config, old[0], found[0], old[1], found[1])
            alphas.append(alpha)
        contexts.append(context)
        lses.append(lse)
    h = xl.attention_output(p, config, layer, x, torch.stack(contexts))
    return xl.feed_forward(p, config, layer, h), torch.stack(contexts), torch.stack(lses), alphas


def read(p: Parameters, config: Config, ids: Tensor, memory: Memory, num_new: int):
    """Log-probabilities of the segment, the next memory, and every layer's coefficients."""
    x = embedded = torch.cat([memory.embedded, xl.embed(p, config, ids)])
    begin = max(0, len(x) - config["mem_len"])
    contexts, denominators, coefficients = [], [], []
    for layer in range(config["n_layer"]):
        x, context, lse, alphas = layer_rows(p, config, layer, x, memory, num_new)
        contexts.append(context[begin:].detach())
        denominators.append(lse[begin:].detach())
        coefficients.append(alphas)
    scores = xl.log_probabilities(p, config, x[len(memory.embedded) :])
    return scores, Memory(embedded[begin:].detach(), contexts, denominators), coefficients


def empty(config: Config) -> Memory:
    heads = (config["bsz"], config["n_head"])
    layers = range(config["n_layer"])
    nothing = torch.zeros(0, config["bsz"], config["d_model"], dtype=torch.float64)
    contexts = [nothing.new_zeros(0, *heads, config["d_head"]) for _ in layers]
    return Memory(nothing, contexts, [nothing.new_zeros(0, *heads) for _ in layers])


def compute(changes: Config) -> tuple[Config, dict[str, Tensor]]:
    """The configuration in full and all tensors of its reference file."""
    config = {**DEFAULTS, **CHOICES, **changes}
    canonical, p = xl.trainable(config, parameters(config))
    tensors = {name: value.detach().clone() for name, value in canonical.items()}
    dim = config["d_model"]
    tensors["pos_emb.inv_freq"] = 1 / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    memory, loss, previous = empty(config), torch.zeros(0), 0
    for index, length in enumerate(config["seg_lens"]):
        text = torch.randint(config["n_token"], (length + 1, config["bsz"]))
        num_new = length if config["window"] == "current" else previous
        masks = config["masks"] and config["masks"][index]
        scores, memory, alphas = read(p, {**config, "masks": masks}, text[:-1], memory, num_new)
        loss = -scores.gather(-1, text[1:, :, None]).squeeze(-1)
        found = {"data": text[:-1], "target": text[1:], "loss": loss, "mem.emb": memory.embedded}
        found |= {f"mem.recur.{layer}": value for layer, value in enumerate(memory.contexts)}
        found |= {f"mem.logden.{layer}": value for layer, value in enumerate(memory.denominators)}
        if index and config["alpha"] in ("interpolated", "detached"):
            found |= {f"alpha.{layer}": torch.stack(values) for layer, values in enumerate(alphas)}
        tensors |= {f"seg{index}.{name}": value.detach().clone() for name, value in found.items()}
        previous = length
    tensors |= {f"grad.{name}": gradient for name, gradient in xl.gradients(loss.mean(), canonical).items()}
    return {name: value for name, value in config.items() if name not in CHOICES}, tensors


def write(path: Path, **changes: Any) -> Path:
    """Write a reference file like the authors' code."""
    return xl.save(path, "lamemo-golden-1", *compute(changes))
