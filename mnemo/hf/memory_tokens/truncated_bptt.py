"""Truncated backpropagation through the segments of a sample: gradient reaches exactly k earlier segments.

    sliding    the gradient of the loss of segment t reaches segments t - k ... t. Segments are read again for each
               loss, because their outputs are needed with and without gradient.
    tumbling   groups of k + 1 segments, aligned with the end of the sample; gradient reaches the start of its group.

The memory before a group is a constant. Segments that no gradient reaches are read without gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from mnemo.memory.state import State, detach
from mnemo.training.bptt import SegmentFunction, SegmentResult, forward


def read_sample(
    step: SegmentFunction,
    segments: Sequence[tuple[Any, bool]],
    state: State,
    *,
    bptt: int | None,
    window: str,
    method: Literal["plain", "checkpoint"],
) -> list[SegmentResult]:
    """Read all segments; returns one result for each. Scored segments (the flag of a pair) carry gradient.

    Without gradient only the last result has a state: states of earlier segments are not kept.
    """
    if not torch.is_grad_enabled():
        return _read_without_gradient(step, segments, state)
    if bptt is None or len(segments) <= bptt + 1:
        return forward(step, segments, state, method)
    sample = _Sample(step, segments, state, method)
    groups = _sliding(sample, bptt) if window == "sliding" else _tumbling(len(segments), bptt)
    for begin, end, scored_from in groups:
        sample.read_group(begin, end, scored_from)
    sample.state_before(len(segments))
    return sample.reads()


def _read_without_gradient(
    step: SegmentFunction, segments: Sequence[tuple[Any, bool]], state: State
) -> list[SegmentResult]:
    results: list[SegmentResult] = []
    for segment, score in segments:
        results.append(step(segment, state, score))
        state = results[-1].state
        results[-2:-1] = [earlier._replace(state=None) for earlier in results[-2:-1]]
    return results


def _sliding(sample: _Sample, bptt: int) -> list[tuple[int, int, int]]:
    """Return (begin, end, first scored) of each group; all losses that reach the first segment share one group."""
    scored = [number for number, (_, score) in enumerate(sample.segments) if score]
    early = [number for number in scored if number <= bptt]
    shared = [(0, early[-1] + 1, 0)] if early else []
    return shared + [(number - bptt, number + 1, number) for number in scored if number > bptt]


def _tumbling(number: int, bptt: int) -> list[tuple[int, int, int]]:
    first = number % (bptt + 1)
    begins = ([0] if first else []) + list(range(first, number, bptt + 1))
    return [(begin, end, begin) for begin, end in zip(begins, [*begins[1:], number], strict=True)]


class _Sample:
    """The segments of a sample, the states between them and their results."""

    def __init__(self, step: SegmentFunction, segments: Sequence[tuple[Any, bool]], state: State, method: Any) -> None:
        self.step, self.segments, self.method = step, segments, method
        # States before each segment, as far as computed; all but the first are detached.
        self.borders: list[State] = [state]
        self.done: dict[int, SegmentResult] = {}

    def state_before(self, number: int) -> State:
        while len(self.borders) <= number:
            segment, _ = self.segments[len(self.borders) - 1]
            with torch.no_grad():
                read = self.step(segment, self.borders[-1], False)
            self.done.setdefault(len(self.borders) - 1, read)
            self.borders.append(read.state)
        return self.borders[number]

    def read_group(self, begin: int, end: int, scored_from: int) -> None:
        """Read segments begin ... end - 1 with gradient between them, and score those from `scored_from`."""
        wanted = [
            (segment, score and number >= scored_from)
            for number, (segment, score) in enumerate(self.segments[begin:end], begin)
        ]
        if not any(score for _, score in wanted):
            return
        for number, read in enumerate(forward(self.step, wanted, self.state_before(begin), self.method), begin):
            if wanted[number - begin][1]:
                self.done[number] = read
            else:
                self.done.setdefault(number, SegmentResult(None, detach(read.state)))
            if len(self.borders) == number + 1:
                self.borders.append(detach(read.state))

    def reads(self) -> list[SegmentResult]:
        return [self.done[number] for number in range(len(self.segments))]
