"""Backpropagation through segments: which of them it reaches, and how much memory that takes."""

from __future__ import annotations

import weakref
from typing import Any, get_args

import pytest
import torch
from helpers.marks import few
from helpers.models import random_model, random_tokens
from helpers.tolerances import assert_close
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mnemo.memory import XL, Associative, MemoryTokens, Plan, WriteTokens
from mnemo.memory.state import leaves, nbytes
from mnemo.model import Model, Output
from mnemo.model.layers import DropoutConfig
from mnemo.training.bptt import Method, Scored, SegmentFunction, SegmentResult, SlidingHistory, backward

FLAT: tuple[Method, ...] = ("checkpoint", "replay")
CARRYING: tuple[dict[str, Any], ...] = (
    dict(tokens=MemoryTokens(num=2), memory=0),
    dict(tokens=MemoryTokens(num=2), memory=4),
    dict(tokens=WriteTokens(num=2), memory=Plan(long=Associative(key_dim=4))),
    dict(tokens=MemoryTokens(num=2), memory=Plan(long=Associative(key_dim=4), short=XL(length=3), num_long=1)),
)
"""Memories through which gradient reaches earlier segments."""
SCORED: tuple[Scored, ...] = get_args(Scored)


def text(num_segments: int, length: int = 3, batch: int = 2) -> list[tuple[Tensor, Tensor]]:
    """Tokens and targets of every segment."""
    stream = random_tokens(batch, num_segments * length + 1)
    return list(zip(stream[:, :-1].split(length, 1), stream[:, 1:].split(length, 1), strict=True))


def steps(model: Model) -> SegmentFunction:
    def step(segment: tuple[Tensor, Tensor], state: Any, scored: bool) -> SegmentResult:
        out, state = model(segment[0], state)
        return SegmentResult(model.loss(out, segment[1]).mean() if scored else None, state, out.hidden.detach().sum())

    return step


def gradients(model: Model) -> dict[str, Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


FLAT_CASES = [(changes, method, scored) for changes in CARRYING for method in FLAT for scored in SCORED]
PAIRS = [
    (changes, method, SCORED[(place + number) % 2])
    for place, changes in enumerate(CARRYING)
    for number, method in enumerate(FLAT)
]
"""Any two choices together."""


@pytest.mark.parametrize(("changes", "method", "scored"), few(FLAT_CASES, lambda *case: case in PAIRS))
def test_memory_flat_backward_equals_the_plain_one(changes: dict[str, Any], method: Method, scored: Scored) -> None:
    dropout = DropoutConfig.published(0.2, attention=0.1)
    model = random_model(**changes, num_layers=2, dropout=dropout).train()
    before = backward(steps(model), text(1), model.init(2))[0].state
    model.zero_grad()
    torch.manual_seed(3)
    expected = backward(steps(model), text(4), before, scored=scored)
    plain, chance = gradients(model), torch.get_rng_state()
    torch.manual_seed(3)
    got = backward(steps(model), text(4), before, scored=scored, method=method)
    flat = gradients(model)
    assert torch.equal(torch.get_rng_state(), chance)
    assert plain.keys() == flat.keys()
    for name, gradient in plain.items():
        assert_close(flat[name], gradient, msg=lambda text, name=name: f"{name}: {text}")
    assert [read.loss is None for read in got] == [read.loss is None for read in expected]
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours.report, theirs.report)
        for (_, a), (_, b) in zip(leaves(ours.state), leaves(theirs.state), strict=True):
            assert torch.equal(a, b) and not a.requires_grad


def test_losses_of_a_span_are_summed() -> None:
    model, segments = random_model(tokens=MemoryTokens(num=2), memory=0), text(3)
    state, total = model.init(2), torch.zeros((), dtype=torch.float64)
    for segment in segments:
        read = steps(model)(segment, state, True)
        assert read.loss is not None
        state, total = read.state, total + read.loss
    total.backward()
    expected = gradients(model)
    results = backward(steps(model), segments, model.init(2))
    assert_close(torch.stack([read.loss for read in results if read.loss is not None]).sum(), total.detach())
    for name, gradient in gradients(model).items():
        assert_close(gradient, expected[name])


