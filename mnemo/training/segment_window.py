"""The segments of one update: one, or a window of several with gradient between them (`TrainConfig.bptt`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mnemo.data.streams import Batch, Cursor, Stream, read_on
from mnemo.memory.state import State
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.bptt import Method, Past, Read, Scored


def count_targets(batch: Batch) -> int:
    return int((batch.targets >= 0).sum())


@dataclass(frozen=True)
class Window:
    batches: tuple[Batch, ...]
    targets: tuple[int, ...]
    """How many each batch has; counting them on a device makes it wait"""
    num_again: int = 0
    """How many of the batches were read before"""
    scored: Scored = "all"
    method: Method = "plain"
    rows: int | None = None
    """Rows of all processes, where the batches have this one's only"""
    weight: int = 1
    """Factor of the objective: the gradients of so many processes are averaged"""

    @staticmethod
    def of(batches: Sequence[Batch], num_again: int, config: TrainConfig) -> Window:
        new: Scored = "last" if config.bptt_window == "sliding" else "all"
        scored = new if config.bptt_loss == "new" else config.bptt_loss
        return Window(tuple(batches), tuple(map(count_targets, batches)), num_again, scored, config.bptt_memory)

    def map(self, function: Callable[[Batch], Batch]) -> Window:
        """The same targets in other batches."""
        return replace(self, batches=tuple(map(function, self.batches)))

    def share(self, take: Callable[[Batch], Batch], weight: int) -> Window:
        """One process's rows of all batches; counts stay those of all processes."""
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


def read_batches(
    stream: Stream, cursor: Cursor, past: Sequence[Cursor], config: TrainConfig
) -> tuple[list[Batch], tuple[Cursor, ...], Cursor]:
    """The next update's batches, where each of them begins, and the cursor behind them.

    `past`: where the batches begin that a sliding window reads again.
    """
    batches = [read_on(stream, begin)[0] for begin in past]
    begins = list(past)
    for _ in range(1 if config.bptt_window == "sliding" else 1 + config.bptt):
        batch, behind = read_on(stream, cursor)
        batches.append(batch)
        begins.append(cursor)
        cursor = behind
    return batches, tuple(begins), cursor


def go_on(
    before: tuple[State, ...], borders: Sequence[tuple[State, ...]], begins: tuple[Cursor, ...], config: TrainConfig
) -> tuple[tuple[State, ...], tuple[Cursor, ...]]:
    """The states that the next window starts from, and where the batches begin that it reads again.

    `before`: the states that this one started from; `borders`: those behind each of its batches.
    """
    if config.bptt_window == "tumbling":
        return borders[-1], ()
    *past, newest = begins
    reads = [Read(None, states) for states in borders]
    following = Past(before, tuple(past)).after(newest, reads, config.bptt, config.bptt_stale)
    return following.state, following.segments
