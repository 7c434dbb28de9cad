from __future__ import annotations

import math

import pytest
import torch

from mnemo.data.streams import Batch, one_epoch, read_on
from mnemo.data.tasks import RecallStream
from mnemo.errors import MnemoError
from mnemo.memory import Plan
from mnemo.memory.xl import XL
from mnemo.model import Model, ModelConfig


def test_a_segment_repeats_what_the_one_before_showed() -> None:
    batches = list(one_epoch(RecallStream(3, 8, num_symbols=5, steps=6)))
    assert len(batches) == 6
    for before, batch in zip(batches, batches[1:], strict=False):
        shown = before.tokens[:, 5:]
        assert torch.equal(batch.tokens[:, 1:4], shown)
        assert torch.equal(batch.targets[:, :3], shown)
        assert (batch.targets[:, 3:] == -1).all()
        assert (batch.tokens[:, 0] == 5).all() and (batch.tokens[:, 4] == 6).all()
        assert batch.starts is None
    first = batches[0]
    assert (first.targets == -1).all() and first.starts is not None and first.starts.all()


def test_symbols_are_fresh_in_every_row_step_epoch_and_seed() -> None:
    def shown(seed: int) -> list[Batch]:
        stream = RecallStream(2, 40, steps=2, seed=seed)
        cursor, found = stream.start(), []
        for _ in range(4):
            batch, cursor = read_on(stream, cursor)
            found.append(batch)
        return found

    rows = [tuple(row) for seed in (0, 1) for batch in shown(seed) for row in batch.tokens[:, 21:].tolist()]
    assert len(set(rows)) == len(rows) == 16


def test_the_cursor_resumes_exactly() -> None:
    stream = RecallStream(2, 8, steps=3, seed=4)
    cursor = stream.start()
    for _ in range(5):
        batch, following = stream.read(cursor)
        again, same_cursor = RecallStream(2, 8, steps=3, seed=4).read(dict(cursor))
        assert following == same_cursor
        assert (batch is None) == (again is None)
        if batch is not None and again is not None:
            assert torch.equal(batch.tokens, again.tokens)
        cursor = following


@pytest.mark.parametrize("bad", [{"segment": 7}, {"segment": 2}, {"num_symbols": 1}, {"steps": 1}, {"batch": 0}])
def test_impossible_tasks_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(MnemoError, match="recall needs"):
        RecallStream(**{"batch": 2, "segment": 8, **bad})


def trained_loss(memory: int, steps: int) -> float:
    """Mean loss in nats of the last 10 steps of training a small model, which ends once that is low."""
    stream = RecallStream(8, 8, num_symbols=4)
    torch.manual_seed(1)
    config = ModelConfig(
        vocab_size=stream.vocab_size,
        num_layers=1,
        dim=32,
        num_heads=2,
        head_dim=16,
        inner_dim=32,
        memory=Plan(long=XL(length=memory)),
    )
    model = Model(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    cursor, state, losses = stream.start(), None, []
    for _ in range(steps):
        batch, cursor = read_on(stream, cursor)
        out, state = model(batch.tokens, state, starts=batch.starts)
        count = (batch.targets >= 0).sum()
        loss = model.loss(out, batch.targets).sum() / count.clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        losses = (losses + [loss.item()] * bool(count))[-10:]
        if sum(losses) / 10 < 0.1 and len(losses) == 10:
            break
    return sum(losses) / len(losses)


def test_memory_solves_the_task_and_without_it_chance_remains() -> None:
    assert trained_loss(memory=8, steps=500) < 0.1
    assert abs(trained_loss(memory=0, steps=80) - math.log(4)) < 0.1
