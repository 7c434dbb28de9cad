"""Run segments with our model in the way of the published Transformer-XL code.

There, lengths are attributes that may change between segments, and the memory grows from empty.
Shapes: B batch, L segment, M memory, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.convert.transformer_xl import clamp_from_authors
from mnemo.interop.parity.reference import Refused
from mnemo.memory import XLState
from mnemo.model import Model, Output
from mnemo.model.positions import Relative, Shaw, Sinusoidal


@dataclass(frozen=True)
class Setting:
    """Settings of the published code during one segment."""

    memory: int
    clamp: int | None
    same_length: bool
    extended: int
    """Tokens before the segment that are encoded again, without a loss (their ext_len)."""


def settings(config: Mapping[str, Any], resets: Mapping[str, Any], count: int) -> list[Setting]:
    """Return the settings of every segment: the constructor's, changed permanently by each reset."""
    if "mem_len" not in config:
        raise MnemoError("configuration has no 'mem_len'")
    current, result = dict(config), []
    for index in range(count):
        current.update(resets.get(str(index), {}))
        result.append(
            Setting(
                current["mem_len"],
                clamp_from_authors(current.get("clamp_len")),
                bool(current.get("same_length", False)),
                current.get("ext_len", 0),
            )
        )
    return result


def refuse_defects(attn_type: int, pre_norm: bool, steps: list[Setting]) -> None:
    """Refuse configurations whose published numbers come from a defect that our model does not reproduce."""
    remembers = any(step.memory > 0 for step in steps)
    if attn_type == 3 and remembers:
        raise Refused(
            "defect of the published code: attn_type 3 with memory adds positions to the stored memory again in "
            "every segment, so that they accumulate"
        )
    if attn_type == 2 and remembers:
        raise Refused("defect of the published code: attn_type 2 with memory fails in its first segment")
    if attn_type in (2, 3) and pre_norm:
        raise Refused(
            f"defect of the published code: attn_type {attn_type} with pre_lnorm projects queries from the input "
            "that is not normalised"
        )
    if any(step.same_length and step.memory == 0 for step in steps):
        raise Refused("defect of the published code: same_length without memory masks every key")


class SegmentRunner:
    """Our model with its state, and the last layer's outputs, which the published code stores with the memory."""

    def __init__(self, model: Model, batch: int, first: Setting, zeros: bool = False) -> None:
        self.model = model
        self.state = (model.zeros if zeros else model.init)(batch, first.memory)
        self.top = torch.zeros(batch, self._valid(), model.config.dim, dtype=torch.float64)

    def read(self, tokens: Tensor, setting: Setting) -> Output:
        self._set(setting)
        valid = self._valid()
        # When the memory length decreases, this segment still sees the old memory; only the stored one is shorter.
        slots = setting.memory if setting.same_length else max(valid, setting.memory)
        state = self.model.resize(self.state, slots)
        kept = self._kept(tokens.shape[1], valid, setting)
        out, state = self.model(tokens, state, lengths=torch.full((len(tokens),), kept) if setting.extended else None)
        self.state = self.model.resize(state, setting.memory)
        top = torch.cat([self.top, out.hidden.detach()], 1)[:, : valid + kept]
        self.top = top[:, max(0, top.shape[1] - setting.memory) :]
        return out

    def _kept(self, length: int, valid: int, setting: Setting) -> int:
        """Return the number of tokens that enter the memory: all but those that the next segment encodes again.

        The published code swaps two arguments here, so those do enter while the memory is shorter than ext_len.
        """
        kept = length - min(setting.extended, valid)
        if kept < 0:
            raise Refused("defect of the published code: a segment shorter than ext_len shortens the memory")
        return kept

    def _set(self, setting: Setting) -> None:
        positions = self.model.config.positions
        changes: dict[str, Any] = {}
        if isinstance(positions, (Relative, Shaw, Sinusoidal)) and positions.clamp != setting.clamp:
            changes["clamp"] = setting.clamp
        if self.model.config.same_length != setting.same_length:
            changes["same_length"] = setting.same_length
        if changes:
            self.model = self.model.variant(**changes)

    def _valid(self) -> int:
        return int(self._layers()[0].length[0])

    def _layers(self) -> list[XLState]:
        return list(self.state)

    def memory(self, with_top: bool) -> Tensor:
        """Return the memory as the published code stores it, (layers, M, B, D): valid slots of each layer.

        `with_top`: with the last layer's outputs as a further layer.
        """
        valid = self._valid()
        rows = [layer.hidden[:, layer.hidden.shape[1] - valid :] for layer in self._layers()]
        return torch.stack([*rows, self.top] if with_top else rows).transpose(1, 2)
