"""Segments scored in place equal segments scored by the model; CUDA graphs are tested on a GPU only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.models import random_model, random_tokens
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.data.corpus import Split
from mnemo.evaluation.perplexity import _scorer, evaluate
from mnemo.evaluation.settings import EvaluationSettings
from mnemo.inference import segment_scorer
from mnemo.inference.cuda_graph import RecordedFunction
from mnemo.inference.segment_scorer import CopyingScorer, RecordedScorer, SegmentScorer, can_capture, with_dtype
from mnemo.memory import QRNN, XL, Associative, Compressive, Infinite, Lookahead, MemoryTokens, Plan
from mnemo.model import Model
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.positions import Learned, NoPositions, Rotary, Shaw
from mnemo.recipes.recipe import EvalConfig

SEGMENT = 3
KINDS: dict[str, dict[str, Any]] = {
    "long memory": dict(memory=29),
    "short memory": dict(memory=2),
    "no memory": dict(memory=0),
    "plan": dict(memory=Plan(long=XL(length=21), short=XL(length=2), num_long=1)),
    "same length": dict(memory=9, same_length=True, norm="pre"),
    "Shaw": dict(memory=9, positions=Shaw(distances=7)),
    "rotary": dict(memory=9, positions=Rotary()),
}
OTHERS: dict[str, dict[str, Any]] = {
    "look-ahead": dict(memory=Plan(long=Lookahead(length=7))),
    "look-ahead, shorter than a segment": dict(memory=Plan(long=Lookahead(length=2))),
    "compressive": dict(memory=Plan(long=Compressive(length=4, compressed=3, ratio=2))),
    "associative": dict(memory=Plan(long=Associative(key_dim=4)), tokens=MemoryTokens(num=2)),
    "cells": dict(memory=Plan(long=QRNN()), positions=NoPositions()),
    "memory tokens": dict(memory=4, tokens=MemoryTokens(num=2)),
    "learned positions": dict(memory=0, positions=Learned(length=SEGMENT)),
}
"""Memories other than Transformer-XL's, whose states are copied."""


def expected(model: Model, tokens: torch.Tensor) -> list[torch.Tensor]:
    state, losses = model.init(2), []
    with torch.no_grad():
        for part in tokens.split(SEGMENT, 1):
            out, state = model(part, state)
            losses.append(model.loss(out, part.flip(1)))
    return losses


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentScorer, "_may_record", lambda self: True)


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_scoring_in_place_equals_the_model(changes: dict[str, Any]) -> None:
    """Several times through the buffers, then a short segment."""
    model, tokens = random_model(**changes), random_tokens(2, 13 * SEGMENT + 1)
    with torch.no_grad():
        scorer = SegmentScorer(model, model.init(2, cached=True), SEGMENT)
        assert isinstance(scorer.recorded, RecordedScorer)
        for part, losses in zip(tokens.split(SEGMENT, 1), expected(model, tokens), strict=True):
            assert_close(scorer.score(part, part.flip(1)), losses)
    assert (scorer.recorded is not None) == (not any(model.config.memory.lengths(model.config.num_layers)))


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_scoring_with_copied_states_equals_the_model(changes: dict[str, Any]) -> None:
    """Targets of another length, which need another recording, and a short segment at the end."""
    model, tokens = random_model(**changes), random_tokens(2, 9 * SEGMENT + 1)
    with torch.no_grad():
        scorer = SegmentScorer(model, model.init(2, cached=True), SEGMENT)
        assert isinstance(scorer.recorded, CopyingScorer)
        parts = zip(tokens.split(SEGMENT, 1), expected(model, tokens), strict=True)
        for number, (part, losses) in enumerate(parts):
            newest = 2 if number in (4, 5, 6) else part.shape[1]
            assert_close(scorer.score(part, part.flip(1)[:, -newest:]), losses[:, -newest:])
    assert scorer.recorded is None


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_no_segment_reads_a_value_from_the_device(changes: dict[str, Any]) -> None:
    """A recording could not: here tensors have no values at all."""
    model = random_model(**changes).to("meta")
    with torch.no_grad():
        scorer = SegmentScorer(model, model.init(2, cached=True), SEGMENT)
        recorded = CopyingScorer(model, scorer.state, scorer.tables, model.loss)
        tokens = torch.zeros(2, SEGMENT, dtype=torch.int64, device="meta")
        for _ in range(4):
            assert recorded.score(tokens, tokens).is_meta
    assert recorded._step is not None


