"""After a power failure at any moment, every session has all requests that were answered."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.power_loss import Crash, Recorder, states
from helpers.serial_engine import SerialEngine
from helpers.sessions import SEGMENT, random_run

from mnemo.files import atomic
from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import leaves
from mnemo.serving import session_folder, session_work
from mnemo.serving.session_data import Session
from mnemo.serving.session_model import RunSessions
from mnemo.serving.store import SessionStore

LOADED = 25
"""Crashes after which the states are computed as well."""


@pytest.fixture(scope="module")
def model() -> Iterator[RunSessions]:
    opened = random_run()
    engine = SerialEngine(opened.run.model, SEGMENT)
    yield RunSessions("letters", opened, engine)
    engine.close()


class Recorded:
    """A store in use, with a mark of each session's facts after every request."""

    def __init__(self, root: Path, model: RunSessions) -> None:
        self.recorder, self.sessions = Recorder(root), dict[tuple[str, int], Session]()
        with self.recorder.recording(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_folder, "SNAPSHOT_TOKENS", 12)
            patch.setattr(session_work, "LOGGED_TOKENS", 9)
            self.store = SessionStore(root / "store", [model])
            self._use()
            self.store._stack.close()

    def _use(self) -> None:
        first = self._made(self.store.create("letters", seed=1))
        for count in (3, 5, 20, 2):
            self._advance(first, count)
        forked = self._made(self.store.fork(first, seed=2))
        self._advance(forked, 4)
        self._advance(first, 6)
        self.deleted = first
        self.store.delete(first)
        self.recorder.mark((first, None))
        self._advance(forked, 7)

    def _made(self, session: str) -> str:
        self._mark(session)
        return session

    def _advance(self, session: str, count: int) -> None:
        turn = self.store.take_turn(session)
        turn.read(range(count))
        turn.write(3, Sampling(), turn.seed, turn.draws)
        turn.commit()
        self._mark(session)
        turn.close()

    def _mark(self, session: str) -> None:
        found = self.store.session(session)
        self.sessions[session, found.facts.records] = found
        self.recorder.mark((session, found.facts.records))


@pytest.fixture(scope="module")
def recorded(model: RunSessions, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("disk"), model)


@pytest.fixture(scope="module")
def crashes(recorded: Recorded) -> list[Crash]:
    found = states(recorded.recorder.events, lambda path: atomic.PREFIX in path or path.endswith("lock"))
    return [crash for crash in found if crash.marks]


def promised(crash: Crash) -> dict[str, int | None]:
    """Requests of each session that were answered; None for a deleted one."""
    return dict(crash.marks)


def test_no_answered_request_is_lost(crashes: list[Crash], recorded: Recorded, tmp_path: Path, model: Any) -> None:
    assert len(crashes) > 100
    loaded = set(random.Random(0).sample(range(len(crashes)), LOADED))
    for number, crash in enumerate(crashes):
        root = tmp_path / str(number)
        root.mkdir()
        crash.build(root)
        store = SessionStore(root / "store", [model])
        for session, records in promised(crash).items():
            check(store, session, records, recorded, number in loaded)
        store._stack.close()


def check(store: SessionStore, session: str, records: int | None, recorded: Recorded, is_loaded: bool) -> None:
    if records is None:
        assert session not in store.ids(), "a deleted session has come back"
        return
    last = max(number for each, number in recorded.sessions if each == session)
    if session not in store.ids():
        assert (records, session) == (last, recorded.deleted), f"{session} is lost"
        return
    found = store.facts(session).records
    assert found in (records, records + 1), f"{session}: {found} requests, {records} were answered"
    if is_loaded:
        wanted, session_found = recorded.sessions[session, found], store.session(session)
        assert wanted.facts == session_found.facts
        for (name, mine), (_, theirs) in zip(leaves(wanted.state), leaves(session_found.state), strict=True):
            assert mine.equal(theirs), name
