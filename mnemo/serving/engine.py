"""The engine of a served model: jobs with states go in, tokens and states come out.

    handle = engine.submit(ReadJob(state=None, ids=[ids]))
    text = handle.result().state                                # the state after the text
    handle = engine.submit(WriteJob(state=text, num_tokens=100, sampling=Sampling(), seed=1))
    for token in handle.events(): ...                           # as they are computed
    text = handle.result().state                                # the state after the last of these tokens

An engine knows no sessions and keeps nothing of a finished job. It computes in one thread; jobs may be submitted from
any thread and event loop. Jobs never change the states that they are given.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemo.errors import MnemoError, one_line, require_positive
from mnemo.inference.generation import AnyState, TextState
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.draws import LARGEST_SEED
from mnemo.serving.handle import Event, Handle, Progress, Result, Token

__all__ = [
    "Engine",
    "EngineClosed",
    "EngineFull",
    "EngineStats",
    "Event",
    "Handle",
    "Job",
    "Progress",
    "ReadJob",
    "Result",
    "Token",
    "WriteJob",
]

MOST_LOGPROBS = 20
"""Largest number of likeliest tokens that are reported with a token; the limit of OpenAI's API."""
DEFAULT_QUEUE = 256


class EngineFull(MnemoError):
    """Raised when the queue of waiting jobs is full."""


class EngineClosed(MnemoError):
    """Raised when a job is submitted to an engine that is shutting down; the error of jobs that it ended."""


@dataclass(frozen=True, kw_only=True)
class WriteJob:
    """Continue one text."""

    state: TextState
    """After the text, with one row"""
    num_tokens: int
    sampling: Sampling
    seed: int
    first_draw: int = 0
    """Number of random numbers of the seed that earlier jobs have used; a token uses one"""
    top_logprobs: int = 0
    """Likeliest tokens to report with every token"""
    until: Callable[[int], bool] | None = None
    """Called in the engine's thread with every token; True makes it the last one. It must be quick."""

    def check(self) -> None:
        """Raise MnemoError for values that make no sense."""
        self.sampling.check()
        require_positive("number of tokens", self.num_tokens)
        if not 0 <= self.seed < LARGEST_SEED:
            raise MnemoError(f"seed {self.seed} is not between 0 and 2^62")
        if not 0 <= self.first_draw < LARGEST_SEED:
            raise MnemoError(f"number of draws {self.first_draw} is not between 0 and 2^62")
        if not 0 <= self.top_logprobs <= MOST_LOGPROBS:
            raise MnemoError(f"{self.top_logprobs} likeliest tokens: the limit is {MOST_LOGPROBS}")
        if not isinstance(self.state, TextState) or len(self.state.hidden) != 1:
            raise MnemoError("a text to continue is the state after at least one token, with one row")


@dataclass(frozen=True, kw_only=True)
class ReadJob:
    """Read token ids after a state, and score them."""

    state: AnyState
    """Before the text, with one row; None: empty"""
    ids: Iterable[Tensor]
    """Pieces (T,) of int64 of any lengths. An iterable that is not a list or tuple is pulled in a separate thread,
    so that it may wait for an upload. How the text is divided into pieces does not change the result."""
    keep_losses: bool = False
    """Report the loss of each token"""
    top_logprobs: int = 0
    """Likeliest tokens to report at the place of every token; with them, losses are computed in double precision"""
    together: bool = False
    """Whether other texts may be read in the same pass, which is faster, but may change the rounding of the numbers.
    Without it, the bits of the result depend on nothing but the state and the ids."""

    def check(self) -> None:
        """Raise MnemoError for values that make no sense."""
        if not 0 <= self.top_logprobs <= MOST_LOGPROBS:
            raise MnemoError(f"{self.top_logprobs} likeliest tokens: the limit is {MOST_LOGPROBS}")
        if isinstance(self.state, TextState) and len(self.state.hidden) != 1:
            raise MnemoError("a text is read after a state with one row")


Job = WriteJob | ReadJob


