"""Reading one text in an engine, one piece at a time.

Pieces end where segments end, so that the numbers do not depend on how the ids arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.decoder import Decoder, DecodeState
from mnemo.inference.generation import NOT_FINITE, TextState
from mnemo.memory.state import to
from mnemo.model import Model, Output
from mnemo.serving.engine import ReadJob
from mnemo.serving.handle import Handle, Progress, Result
from mnemo.serving.incoming_ids import IncomingIds

Likeliest = tuple[tuple[int, float], ...]
"""Tokens and their log-probabilities, likeliest first."""


def likeliest(logprobs: Tensor, count: int) -> tuple[Likeliest, ...]:
    """The likeliest tokens for each row of log-probabilities (T, V)."""
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return tuple(tuple(zip(*row, strict=True)) for row in rows)


class Reading:
    """A text that is being read. `wake` is called when more of it has arrived."""

    def __init__(self, model: Model, segment: int, handle: Handle, wake: Callable[[], None]) -> None:
        assert isinstance(handle.job, ReadJob)
        self.model, self.segment, self.handle, self.job = model, segment, handle, handle.job
        self.ids = IncomingIds(self.job.ids, wake, model.check_tokens)
        self.decoder: Decoder | None = None
        """None before the first token: an empty text changes nothing"""
        state = self.job.state
        self.hidden = state.hidden.to(model.device) if isinstance(state, TextState) else None
        self.before = state.tokens if isinstance(state, TextState) else torch.zeros(1, dtype=torch.int64)
        opened = state.state if isinstance(state, TextState) else state
        self.start = model.init(1, cached=True) if opened is None else to(opened, model.device)
        self.count = int(opened.count[0]) if isinstance(opened, DecodeState) else 0
        """Tokens in the open segment"""
        self.tokens, self.predicted, self.nats = 0, 0, 0.0
        self.finished = False

    def step(self) -> bool:
        """Read up to the end of the segment; False if not enough of the text has arrived."""
        ids = self.ids.take(self.segment - self.count)
        if ids is None:
            return False
        if len(ids):
            self._read(ids)
        self.finished = self.count + len(ids) < self.segment
        self.count = (self.count + len(ids)) % self.segment
        return True

    def _read(self, ids: Tensor) -> None:
        if self.decoder is None:
            self.decoder = Decoder(self.model, self.start, self.segment)
        tokens = ids[None].to(self.model.device)
        out = self.decoder.feed(tokens)
        losses, top = self._losses(out, tokens)
        self.hidden = out.hidden[:, -1]
        self.tokens, self.predicted = self.tokens + len(ids), self.predicted + len(losses)
        self.nats += float(losses.sum())
        if not math.isfinite(self.nats):
            raise MnemoError(NOT_FINITE)
        self.handle.emit(Progress(self.tokens, self.nats, tuple(losses.tolist()) if self.job.keep_losses else (), top))

    def _losses(self, out: Output, tokens: Tensor) -> tuple[Tensor, tuple[Likeliest, ...]]:
        """Losses (T,) of tokens (1, T), each under the output before it, and the likeliest tokens if wanted."""
        predicting, predicted = out.hidden[:, :-1], tokens[:, 1:]
        if self.hidden is not None:
            predicting, predicted = torch.cat([self.hidden[:, None], predicting], 1), tokens
        if not self.job.top_logprobs:
            return self.model.loss(Output(predicting, {}), predicted).cpu().double()[0], ()
        logprobs = self.model.logits(Output(predicting, {}))[0].double().log_softmax(-1)
        losses = -logprobs.gather(1, predicted[0, :, None])[:, 0]
        return losses.cpu(), likeliest(logprobs, self.job.top_logprobs)

    def result(self) -> Result:
        """The state after the pieces read so far."""
        state = self.job.state
        if self.decoder is not None:
            assert self.hidden is not None
            state = TextState(self.decoder.state(), self.hidden.clone(), self.before + self.tokens)
        return Result(state, self.tokens, self.nats, self.predicted, self.handle.cancelled)

    def close(self) -> None:
        self.ids.close()
