"""Sizes of weights, residual rows, scores and logits, compared with simple computations."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from helpers.marks import few
from helpers.mechanisms import MECHANISMS
from helpers.models import random_model, random_tokens, read

from mnemo.analysis.growth import Sizes, most_grown, sizes
from mnemo.files.json_file import without_nan
from mnemo.memory import LSTM, Plan
from mnemo.model import Model
from mnemo.model.positions import NoPositions
from mnemo.report.growth_table import growth_rows

SEGMENT = 4
TEXT = random_tokens(1, 14, 3)[0]


def recorded(model: Model) -> tuple[list[Any], list[Any]]:
    """Attention of every segment by layer, and outputs of every stage by segment."""
    state, attention, rows = None, [], []
    for part in TEXT.split(SEGMENT):
        handles = [stage.register_forward_hook(lambda *call: rows.append(call[2][0])) for stage in model.stages]
        _, state, layers = model.explain(part[None], state)
        attention.append(layers)
        for handle in handles:
            handle.remove()
    return attention, rows


QUICK = ("xl-plan", "lookahead", "rmt-with-cache")
NAMES = [name for name in MECHANISMS if not name.startswith(("lstm", "qrnn"))]


@pytest.mark.parametrize("name", few(NAMES, lambda name: name in QUICK))
def test_sizes_are_those_of_the_parts(name: str) -> None:
    model = random_model(**MECHANISMS[name])
    found = sizes(model, TEXT, segment=SEGMENT)
    with torch.no_grad():
        attention, rows = recorded(model)
        logits, _ = read(model, TEXT[None], SEGMENT)
    assert found.logits == pytest.approx(float(logits.abs().max()))
    num_stages = len(model.stages)
    of_stages = [torch.cat([part.flatten() for part in rows[index::num_stages]]) for index in range(num_stages)]
    assert found.rows == pytest.approx([float(part.square().mean().sqrt()) for part in of_stages])
    assert found.largest_rows == pytest.approx([float(part.abs().max()) for part in of_stages])
    for index, largest in enumerate(found.scores):
        layers = [segment[index] for segment in attention]
        scores = [sum(layer.terms.values()) * layer.visible for layer in layers]
        assert largest == pytest.approx(max(float(part.abs().max()) for part in scores))
    assert found.scores and found.weights["embedding.tables.0"] == pytest.approx(
        float(model.embedding.tables[0].detach().square().mean().sqrt())  # type: ignore[union-attr]
    )


def test_the_loss_is_that_of_the_text() -> None:
    model = random_model()
    with torch.no_grad():
        logits = torch.cat([part[:, :-1] for part in read(model, TEXT[None], SEGMENT)[0].split(SEGMENT, 1)], 1)
    targets = torch.cat([part[1:] for part in TEXT.split(SEGMENT)])
    expected = torch.nn.functional.cross_entropy(logits[0], targets)
    assert sizes(model, TEXT, segment=SEGMENT).loss == pytest.approx(float(expected))


def test_a_model_without_attention_has_no_scores() -> None:
    found = sizes(random_model(memory=Plan(long=LSTM()), positions=NoPositions()), TEXT, segment=SEGMENT)
    assert found.scores == [] and found.rows and found.logits > 0


def test_nothing_stays_behind_and_a_ruined_model_has_infinite_sizes() -> None:
    model = random_model()
    sizes(model, TEXT, segment=SEGMENT)
    assert not any(stage._forward_hooks for stage in model.stages)
    model.embedding.tables[0].data[TEXT[0]] = math.nan  # type: ignore[union-attr]
    found = sizes(model, TEXT, segment=SEGMENT)
    assert found.logits == math.inf and found.largest_rows[0] == math.inf and math.isnan(found.loss)


def test_the_length_of_the_memory_counts() -> None:
    model = random_model()
    assert sizes(model, TEXT, segment=SEGMENT, memory=0) != sizes(model, TEXT, segment=SEGMENT)


def test_the_matrix_that_grew_most() -> None:
    assert most_grown({"a": 3.0, "b": math.nan}, {"a": 2.0, "b": 1.0}) == ("b", math.inf)
    assert most_grown({"a": 3.0, "b": 2.0, "zero": 9.0}, {"a": 2.0, "b": 1.0, "zero": 0.0}) == ("b", 2.0)
    assert most_grown({"a": 3.0, "b": math.inf}, {"a": 2.0, "b": math.inf}) == ("a", 1.5)
    assert most_grown({"a": math.nan}, {"a": math.nan}) is None


def test_sizes_survive_a_file() -> None:
    model = random_model()
    found = sizes(model, TEXT, segment=SEGMENT)
    assert Sizes.from_json(json.loads(json.dumps(found.to_json()))) == found
    model.embedding.tables[0].data[TEXT[0]] = math.nan  # type: ignore[union-attr]
    ruined = Sizes.from_json(without_nan(sizes(model, TEXT, segment=SEGMENT).to_json()))
    assert ruined.loss == ruined.logits == ruined.largest_rows[0] == math.inf
    first, last = growth_rows({0: found, 1: ruined})
    assert first[-1] is None
    assert last[1] == "inf" and last[-1] == "infx embedding.tables.0"
