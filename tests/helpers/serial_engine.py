"""The engine that others are compared with: one job after the other, with the decoder of a single text."""

from __future__ import annotations

import torch

from mnemo.errors import MnemoError
from mnemo.inference.decoder import Decoder
from mnemo.inference.generation import NOT_FINITE, TextState
from mnemo.inference.sampling import sample
from mnemo.model import Model, Output
from mnemo.serving.draws import uniform_draw
from mnemo.serving.engine import DEFAULT_QUEUE, Engine, WriteJob, engine_error
from mnemo.serving.handle import Handle, Result
from mnemo.serving.reading import Reading, described


class SerialEngine(Engine):
    """`segment`: the number of tokens after which an open segment is committed to the memory."""

    def __init__(self, model: Model, segment: int, *, queue_limit: int = DEFAULT_QUEUE) -> None:
        self.model, self.segment = model.eval(), segment
        self.handle: Handle | None = None
        self.task: Writing | ReadAlone | None = None
        super().__init__(rows=1, queue_limit=queue_limit)

    def active(self) -> tuple[Handle, ...]:
        handle = self.handle
        return () if handle is None else (handle,)

    def take_turn(self) -> bool:
        """Start the next job, or compute one token or segment of the present one."""
        self.handle = self.handle or self.next_waiting()
        if self.handle is None:
            return False
        try:
            return self._step(self.handle)
        except Exception as error:
            self.handle.fail(engine_error(error))
            self._leave()
            return True

    def _step(self, handle: Handle) -> bool:
        task = self.task = self.task or self._open(handle)
        before = task.tokens
        progressed = self.is_stopped(handle) or task.step()
        self._count(task, task.tokens - before)
        if task.finished or self.is_stopped(handle):
            self.end(handle, task.result)
            self._leave()
        return progressed

    def _open(self, handle: Handle) -> Writing | ReadAlone:
        if isinstance(handle.job, WriteJob):
            return Writing(self.model, self.segment, handle)
        return ReadAlone(Reading(self.model, self.segment, handle, self.wake))

    def _count(self, task: Writing | ReadAlone, tokens: int) -> None:
        if isinstance(task, ReadAlone):
            self.tokens_read += tokens
            self.passes += tokens > 0
        else:
            self.tokens_written += tokens
            self.steps += tokens

    def _leave(self) -> None:
        if self.task is not None:
            self.task.close()
        self.handle = self.task = None


class ReadAlone:
    """A text that is being read, with a decoder for it alone."""

    def __init__(self, text: Reading) -> None:
        self.text = text
        self.decoder: Decoder | None = None

    @property
    def tokens(self) -> int:
        return self.text.tokens

    @property
    def finished(self) -> bool:
        return self.text.finished

    def step(self) -> bool:
        """Read up to the end of the segment; False if not enough of the text has arrived."""
        if not self.text.arrive():
            return False
        ids = self.text.piece
        if ids is not None and not self.text.finished:
            model = self.text.model
            self.decoder = self.decoder or Decoder(model, self.text.start, self.text.segment)
            self.text.add(self.decoder.feed(ids[None].to(model.device)).hidden)
        return True

    def result(self) -> Result:
        """The state after the pieces so far."""
        return self.text.result(None if self.decoder is None else self.decoder.state())

    def close(self) -> None:
        self.text.close()


class Writing:
    """A text that is being continued."""

    def __init__(self, model: Model, segment: int, handle: Handle) -> None:
        assert isinstance(handle.job, WriteJob)
        self.model, self.handle, self.job = model, handle, handle.job
        text = self.job.state
        self.decoder = model.decoder(text.state, segment=segment)
        self.hidden, self.before = text.hidden, text.tokens
        self.tokens, self.nats, self.finished = 0, 0.0, False

    def step(self) -> bool:
        """Write one token."""
        logits = self.model.logits(Output(self.hidden[:, None], {}))[:, 0]
        if not torch.isfinite(logits.amax()):
            raise MnemoError(NOT_FINITE)
        draw = torch.tensor([uniform_draw(self.job.seed, self.job.first_draw + self.tokens)], device=logits.device)
        chosen = sample(logits, draw.double(), self.job.sampling)
        self.hidden = self.decoder.feed_single(chosen[:, None]).hidden[:, -1].clone()
        token = described(int(chosen), logits[0], self.job.top_logprobs)
        self.tokens, self.nats = self.tokens + 1, self.nats - token.logprob
        self.finished = self.tokens == self.job.num_tokens or (self.job.until is not None and self.job.until(token.id))
        self.handle.emit(token)
        return True

    def result(self) -> Result:
        """The state after the tokens so far."""
        state = TextState(self.decoder.state(), self.hidden.clone(), self.before + self.tokens)
        return Result(state, self.tokens, self.nats, self.tokens, self.handle.cancelled)

    def close(self) -> None: ...
