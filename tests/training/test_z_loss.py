"""The z-loss: part of the objective, not of the reported loss, the same in every path."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.models import random_model, random_tokens
from helpers.tolerances import assert_close
from helpers.toy_runs import exact, losses, recipe, run
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.model import Model
from mnemo.model.embedding import EmbeddingConfig
from mnemo.ops import cross_entropy, using
from mnemo.recipes.recipe import OptimizerConfig
from mnemo.storage.run_folder import open_run
from mnemo.training.compiled_loss import CompiledLoss
from mnemo.training.update_input import UpdateInput, count_targets
from mnemo.training.weight_update import SegmentLoss, fresh_states, gradients, segment_loss

Z = 0.1
ADAPTIVE = EmbeddingConfig(cutoffs=(5, 11), div_val=2)


def operands(rows: int) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    hidden, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((rows, 5), (7, 5), (7,)))
    targets = torch.randint(-1, 7, (rows,))
    return *(operand.requires_grad_() for operand in (hidden, weight, bias)), targets


@pytest.mark.parametrize("cap", [None, 1.5])
def test_losses_and_log_sum_exps_in_chunks_equal_plain_ones(cap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "CPU_LOGITS", 21)
    hidden, weight, bias, targets = operands(10)
    loss, lse = cross_entropy.cross_entropy_and_lse(hidden, weight, bias, targets, cap)
    logits = F.linear(hidden, weight, bias)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    expected = F.cross_entropy(logits, targets, reduction="none", ignore_index=-1)
    expected_lse = logits.logsumexp(-1) * (targets >= 0)
    assert_close(loss, expected)
    assert_close(lse, expected_lse)
    inputs = (hidden, weight, bias)
    squares = lse.square(), expected_lse.square()
    for found, wanted in ((loss, expected), squares, (loss + lse, expected + expected_lse)):
        own, plain = (torch.autograd.grad(each.sum(), inputs, retain_graph=True) for each in (found, wanted))
        for gradient, other in zip(own, plain, strict=True):
            assert_close(gradient, other)


def objective(model: Model, batch: Batch, forward: SegmentLoss) -> tuple[Tensor, dict[str, Tensor]]:
    nll, z, _, _ = forward(model, batch, model.init(len(batch.tokens)), True)
    assert nll is not None
    model.zero_grad()
    (nll + z).backward()
    return nll + z, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def batch_of(model: Model) -> Batch:
    tokens = random_tokens(2, 9, vocab_size=model.config.vocab_size)
    return Batch(tokens[:, :-1], tokens[:, 1:])


def test_the_objective_is_that_of_the_definition() -> None:
    model = random_model()
    batch = batch_of(model)
    out, _ = model(batch.tokens)
    expected = model.loss(out, batch.targets).sum() + Z * model.logits(out).logsumexp(-1).square().sum()
    assert_close(objective(model, batch, partial(segment_loss, z_loss=Z))[0], expected)


def test_an_update_in_parts_is_the_same_with_unequal_rows() -> None:
    """The squares are divided as the nats are: by the targets of all parts."""
    model, counts = random_model().train(), torch.tensor([8, 8, 1, 2])
    tokens = random_tokens(4, 9)
    targets = tokens[:, 1:].masked_fill(torch.arange(8) >= counts[:, None], -1)
    batch = Batch(tokens[:, :-1], targets, counts)
    inputs = UpdateInput((batch,), (count_targets(batch),))

    def gradient(parts: int) -> Tensor:
        model.zero_grad()
        gradients(model, inputs, fresh_states(model, 4, parts), forward=partial(segment_loss, z_loss=Z))
        return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])

    whole = gradient(1)
    assert_close(gradient(2), whole)
    assert_close(gradient(4), whole)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("embedding", "by_layer"),
    [
        (EmbeddingConfig(), True),
        pytest.param(ADAPTIVE, False, marks=pytest.mark.thorough),
        pytest.param(EmbeddingConfig(), False, marks=pytest.mark.thorough),
        pytest.param(ADAPTIVE, True, marks=pytest.mark.thorough),
    ],
)
def test_compiled_losses_have_it_too(embedding: EmbeddingConfig, by_layer: bool) -> None:
    model = random_model(vocab_size=23, embedding=embedding)
    batch = batch_of(model)
    options: dict[str, Any] = {"length": 8, "recompute": False, "note": pytest.fail, "backend": "eager"}
    compiled = CompiledLoss(model, **options, by_layer=by_layer, z_loss=Z)
    torch._dynamo.reset()
    with using("reference"):  # the CPU's attention is no part of a compiled graph
        found, gradients = objective(model, batch, compiled)
    expected, wanted = objective(model, batch, partial(segment_loss, z_loss=Z))
    assert_close(found, expected)
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        assert_close(gradient, wanted[name])


def test_training_with_it_makes_logits_smaller_and_reports_the_plain_loss(tmp_path: Path) -> None:
    sizes = {}
    for weight in (0.0, 1.0):
        wanted = recipe(**exact(z_loss=weight, steps=30, optimizer=OptimizerConfig(lr=0.02)))
        run(tmp_path / str(weight), of=wanted)
        model = open_run(tmp_path / str(weight), "last", "cpu").model
        batch = batch_of(model)
        with torch.no_grad():
            sizes[weight] = float(model.logits(model(batch.tokens)[0]).logsumexp(-1).square().mean())
    assert sizes[1.0] < 0.5 * sizes[0.0]
    first = [losses(tmp_path / str(weight))[0] for weight in (0.0, 1.0)]
    assert first[1] == pytest.approx(first[0], rel=0.02)  # both without the weighted squares, which are about 3
