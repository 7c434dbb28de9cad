"""An engine without memory: every segment of a text starts from an empty state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from dataclasses import replace

from mnemo.serving.engine import Event, Handle, Job, ReadJob, Result, Token, WriteJob
from mnemo.serving.session_model import Lengths, SessionModel

Jobs = Generator[Job, Result, None]
"""Yields jobs one after the other, and is sent the result of each."""


class ForgettingEngine:
    """Divides jobs where segments end, and empties the memory there; `lengths`: of that empty memory."""

    def __init__(self, model: SessionModel, lengths: Lengths) -> None:
        self._model, self._lengths = model, lengths

    def submit(self, job: Job) -> ForgettingHandle:
        """Queue the first part of a job; the others follow while its events are taken."""
        job.check()
        return ForgettingHandle(self._model, self._lengths, job)


class ForgettingHandle:
    """A job in parts. They are computed while a caller takes the events, or waits for the result."""

    def __init__(self, model: SessionModel, lengths: Lengths, job: Job) -> None:
        self._model, self._lengths, self.job = model, lengths, job
        self._total = Result(job.state, 0, 0.0, 0)
        self._is_cancelled = self._is_done = False
        self._last: int | None = None
        """The last token written"""
        self._jobs = self._reads(job) if isinstance(job, ReadJob) else self._writes(job)
        self._part = self._next(None)

    @property
    def done(self) -> bool:
        return self._is_done

    def cancel(self) -> None:
        self._is_cancelled = self._is_cancelled or not self._is_done
        if self._part is not None:
            self._part.cancel()

    def events(self) -> Iterator[Event]:
        while self._part is not None:
            for event in self._part.events():
                yield self._shifted(event)
            self._part = self._next(self._part)

    async def aevents(self) -> AsyncGenerator[Event, None]:
        while self._part is not None:
            async for event in self._part.aevents():
                yield self._shifted(event)
            self._part = await asyncio.to_thread(self._next, self._part)

    def result(self) -> Result:
        """Wait for the end; events that were not taken are dropped."""
        for _ in self.events():
            pass
        return replace(self._total, cancelled=self._is_cancelled)

    def _next(self, before: Handle | None) -> Handle | None:
        """Submit the next part; None if there is none."""
        try:
            job = next(self._jobs) if before is None else self._jobs.send(before.result())
        except StopIteration:
            self._is_done = True
            return None
        handle = self._model.engine.submit(job)
        if self._is_cancelled:
            handle.cancel()
        return handle

    def _reads(self, job: ReadJob) -> Jobs:
        for piece in job.ids:
            while len(piece) and not self._is_cancelled:
                first, piece = piece.tensor_split([self._room()])
                self._take((yield replace(job, state=self._total.state, ids=(first,))))

    def _writes(self, job: WriteJob) -> Jobs:
        ending, total = _Ending(job.until), self._total
        while total.tokens < job.num_tokens and not ending.reached and not self._is_cancelled:
            part = replace(
                job,
                state=total.state,
                num_tokens=min(job.num_tokens - total.tokens, self._room()),
                first_draw=job.first_draw + total.tokens,
                until=ending,
            )
            self._take((yield part))
            total = self._total
            if ending.count < total.tokens and self._last is not None:
                ending(self._last)  # engines do not call it with a job's last token

    def _room(self) -> int:
        """Tokens that the open segment still takes."""
        return self._model.segment - self._model.num_open(self._total.state)

    def _take(self, result: Result) -> None:
        state, total = result.state, self._total
        if result.tokens and not self._model.num_open(state):
            state = self._model.without_open(state, self._lengths, on=False)
        self._total = Result(
            state, total.tokens + result.tokens, total.nats + result.nats, total.predicted + result.predicted
        )

    def _shifted(self, event: Event) -> Event:
        """Count the tokens of earlier parts too."""
        if isinstance(event, Token):
            self._last = event.id
            return event
        return replace(event, tokens=event.tokens + self._total.tokens, nats=event.nats + self._total.nats)


class _Ending:
    """Calls `until`, and keeps whether it has ended the text, and the number of calls."""

    def __init__(self, until: Callable[[int], bool] | None) -> None:
        self._until, self.reached, self.count = until, False, 0

    def __call__(self, token: int) -> bool:
        self.count += 1
        self.reached = self._until is not None and self._until(token)
        return self.reached
