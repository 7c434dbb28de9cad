"""The library's recurrent layers in plain PyTorch, one token after the other, and how far its kernels are from that.

Compilers have broken these kernels on some GPUs: releases of Triton before 3.7.1 compute wrong gradients of Gated
DeltaNet on Hopper (https://github.com/fla-org/flash-linear-attention/issues/640). So a row is timed only where output
and all gradients of a layer are right.

Shapes: B batch, L segment, D model width, H heads, K and V widths of a head's keys and values, k inputs of a short
convolution.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.bench.alternatives.gated_delta import LIBRARY, GatedDelta, GatedDeltaStage, LayerCache
from mnemo.errors import MnemoError, one_line

LARGEST_ERROR = 0.1
"""Of a tensor, as a share of its norm: bf16 alone gives about a hundredth, and wrong kernels have given half."""
TINY = 1e-6
"""Added to squared norms of queries and keys, as in the library."""
OUTPUT, INPUT = "output", "input"


def mixed(mixer: Any, x: Tensor, config: GatedDelta) -> Tensor:
    """What a mixer of the library computes from a segment (B, L, D) that begins with an empty state."""
    heads = config.num_heads
    q, k, v = (_convolved(mixer, name, x).unflatten(2, (heads, -1)) for name in "qkv")  # (B, L, H, K or V)
    read = delta_rule(_unit(q) * config.head_dim**-0.5, _unit(k), v, _log_decay(mixer, x, config), mixer.b_proj(x))
    norm, gates = mixer.o_norm, mixer.g_proj(x).unflatten(2, (heads, -1))
    gates = gates.sigmoid() if norm.activation == "sigmoid" else F.silu(gates)
    return mixer.o_proj((F.rms_norm(read, read.shape[-1:], norm.weight, norm.eps) * gates).flatten(2))


def delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write: Tensor) -> Tensor:
    """Matrices S that are read as S q after S <- S exp(g), S <- S + sigmoid(b) (v - S k) k^T.

    `log_decay` g: (B, L, H, 1 or K); `write` b: (B, L, H).
    """
    matrices, outputs = v.new_zeros(v.shape[0], v.shape[2], v.shape[3], k.shape[3]), []
    for q_t, k_t, v_t, g_t, b_t in zip(*(each.unbind(1) for each in (q, k, v, log_decay, write)), strict=True):
        matrices = matrices * g_t.exp()[:, :, None]
        new = b_t.sigmoid()[..., None] * (v_t - _times(matrices, k_t))
        matrices = matrices + new[..., None] * k_t[:, :, None]
        outputs.append(_times(matrices, q_t))
    return torch.stack(outputs, 1)


def _times(matrices: Tensor, rows: Tensor) -> Tensor:
    return torch.einsum("bhvk,bhk->bhv", matrices, rows)


def _convolved(mixer: Any, name: str, x: Tensor) -> Tensor:
    rows, weight = getattr(mixer, f"{name}_proj")(x), getattr(mixer, f"{name}_conv1d").weight  # weight: (D, 1, k)
    padded = F.pad(rows.mT, (weight.shape[-1] - 1, 0))
    return F.silu(F.conv1d(padded, weight, groups=len(weight)).mT)


def _unit(rows: Tensor) -> Tensor:
    return rows / (rows.square().sum(-1, keepdim=True) + TINY).sqrt()


def _log_decay(mixer: Any, x: Tensor, config: GatedDelta) -> Tensor:
    steps = mixer.a_proj(x) if config.decay == "head" else mixer.f_proj(x)
    steps = F.softplus(steps + mixer.dt_bias).unflatten(2, (config.num_heads, -1))
    return -mixer.A_log.exp()[:, None] * steps


def kernel_errors(
    config: GatedDelta, dim: int, batch: int, length: int, device: torch.device, autocast: AbstractContextManager[Any]
) -> dict[str, float]:
    """Errors of a layer's output and gradients, by name and as shares of their norms.

    The library computes the whole batch, with the sizes for which its kernels are tuned then; only the first row has a
    gradient, so that the slow version needs no others.
    """
    stage = GatedDeltaStage(config, dim, nn.Identity()).to(device)
    x = torch.randn(batch, length, dim, device=device)
    upstream = torch.zeros_like(x)
    upstream[0].normal_()
    with autocast:
        out, *_ = stage.mixer(x.requires_grad_(), past_key_values=LayerCache(stage.init(batch, 0, x)), use_cache=True)
    found = _with_gradients(stage.mixer, x, out, upstream)
    first = x[:1].detach().requires_grad_()
    wanted = _with_gradients(stage.mixer, first, mixed(stage.mixer, first, config), upstream[:1])
    return {name: _error(found[name], value) for name, value in wanted.items()}


def _with_gradients(mixer: nn.Module, x: Tensor, out: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """Output and gradients of the first row of a batch."""
    names, weights = zip(*mixer.named_parameters(), strict=True)
    to_input, *to_weights = torch.autograd.grad(out, (x, *weights), upstream.to(out.dtype))
    return {OUTPUT: out[0], INPUT: to_input[0], **dict(zip(names, to_weights, strict=True))}


def _error(found: Tensor, wanted: Tensor) -> float:
    return ((found.float() - wanted.float()).norm() / wanted.float().norm()).item()


def require_right_kernels(
    config: GatedDelta, dim: int, batch: int, length: int, device: torch.device, autocast: AbstractContextManager[Any]
) -> dict[str, float]:
    """The errors; MnemoError if the kernels fail, or if a value is wrong."""
    try:
        errors = kernel_errors(config, dim, batch, length, device, autocast)
    except RuntimeError as error:
        raise MnemoError(f"the kernels of {LIBRARY} do not work here: {one_line(error)}") from error
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else torch.inf)
    if not errors[worst] <= LARGEST_ERROR:
        raise MnemoError(
            f"the kernels of {LIBRARY} are wrong here: '{worst}' of a layer differs from plain PyTorch by "
            f"{errors[worst]:.2f} of its norm"
        )
    return errors
