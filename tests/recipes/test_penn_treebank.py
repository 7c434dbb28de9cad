"""The Penn Treebank recipes: what their updates need of a GPU, checked without one, and the whole path on a toy."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.marks import few
from helpers.monitors import Signaller
from helpers.recorders import Rerun
from helpers.toy_runs import metrics, run, toy
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from mnemo.data.streams import Batch
from mnemo.model import Model
from mnemo.recipes import penn_treebank_fast
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import AverageConfig, EvalConfig, Recipe
from mnemo.training import create_run, train, trainer
from mnemo.training.compiled_loss import CompiledLoss
from mnemo.training.engine import Engine
from mnemo.training.optimizers import build_optimizer, clip_gradients, step_rate
from mnemo.training.update_input import UpdateInput
from mnemo.training.weight_update import Counts, fresh_states, gradients

FAST = tuple(penn_treebank_fast.PRESETS)
ASKS_THE_DEVICE = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_to_copy.device")


def count_parameters(recipe: Recipe) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Model(recipe.model).parameters())


@pytest.mark.parametrize("name", FAST)
def test_the_fast_models_are_no_larger_than_the_papers(name: str) -> None:
    assert 23_700_000 < count_parameters(preset(name)) <= 24_000_000


@pytest.mark.parametrize("name", FAST)
def test_every_update_of_a_fast_recipe_has_one_shape(name: str) -> None:
    recipe = preset(name)
    assert recipe.data.drop_last and recipe.data.rotate and not recipe.train.vary_segment
    assert recipe.model.dropout.locked and recipe.model.dim % 64 == recipe.model.head_dim % 32 == 0


@pytest.mark.parametrize("name", FAST)
def test_rates_fall_to_a_third_and_end_at_a_sixth(name: str) -> None:
    train = preset(name).train
    assert train.average is not None and train.average.start == train.schedule.steps == train.steps * 7 // 10
    steps = (train.schedule.warmup, train.average.start - 1, train.average.start, train.steps - 1)
    shares = [step_rate(train, step, train.segment) / train.optimizer.lr for step in steps]
    assert shares == pytest.approx([1, 1 / 3, 1 / 6, 1 / 6], rel=1e-3)


def window(recipe: Recipe, device: str) -> UpdateInput:
    train, draw = recipe.train, torch.Generator().manual_seed(0)
    tokens = torch.randint(6, (train.batch, train.context + train.segment), generator=draw).to(device)
    return UpdateInput((Batch(tokens, tokens[:, train.context :]),), (train.batch * train.segment,))


@pytest.mark.parametrize("name", FAST)
def test_nothing_in_an_update_asks_the_device(name: str) -> None:
    """Tensors without data cannot answer: reading one on the way would raise."""
    recipe = preset(name)
    with torch.device("meta"):
        model = Model(replace(recipe.model, num_layers=2)).train()
        states, counts = fresh_states(model, recipe.train.batch, 1), Counts(torch.ones(()), torch.ones(()))
        loss, _ = gradients(model, window(recipe, "meta"), states, counts=counts)
        norm = clip_gradients(model.parameters(), recipe.train.optimizer.clip)
    assert loss.is_meta and norm.is_meta
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["ptb", "ptb-fast"])
def test_a_dropped_first_word_leaves_gradients_finite(name: str) -> None:
    """With nothing before it, its row is zero; every norm divides by the root of its eps."""
    torch.manual_seed(0)
    model = Model(replace(preset(name).model, dim=16, num_heads=2, head_dim=8, inner_dim=8, vocab_size=6)).train()
    model.embedding.word_dropout = 1 - 2**-20
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    out, _ = model(tokens)
    model.loss(out, tokens).sum().backward()
    assert float(clip_gradients(model.parameters(), 0.25)) < 1e4


def tiny(name: str, **changes: Any) -> Recipe:
    """The recipe with everything that it uses, on a corpus of characters; averaging from step 8 of 12."""
    recipe = preset(name)
    model = replace(recipe.model, vocab_size=6, num_layers=2, dim=16, num_heads=2, head_dim=8, inner_dim=24)
    if recipe.train.context == 0:
        model = replace(model, memory=penn_treebank_fast.everywhere(6))
    schedule = replace(recipe.train.schedule, warmup=2, steps=8)
    average = AverageConfig(start=8, lr=recipe.train.optimizer.lr / 6)
    settings = dict(steps=12, batch=3, segment=8, log_every=1, eval_every=4, checkpoint_every=3, precision="fp32")
    lengths = {"context": min(6, recipe.train.context), "schedule": schedule, "average": average}
    scored = EvalConfig(batch=2, segment=4, context=6 if recipe.train.context else None)
    return replace(
        recipe,
        model=model,
        data=replace(recipe.data, corpus=toy()),
        train=replace(recipe.train, **settings, **lengths, **changes),
        evaluation=scored,
        test=replace(scored, batch=1),
    )


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_masks_are_drawn_inside_of_the_compiled_graph(reference_op: None) -> None:
    torch._dynamo.reset()
    recipe, operators = tiny("ptb-fast"), Counter[str]()

    def note(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        operators.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    model = Model(recipe.model).train()
    forward = CompiledLoss(
        model,
        length=recipe.train.segment,
        recompute=False,
        note=pytest.fail,
        backend=aot_autograd(fw_compiler=note, bw_compiler=note),  # type: ignore[arg-type]
    )
    states = fresh_states(model, recipe.train.batch, 1)
    first, second = (gradients(model, window(recipe, "cpu"), states, forward=forward)[0] for _ in range(2))
    assert first != second
    drawn = sum(count for operator, count in operators.items() if "bernoulli" in operator)
    # Queries, keys, values, projection, inner, feed-forward; words, input, positions, output.
    assert drawn == 6 * recipe.model.num_layers + 4
    assert not [operator for operator in operators if any(name in operator for name in ASKS_THE_DEVICE)]


@pytest.mark.parametrize("name", few(FAST, lambda name: name == "ptb-fast-muon"))
def test_a_fast_run_is_recorded_and_resumes_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "Engine", partial(Engine, recorder=Rerun()))
    wanted = tiny(name)
    run(tmp_path / "whole", of=wanted)
    create_run(wanted, tmp_path / "stopped")
    for step in (5, 9, 10):
        train(tmp_path / "stopped", monitor=Signaller(signal.SIGTERM, step))
    train(tmp_path / "stopped")
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")


def test_replays_draw_new_masks_and_follow_the_rates() -> None:
    recipe = tiny("ptb-fast")
    model = Model(recipe.model).train()
    engine = Engine(model, build_optimizer(model, recipe.train.optimizer), recipe.train, recorder=Rerun())
    states, before = fresh_states(model, recipe.train.batch, 1), copies(model)
    losses = {float(engine.update(window(recipe, "cpu"), states, lr=0.0).loss) for _ in range(3)}
    assert len(losses) == 3 and all(torch.equal(old, new) for old, new in zip(before, copies(model), strict=True))
    engine.update(window(recipe, "cpu"), states, lr=0.01)
    names = [name for name, _ in model.named_parameters()]
    moved = {name: (new - old).abs().max() for name, new, old in zip(names, copies(model), before, strict=True)}
    table = moved.pop("embedding.tables.0")
    assert table > 1.5 * max(moved.values()) > 0


def copies(model: Model) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]
