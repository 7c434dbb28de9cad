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
        self.weight = nn.Parameter(torch.randn(width, CONVOLVED))

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([cache, x.mT], 2)
        seen = inputs[..., 1:].unfold(2, CONVOLVED, 1)  # (B, D, L, k)
        return F.silu((seen * self.weight[:, None]).sum(-1)).mT, inputs[..., -CONVOLVED:]


class Mixer(nn.Module):
    """The library's gated delta rule, one token after the other, behind the library's interface."""

    def __init__(self, config: GatedDelta, dim: int) -> None:
        super().__init__()
        self.heads, self.layer_idx = config.num_heads, 0
        widths = [config.num_heads * config.head_dim * times for times in (1, 1, config.value_ratio)]
        self.maps = nn.ModuleList(nn.Linear(dim, width, bias=False) for width in widths)
        self.convolutions = nn.ModuleList(Convolution(width) for width in widths)
        self.gates = nn.Linear(dim, 2 * config.num_heads)
        self.output = nn.Linear(widths[-1], dim, bias=False)

    def forward(self, hidden_states: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor, None, Any]:
        assert use_cache and len(past_key_values) == 1
        last = past_key_values[self.layer_idx]
        rows, after = [], []
        for to, convolve, cache in zip(self.maps, self.convolutions, last["conv_state"], strict=True):
            x, cache = convolve(to(hidden_states), cache)
            rows.append(x.unflatten(2, (self.heads, -1)))
            after.append(cache)
        out, matrices = self._read(rows, hidden_states, last["recurrent_state"])
        past_key_values.update(
            layer_idx=0, recurrent_state=matrices, conv_state=tuple(after), offset=hidden_states.shape[1]
        )
        return self.output(out.flatten(2)), None, past_key_values

    def _read(self, heads: list[Tensor], x: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = heads  # (B, L, H, d) each
        keep, write = self.gates(x).sigmoid().chunk(2, -1)  # (B, L, H)
        k, outputs = F.normalize(k, dim=-1), []
        for t in range(x.shape[1]):
            known = torch.einsum("bhvk,bhk->bhv", matrices, k[:, t])
            new = write[:, t, :, None] * (v[:, t] - keep[:, t, :, None] * known)
            matrices = keep[:, t, :, None, None] * matrices + new[..., None] * k[:, t, :, None]
            outputs.append(torch.einsum("bhvk,bhk->bhv", matrices, q[:, t]))
        return torch.stack(outputs, 1), matrices


class Norm(nn.RMSNorm):
    """With the library's second form, which adds a residual and returns the sum as well."""

    def forward(self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False) -> Any:
        x = x if residual is None else x + residual
        return (super().forward(x), x) if prenorm else super().forward(x)


def stand_in_block(config: GatedDelta, dim: int) -> Block:
    mlp = nn.Sequential(nn.Linear(dim, config.inner_dim), nn.SiLU(), nn.Linear(config.inner_dim, dim))
    return Block(Norm(dim), Mixer(config, dim), Norm(dim), mlp)


def use_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, rows of the library train these layers, on any device."""
    keep_mechanisms(monkeypatch)
    monkeypatch.setattr(gated_delta, "library_block", stand_in_block)
    monkeypatch.setattr(gated_delta, "require_library", lambda device: None)
    register()
