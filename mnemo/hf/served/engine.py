"""An engine for transformers models with memory: texts take turns, one token or one segment at a time.

The state of a text is what the model's memory files hold: the memory before the open segment, and the tokens of the
open segment. A job that continues a text reads the open segment again.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.cache import MemoryCache
from mnemo.hf.memory_tokens.text_memory import TextMemory
from mnemo.inference.generation import NOT_FINITE, TextState
from mnemo.inference.sampling import sample
from mnemo.serving.draws import uniform_draw
from mnemo.serving.engine import DEFAULT_QUEUE, Engine, ReadJob, WriteJob, engine_error
from mnemo.serving.handle import Handle, Progress, Result
from mnemo.serving.incoming_ids import IncomingIds
from mnemo.serving.reading import Likeliest, described, likeliest

TEXTS = 16
"""Texts that take turns; each needs the cache of its open segment."""


class TurnEngine(Engine):
    def __init__(self, model: Any, *, texts: int = TEXTS, queue_limit: int = DEFAULT_QUEUE) -> None:
        self.model = model.eval()
        self._tasks: deque[_Reading | _Writing] = deque()
        super().__init__(rows=texts, queue_limit=queue_limit)

    def active(self) -> tuple[Handle, ...]:
        return tuple(task.handle for task in tuple(self._tasks))

    def take_turn(self) -> bool:
        """Compute one token or one segment of the text whose turn it is; False if all texts wait for more ids."""
        self._admit()
        for _ in range(len(self._tasks)):
            task = self._tasks[0]
            try:
                progressed = self._step(task)
            except Exception as error:
                task.handle.fail(engine_error(error))
                self._leave(task)
                return True
            self._tasks.rotate(-1)
            if progressed:
                return True
        return False

    def _admit(self) -> None:
        while len(self._tasks) < self.rows and (handle := self.next_waiting()) is not None:
            try:
                self._tasks.append(self._open(handle))
            except Exception as error:
                handle.fail(engine_error(error))

    def _open(self, handle: Handle) -> _Reading | _Writing:
        if isinstance(handle.job, WriteJob):
            return _Writing(self.model, handle, handle.job)
        return _Reading(self.model, handle, handle.job, self.wake)

    def _step(self, task: _Reading | _Writing) -> bool:
        """Whether the text has progressed."""
        before = task.tokens
        progressed = self.is_stopped(task.handle) or task.step()
        if isinstance(task, _Writing):
            self.tokens_written += task.tokens - before
            self.steps += task.tokens - before
        else:
            self.tokens_read += task.tokens - before
        if task.finished or self.is_stopped(task.handle):
            self.end(task.handle, task.result)
            self._leave(task)
            self._tasks.rotate(1)  # the caller rotates on: the next text keeps its place
        return progressed

    def _leave(self, task: _Reading | _Writing) -> None:
        task.close()
        self._tasks.remove(task)


class _Writing:
    """A text that is being continued."""

    def __init__(self, model: Any, handle: Handle, job: WriteJob) -> None:
        self.model, self.handle, self.job = model, handle, job
        self.memory = memory_of(job.state)
        self.ids: list[int] = []
        self.nats, self.finished = 0.0, False
        self.cache: MemoryCache | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids)

    def step(self) -> bool:
        """Write one token."""
        logits = self._next_logits()
        if not torch.isfinite(logits.amax()):
            raise MnemoError(NOT_FINITE)
        draw = torch.tensor([uniform_draw(self.job.seed, self.job.first_draw + self.tokens)], device=logits.device)
        token = described(int(sample(logits, draw.double(), self.job.sampling)), logits[0], self.job.top_logprobs)
        self.ids.append(token.id)
        self.nats -= token.logprob
        stopped = self.job.until is not None and self.job.until(token.id)
        self.finished = stopped or self.tokens == self.job.num_tokens
        self.handle.emit(token)
        return True

    def _next_logits(self) -> Tensor:
        """Logits (1, V) after the last token, which is fed here: the very last one need not be."""
        if self.cache is None:
            before, last = self.memory.split_last()
            self.cache = MemoryCache(before)
        else:
            last = torch.tensor([self.ids[-1:]], device=self.model.device)
        out = self.model(last, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1]

    def result(self) -> Result:
        memory = self.model.read(self.ids, self.memory) if self.ids else self.memory
        return Result(text_state(memory), self.tokens, self.nats, self.tokens, self.handle.cancelled)

    def close(self) -> None:
        self.cache = None


class _Reading:
    """A text that is being read."""

    def __init__(self, model: Any, handle: Handle, job: ReadJob, wake: Any) -> None:
        self.model, self.handle, self.job = model, handle, job
        self.memory = None if job.state is None else memory_of(job.state)
        self.ids = IncomingIds(job.ids, wake, self._check)
        self.tokens, self.predicted, self.nats, self.finished = 0, 0, 0.0, False

    def _check(self, ids: Tensor) -> None:
        vocabulary = len(self.model.get_input_embeddings().weight)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
            raise MnemoError(f"token ids from {int(ids.min())} to {int(ids.max())}: the vocabulary has {vocabulary}")

    def step(self) -> bool:
        """Read up to a segment; False if not enough of the text has arrived."""
        segment = self.model.config.segment
        opened = 0 if self.memory is None else self.memory.open.shape[1] % segment
        ids = self.ids.take(segment - opened)
        if ids is None:
            return False
        if len(ids):
            self._read(ids)
        self.finished = len(ids) < segment - opened
        return True

    def _read(self, ids: Tensor) -> None:
        rows = ids[None].to(self.model.device)
        losses, top = self._losses(rows)
        self.memory = self.model.read(rows, self.memory)
        self.tokens, self.predicted = self.tokens + len(ids), self.predicted + len(losses)
        self.nats += float(losses.double().sum())
        kept = tuple(losses.tolist()) if self.job.keep_losses else ()
        self.handle.emit(Progress(self.tokens, self.nats, kept, top))

    def _losses(self, rows: Tensor) -> tuple[Tensor, tuple[Likeliest, ...]]:
        """Losses (T,) of the tokens, each under those before it, and the likeliest tokens if they are wanted."""
        before, given, predicted = None, rows, rows[0, 1:]
        if self.memory is not None:
            before, last = self.memory.split_last()
            given, predicted = torch.cat([last, rows], 1), rows[0]
        logits = self.model(given, memory=before).logits[0, -given.shape[1] : -1].float()
        if not torch.isfinite(logits).all():
            raise MnemoError(NOT_FINITE)
        if not self.job.top_logprobs:
            return F.cross_entropy(logits, predicted, reduction="none").cpu(), ()
        logprobs = logits.log_softmax(-1)
        losses = -logprobs.gather(1, predicted[:, None])[:, 0]
        return losses.cpu(), likeliest(logprobs, self.job.top_logprobs)

    def result(self) -> Result:
        state = self.job.state if self.memory is None else text_state(self.memory)
        return Result(state, self.tokens, self.nats, self.predicted, self.handle.cancelled)

    def close(self) -> None:
        self.ids.close()


def text_state(memory: TextMemory) -> TextState:
    """The memory after a text in the form of the engines' jobs."""
    return TextState(memory, torch.empty(1, 0), torch.tensor([memory.num_tokens]))  # type: ignore[arg-type]


def memory_of(state: Any) -> TextMemory:
    assert isinstance(state, TextState) and isinstance(state.state, TextMemory)
    return state.state
