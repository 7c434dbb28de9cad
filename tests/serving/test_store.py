"""Sessions in the store: turns, eviction to the disk, forks, deletion, and exact continuation after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.sessions import SEGMENT, random_run

from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import leaves
from mnemo.serving.serial_engine import SerialEngine
from mnemo.serving.session_data import Session
from mnemo.serving.session_model import RunSessions
from mnemo.serving.store import SessionStore

SAMPLING = Sampling(0.9, 12, 0.95)


@pytest.fixture
def model() -> Iterator[RunSessions]:
    opened = random_run()
    engine = SerialEngine(opened.run.model, SEGMENT)
    yield RunSessions("letters", opened, engine)
    engine.close()


def assert_same(one: Session, other: Session) -> None:
    assert one.facts == other.facts
    for (name, mine), (_, theirs) in zip(leaves(one.state), leaves(other.state), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_restart_gives_the_same_session(model: RunSessions, tmp_path: Path) -> None:
    store = SessionStore(tmp_path, [model])
    name = store.create("letters", name="mine", seed=5)
    turn = store.take_turn(name)
    turn.read([1, 2, 3, 4, 5, 6])
    turn.write(7, SAMPLING, turn.seed, turn.draws)
    turn.commit()
    turn.read([7])
    turn.set_memory(3, True)
    turn.commit()
    before = store.session(name)
    turn.close()
    store._stack.close()
    again = SessionStore(tmp_path, [model])
    assert_same(again.session(name), before)