class Probes:
    """Adds zeros to the embeddings of every segment, whose gradients show which segments a loss reaches."""

    def __init__(self, model: Model, count: int) -> None:
        self.model, self.segments = model, text(count)
        self.zeros = [
            torch.zeros(2, 3, model.config.dim, dtype=torch.float64, requires_grad=True) for _ in range(count)
        ]

    def step(self, index: int, state: Any, scored: bool) -> SegmentResult:
        tokens, targets = self.segments[index]
        assert self.model.memory_tokens is not None
        x = self.model.embedding(tokens) + self.zeros[index]
        hidden, state = self.model.memory_tokens(x, state, self.model.run)
        return SegmentResult(self.model.loss(Output(hidden, {}), targets).sum() if scored else None, state)

    def reached(self) -> list[bool]:
        found = [zero.grad is not None and bool(zero.grad.abs().max() > 1e-12) for zero in self.zeros]
        for zero in self.zeros:
            zero.grad = None
        return found


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("depth", few([0, 1, 2], lambda depth: depth == 1))
@pytest.mark.parametrize("changes", CARRYING)
def test_gradient_reaches_exactly_the_segments_asked_for(changes: dict[str, Any], depth: int, method: Method) -> None:
    model = random_model(**changes, num_layers=2)
    probes = Probes(model, 5)
    past = SlidingHistory(model.init(2))
    for index in range(5):
        results = backward(probes.step, [*past.segments, index], past.state, scored="last", method=method)
        assert probes.reached() == [max(0, index - depth) <= place <= index for place in range(5)]
        past = past.after(index, results, depth)
    assert len(past.segments) == depth
    first = model.memory_tokens and model.memory_tokens.initial.grad
    written_only = depth == 0 and not model.input_memory.num_read  # what is written is read in later segments only
    assert first is not None and (first.abs().max() > 0) == (not written_only)


def test_a_cache_carries_no_gradient() -> None:
    model = random_model(tokens=MemoryTokens(num=2, write=False), memory=4)
    probes = Probes(model, 3)
    backward(probes.step, [0, 1, 2], model.init(2), scored="last", method="replay")
    assert probes.reached() == [False, False, True]


def slide(
    model: Model, segments: list[tuple[Tensor, Tensor]], depth: int, stale: bool
) -> tuple[SlidingHistory, SegmentResult]:
    past, last = SlidingHistory(model.init(2)), None
    for segment in segments:
        results = backward(steps(model), [*past.segments, segment], past.state)
        past, last = past.after(segment, results, depth, stale), results[-1]
    assert last is not None
    return past, last


def test_a_sliding_span_starts_from_the_memory_before_it() -> None:
    model, segments = random_model(tokens=MemoryTokens(num=2), memory=2), text(4)
    whole = backward(steps(model), segments, model.init(2))
    past, last = slide(model, segments, 2, stale=False)
    assert_close(last.state.memory, whole[3].state.memory)
    for (_, a), (_, b) in zip(leaves(past.state), leaves(whole[1].state), strict=True):
        assert_close(a, b)


def test_a_stale_span_starts_from_the_memory_that_has_seen_it() -> None:
    model, segments = random_model(tokens=MemoryTokens(num=2), memory=0), text(2)
    first = backward(steps(model), segments[:1], model.init(2))[0]
    expected = backward(steps(model), segments, first.state)[1]
    past, last = slide(model, segments, 1, stale=True)
    assert_close(last.state.memory, expected.state.memory)
    assert torch.equal(past.state.memory, last.state.memory)
    _, right = slide(model, segments, 1, stale=False)
    assert (right.state.memory - last.state.memory).abs().max() > 1e-6


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that were made inside and are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._watch(tensor.untyped_storage())
        return out

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return

        def gone(_: object) -> None:
            self.now -= size
            del self.known[key]

        self.known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def peak_bytes(model: Model, num_segments: int, method: Method) -> int:
    state, segments = model.init(4), text(num_segments, length=24, batch=4)
    backward(steps(model), segments[:1], state)  # so that weights have gradients
    with LiveBytes() as live:
        backward(steps(model), segments, state, scored="last", method=method)
    return live.peak


def test_memory_flat_backward_needs_one_segments_activations_and_the_states() -> None:
    """Measured: from 2 to 10 segments the peak grows by about eight states, not by eight segments' activations."""
    model = random_model(tokens=MemoryTokens(num=2), memory=6, num_layers=2)
    state = nbytes(model.init(4))
    segment = peak_bytes(model, 1, "plain")
    grown: dict[Method, int] = {
        method: peak_bytes(model, 10, method) - peak_bytes(model, 2, method) for method in get_args(Method)
    }
    assert grown["plain"] > 8 * 0.5 * segment
    for method in FLAT:
        assert grown[method] < 8 * 1.25 * state, (method, grown, state, segment)
        assert peak_bytes(model, 2, method) < 1.5 * segment


@pytest.mark.gpu
@pytest.mark.parametrize("method", FLAT)
def test_dropout_is_repeated_on_a_gpu(method: Method) -> None:
    dropout = DropoutConfig.published(0.2, attention=0.1)
    model = random_model(tokens=MemoryTokens(num=2), memory=4, dropout=dropout).train().cuda()
    segments = [(tokens.cuda(), targets.cuda()) for tokens, targets in text(4)]
    found = []
    for how in ("plain", method):
        torch.manual_seed(3)
        backward(steps(model), segments, model.init(2), method=how)
        found.append(gradients(model))
    for name, gradient in found[0].items():
        assert_close(found[1][name], gradient)
