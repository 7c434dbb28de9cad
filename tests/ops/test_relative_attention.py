"""The fast paths against the paper's equation: outputs, log-sum-exps and all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.tolerances import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mnemo.ops import Blocks, Causal, Implementation, KeyLimit, relative_attention, relative_attention_reference
from mnemo.ops.cpu import eager

BATCH, HEADS, SIZE = 2, 3, 4


def inputs(num_queries: int, num_slots: int, parts: tuple[str, ...], seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    keys = num_queries + num_slots
    shapes = {
        "q": (BATCH, HEADS, num_queries, SIZE),
        "k": (BATCH, HEADS, keys, SIZE),
        "v": (BATCH, HEADS, keys, SIZE),
        "r": (HEADS, keys, SIZE),
        "u": (HEADS, SIZE),
        "w": (HEADS, SIZE),
        "bias": (HEADS, keys),
    }
    wanted = ("q", "k", "v", *parts)
    return {name: torch.randn(shapes[name], dtype=torch.float64, requires_grad=True) for name in wanted}


@settings(deadline=None, max_examples=60)
@given(
    num_queries=st.integers(1, 9),
    num_slots=st.integers(0, 7),
    window=st.none() | st.integers(1, 9),
    valid=st.none() | st.integers(0, 7),
    parts=st.sampled_from([("r", "u", "w"), ("r", "u", "bias"), ("r",), ("bias",), ()]),
    block=st.sampled_from([1, 2, 3, 128]),
    seed=st.integers(0, 99),
)
def test_eager_equals_reference(num_queries, num_slots, window, valid, parts, block, seed):
    tensors = inputs(num_queries, num_slots, parts, seed)
    lengths = None
    if valid is not None:
        lengths = torch.tensor([num_queries + min(valid, num_slots), num_queries])
    assert_equal_paths(tensors, block, offset=num_slots, mask=Causal(window), lengths=lengths)


def assert_equal_paths(tensors: dict[str, Any], block: int, **options: Any) -> None:
    results = []
    for impl in ("reference", "eager"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(eager, "QUERY_BLOCK", block)
            patch.setattr(eager, "CPU_TILE", 16 * block)
            out, lse = relative_attention(**tensors, **options, with_lse=True, impl=impl)
            assert lse is not None
            torch.manual_seed(1)
            loss = (out * torch.randn(out.shape).to(out)).sum() + (lse * torch.randn(lse.shape).to(lse)).sum()
            results.append([out, lse, *torch.autograd.grad(loss, list(tensors.values()))])
    for expected, got in zip(*results, strict=True):
        assert_close(got, expected)


@pytest.mark.parametrize("parts", [("r", "u", "w"), ("r", "u", "bias"), ("bias",), ()])
@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize("mask", [Causal(), Causal(24)])
def test_half_precision_stays_near_the_equation(
    parts: tuple[str, ...], block: int, mask: Causal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "QUERY_BLOCK", block)
    monkeypatch.setattr(eager, "CPU_TILE", 16 * block)
    half = {name: part.detach().bfloat16().requires_grad_() for name, part in inputs(40, 30, parts, 0).items()}
    exact = {name: part.detach().double().requires_grad_() for name, part in half.items()}
    weights = torch.randn(BATCH, HEADS, 40, SIZE, dtype=torch.float64)
    results = []
    paths: list[tuple[dict[str, Any], Implementation]] = [(exact, "reference"), (half, "eager")]
    for tensors, impl in paths:
        out, _ = relative_attention(**tensors, offset=30, mask=mask, impl=impl)
        gradients = torch.autograd.grad((out * weights.to(out)).sum(), list(tensors.values()))
        results.append([out, *gradients])
    for expected, got in zip(*results, strict=True):
        largest = expected.abs().max()
        assert_close((got / largest).bfloat16(), (expected / largest).bfloat16())


@settings(deadline=None, max_examples=60)
@given(
    num_queries=st.integers(1, 8),
    num_keys=st.integers(1, 8),
    offset=st.integers(0, 5),
    window=st.none() | st.integers(4, 9),
    block=st.sampled_from([2, 3, 128]),
    seed=st.integers(0, 99),
)
def test_queries_may_stand_anywhere(num_queries, num_keys, offset, window, block, seed):
    """Look-ahead reads few keys from many queries: the last query need not stand on the last key."""
    tensors = inputs(num_queries, offset, ("r", "u", "w", "bias"), seed)
    for name in ("k", "v"):
        tensors[name] = torch.randn(BATCH, HEADS, num_keys, SIZE, dtype=torch.float64, requires_grad=True)
    if window is not None and offset + num_queries - window >= num_keys:
        window = None  # a query without any key has no attention
    assert_equal_paths(tensors, block, offset=offset, mask=Causal(window))


@settings(deadline=None, max_examples=40)
@given(
    memory=st.integers(1, 3),
    lengths=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    cached=st.integers(0, 3),
    sees=st.booleans(),
    seed=st.integers(0, 99),
)
def test_block_masks_with_keys_ahead(memory, lengths, cached, sees, seed):
    rows = 2 * memory + max(lengths)
    tensors = inputs(rows, cached, ("u", "w"), seed)
    tensors["r"] = torch.randn(HEADS, rows + cached + memory - 1, SIZE, dtype=torch.float64, requires_grad=True)
    mask = Blocks(memory, memory, torch.tensor(lengths), memory_sees_cache=sees)
    assert_equal_paths(tensors, 128, offset=cached, ahead=memory - 1, mask=mask)


def test_limited_keys():
    tensors = inputs(5, 0, ("r", "u", "w"), 0)
    assert_equal_paths(tensors, 128, offset=0, mask=KeyLimit(torch.tensor([2, 4])))


def test_terms_add_up_to_the_scores():
    tensors = inputs(4, 3, ("r", "u", "w"), 0)
    attended = relative_attention_reference(**tensors, offset=3)
    assert set(attended.terms) == {"a", "b", "c", "d"}
    scores = sum(attended.terms.values())
    hidden = attended.probabilities == 0
    expected = torch.softmax(torch.as_tensor(scores).masked_fill(hidden, float("-inf")), -1)
    torch.testing.assert_close(attended.probabilities, expected, rtol=1e-12, atol=1e-12)
    assert hidden.sum() == BATCH * HEADS * (3 + 2 + 1)


def test_a_score_is_the_papers_formula():
    """One pair by hand: query 1 on key 0 across two memory slots is at distance 3."""
    t = inputs(2, 2, ("r", "u", "w"), 3)
    attended = relative_attention_reference(**t, offset=2)
    q, k, r = t["q"][0, 1, 1], t["k"][0, 1, 0], t["r"][1, 0]
    expected = ((q + t["u"][1]) @ k + (q + t["w"][1]) @ r) / SIZE**0.5
    got = sum(term[0, 1, 1, 0] for term in attended.terms.values())
    torch.testing.assert_close(got, expected)


@pytest.mark.thorough
def test_dropout_keeps_the_mean_and_its_gradient():
    tensors = inputs(3, 2, ("r", "u", "w"), 0)
    exact, _ = relative_attention(**tensors, offset=2, impl="reference")
    torch.manual_seed(0)
    draws = torch.stack([relative_attention(**tensors, offset=2, dropout=0.3)[0].detach() for _ in range(4000)])
    error = (draws.mean(0) - exact).abs() / (draws.std(0) / 4000**0.5)
    assert error.max() < 5

    def dropped(v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return relative_attention(**{**tensors, "v": v}, offset=2, dropout=0.3)[0]

    assert torch.autograd.gradcheck(dropped, (tensors["v"],))
