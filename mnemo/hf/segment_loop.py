"""Run the core model over rows of any length, segment by segment, with gradient.

Memories that carry gradient (memory tokens) pass it through all segments of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.hf.packing import Packed
from mnemo.memory.state import State
from mnemo.model import Model


class SegmentsOutput(NamedTuple):
    hidden: Tensor
    """(B, N, D), ready for the softmax"""
    state: State
    """After the last segment"""
    nll: Tensor | None
    """Sum over all targets, in nats; None without targets"""
    aux: Tensor
    """Auxiliary losses, averaged over segments"""


def no_outputs(model: Model, batch: int) -> Tensor:
    """Return outputs (B, 0, D) for rows that consist of padding only."""
    return model.embedding.tables[0].new_zeros(batch, 0, model.config.dim)


def run_segments(
    model: Model,
    packed: Packed,
    state: State,
    *,
    segment: int,
    targets: Tensor | None = None,
    checkpoint: Callable[..., Any] | None = None,
) -> SegmentsOutput:
    """Run all segments of packed rows.

    `checkpoint`: like torch's function; it runs a segment without storing activations, and again in the backward pass.
    """
    hidden, nlls, auxes = [], [], []
    for begin in range(0, packed.tokens.shape[1], segment):
        part = slice(begin, begin + segment)
        tokens = packed.tokens[:, part]
        lengths = None if packed.lengths is None else (packed.lengths - begin).clamp(0, tokens.shape[1])
        goals = None if targets is None else targets[:, part]
        arguments = (model, tokens, state, lengths, goals)
        out, state, nll, aux = _segment(*arguments) if checkpoint is None else checkpoint(_segment, *arguments)
        hidden.append(out)
        nlls.append(nll)
        auxes.append(aux)
    if not hidden:  # only padding
        none = no_outputs(model, len(packed.tokens))
        return SegmentsOutput(none, state, None if targets is None else none.sum(), none.sum())
    nll = None if targets is None else torch.stack(nlls).sum()
    return SegmentsOutput(torch.cat(hidden, 1), state, nll, torch.stack(auxes).mean())


def _segment(
    model: Model, tokens: Tensor, state: State, lengths: Tensor | None, targets: Tensor | None
) -> tuple[Tensor, State, Tensor | None, Tensor]:
    out, state = model(tokens, state, lengths=lengths)
    nll = None if targets is None else model.loss(out, targets).sum()
    aux = torch.stack([out.hidden.new_zeros(()), *out.aux.values()]).sum()
    return out.hidden, state, nll, aux
