"""A text that an engine reads: its pieces, losses and events. Engines compute the outputs.

Pieces end where segments end, so that the numbers do not depend on how the ids arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.decoder import DecodeState
from mnemo.inference.generation import NOT_FINITE, TextState
from mnemo.memory.state import State, to
from mnemo.model import Model, Output
from mnemo.serving.engine import ReadJob
from mnemo.serving.handle import Handle, Progress, Result, Token
from mnemo.serving.incoming_ids import IncomingIds
from mnemo.serving.row_decoders import layout_of

Likeliest = tuple[tuple[int, float], ...]
"""Tokens and their log-probabilities, likeliest first."""


def likeliest(logprobs: Tensor, count: int) -> tuple[Likeliest, ...]:
    """The likeliest tokens for each row of log-probabilities (T, V)."""
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return tuple(tuple(zip(*row, strict=True)) for row in rows)


def described(token: int, logits: Tensor, num_top: int) -> Token:
    """A token with its log-probability under logits (V,), and the likeliest tokens."""
    logprobs = logits.double().log_softmax(-1)
    return Token(token, float(logprobs[token]), likeliest(logprobs[None], num_top)[0])


class Reading:
    """A text that is being read. `wake` is called when more of it has arrived."""

    def __init__(self, model: Model, segment: int, handle: Handle, wake: Callable[[], None]) -> None:
        assert isinstance(handle.job, ReadJob)
        self.model, self.segment, self.handle, self.job = model, segment, handle, handle.job
        self.ids = IncomingIds(self.job.ids, wake, model.check_tokens)
        self.piece: Tensor | None = None
        """The ids to compute next; None if they have not arrived"""
        state = self.job.state
        self.hidden = state.hidden.to(model.device) if isinstance(state, TextState) else None
        self.before = state.tokens if isinstance(state, TextState) else torch.zeros(1, dtype=torch.int64)
        opened = state.state if isinstance(state, TextState) else state
        self.start: State | DecodeState = model.init(1, cached=True) if opened is None else to(opened, model.device)
        self.count = int(opened.count[0]) if isinstance(opened, DecodeState) else 0
        """Tokens in the open segment"""
        self.layout = layout_of(self.start.state if isinstance(self.start, DecodeState) else self.start)
        self.tokens, self.predicted, self.nats = 0, 0, 0.0
        self.finished = False

    @property
    def num_ready(self) -> int:
        """Tokens of the next piece."""
        return 0 if self.piece is None else len(self.piece)

    def arrive(self) -> bool:
        """Take the ids up to the end of the segment as the next piece; False if they have not arrived.

        After the last piece, `finished` is set instead.
        """
        if self.piece is None:
            self.piece = self.ids.take(self.segment - self.count)
            self.finished = self.piece is not None and not len(self.piece)
        return self.piece is not None

    def add(self, hidden: Tensor) -> None:
        """Count the piece, whose outputs are hidden (1, T, D), and score it."""
        ids, self.piece = self.piece, None
        assert ids is not None
        losses, top = self._losses(hidden, ids[None].to(hidden.device))
        self.hidden = hidden[:, -1].clone()
        self.tokens, self.predicted = self.tokens + len(ids), self.predicted + len(losses)
        self.nats += float(losses.sum())
        if not math.isfinite(self.nats):
            raise MnemoError(NOT_FINITE)
        self.finished = self.count + len(ids) < self.segment or self.ids.exhausted
        self.count = (self.count + len(ids)) % self.segment
        self.handle.emit(Progress(self.tokens, self.nats, tuple(losses.tolist()) if self.job.keep_losses else (), top))

    def _losses(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, tuple[Likeliest, ...]]:
        """Losses (T,) of tokens (1, T), each under the output before it, and the likeliest tokens if wanted."""
        predicting, predicted = hidden[:, :-1], tokens[:, 1:]
        if self.hidden is not None:
            predicting, predicted = torch.cat([self.hidden[:, None], predicting], 1), tokens
        if not self.job.top_logprobs:
            return self.model.loss(Output(predicting, {}), predicted).cpu().double()[0], ()
        logprobs = self.model.logits(Output(predicting, {}))[0].double().log_softmax(-1)
        losses = -logprobs.gather(1, predicted[0, :, None])[:, 0]
        return losses.cpu(), likeliest(logprobs, self.job.top_logprobs)

    def result(self, state: DecodeState | None) -> Result:
        """The result with the state after the pieces so far; None before the first: an empty text changes nothing."""
        after = self.job.state
        if state is not None:
            assert self.hidden is not None
            after = TextState(state, self.hidden, self.before + self.tokens)
        return Result(after, self.tokens, self.nats, self.predicted, self.handle.cancelled)

    def close(self) -> None:
        self.ids.close()