@dataclass(frozen=True)
class EngineStats:
    rows: int
    """Most texts that are written at the same time"""
    writing: int
    """Texts that are being written"""
    reading: int
    """Texts that are being read"""
    queued: int
    """Jobs that wait for a row or for their turn"""
    tokens_written: int
    tokens_read: int
    steps: int
    """Steps so far; a step writes one token of every text that is being written"""
    passes: int
    """Passes so far; a pass reads at most one segment of one or several texts"""


class Engine(ABC):
    """Queue, thread and life cycle of every engine; `take_turn` does the work.

    `queue_limit`: most waiting jobs; one more raises `EngineFull`.
    """

    def __init__(self, *, rows: int, queue_limit: int = DEFAULT_QUEUE) -> None:
        self.rows, self.queue_limit = rows, queue_limit
        self.tokens_written = self.tokens_read = self.steps = self.passes = 0
        self._waiting: deque[Handle] = deque()
        self._changed = threading.Condition()
        self._closing = self._abandoned = self._woken = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Handle:
        """Queue a job. Raises `EngineFull` if the queue is full, and MnemoError for a job that makes no sense."""
        job.check()
        handle = Handle(job, self.wake)
        with self._changed:
            if self._closing:
                raise EngineClosed("the engine is shutting down")
            if len(self._waiting) >= self.queue_limit:
                raise EngineFull(f"{self.queue_limit:,} requests are waiting already: try again later")
            self._waiting.append(handle)
        self.wake()
        return handle

    def close(self, wait: bool = True) -> None:
        """Stop. With `wait`, jobs are finished first; without, they end after the current step with `EngineClosed`."""
        with self._changed:
            self._closing, self._abandoned = True, self._abandoned or not wait
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stats(self) -> EngineStats:
        """What the engine is doing, and has done so far."""
        active = self.active()
        writing = sum(isinstance(handle.job, WriteJob) for handle in active)
        return EngineStats(
            rows=self.rows,
            writing=writing,
            reading=len(active) - writing,
            queued=len(self._waiting),
            tokens_written=self.tokens_written,
            tokens_read=self.tokens_read,
            steps=self.steps,
            passes=self.passes,
        )

    @abstractmethod
    def active(self) -> tuple[Handle, ...]:
        """Jobs that have left the queue and are not finished; called from any thread."""

    @abstractmethod
    def take_turn(self) -> bool:
        """Compute a little, so that jobs can be cancelled and admitted in between; False if there is nothing to do.

        Called in the engine's thread only.
        """

    def is_stopped(self, handle: Handle) -> bool:
        """Whether a job must not be computed any further."""
        return handle.cancelled or self._abandoned

    def end(self, handle: Handle, result: Callable[[], Result]) -> None:
        """End a job that is finished or stopped."""
        if self._abandoned:
            handle.fail(EngineClosed("the engine was shut down"))
            return
        try:
            handle.finish(result())
        except Exception as error:
            handle.fail(engine_error(error))

    def next_waiting(self, suits: Callable[[Handle], bool] = lambda handle: True) -> Handle | None:
        """Take the first suitable job out of the queue."""
        with self._changed:
            chosen = next((handle for handle in self._waiting if suits(handle)), None)
            if chosen is not None:
                self._waiting.remove(chosen)
            return chosen

    def wake(self) -> None:
        """Make the engine look for work; called from any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def _run(self) -> None:
        with torch.no_grad():
            while not self._finished():
                self._woken = False
                if not self.take_turn():
                    self._await_change()

    def _finished(self) -> bool:
        with self._changed:
            return self._closing and not self._waiting and not self.active()

    def _await_change(self) -> None:
        """Sleep until a job is submitted or cancelled, or a piece of a text arrives."""
        with self._changed:
            while not self._woken:
                self._changed.wait()


def engine_error(error: Exception) -> MnemoError:
    """The error of a job for any exception in the engine's thread."""
    if isinstance(error, MnemoError):
        return error
    return MnemoError(f"the model failed: {one_line(error)}")