def test_states_have_the_type_of_the_computation() -> None:
    """As in training; sums stay in single precision."""
    model = random_model(memory=Plan(long=Lookahead(length=7)), dtype=torch.float32)
    settings = EvaluationSettings(batch=2, segment=SEGMENT)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        scorer = _scorer(model, settings, model.config.memory.lengths(model.config.num_layers), (1.0,), 2)
    assert isinstance(scorer, SegmentScorer)
    assert scorer.state[0].inputs.dtype == torch.bfloat16 and scorer.state[0].lse[0].dtype == torch.float32


class Growing:
    """In place of a model: keeps its newest tokens, at most seven, and predicts their sum."""

    device = torch.device("cpu")

    def __call__(self, tokens: Tensor, state: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
        state = torch.cat([state, tokens], 1)[:, -7:]
        return state.sum(1, keepdim=True), state


def test_states_are_copied_once_they_keep_their_size() -> None:
    scorer = CopyingScorer(Growing(), torch.zeros(2, 0), None, torch.subtract)  # type: ignore[arg-type]
    tokens = torch.arange(2 * 8 * SEGMENT).view(2, -1).float()
    found = [scorer.score(part, part[:, :1]) for part in tokens.split(SEGMENT, 1)]
    for number, losses in enumerate(found, 1):
        end = number * SEGMENT
        newest = tokens[:, max(0, end - 7) : end].sum(1, keepdim=True)
        assert torch.equal(losses, newest - tokens[:, end - SEGMENT, None])
    assert scorer._step is not None


class Passing:
    """In place of a model: the newest segment, and the one before it, which was a part of the state already."""

    device = torch.device("cpu")

    def __call__(
        self, tokens: Tensor, state: tuple[Tensor, Tensor], tables: Any
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        newest, _ = state
        return newest.clone(), (tokens.clone(), newest)


def test_a_part_of_the_state_may_become_another_part() -> None:
    empty = (torch.zeros(2, SEGMENT), torch.zeros(2, SEGMENT))
    scorer = CopyingScorer(Passing(), empty, None, torch.subtract)  # type: ignore[arg-type]
    parts = torch.arange(2 * 6 * SEGMENT).view(2, -1).float().split(SEGMENT, 1)
    for part, before in zip(parts, [empty[0], *parts[:-1]], strict=True):
        assert torch.equal(scorer.score(part, part), before - part)
    assert scorer._step is not None and torch.equal(scorer.state()[1], parts[-2])


def test_what_depends_on_the_data_is_not_recorded() -> None:
    assert not can_capture(random_model(memory=Plan(long=Infinite(length=4, basis=4))))
    assert not can_capture(random_model(memory=4, embedding=EmbeddingConfig(cutoffs=(4,))))
    assert can_capture(random_model(memory=Plan(long=Lookahead(length=4))))


@pytest.mark.usefixtures("in_place")
def test_encoding_context_again_is_scored_in_place_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = random_model(memory=0), np.random.default_rng(0).integers(0, 11, 400)
    config, split = EvalConfig(batch=2, segment=3, context=5), Split("test", ids, None, 400, 0, 0)
    reads, read = [], RecordedScorer.score
    monkeypatch.setattr(RecordedScorer, "score", lambda *given: reads.append(1) or read(*given))
    found = evaluate(model, split, config, segment=3)
    assert len(reads) > 50
    monkeypatch.undo()
    plain = evaluate(model, split, config, segment=3)
    assert found.loss == plain.loss and found.tokens == plain.tokens


@pytest.mark.usefixtures("in_place")
def test_a_row_may_restart_after_a_while() -> None:
    model, tokens = random_model(memory=7), random_tokens(2, 5 * SEGMENT)
    state, starts = model.init(2), torch.tensor([True, False])
    with torch.no_grad():
        scorer = SegmentScorer(model, model.init(2, cached=True), SEGMENT)
        for number, part in enumerate(tokens.split(SEGMENT, 1)):
            reset = starts if number == 3 else None
            out, state = model(part, state, starts=reset)
            assert_close(scorer.score(part, part, starts=reset), model.loss(out, part))


def test_a_given_state_is_never_changed() -> None:
    model, tokens = random_model(memory=7), random_tokens(2, 4 * SEGMENT)
    with torch.no_grad():
        _, state = model(tokens[:, :SEGMENT], model.init(2, cached=True))
        before = [leaf.clone() for cache in state for leaf in cache]
        recorded = RecordedScorer(model, state, SEGMENT, model.tables(SEGMENT, state))
        for part in tokens[:, SEGMENT:].split(SEGMENT, 1):
            recorded.score(part, part)
    assert all(torch.equal(a, b) for a, b in zip(before, (leaf for cache in state for leaf in cache), strict=True))


def test_no_graph_is_recorded_into_a_pool_whose_graphs_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses that; targets of another length free all graphs."""
    pools: list[object] = []

    def noted(function: Any, device: torch.device, restored: Any = (), pool: object = None) -> RecordedFunction:
        pools.append(pool)
        return RecordedFunction(function, device, restored)

    monkeypatch.setattr(segment_scorer, "shared_pool", lambda device: object())
    monkeypatch.setattr(segment_scorer, "RecordedFunction", noted)
    model, tokens = random_model(memory=2 * SEGMENT), random_tokens(2, SEGMENT)
    state = model.init(2, cached=True)
    with torch.no_grad():
        scorer = RecordedScorer(model, state, SEGMENT, model.tables(SEGMENT, state))
        for newest in 4 * [SEGMENT] + 4 * [2]:
            scorer.score(tokens, tokens[:, -newest:])
    assert len(set(pools)) == 2 and None not in pools


def test_weights_of_another_type() -> None:
    model = random_model(memory=5, dtype=torch.float32)
    half = with_dtype(model, torch.bfloat16)
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert not half.training
    assert_close(half.embedding.tables[0], model.embedding.tables[0].bfloat16())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["long memory", "plan", "rotary"])
def test_a_recorded_scorer_equals_the_model_on_a_gpu(name: str) -> None:
    model = random_model(**KINDS[name]).cuda()
    tokens = random_tokens(2, 13 * SEGMENT + 1).cuda()
    with torch.no_grad():
        scorer = SegmentScorer(model, model.init(2, cached=True), SEGMENT)
        recorded = scorer.recorded
        for part, losses in zip(tokens.split(SEGMENT, 1), expected(model, tokens), strict=True):
            assert_close(scorer.score(part, part.flip(1)), losses)
    assert isinstance(recorded, RecordedScorer)
    assert all(step is not None and step.is_recorded for step in recorded.steps)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_places_are_recorded_again_for_targets_of_another_length() -> None:
    model, tokens = random_model(**KINDS["long memory"]).cuda(), random_tokens(2, 30 * SEGMENT).cuda()
    with torch.no_grad():
        scorer = SegmentScorer(model, model.init(2, cached=True), SEGMENT)
        parts = zip(tokens.split(SEGMENT, 1), expected(model, tokens), strict=True)
        for number, (part, losses) in enumerate(parts):
            newest = SEGMENT if number < 15 else 2
            assert_close(scorer.score(part, part.flip(1)[:, -newest:]), losses[:, -newest:])
    assert isinstance(scorer.recorded, RecordedScorer)
    assert all(step is not None and step.is_recorded for step in scorer.recorded.steps)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_recorded_states_equal_the_model_on_a_gpu(changes: dict[str, Any]) -> None:
    """Targets of another length in between, which need another recording."""
    model, tokens = random_model(**changes).cuda(), random_tokens(2, 9 * SEGMENT).cuda()
    with torch.no_grad():
        scorer = SegmentScorer(model, model.init(2, cached=True), SEGMENT)
        parts = zip(tokens.split(SEGMENT, 1), expected(model, tokens), strict=True)
        for number, (part, losses) in enumerate(parts):
            newest = 2 if number in (4, 5) else SEGMENT
            assert_close(scorer.score(part, part.flip(1)[:, -newest:]), losses[:, -newest:])
    assert isinstance(scorer.recorded, CopyingScorer) and scorer.recorded.is_recorded


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recorded_states_equal_the_model_in_half_precision() -> None:
    model = random_model(memory=Plan(long=Lookahead(length=7)), dtype=torch.float32).cuda()
    tokens, state = random_tokens(2, 9 * SEGMENT).cuda(), model.init(2, cached=True, dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        scorer = SegmentScorer(model, state, SEGMENT)
        for part in tokens.split(SEGMENT, 1):
            out, state = model(part, state, tables=scorer.tables)
            assert torch.equal(scorer.score(part, part), model.loss(out, part))
    assert isinstance(scorer.recorded, CopyingScorer) and scorer.recorded.is_recorded
