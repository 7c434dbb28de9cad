"""Plain transformers in torch's flash attention: the same numbers as without memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.own_memories import keep_mechanisms
from helpers.tolerances import assert_close

from mnemo.bench.alternatives import flash
from mnemo.bench.alternatives.recipes import recipe_of, register
from mnemo.bench.alternatives.rows import ROWS
from mnemo.data.corpus import Split
from mnemo.data.streams import Batch
from mnemo.evaluation.perplexity import score_split
from mnemo.evaluation.settings import EvaluationSettings
from mnemo.memory import XL, Plan
from mnemo.model import Model
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Relative
from mnemo.training.compiled_loss import CompiledLoss
from mnemo.training.optimizers import layer_matrices
from mnemo.training.weight_update import segment_loss


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Model]:
    """Flash attention and Mnemo's, with the same weights."""
    keep_mechanisms(monkeypatch)
    register()
    config = recipe_of(ROWS["plain-512"], "cpu", miniature=True).model
    fast = Model(replace(config, dropout=DropoutConfig())).double()
    for name, weight in fast.named_parameters():
        if not name.endswith("norm.weight"):
            torch.nn.init.normal_(weight, std=0.3)  # output projections start at zero
    plain = Model(replace(fast.config, memory=Plan(long=XL(length=0)))).double()
    plain.load_state_dict(fast.state_dict())
    return fast, plain


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of calls of torch's attention."""
    seen: list[Any] = []
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(
        flash.F, "scaled_dot_product_attention", lambda q, *rest, **see: seen.append(q.shape) or attend(q, *rest, **see)
    )
    return seen


def test_losses_and_gradients_are_those_of_the_model_without_memory(
    models: tuple[Model, Model], calls: list[Any]
) -> None:
    tokens = torch.randint(256, (2, 17))
    found = []
    for model in models:
        out, state = model(tokens[:, :-1])
        model.loss(out, tokens[:, 1:]).sum().backward()
        again, _ = model(tokens[:, :-1], state)
        assert_close(again.hidden, out.hidden)  # nothing is carried
        found.append((out.hidden, [parameter.grad for parameter in model.parameters()]))
    assert_close(*(hidden for hidden, _ in found))
    for one, other in zip(*(gradients for _, gradients in found), strict=True):
        assert_close(one, other)
    assert len(calls) == 2 * 2  # two passes of two layers


@pytest.mark.parametrize("context", [0, 6])
def test_scores_are_those_of_the_model_without_memory(
    context: int, models: tuple[Model, Model], calls: list[Any]
) -> None:
    ids = torch.randint(256, (101,)).numpy()
    split = Split(name="test", ids=ids, num_bytes=101, num_words=1, num_lines=1, documents=None)  # type: ignore[arg-type]
    settings = EvaluationSettings(batch=1, segment=6, context=context)
    scores = [score_split(model, split, settings)[0] for model in models]
    assert scores[0].loss == pytest.approx(scores[1].loss, rel=1e-10) and calls


def test_generating_equals_reading(models: tuple[Model, Model]) -> None:
    model, tokens = models[0].eval(), torch.randint(256, (1, 5))
    decoder = model.decoder(segment=5)
    with torch.no_grad():
        steps = [model.logits(decoder.feed(tokens[:, i : i + 1])) for i in range(5)]
        assert_close(torch.cat(steps, 1), model.logits(model(tokens)[0]))


def test_muon_still_finds_stacked_keys_and_values(models: tuple[Model, Model]) -> None:
    assert [list(layer_matrices(model).values()) for model in models][0].count(2) == 2


def test_what_flash_attention_has_not_is_refused(models: tuple[Model, Model]) -> None:
    config = models[0].config
    for changes in ({"positions": Relative()}, {"dropout": DropoutConfig(attention=0.1)}):
        with pytest.raises(ValueError, match="flash attention takes no memory"):
            replace(config, **changes)


def test_layers_with_flash_attention_are_compiled(models: tuple[Model, Model]) -> None:
    text, notes = torch.randint(256, (2, 9)), list[str]()
    batch = Batch(text[:, :-1], text[:, 1:])
    compiled = CompiledLoss(models[0], length=8, recompute=False, note=notes.append, backend="eager", by_layer=True)
    found, wanted = (loss(models[0], batch, models[0].init(2))[0] for loss in (compiled, segment_loss))
    assert found is not None and wanted is not None and notes == []
    assert_close(found, wanted)
