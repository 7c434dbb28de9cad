"""The loss of every token of a text: with and without memory, for any memory length or context length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemo.analysis.inputs import (
    Ids,
    as_ids,
    checked_memory,
    checked_segment,
    empty_state,
    keeps_memory,
)
from mnemo.errors import MnemoError
from mnemo.inference.segment_scorer import SegmentScorer
from mnemo.memory.protocol import PositionTables
from mnemo.memory.state import State
from mnemo.model import Model, Output, evaluating
from mnemo.model.memory_limits import require_state_room
from mnemo.progress import ShowProgress, silent

KEYS_AT_ONCE = {"cuda": 2**18}
"""Largest number of keys, over all rows of a batch, by device type"""
FEW_KEYS = 2**14
"""The same for other device types"""


def token_losses(
    model: Model,
    ids: Ids,
    *,
    segment: int,
    memory: int | None = None,
    state: State | None = None,
    progress: ShowProgress | None = None,
) -> np.ndarray:
    """Return the losses (T - 1,) in nats of every token of a text (T,) but the first.

    `memory`: slots of the long-range layers; default: as configured. `state`: the initial state; default: empty.
    """
    text, segment = as_ids(model, ids), checked_segment(segment)
    _require_room(model, 1, segment, memory)
    losses: list[Tensor] = []
    with evaluating(model), (progress or silent)("with memory", len(text) - 1, unit="tokens") as bar:
        scorer = SegmentScorer(model, empty_state(model, memory) if state is None else state, segment)
        for tokens, targets in zip(text[:-1].split(segment), text[1:].split(segment), strict=True):
            losses.append(scorer.score(tokens[None], targets[None])[0])
            bar.advance(len(targets))
        scorer.close()
    return _array(losses)


def token_losses_without_memory(
    model: Model, ids: Ids, *, segment: int, progress: ShowProgress | None = None
) -> np.ndarray:
    """Return losses like `token_losses`, but with the memory reset before every segment."""
    text, segment = as_ids(model, ids), checked_segment(segment)
    at_once = _rows_at_once(model, segment, None)
    whole = (len(text) - 1) // segment * segment
    groups = [(text[:whole].view(-1, segment), text[1 : whole + 1].view(-1, segment))] if whole else []
    if whole < len(text) - 1:
        groups.append((text[whole:-1][None], text[whole + 1 :][None]))
    losses: list[Tensor] = []
    with evaluating(model), (progress or silent)("without memory", len(text) - 1, unit="tokens") as bar:
        for tokens, targets in groups:
            for part, wanted in zip(tokens.split(at_once), targets.split(at_once), strict=True):
                out, _ = model(part, empty_state(model, None, len(part)))
                losses.append(model.loss(out, wanted).flatten())
                bar.advance(wanted.numel())
    return _array(losses)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Losses of the same tokens with and without memory."""

    with_memory: np.ndarray
    """Losses (T - 1,) in nats of the tokens ids[1:]."""
    without: np.ndarray
    """The same, with the memory reset before every segment."""
    segment: int

    @property
    def gain(self) -> np.ndarray:
        """Nats (T - 1,) that memory saves; 0 in the first segment, which has no memory."""
        return self.without - self.with_memory

    def by_position(self) -> np.ndarray:
        """Return the mean gain at each position of a segment, without the first segment if there are others."""
        later = self.gain[self.segment :] if len(self.gain) > self.segment else self.gain
        return np.array([later[i :: self.segment].mean() for i in range(min(self.segment, len(later)))])


def gain_from_memory(
    model: Model,
    ids: Ids,
    *,
    segment: int,
    memory: int | None = None,
    state: State | None = None,
    progress: ShowProgress | None = None,
) -> Gain:
    """Return the losses of a text with and without memory."""
    return Gain(
        with_memory=token_losses(model, ids, segment=segment, memory=memory, state=state, progress=progress),
        without=token_losses_without_memory(model, ids, segment=segment, progress=progress),
        segment=segment,
    )


