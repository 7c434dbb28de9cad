"""Texts that are written together: every step chooses a token for each of them and reads it.

Texts join and leave between steps; the last row takes the place of one that has left. With a fixed number of rows (on a
GPU), a step always computes all of them, so that the numbers of a text do not depend on how many others there are.

Shapes: R rows, n rows with a text, D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.cuda_graph import RecordedFunction, shared_pool
from mnemo.inference.generation import NOT_FINITE, TextState
from mnemo.inference.row_sampling import RowSampling, exact_type, is_limited, sample_rows
from mnemo.memory.state import to
from mnemo.model import Model, Output
from mnemo.serving.draws import uniform_draw
from mnemo.serving.engine import WriteJob
from mnemo.serving.handle import Handle, Result, Token
from mnemo.serving.row_decoders import open_rows


class Written:
    """A text that is being written."""

    def __init__(self, handle: Handle) -> None:
        assert isinstance(handle.job, WriteJob)
        self.handle, self.job = handle, handle.job
        self.tokens, self.nats, self.finished = 0, 0.0, False
        self.limited = is_limited(self.job.sampling)

    def next_draw(self) -> float:
        return uniform_draw(self.job.seed, self.job.first_draw + self.tokens)

    def add(self, token: Token) -> None:
        """Count a token that was chosen and read."""
        self.tokens, self.nats = self.tokens + 1, self.nats - token.logprob
        self.finished = self.tokens == self.job.num_tokens or (self.job.until is not None and self.job.until(token.id))


class Chosen(NamedTuple):
    """The outcome of a step on the device."""

    facts: Tensor
    """(3, R): token, its log-probability, whether the row's logits are finite"""
    logprobs: Tensor
    """(R, V)"""


class WritingRows:
    def __init__(self, model: Model, like: TextState, segment: int, capacity: int, fixed: bool) -> None:
        self.model, self.capacity = model, capacity
        device = model.device
        self.decoder = open_rows(model, to(like.state, device), segment, capacity, fixed)
        self.texts: list[Written] = []
        self._chosen: Chosen | None = None
        self.hidden = torch.zeros(capacity, like.hidden.shape[1], dtype=like.hidden.dtype, device=device)
        self.draws = torch.zeros(capacity, dtype=exact_type(device), device=device)
        self.sampling = RowSampling.greedy(capacity, device)
        pool = shared_pool(device)
        self.recorded = {limited: self._record(limited, device, pool) for limited in (False, True)}

    def _record(self, limited: bool, device: torch.device, pool: Any) -> RecordedFunction | None:
        """A step of all rows as a CUDA graph; None if it cannot be one."""
        changed = self.decoder.changed_tensors()
        if not changed or not self.decoder.fixed:
            return None
        step = lambda: self._choose_and_read(self.capacity, limited)  # noqa: E731
        return RecordedFunction(step, device, (*changed, self.hidden), pool)

    @torch.no_grad()
    def prepare(self) -> None:
        """Record CUDA graphs, which takes seconds, before the first text."""
        steps = [step for step in self.recorded.values() if step is not None]
        for step in steps:
            step()
        if steps:
            self.decoder.join(0, self.decoder.take(0))

    def join(self, handle: Handle) -> None:
        """Add a text."""
        text, row = Written(handle), len(self.texts)
        self.decoder.join(row, to(text.job.state.state, self.hidden.device))
        self.hidden[row] = text.job.state.hidden[0]
        self.sampling.set(row, text.job.sampling)
        self.texts.append(text)

    def leave(self, row: int) -> None:
        """Remove the text of a row; the last row takes its place."""
        last = len(self.texts) - 1
        self.decoder.move(last, row)
        for part in (self.hidden, *self.sampling):
            part[row] = part[last]
        self.texts[row] = self.texts[last]
        self.texts.pop()

    def result(self, row: int) -> Result:
        """The state of a row after the tokens so far."""
        text = self.texts[row]
        before = text.job.state.tokens
        state = TextState(self.decoder.take(row), self.hidden[row : row + 1].clone(), before + text.tokens)
        return Result(state, text.tokens, text.nats, text.tokens, text.handle.cancelled)

    @property
    def is_computing(self) -> bool:
        """Whether a step was started whose tokens were not collected; texts must not join or leave."""
        return self._chosen is not None

    def start_step(self) -> None:
        """Choose one token of every text and read it. On a GPU, this returns before the device has finished."""
        count = len(self.texts)
        self.draws[:count] = torch.tensor([text.next_draw() for text in self.texts], dtype=self.draws.dtype)
        limited = any(text.limited for text in self.texts)
        recorded = self.recorded[limited]
        computed = self.capacity if self.decoder.fixed else count
        self._chosen = self._choose_and_read(computed, limited) if recorded is None else recorded()

    def collect(self) -> list[Token | MnemoError]:
        """The tokens of the step; an error instead of a token for a row whose output is not finite."""
        chosen, self._chosen = self._chosen, None
        assert chosen is not None
        tops = self._likeliest(chosen.logprobs)
        ids, logprobs, finite = chosen.facts[:, : len(self.texts)].tolist()
        rows = zip(ids, logprobs, finite, tops, strict=True)
        return [
            Token(int(token), logprob, top) if fine else MnemoError(NOT_FINITE) for token, logprob, fine, top in rows
        ]

    def _choose_and_read(self, count: int, limited: bool) -> Chosen:
        hidden = self.hidden[:count]
        logits = self.model.logits(Output(hidden[:, None], {}))[:, 0]
        tokens = sample_rows(logits, self.draws[:count], self.sampling.first(count), limited)
        logprobs = logits.to(self.draws.dtype).log_softmax(-1)
        finite = torch.isfinite(logits.amax(-1))
        facts = torch.stack([tokens.to(logprobs), logprobs.gather(1, tokens[:, None])[:, 0], finite.to(logprobs)])
        hidden.copy_(self.model.finish(self.decoder.feed(tokens[:, None])).hidden[:, -1])
        return Chosen(facts, logprobs)

    def _likeliest(self, logprobs: Tensor) -> list[tuple[tuple[int, float], ...]]:
        """The likeliest tokens of the rows that want them."""
        wanted = [text.job.top_logprobs for text in self.texts]
        if not any(wanted):
            return [()] * len(wanted)
        values, ids = logprobs[: len(wanted)].topk(min(max(wanted), logprobs.shape[1]))
        pairs = zip(ids.tolist(), values.tolist(), wanted, strict=True)
        return [tuple(zip(row_ids[:num], row_values[:num], strict=True)) for row_ids, row_values, num in pairs]
