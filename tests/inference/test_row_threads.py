"""Rows in separate threads give the losses of rows together, and other code keeps its threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.marks import few
from helpers.models import random_model, random_tokens
from helpers.tolerances import assert_close

from mnemo.inference import row_threads
from mnemo.inference.row_threads import RowThreads, row_groups
from mnemo.inference.segment_scorer import SegmentScorer, ThreadedScorer, open_scorer
from mnemo.memory import XL, Lookahead, MemoryTokens, Plan

SEGMENT = 3
KINDS: dict[str, dict[str, Any]] = {
    "long memory": dict(memory=29),
    "no memory": dict(memory=0),
    "plan": dict(memory=Plan(long=XL(length=21), short=XL(length=2), num_long=1)),
    "look-ahead": dict(memory=Plan(long=Lookahead(length=6))),
    "memory tokens": dict(memory=4, tokens=MemoryTokens(num=2)),
}


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(row_threads, "LEAST_WORK", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", few(KINDS, lambda kind: kind == "look-ahead"))
def test_rows_on_threads_equal_rows_together(kind: str) -> None:
    """Three rows on two threads, one of which restarts and another one is padded."""
    model, tokens = random_model(**KINDS[kind]), random_tokens(3, 5 * SEGMENT)
    shared = open_scorer(model, model.init(3, cached=True), SEGMENT)
    assert isinstance(shared, ThreadedScorer)
    together = SegmentScorer(model, model.init(3, cached=True), SEGMENT)
    with torch.no_grad():
        for number, part in enumerate(tokens.split(SEGMENT, 1)):
            lengths = torch.tensor([SEGMENT, SEGMENT, 2]) if number == 2 else None
            starts = torch.tensor([False, True, False]) if number == 3 else None
            losses = shared.score(part, part.flip(1), lengths, starts)
            assert_close(losses, together.score(part, part.flip(1), lengths, starts))
            assert not losses.requires_grad


def test_rows_are_scored_at_every_temperature() -> None:
    model, tokens = random_model(memory=7), random_tokens(3, SEGMENT)
    shared = open_scorer(model, model.init(3, cached=True), SEGMENT, (1.0, 1.5))
    together = SegmentScorer(model, model.init(3, cached=True), SEGMENT, (1.0, 1.5))
    assert isinstance(shared, ThreadedScorer)
    with torch.no_grad():
        losses = shared.score(tokens, tokens)
        assert losses.shape == (2, 3, SEGMENT)
        assert_close(losses, together.score(tokens, tokens))


def test_a_given_state_is_never_changed() -> None:
    model, tokens = random_model(memory=7), random_tokens(2, 4 * SEGMENT)
    with torch.no_grad():
        _, state = model(tokens[:, :SEGMENT], model.init(2, cached=True))
        before = [leaf.clone() for cache in state for leaf in cache]
        scorer = open_scorer(model, state, SEGMENT)
        for part in tokens[:, SEGMENT:].split(SEGMENT, 1):
            scorer.score(part, part)
    assert all(torch.equal(a, b) for a, b in zip(before, (leaf for cache in state for leaf in cache), strict=True))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_losses_are_tensors_of_the_callers_mode(mode: Any) -> None:
    model, tokens = random_model(memory=7), random_tokens(2, 2 * SEGMENT)
    with mode():
        scorer = open_scorer(model, model.init(2, cached=True), SEGMENT)
        found = [scorer.score(part, part) for part in tokens.split(SEGMENT, 1)]
    assert all(losses.is_inference() == (mode is torch.inference_mode) for losses in found)


def test_each_row_thread_has_its_share_of_threads() -> None:
    torch.set_num_threads(5)
    threads = RowThreads(2)
    seen = threads.run([lambda: torch.tensor(torch.get_num_threads())] * 4)
    assert [int(number) for number in seen] == [2] * 4
    assert torch.get_num_threads() == 5
    assert int(RowThreads(8).run([lambda: torch.tensor(torch.get_num_threads())])[0]) == 1


def test_an_error_reaches_the_caller() -> None:
    def fail() -> torch.Tensor:
        raise ValueError("a token is out of range")

    with pytest.raises(ValueError, match="out of range"):
        RowThreads(2).run([fail, lambda: torch.zeros(1)])


def test_rows_stay_together_where_sharing_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(memory=7)
    assert row_groups(model, model.init(5), SEGMENT) == [slice(0, 2), slice(2, 5)]
    assert row_groups(model, model.init(1), SEGMENT) == [slice(0, 1)]
    assert len(row_groups(model.train(), model.init(4), SEGMENT)) == 1
    model.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert len(row_groups(model, model.init(4), SEGMENT)) == 1
    torch.set_num_threads(1)
    assert len(row_groups(model, model.init(4), SEGMENT)) == 1
    torch.set_num_threads(2)
    monkeypatch.setattr(row_threads, "LEAST_WORK", 2**25)
    assert len(row_groups(model, model.init(4), SEGMENT)) == 1
