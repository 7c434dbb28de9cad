"""The library's recurrent blocks in plain PyTorch, one token after the other, and how far its kernels are from that.

Compilers have broken kernels of this library on some GPUs. On Hopper, `num_warps=4` made one of its delta rules return
gradients of keys that were wrong by half of their norm (https://github.com/fla-org/flash-linear-attention/issues/984).
So a row is timed only where output, next state and all gradients of a block are right.

Shapes: B batch, L segment, D model width, H heads, K and V widths of a head's keys and values, k inputs of a short
convolution.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.bench.alternatives.gated_delta import LIBRARY, GatedDelta, GatedDeltaStage, GatedDeltaState
from mnemo.errors import MnemoError, one_line

LARGEST_ERROR = 0.1
"""Of a tensor, as a share of its norm; rounding to bf16 gives about a hundredth."""
TINY = 1e-6
"""Added to squared norms of queries and keys, as in the library."""
SCALE = 0.1
"""Of the rows that a block reads: what it adds to them is not lost in their rounding."""
OUTPUT = "output"


def plain_block(stage: GatedDeltaStage, x: Tensor, state: GatedDeltaState) -> tuple[Tensor, GatedDeltaState]:
    """What `stage.read` computes from a segment (B, L, D), without its dropout."""
    mixer: Any = stage.mixer
    mlp: Any = stage.mlp
    heads = stage.config.num_heads
    rows = _normed(x, stage.mixer_norm)
    parts = [_convolved(mixer, name, rows, before) for name, before in zip("qkv", state[1:], strict=True)]
    q, k, v = (part.unflatten(2, (heads, -1)) for part, _ in parts)  # (B, L, H, K or V)
    q, decay = _unit(q) * stage.config.head_dim**-0.5, _log_decay(mixer, rows, stage.config)
    read, matrices = delta_rule(q, _unit(k), v, decay, mixer.b_proj(rows), state.matrices)
    gates = mixer.g_proj(rows).unflatten(2, (heads, -1))
    gates = gates.sigmoid() if mixer.o_norm.activation == "sigmoid" else F.silu(gates)
    x = x + mixer.o_proj((_normed(read, mixer.o_norm) * gates).flatten(2))
    rows = _normed(x, stage.mlp_norm)
    x = x + mlp.down_proj(F.silu(mlp.gate_proj(rows)) * mlp.up_proj(rows))
    return x, GatedDeltaState(matrices, *(after for _, after in parts))


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write: Tensor, matrices: Tensor
) -> tuple[Tensor, Tensor]:
    """Matrices S that are read as S q after S <- S exp(g), S <- S + sigmoid(b) (v - S k) k^T; and the last ones.

    `log_decay` g: (B, L, H, 1 or K); `write` b: (B, L, H).
    """
    outputs = []
    for q_t, k_t, v_t, g_t, b_t in zip(*(each.unbind(1) for each in (q, k, v, log_decay, write)), strict=True):
        matrices = matrices * g_t.exp()[:, :, None]
        new = b_t.sigmoid()[..., None] * (v_t - _times(matrices, k_t))
        matrices = matrices + new[..., None] * k_t[:, :, None]
        outputs.append(_times(matrices, q_t))
    return torch.stack(outputs, 1), matrices


def _times(matrices: Tensor, rows: Tensor) -> Tensor:
    return torch.einsum("bhvk,bhk->bhv", matrices, rows)


def _normed(rows: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(rows, rows.shape[-1:], norm.weight, norm.eps)


def _convolved(mixer: Any, name: str, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Rows after a map and a short convolution, and the last k inputs of the latter; `before`: those of the state."""
    rows, weight = getattr(mixer, f"{name}_proj")(x), getattr(mixer, f"{name}_conv1d").weight  # weight: (D, 1, k)
    inputs = torch.cat([before, rows.mT], 2)
    return F.silu(F.conv1d(inputs[..., 1:], weight, groups=len(weight)).mT), inputs[..., -weight.shape[-1] :]


def _unit(rows: Tensor) -> Tensor:
    return rows / (rows.square().sum(-1, keepdim=True) + TINY).sqrt()


def _log_decay(mixer: Any, x: Tensor, config: GatedDelta) -> Tensor:
    steps = mixer.a_proj(x) if config.decay == "head" else mixer.f_proj(x)
    steps = F.softplus(steps + mixer.dt_bias).unflatten(2, (config.num_heads, -1))
    return -mixer.A_log.exp()[:, None] * steps


@dataclass(frozen=True)
class Checked:
    """A block, and the sizes and types in which its kernels are compared with plain PyTorch.

    They should be those of the training, because the library tunes and compiles its kernels by them.
    """

    config: GatedDelta
    dim: int
    batch: int
    length: int
    device: torch.device
    dtype: torch.dtype
    """Of the rows between blocks, in which the convolutions keep their inputs, too."""
    autocast: AbstractContextManager[Any]


def block_errors(checked: Checked) -> dict[str, float]:
    """Errors of what a block adds to its input, of its next state and of all gradients, as shares of their norms.

    Output and state are compared for all rows. Only the first row has a gradient: autograd keeps every matrix of the
    slow version, which computes in float32.
    """
    stage = GatedDeltaStage(checked.config, checked.dim, nn.Identity()).to(checked.device)
    x = SCALE * torch.randn(checked.batch, checked.length, checked.dim, device=checked.device)
    x = x.to(checked.dtype)
    state = GatedDeltaState(*(torch.randn_like(part) for part in stage.init(checked.batch, 0, x)))
    upstream = torch.zeros_like(x)
    upstream[0].normal_()
    with checked.autocast:
        out, after = stage.read(x.requires_grad_(), state)
    found = _gradients(stage, out - x, x, upstream)
    first = x[:1].detach().float().requires_grad_()
    begin = GatedDeltaState(*(part[:1].float() for part in state))
    wanted = _gradients(stage, plain_block(stage, first, begin)[0] - first, first, upstream[:1].float())
    with torch.no_grad():
        exact = x.float()
        right, ended = plain_block(stage, exact, GatedDeltaState(*(part.float() for part in state)))
    errors = {OUTPUT: _error(out - exact, right - exact)}
    errors |= {f"state, {name}": _error(getattr(after, name), getattr(ended, name)) for name in state._fields}
    return errors | {f"gradient, {name}": _error(found[name], value) for name, value in wanted.items()}


def _gradients(stage: nn.Module, added: Tensor, x: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """Of what a block adds, to the first row of its input and to all weights."""
    names, weights = zip(*stage.named_parameters(), strict=True)
    to_input, *to_weights = torch.autograd.grad(added, (x, *weights), upstream.to(added.dtype))
    return {"input": to_input[0], **dict(zip(names, to_weights, strict=True))}


def _error(found: Tensor, wanted: Tensor) -> float:
    return ((found.float() - wanted).norm() / wanted.norm()).item()


def require_right_kernels(checked: Checked) -> dict[str, float]:
    """The errors; MnemoError if the kernels fail, or if a value is wrong."""
    try:
        errors = block_errors(checked)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the library and Triton's compiler raise errors of many types
        raise MnemoError(f"the kernels of {LIBRARY} do not work here: {one_line(error)}") from error
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else torch.inf)
    if not errors[worst] <= LARGEST_ERROR:
        raise MnemoError(
            f"the kernels of {LIBRARY} are wrong here: a block's {worst} differs from plain PyTorch by "
            f"{errors[worst]:.2f} of its norm"
        )
    return errors
