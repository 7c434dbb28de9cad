"""Backpropagation through several segments, for memories that carry gradient (memory tokens).

A window is a run of segments. Gradient flows from the losses of its last segment, or of all of them, back to the state
that it starts from, which is a constant. Three ways lead to the same gradients:

    plain        keep the activations of all segments: one forward pass, the most memory
    checkpoint   keep the states between segments, and let torch compute each segment again in the backward pass
    replay       the same by hand, from the last segment, which is computed only once, to the first, with the states'
                 gradients passed back

The last two need the activations of one segment and a state for every segment. Windows follow each other (tumbling:
`backward` on k + 1 new segments) or overlap (sliding: `Past` holds the k segments to read again before each new one).
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


class Read(NamedTuple):
    """What one segment gave."""

    loss: Tensor | None
    """A scalar to minimise; None where none was asked for"""
    state: State
    """Behind the segment"""
    report: Any = None
    """What else the caller wants to know of it, without gradient"""


class Step(Protocol):
    def __call__(self, segment: Any, state: State, scored: bool, /) -> Read:
        """Read a segment behind a state. It may be asked twice, and must then do the same."""
        ...


def backward(
    step: Step, segments: Sequence[Any], state: State, *, scored: Scored = "all", method: Method = "plain"
) -> list[Read]:
    """Read the segments of a window and add the gradients of the sum of their losses to those of the weights.

    What is returned is detached, a read for every segment.
    """
    wanted = [(segment, scored == "all" or number == len(segments)) for number, segment in enumerate(segments, 1)]
    if method == "replay":
        return _replay(step, wanted, detach(state))
    reads = forward(step, wanted, detach(state), method)
    torch.stack([read.loss for read in reads if read.loss is not None]).sum().backward()
    return [_detached(read) for read in reads]


def forward(
    step: Step, segments: Sequence[tuple[Any, bool]], state: State, method: Literal["plain", "checkpoint"] = "plain"
) -> list[Read]:
    """Read segments, each with whether it is scored, one behind the other; what is returned carries gradient."""
    reads = []
    for segment, score in segments:
        if method == "checkpoint":
            read: Read = checkpoint(step, segment, state, score, use_reentrant=False)  # type: ignore[assignment]
        else:
            read = step(segment, state, score)
        reads.append(read)
        state = read.state
    return reads


def _detached(read: Read) -> Read:
    return Read(None if read.loss is None else read.loss.detach(), detach(read.state), read.report)


def _replay(step: Step, segments: list[tuple[Any, bool]], state: State) -> list[Read]:
    """Read all segments and forget them; then read each again, the last one first, and go back through it alone."""
    starts, chances, carrying, reads = [state], [], [_none(state)], []
    for segment, score in segments[:-1]:
        chances.append(_Chance.now(state))
        read, carries = _glance(step, segment, state, score)
        state = read.state
        reads.append(read)
        starts.append(state)
        carrying.append(carries)
    last, gradients = _through(step, *segments[-1], state, carrying[-1], [])
    for number in reversed(range(len(segments) - 1)):
        with chances[number].again():
            _, gradients = _through(step, *segments[number], starts[number], carrying[number], gradients)
    return [*reads, last]


def _none(state: State) -> list[bool]:
    return [False for _ in leaves(state)]


def _glance(step: Step, segment: Any, state: State, score: bool) -> tuple[Read, list[bool]]:
    """A segment without its graph, and which leaves of the state behind it carry gradient."""
    read = step(segment, state, score)
    return _detached(read), [leaf.requires_grad for _, leaf in leaves(read.state)]


def _through(
    step: Step, segment: Any, score: bool, state: State, carrying: list[bool], gradients: list[Tensor | None]
) -> tuple[Read, list[Tensor | None]]:
    """Read a segment and go back through it, from its loss and from the gradients of the state behind it.

    The gradients of those leaves of the state before it that carry any.
    """
    flags = iter(carrying)
    start = tree_map(lambda leaf: leaf.detach().requires_grad_(next(flags)), state)
    read = step(segment, start, score)
    roots = [] if read.loss is None else [(read.loss, None)]
    behind = zip(leaves(read.state), gradients, strict=False)
    roots += [(leaf, gradient) for (_, leaf), gradient in behind if gradient is not None]
    if roots:
        torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
    return _detached(read), [leaf.grad for _, leaf in leaves(start)]


class _Chance(NamedTuple):
    """The random generators at one moment, so that dropout can be repeated."""

    cpu: Tensor
    devices: dict[torch.device, Tensor]

    @staticmethod
    def now(state: State) -> _Chance:
        devices = {leaf.device for _, leaf in leaves(state) if leaf.is_cuda}
        return _Chance(torch.get_rng_state(), {device: torch.cuda.get_rng_state(device) for device in devices})

    @contextmanager
    def again(self) -> Iterator[None]:
        """From that moment on; afterwards as if nothing had been drawn."""
        with torch.random.fork_rng(list(self.devices)):
            torch.set_rng_state(self.cpu)
            for device, generator in self.devices.items():
                torch.cuda.set_rng_state(generator, device)
            yield


class Past(NamedTuple):
    """What a sliding window reads again before its next segment."""

    state: State
    """Before the first of the segments"""
    segments: tuple[Any, ...] = ()

    def after(self, new: Any, reads: Sequence[Read], depth: int, stale: bool = False) -> Past:
        """When the segments and `new` have been read: at most `depth` of them stay.

        `stale`: start the next window from the memory tokens that this one ended with, which have seen its segments
        before, as the published training loop does by mistake.
        """
        segments = (*self.segments, new)
        gone = max(0, len(segments) - depth)
        state = reads[gone - 1].state if gone else self.state
        if stale:
            state = with_memory_of(state, reads[-1].state)
        return Past(state, segments[gone:])
