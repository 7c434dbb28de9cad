"""Training through several segments: windows by hand, and exact resume in the middle of one."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tolerances import assert_close
from helpers.toy_runs import exact, metrics, recipe, run
from torch import Tensor

from mnemo.data.prepare import load
from mnemo.data.streams import Batch, read_on
from mnemo.data.tasks import RecallStream
from mnemo.errors import MnemoError
from mnemo.memory import XL, MemoryTokens, Plan
from mnemo.memory.state import State, detach
from mnemo.model import InitConfig, Model, ModelConfig
from mnemo.recipes.recipe import OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.storage import run_folder
from mnemo.storage.run_folder import open_run
from mnemo.training import Status, Unwatched, create_run, train
from mnemo.training.data import build_stream
from mnemo.training.update_input import UpdateInput, after_update, next_batches
from mnemo.training.weight_update import fresh_states, update

TOKENS = MemoryTokens(num=2)
SGD = {"optimizer": OptimizerConfig(kind="sgd", lr=0.5, clip=None), "schedule": ScheduleConfig(kind="constant")}


def batches(of: Recipe) -> Iterator[Batch]:
    corpus = load(of.data.corpus)
    stream = build_stream(of, corpus.split("train"), corpus)
    cursor = stream.start()
    while True:
        batch, cursor = read_on(stream, cursor)
        yield batch


def unroll(model: Model, window: list[Batch], state: State) -> tuple[list[Tensor], list[State]]:
    """Mean losses of the segments, and the states after them."""
    losses, states = [], []
    for batch in window:
        out, state = model(batch.tokens, state, lengths=batch.lengths, starts=batch.starts)
        losses.append(model.loss(out, batch.targets).mean())
        states.append(state)
    return losses, states


def by_hand(of: Recipe) -> Model:
    """The same updates, written out."""
    config, stream = of.train, batches(of)
    torch.manual_seed(config.seed)
    model = Model(of.model).double()
    past: list[Batch] = []
    state = last = model.init(config.batch)
    for _ in range(config.steps):
        if config.bptt_window == "tumbling":
            window = [next(stream) for _ in range(config.bptt + 1)]
        else:
            window = [*past, next(stream)]
        losses, states = unroll(model, window, detach(state))
        loss = torch.stack(losses).mean() if scores_all(config) else losses[-1]
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            parameter.data -= 0.5 * gradient
        if config.bptt_window == "tumbling":
            state = states[-1]
        else:
            state = states[0] if len(window) > config.bptt else state
            past = window[1:] if len(window) > config.bptt else window
        last = states[-1]
        if config.bptt_stale:
            state = state._replace(memory=last.memory, started=last.started)
    return model


def scores_all(config: TrainConfig) -> bool:
    return config.bptt_loss == "all" or (config.bptt_loss == "new" and config.bptt_window == "tumbling")


@pytest.mark.parametrize(
    "window",
    [
        {"bptt": 2},
        {"bptt": 2, "bptt_loss": "all", "bptt_memory": "replay"},
        {"bptt": 1, "bptt_stale": True, "bptt_memory": "checkpoint"},
        {"bptt": 1, "bptt_window": "tumbling", "bptt_memory": "replay"},
        {"bptt": 2, "bptt_window": "tumbling", "bptt_loss": "last"},
        {"bptt": 0},
    ],
    ids=["sliding", "sliding-all", "stale", "tumbling", "tumbling-last", "none"],
)
def test_updates_by_hand(window: dict[str, Any], tmp_path: Path) -> None:
    changes = exact(**SGD, **window, steps=5, accumulate=1, eval_every=5, checkpoint_every=5)
    changes["model"] |= {"tokens": TOKENS, "memory": Plan(long=XL(length=3))}
    run(tmp_path / "run", of=recipe(**changes))
    trained = open_run(tmp_path / "run", "last", "cpu")
    ours, expected = trained.model.state_dict(), by_hand(trained.recipe).state_dict()
    for name, weight in expected.items():
        assert_close(ours[name], weight, msg=lambda text, name=name: f"{name}: {text}")


class Stopper(Unwatched):
    """Asks to stop at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def trained(self, status: Status) -> None:
        if status.step == self.step:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    "window",
    [
        {"bptt": 2, "accumulate": 2, "bptt_memory": "replay", "data": {"documents": "reset"}},
        {"bptt": 1, "bptt_stale": True, "bptt_memory": "checkpoint"},
        pytest.param({"bptt": 1, "bptt_window": "tumbling"}, marks=pytest.mark.thorough),
    ],
    ids=["sliding", "stale", "tumbling"],
)
def test_a_run_resumes_exactly_in_the_middle_of_a_window(window: dict[str, Any], tmp_path: Path) -> None:
    wanted = recipe(model={"tokens": TOKENS}, steps=7, log_every=1, eval_every=7, **window)
    run(tmp_path / "whole", of=wanted)
    outcome = run(tmp_path / "stopped", of=wanted, monitor=Stopper(4))
    assert outcome.step == 4
    train(tmp_path / "stopped")
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    saved = [run_folder.last_checkpoint(tmp_path / name) for name in ("stopped", "whole")]
    ours, expected = [found.tensors("memory") for found in saved if found is not None]
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_windows_need_a_memory_that_carries_gradient(tmp_path: Path) -> None:
    for tokens in (None, MemoryTokens(num=2, write=False), MemoryTokens(num=0)):
        with pytest.raises(MnemoError, match="bptt 2 needs memory tokens"):
            create_run(recipe(model={"tokens": tokens}, bptt=2), tmp_path / "run")
    none = Plan(long=XL(length=0))
    with pytest.raises(MnemoError, match="memory tokens"):
        create_run(recipe(model={"tokens": TOKENS, "memory": none}, context=3), tmp_path / "run")
    with pytest.raises(ValueError, match="negative"):
        TrainConfig(bptt=-1)
    with pytest.raises(ValueError, match="sliding"):
        TrainConfig(bptt_window="tumbling", bptt_stale=True)


def last_losses(bptt: int, steps: int = 120) -> float:
    """Train on text whose answers lie in the segment before; the mean loss of the last updates."""
    stream = RecallStream(16, 6, num_symbols=4, steps=64)
    config = TrainConfig(batch=16, segment=6, bptt=bptt, bptt_memory="replay")
    torch.manual_seed(0)
    model = Model(
        ModelConfig(
            vocab_size=stream.vocab_size,
            num_layers=2,
            dim=48,
            inner_dim=96,
            norm="pre",
            final_norm=True,
            memory=Plan(long=XL(length=0)),
            tokens=MemoryTokens(num=4, std=0.5),
            init=InitConfig(std=0.1),
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    states, past, cursor, losses = fresh_states(model, 16, 1), (), stream.start(), []
    for _ in range(steps):
        batches, begins, cursor = next_batches(stream, cursor, past, config)
        done = update(model, optimizer, UpdateInput.of(batches, len(past), config), states, clip=1.0)
        states, past = after_update(states, done.borders, begins, config)
        losses.append(float(done.loss))
    return sum(losses[-20:]) / 20


@pytest.mark.thorough
def test_what_lies_a_segment_back_is_learned_only_with_gradient_from_there() -> None:
    chance = math.log(4)
    assert last_losses(bptt=1) < 0.25 * chance
    assert last_losses(bptt=0, steps=60) > 0.9 * chance
