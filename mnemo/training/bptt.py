"""Backpropagation through several segments, for memories that carry gradient (memory tokens).

A span is a sequence of consecutive segments. Gradient flows from the losses of its last segment, or of all of them,
back to the state before the span, which is a constant. Three methods give the same gradients:

    plain        keep the activations of all segments: one forward pass, the most memory
    checkpoint   keep the states between segments; torch computes each segment again in the backward pass
    replay       the same without torch.utils.checkpoint: the last segment is computed once, the others again, from the
                 last to the first, and the gradients of the states are passed back

The last two need the activations of one segment and a state for every segment. Spans follow each other (tumbling:
`backward` on k + 1 new segments) or overlap (sliding: `SlidingHistory` holds the k segments to compute again before
each new one).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mnemo.memory import with_memory_of
from mnemo.memory.state import State, detach, leaves, tree_map

Scored = Literal["last", "all"]
Method = Literal["plain", "checkpoint", "replay"]


class SegmentResult(NamedTuple):
    loss: Tensor | None
    """A scalar to minimise; None if the segment is not scored"""
    state: State
    """The state after the segment"""
    report: Any = None
    """Any further result for the caller, without gradient"""


class SegmentFunction(Protocol):
    def __call__(self, segment: Any, state: State, scored: bool, /) -> SegmentResult:
        """Read a segment after a state. A second call with the same arguments must give the same result."""
        ...


def backward(
    function: SegmentFunction,
    segments: Sequence[Any],
    state: State,
    *,
    scored: Scored = "all",
    method: Method = "plain",
) -> list[SegmentResult]:
    """Read the segments of a span, and add the gradients of the sum of their losses to those of the weights.

    Return a detached result for every segment.
    """
    wanted = [(segment, scored == "all" or number == len(segments)) for number, segment in enumerate(segments, 1)]
    if method == "replay":
        return _replay(function, wanted, detach(state))
    results = forward(function, wanted, detach(state), method)
    torch.stack([result.loss for result in results if result.loss is not None]).sum().backward()
    return [_detached(result) for result in results]


def forward(
    function: SegmentFunction,
    segments: Sequence[tuple[Any, bool]],
    state: State,
    method: Literal["plain", "checkpoint"] = "plain",
) -> list[SegmentResult]:
    """Read segments, each given with whether it is scored, one after the other; the results carry gradient."""
    results = []
    for segment, score in segments:
        if method == "checkpoint":
            result: SegmentResult = checkpoint(function, segment, state, score, use_reentrant=False)  # type: ignore[assignment]
        else:
            result = function(segment, state, score)
        results.append(result)
        state = result.state
    return results


def _detached(result: SegmentResult) -> SegmentResult:
    loss = None if result.loss is None else result.loss.detach()
    return SegmentResult(loss, detach(result.state), result.report)


def _replay(function: SegmentFunction, segments: list[tuple[Any, bool]], state: State) -> list[SegmentResult]:
    """Read all segments without keeping activations; then each again, last to first, with its backward pass."""
    starts, generators, carrying, results = [state], [], [_no_gradient(state)], []
    for segment, score in segments[:-1]:
        generators.append(_RandomState.now(state))
        result, carries = _without_graph(function, segment, state, score)
        state = result.state
        results.append(result)
        starts.append(state)
        carrying.append(carries)
    last, gradients = _with_backward(function, *segments[-1], state, carrying[-1], [])
    for number in reversed(range(len(segments) - 1)):
        with generators[number].again():
            _, gradients = _with_backward(function, *segments[number], starts[number], carrying[number], gradients)
    return [*results, last]


def _no_gradient(state: State) -> list[bool]:
    return [False for _ in leaves(state)]


def _without_graph(
    function: SegmentFunction, segment: Any, state: State, score: bool
) -> tuple[SegmentResult, list[bool]]:
    """The detached result of a segment, and which leaves of the state after it carry gradient."""
    result = function(segment, state, score)
    return _detached(result), [leaf.requires_grad for _, leaf in leaves(result.state)]


def _with_backward(
    function: SegmentFunction,
    segment: Any,
    score: bool,
    state: State,
    carrying: list[bool],
    gradients: list[Tensor | None],
) -> tuple[SegmentResult, list[Tensor | None]]:
    """Read a segment and go back through it, from its loss and from the gradients of the state after it.

    Return the gradients of those leaves of the state before it that carry gradient.
    """
    flags = iter(carrying)
    start = tree_map(lambda leaf: leaf.detach().requires_grad_(next(flags)), state)
    result = function(segment, start, score)
    roots = [] if result.loss is None else [(result.loss, None)]
    after = zip(leaves(result.state), gradients, strict=False)
    roots += [(leaf, gradient) for (_, leaf), gradient in after if gradient is not None]
    if roots:
        torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
    return _detached(result), [leaf.grad for _, leaf in leaves(start)]


class _RandomState(NamedTuple):
    """The random generators at one moment, so that dropout can be repeated."""

    cpu: Tensor
    devices: dict[torch.device, Tensor]

    @staticmethod
    def now(state: State) -> _RandomState:
        devices = {leaf.device for _, leaf in leaves(state) if leaf.is_cuda}
        return _RandomState(torch.get_rng_state(), {device: torch.cuda.get_rng_state(device) for device in devices})

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restore the generators inside this context; afterwards they are as before it."""
        with torch.random.fork_rng(list(self.devices)):
            torch.set_rng_state(self.cpu)
            for device, generator in self.devices.items():
                torch.cuda.set_rng_state(generator, device)
            yield


class SlidingHistory(NamedTuple):
    """The segments that a sliding span computes again before its new segment."""

    state: State
    """The state before the first of the segments"""
    segments: tuple[Any, ...] = ()

    def after(self, new: Any, results: Sequence[SegmentResult], depth: int, stale: bool = False) -> SlidingHistory:
        """The history after the segments and `new` were read: at most `depth` of them stay.

        `stale`: start the next span from the memory tokens at the end of this one, which have already seen the repeated
        segments. The published training loop does this by mistake.
        """
        segments = (*self.segments, new)
        gone = max(0, len(segments) - depth)
        state = results[gone - 1].state if gone else self.state
        if stale:
            state = with_memory_of(state, results[-1].state)
        return SlidingHistory(state, segments[gone:])
