"""The input of one update: the batch of one segment, or of several with gradient between them (`TrainConfig.bptt`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mnemo.data.streams import Batch, Cursor, Stream, read_on
from mnemo.memory.state import State
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.bptt import Method, Scored, SegmentResult, SlidingHistory


def count_targets(batch: Batch) -> int:
    return int((batch.targets >= 0).sum())


@dataclass(frozen=True)
class UpdateInput:
    batches: tuple[Batch, ...]
    """One batch for each segment"""
    targets: tuple[int, ...]
    """Number of targets of each batch; counting them on a device would wait for it"""
    num_again: int = 0
    """How many of the batches were already part of earlier updates"""
    scored: Scored = "all"
    method: Method = "plain"
    rows: int | None = None
    """Rows of all processes, if the batches hold only those of this process"""
    weight: int = 1
    """Factor of the objective: the number of processes, because their gradients are averaged"""

    @staticmethod
    def of(batches: Sequence[Batch], num_again: int, config: TrainConfig) -> UpdateInput:
        if config.loss == "half":
            batches = [last_half(batch) for batch in batches]
        new: Scored = "last" if config.bptt_window == "sliding" else "all"
        scored = new if config.bptt_loss == "new" else config.bptt_loss
        return UpdateInput(tuple(batches), tuple(map(count_targets, batches)), num_again, scored, config.bptt_memory)

    def map(self, function: Callable[[Batch], Batch]) -> UpdateInput:
        """Apply a function that keeps the targets to every batch."""
        return replace(self, batches=tuple(map(function, self.batches)))

    def share(self, take: Callable[[Batch], Batch], weight: int) -> UpdateInput:
        """The rows of one process; counts stay those of all processes."""
        return replace(self.map(take), rows=self.num_rows, weight=weight)

    @property
    def num_rows(self) -> int:
        return len(self.batches[0].tokens) if self.rows is None else self.rows

    @property
    def num_scored(self) -> int:
        return len(self.batches) if self.scored == "all" else 1

    @property
    def num_targets(self) -> int:
        """Targets whose losses are minimised, at least 1."""
        return max(1, sum(self.targets[-self.num_scored :]))

    @property
    def num_new(self) -> int:
        """Targets of those batches that are scored for the first time."""
        return sum(self.targets[-min(self.num_scored, len(self.batches) - self.num_again) :])


def last_half(batch: Batch) -> Batch:
    """The same tokens, of which only the last half are scored."""
    return batch._replace(targets=batch.targets[:, batch.targets.shape[1] // 2 :])


def next_batches(
    stream: Stream, cursor: Cursor, again: Sequence[Cursor], config: TrainConfig
) -> tuple[list[Batch], tuple[Cursor, ...], Cursor]:
    """The batches of the next update, the cursor before each of them, and the cursor after the last.

    `again`: cursors of the batches that a sliding span computes again.
    """
    batches = [read_on(stream, begin)[0] for begin in again]
    begins = list(again)
    for _ in range(1 if config.bptt_window == "sliding" else 1 + config.bptt):
        batch, after = read_on(stream, cursor)
        batches.append(batch)
        begins.append(cursor)
        cursor = after
    return batches, tuple(begins), cursor


def after_update(
    before: tuple[State, ...], borders: Sequence[tuple[State, ...]], begins: tuple[Cursor, ...], config: TrainConfig
) -> tuple[tuple[State, ...], tuple[Cursor, ...]]:
    """The states before the next update, and the cursors of the batches that it computes again.

    `before`: the states before this update; `borders`: the states after each of its batches.
    """
    if config.bptt_window == "tumbling":
        return borders[-1], ()
    *past, newest = begins
    results = [SegmentResult(None, states) for states in borders]
    history = SlidingHistory(before, tuple(past)).after(newest, results, config.bptt, config.bptt_stale)
    return history.state, history.segments
