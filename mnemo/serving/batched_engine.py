"""The engine that computes many texts at the same time.

Every turn writes one token of all texts that are being written, in one step, and then reads at most a segment of one
or several texts, in one pass: a long text that is being read never makes others wait for longer than that. Texts that
are being read take turns. Texts join and leave between steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from mnemo.errors import MnemoError, require_positive
from mnemo.inference.generation import TextState, read
from mnemo.model import Model
from mnemo.serving.engine import DEFAULT_QUEUE, Engine, ReadJob, engine_error
from mnemo.serving.handle import Handle, Result, Token
from mnemo.serving.reading import Reading
from mnemo.serving.reading_passes import ReadingPasses
from mnemo.serving.row_decoders import Layout, layout_of
from mnemo.serving.writing_rows import WritingRows

GPU_ROWS, CPU_ROWS = 64, 8
READ_ROWS = 16
"""Most texts that are read in one pass. A GPU reads a segment of so many in little more time than one, as long as
launching kernels takes longer than computing them."""
MOST_LAYOUTS = 2
"""Sizes of states whose buffers are kept for further texts of the same size."""


class BatchedEngine(Engine):
    """Computes the texts of many jobs in shared batches, in a thread; `submit` takes a job.

    `segment`: the number of tokens after which an open segment is committed to the memory
    `rows`: largest number of texts that are written at the same time; by default 64 on a GPU and 8 on a CPU
    `fixed`: compute all rows in every step, so that the numbers of a text do not depend on how many there are; by
        default on a GPU only: on a CPU, a step computes the rows that have a text
    `queue_limit`: largest number of waiting jobs; `submit` then raises `EngineFull`
    """

    def __init__(
        self,
        model: Model,
        segment: int,
        *,
        rows: int | None = None,
        fixed: bool | None = None,
        queue_limit: int = DEFAULT_QUEUE,
    ) -> None:
        self.on_gpu = model.device.type == "cuda"
        rows = rows or (GPU_ROWS if self.on_gpu else CPU_ROWS)
        require_positive("number of rows", rows)
        self.model, self.segment = model.eval(), segment
        self.fixed = self.on_gpu if fixed is None else fixed
        self._batches: dict[Layout, WritingRows] = {}
        self._readings: deque[Reading] = deque()
        self._passes = ReadingPasses(model, segment, min(rows, READ_ROWS), self.fixed)
        self._active: dict[int, Handle] = {}
        if self.on_gpu:
            self._rows_for(empty_text(model, segment), rows).prepare()
        super().__init__(rows=rows, queue_limit=queue_limit)

    def active(self) -> tuple[Handle, ...]:
        return tuple(self._active.copy().values())

    def take_turn(self) -> bool:
        """Admit waiting jobs, write a token of every text, and read a segment of one text.

        On a GPU, the tokens of a step are handed out while the device computes the next one.
        """
        written = self._collect() if self.on_gpu else []
        ended, admitted = self._end_waiting(), self._admit()
        started = self._start_steps()
        if not self.on_gpu:
            written = self._collect()
        for handle, token in written:
            handle.emit(token)
        return self._read() or bool(written) or started or admitted or ended

    def _end_waiting(self) -> bool:
        """End jobs that were cancelled in the queue."""
        stopped = self.next_waiting(self.is_stopped)
        if stopped is None:
            return False
        self.end(stopped, lambda: Result(stopped.job.state, 0, 0.0, 0, cancelled=True))
        return True

    def _admit(self) -> bool:
        """Start jobs for which there is a place."""
        handle, any_admitted = self.next_waiting(self._has_place), False
        while handle is not None:
            self._active[id(handle)], any_admitted = handle, True
            self._guarded(handle, self._start)
            handle = self.next_waiting(self._has_place)
        return any_admitted

    def _has_place(self, handle: Handle) -> bool:
        if isinstance(handle.job, ReadJob):
            return len(self._readings) < self.rows
        return sum(len(batch.texts) for batch in self._batches.values()) < self.rows

    def _start(self, handle: Handle) -> None:
        if isinstance(handle.job, ReadJob):
            self._readings.append(Reading(self.model, self.segment, handle, self.wake))
        else:
            self._rows_for(handle.job.state, self.rows).join(handle)

    def _rows_for(self, text: TextState, rows: int) -> WritingRows:
        """The rows for states of this layout; unused rows of other layouts make room for new ones."""
        layout = layout_of((text.state.state, text.hidden))
        if layout not in self._batches:
            unused = [other for other, batch in self._batches.items() if not batch.texts]
            for other in unused[: len(self._batches) + 1 - MOST_LAYOUTS]:
                del self._batches[other]
            self._batches[layout] = WritingRows(self.model, text, self.segment, rows, self.fixed)
        return self._batches[layout]

    def _start_steps(self) -> bool:
        """Start a step of all texts."""
        batches = [batch for batch in self._batches.values() if batch.texts]
        for batch in batches:
            try:
                batch.start_step()
            except Exception as error:
                self._fail_all(batch, engine_error(error))
        return bool(batches)

    def _collect(self) -> list[tuple[Handle, Token]]:
        """Finish the steps that were started; return the tokens to hand out to texts that go on."""
        written = []
        for batch in [batch for batch in self._batches.values() if batch.is_computing]:
            try:
                outcomes = batch.collect()
            except Exception as error:
                self._fail_all(batch, engine_error(error))
                continue
            self.steps += 1
            # From the last row on, because the last row takes the place of one that leaves.
            for row in reversed(range(len(outcomes))):
                written += self._account(batch, row, outcomes[row])
        return written

    def _account(self, batch: WritingRows, row: int, outcome: Token | MnemoError) -> list[tuple[Handle, Token]]:
        """Count a token. A text that has failed, is finished or stopped leaves; of others, the token is returned."""
        text = batch.texts[row]
        try:
            if isinstance(outcome, MnemoError):
                raise outcome
            text.add(outcome)
        except Exception as error:
            batch.leave(row)
            self._fail(text.handle, error)
            return []
        self.tokens_written += 1
        if not text.finished and not self.is_stopped(text.handle):
            return [(text.handle, outcome)]
        text.handle.emit(outcome)
        self.end(text.handle, lambda: batch.result(row))
        self._active.pop(id(text.handle))
        batch.leave(row)
        return []

    def _fail_all(self, batch: WritingRows, error: MnemoError) -> None:
        """After an error of the whole step, no row of the batch can be trusted."""
        self._batches = {layout: other for layout, other in self._batches.items() if other is not batch}
        for text in batch.texts:
            self._fail(text.handle, error)

    def _read(self) -> bool:
        """Read a piece of the first text that has arrived, and of others in the same pass; they go to the end."""
        before = len(self._readings)
        ready = self._ready()
        if not ready:
            return len(self._readings) < before
        texts = self._passes.choose(ready)
        for text in texts:
            self._readings.remove(text)
            self._readings.append(text)
        try:
            outputs = self._passes.compute(texts)
        except Exception as error:
            for text in texts:
                self._fail(text.handle, error)
            return True
        self.passes += 1
        for text, hidden in zip(texts, outputs, strict=True):
            self._guarded(text.handle, lambda _, text=text, hidden=hidden: self._add(text, hidden))
        return True

    def _ready(self) -> list[Reading]:
        """Texts whose next piece has arrived; those that are stopped, or complete already, end."""
        for reading in list(self._readings):
            self._guarded(reading.handle, lambda _, reading=reading: self._advance(reading))
        return [reading for reading in self._readings if reading.piece is not None]

    def _advance(self, reading: Reading) -> None:
        if self.is_stopped(reading.handle) or (reading.arrive() and reading.finished):
            self._end_reading(reading)

    def _add(self, reading: Reading, hidden: Tensor) -> None:
        self.tokens_read += reading.num_ready
        reading.add(hidden)
        if reading.finished:
            self._end_reading(reading)

    def _end_reading(self, reading: Reading) -> None:
        self.end(reading.handle, lambda: reading.result(self._passes.state(reading)))
        self._forget(reading.handle)

    def _guarded(self, handle: Handle, function: Callable[[Handle], None]) -> None:
        """Call a function for one job; an error ends that job only."""
        try:
            function(handle)
        except Exception as error:
            self._fail(handle, error)

    def _fail(self, handle: Handle, error: Exception) -> None:
        handle.fail(engine_error(error))
        self._forget(handle)

    def _forget(self, handle: Handle) -> None:
        """Drop a job that has ended."""
        self._active.pop(id(handle), None)
        for reading in [reading for reading in self._readings if reading.handle is handle]:
            reading.close()
            self._passes.forget(reading)
            self._readings.remove(reading)


def empty_text(model: Model, segment: int) -> TextState:
    """A text of one token after an empty memory."""
    state, _ = read(model, torch.zeros(1, dtype=torch.int64), segment=segment)
    return state
