"""A gated delta rule in plain PyTorch behind the interface of flash-linear-attention, which needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.own_memories import keep_mechanisms
from torch import Tensor, nn

from mnemo.bench.alternatives import gated_delta
from mnemo.bench.alternatives.gated_delta import CONVOLVED, Block, GatedDelta
from mnemo.bench.alternatives.recipes import register


class Convolution(nn.Module):
    """A weighted sum of the last inputs, the newest one included."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 1, CONVOLVED))

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([cache, x.mT], 2)
        seen = inputs[..., 1:].unfold(2, CONVOLVED, 1)  # (B, D, L, k)
        return F.silu((seen * self.weight).sum(-1)).mT, inputs[..., -CONVOLVED:]


class GatedNorm(nn.Module):
    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        self.weight, self.eps, self.activation = nn.Parameter(torch.ones(width)), 1e-5, activation

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        gates = gates.sigmoid() * (1 if self.activation == "sigmoid" else gates)
        return gates * self.weight * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class Mixer(nn.Module):
    """The library's gated delta rule, one token after the other, with the names of the library."""

    def __init__(self, config: GatedDelta, dim: int) -> None:
        super().__init__()
        self.heads, self.layer_idx = config.num_heads, 0
        keys = config.num_heads * config.head_dim
        values = config.value_ratio * keys
        self.q_proj, self.k_proj, self.v_proj, self.g_proj = (
            nn.Linear(dim, width, bias=False) for width in (keys, keys, values, values)
        )
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (Convolution(width) for width in (keys, keys, values))
        self.b_proj = nn.Linear(dim, config.num_heads, bias=False)
        decays = config.num_heads if config.decay == "head" else keys
        self.decays = nn.Linear(dim, decays, bias=False)
        self.A_log = nn.Parameter(torch.zeros(config.num_heads))
        self.dt_bias = nn.Parameter(torch.zeros(decays))
        self.o_norm = GatedNorm(values // config.num_heads, "swish" if config.decay == "head" else "sigmoid")
        self.o_proj = nn.Linear(values, dim, bias=False)

    @property
    def a_proj(self) -> nn.Module:
        """Of Gated DeltaNet."""
        return self.decays

    f_proj = a_proj
    """Of Kimi Delta Attention."""

    def forward(self, hidden_states: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor, None, Any]:
        assert use_cache and len(past_key_values) == 1
        last = past_key_values[self.layer_idx]
        rows, after = [], []
        maps = (self.q_proj, self.q_conv1d), (self.k_proj, self.k_conv1d), (self.v_proj, self.v_conv1d)
        for (to, convolve), cache in zip(maps, last["conv_state"], strict=True):
            x, cache = convolve(to(hidden_states), cache)
            rows.append(x.unflatten(2, (self.heads, -1)))
            after.append(cache)
        out, matrices = self._read(rows, hidden_states, last["recurrent_state"])
        past_key_values.update(
            layer_idx=0, recurrent_state=matrices, conv_state=tuple(after), offset=hidden_states.shape[1]
        )
        gates = self.g_proj(hidden_states).unflatten(2, (self.heads, -1))
        return self.o_proj(self.o_norm(out, gates).flatten(2)), None, past_key_values

    def _read(self, heads: list[Tensor], x: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = heads  # (B, L, H, d) each
        q, k = F.normalize(q, dim=-1) / q.shape[-1] ** 0.5, F.normalize(k, dim=-1)
        decays = F.softplus(self.decays(x) + self.dt_bias).unflatten(2, (self.heads, -1))
        keep = (-self.A_log.exp()[:, None] * decays).exp()  # (B, L, H, 1 or K)
        write, outputs = self.b_proj(x).sigmoid(), []  # (B, L, H)
        for t in range(x.shape[1]):
            known = torch.einsum("bhvk,bhk->bhv", matrices, keep[:, t] * k[:, t])
            new = write[:, t, :, None] * (v[:, t] - known)
            matrices = keep[:, t, :, None] * matrices + new[..., None] * k[:, t, :, None]
            outputs.append(torch.einsum("bhvk,bhk->bhv", matrices, q[:, t]))
        return torch.stack(outputs, 1), matrices


class Norm(nn.RMSNorm):
    """With the library's second form, which adds a residual and returns the sum as well."""

    def forward(self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False) -> Any:
        x = x if residual is None else x + residual
        return (super().forward(x), x) if prenorm else super().forward(x)


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner_dim: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(dim, inner_dim, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gate_proj(x)
        return self.down_proj(gates * gates.sigmoid() * self.up_proj(x))


def stand_in_block(config: GatedDelta, dim: int) -> Block:
    return Block(Norm(dim, 1e-5), Mixer(config, dim), Norm(dim, 1e-5), FeedForward(dim, config.inner_dim))


def use_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, rows of the library train these layers, on any device."""
    keep_mechanisms(monkeypatch)
    monkeypatch.setattr(gated_delta, "library_block", stand_in_block)
    monkeypatch.setattr(gated_delta, "require_library", lambda device: None)
    register()