def losses_at_memory(
    model: Model, ids: Ids, lengths: Sequence[int], *, segment: int, progress: ShowProgress | None = None
) -> dict[int, np.ndarray]:
    """Return `token_losses` for every memory length."""
    return {length: token_losses(model, ids, segment=segment, memory=length, progress=progress) for length in lengths}


def context_targets(num_tokens: int, longest: int, count: int, *, block: int = 1) -> np.ndarray:
    """Return `count` evenly spaced targets in a text of `num_tokens`, each with `longest` tokens before it.

    A target is the index of the first token of a block of `block` tokens.
    """
    last = num_tokens - block
    if last < longest:
        raise MnemoError(f"a text of {num_tokens} tokens is too short for a context of {longest}")
    return np.unique(np.linspace(longest, last, min(count, last - longest + 1)).astype(np.int64))


def losses_at_context(
    model: Model,
    ids: Ids,
    context: int,
    *,
    segment: int,
    targets: Sequence[int] | np.ndarray,
    block: int = 1,
    memory: int | None = None,
    progress: ShowProgress | None = None,
) -> np.ndarray:
    """Return -log P(x_t | x_{t-1} ... x_{t-c}) in nats for every target t, given only the `context` tokens before it.

    `targets`: indices t >= `context`; `context_targets` gives some that suit several lengths. The memory is empty
    before the context, which is read in segments as in evaluation, the last one full; a model without memory reads it
    in one segment. `block`: score this many tokens from each target at once, the k-th of them given context + k - 1
    tokens, so results are exact for 1 only: (targets * block,) losses.
    """
    text, segment = as_ids(model, ids), checked_segment(segment)
    places = torch.as_tensor(np.asarray(targets), dtype=torch.int64)
    _check_targets(places, context, block, len(text))
    span = context + block - 1
    segment = segment if keeps_memory(model, memory) else span
    if block > segment:
        raise MnemoError(f"a block of {block} tokens is longer than a segment of {segment}")
    windows = text.unfold(0, span + 1, 1)
    losses: list[Tensor] = []
    at_once = _rows_at_once(model, min(segment, span), memory)
    tables = model.tables(min(segment, span), empty_state(model, memory))
    with evaluating(model), (progress or silent)(f"context {context}", len(places), unit="places") as bar:
        for part in places.split(at_once):
            rows = windows[(part - context).to(text.device)]
            out = _read_rows(model, rows[:, :-1], segment, empty_state(model, memory, len(rows)), tables)
            losses.append(model.loss(out, rows[:, -block:]).flatten())
            bar.advance(len(part))
    return _array(losses)


def _check_targets(places: Tensor, context: int, block: int, num_tokens: int) -> None:
    if context < 1 or block < 1:
        raise MnemoError(f"context {context} and block {block} must be positive")
    if not len(places):
        raise MnemoError("there are no targets to score")
    if int(places.min()) < context or int(places.max()) > num_tokens - block:
        raise MnemoError(f"targets need {context} tokens before them and must end within the {num_tokens} tokens")


def _read_rows(model: Model, rows: Tensor, segment: int, state: State, tables: PositionTables) -> Output:
    """Read rows (B, T) in segments and return the output of the last one; the first segment may be shorter."""
    first = rows.shape[1] % segment or min(segment, rows.shape[1])
    out, state = model(rows[:, :first], state, tables=tables)
    for part in rows[:, first:].split(segment, 1) if rows.shape[1] > first else ():
        out, state = model(part, state, tables=tables)
    return out


def _rows_at_once(model: Model, segment: int, memory: int | None) -> int:
    _require_room(model, 1, segment, memory)
    slots = max(model.config.memory.lengths(model.config.num_layers, checked_memory(memory)))
    return max(1, KEYS_AT_ONCE.get(model.device.type, FEW_KEYS) // (slots + segment))


def _require_room(model: Model, batch: int, segment: int, memory: int | None) -> None:
    lengths = checked_memory(memory)
    require_state_room(model.config, model.device, batch=batch, segment=segment, lengths=lengths, cached=True)


def _array(losses: list[Tensor]) -> np.ndarray:
    return torch.cat(losses).cpu().double().numpy()
