"""Sessions in the store: turns, eviction to the disk, forks, deletion, and exact continuation after a restart."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.serial_engine import SerialEngine
from helpers.sessions import SEGMENT, random_run

from mnemo.errors import MnemoError
from mnemo.files import tensor_file
from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import leaves
from mnemo.serving import session_folder, session_work
from mnemo.serving.batched_engine import BatchedEngine
from mnemo.serving.engine import Token, WriteJob
from mnemo.serving.session_data import Session
from mnemo.serving.session_errors import (
    SessionBusy,
    SessionError,
    SessionNotFound,
    SessionUnavailable,
    StorageFailed,
    TooManySessions,
)
from mnemo.serving.session_model import RunSessions
from mnemo.serving.store import SessionStore, Turn

SAMPLING = Sampling(0.9, 12, 0.95)


@pytest.fixture(scope="module")
def model() -> Iterator[RunSessions]:
    opened = random_run(dtype=torch.float32)
    engine = SerialEngine(opened.run.model, SEGMENT)
    yield RunSessions("letters", opened, engine)
    engine.close()


class Stores:
    """Stores of one folder, one after the other."""

    def __init__(self, folder: Path, model: RunSessions) -> None:
        self.folder, self.model = folder, model
        self.open: SessionStore | None = None

    def start(self, **limits: Any) -> SessionStore:
        """A store as it is after a kill of the one before."""
        self.kill()
        self.open = SessionStore(self.folder, [self.model], **limits)
        return self.open

    def kill(self) -> None:
        """Give up the lock, as the end of a process does, and save nothing."""
        if self.open is not None:
            self.open._stack.close()
        self.open = None


@pytest.fixture
def stores(tmp_path: Path, model: RunSessions) -> Iterator[Stores]:
    stores = Stores(tmp_path / "store", model)
    yield stores
    stores.kill()


def same(one: Session, other: Session) -> bool:
    return one.facts == other.facts and equal(one.state, other.state)


def equal(one: Any, other: Any) -> bool:
    return all(torch.equal(mine, theirs) for (_, mine), (_, theirs) in zip(leaves(one), leaves(other), strict=True))


def continued(store: SessionStore, session: str) -> tuple[int, ...]:
    """The next tokens of a session, which stays as it is."""
    look = store.look(session)
    return look.write(12, SAMPLING, look.seed, look.draws)


class taken:
    """A turn of a session."""

    def __init__(self, store: SessionStore, session: str) -> None:
        self.turn = store.take_turn(session)

    def __enter__(self) -> Turn:
        return self.turn

    def __exit__(self, *_: object) -> None:
        self.turn.close()


def advance(store: SessionStore, session: str, *ids: int, num_tokens: int = 3) -> None:
    """One request that reads and writes."""
    with taken(store, session) as turn:
        turn.read(ids)
        turn.write(num_tokens, SAMPLING, turn.seed, turn.draws)
        turn.commit()


def used(store: SessionStore) -> str:
    """A session with several requests of all kinds."""
    session = store.create("letters", name="used", seed=5)
    advance(store, session, 1, 2, 3, 4, 5, 6)
    with taken(store, session) as turn:
        turn.set_memory(3, True)
        turn.describe("named", turn.session.facts.created)
        turn.commit()
    advance(store, session, 7, num_tokens=6)
    return session


def logs(store: SessionStore, session: str) -> list[Path]:
    return sorted((store._sessions / session).glob("*.log"))


def test_the_order_of_use_survives_a_kill(stores: Stores) -> None:
    store = stores.start()
    made = [store.create("letters") for _ in range(6)]
    for session in (made[3], made[0]):
        advance(store, session, 1, 2)
    order = store.ids()
    assert order[:2] == [made[0], made[3]] and order[2:] == [made[5], made[4], made[2], made[1]]
    assert stores.start().ids() == order


def test_a_kill_loses_nothing_that_was_committed(stores: Stores) -> None:
    store = stores.start()
    session = used(store)
    before, tokens = store.session(session), continued(store, session)
    again = stores.start()
    assert not again.is_in_memory(session)
    assert same(again.session(session), before)
    assert continued(again, session) == tokens


def test_facts_are_known_before_a_session_is_loaded(stores: Stores) -> None:
    store = stores.start()
    session = used(store)
    whole, outline = store.facts(session), stores.start().facts(session)
    for name in ("tokens", "seed", "draws", "name", "lengths", "memory_on", "records", "changed"):
        assert getattr(outline, name) == getattr(whole, name), name


def test_changes_without_commit_are_dropped(stores: Stores) -> None:
    store = stores.start()
    session = used(store)
    before = store.session(session)
    with taken(store, session) as turn:
        turn.read([1, 2, 3])
    assert same(store.session(session), before)
    assert same(stores.start().session(session), before)


def test_a_session_has_one_writer_at_a_time(stores: Stores) -> None:
    store = stores.start()
    session = used(store)
    with taken(store, session):
        with pytest.raises(SessionBusy, match="is busy: another request is changing it"):
            store.take_turn(session)
        with pytest.raises(SessionBusy):
            store.delete(session)
        assert store.is_busy(session)
        forked = store.fork(session)
        assert len(continued(store, session)) == 12
    advance(store, session, 1)
    advance(store, forked, 1)
    assert not store.is_busy(session)


def test_sessions_that_do_not_fit_go_to_disk(stores: Stores, model: RunSessions) -> None:
    whole = stores.start()
    store = stores.start(memory_bytes=2 * model.nbytes(whole.session(used(whole)).state) + 10)
    sessions = [used(store) for _ in range(5)]
    in_memory = [store.is_in_memory(session) for session in sessions]
    assert in_memory[:3] == [False] * 3 and in_memory[-1]
    states = [store.session(session) for session in sessions]
    for session, before in zip(sessions, states, strict=True):
        assert same(store.session(session), before)
        advance(store, session, 3)
    again = [store.session(session) for session in sessions]
    assert all(same(stores.start().session(session), before) for session, before in zip(sessions, again, strict=True))


def test_a_snapshot_starts_the_log_again(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_folder, "SNAPSHOT_TOKENS", 20)
    store = stores.start()
    session = used(store)
    first = logs(store, session)
    for _ in range(30):
        advance(store, session, 1, 2)
    assert logs(store, session)[0] > first[-1] and len(list((store._sessions / session).iterdir())) == 6
    assert sum(path.stat().st_size for path in logs(store, session)) < 10_000
    before = store.session(session)
    assert same(stores.start().session(session), before)


def test_a_long_text_is_not_logged(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_work, "LOGGED_TOKENS", 30)
    store = stores.start()
    session = used(store)
    advance(store, session, *[1, 2, 3] * 11)
    advance(store, session, 4)
    assert max(path.stat().st_size for path in logs(store, session)) < 1000
    before = store.session(session)
    newest = max((store._sessions / session).glob("*.memory"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    assert same(stores.start().session(session), before), "there are two copies"


@pytest.mark.parametrize("tail", [b"xxh3", b"\0" * 700, b"half"])
def test_an_incomplete_end_of_the_log_is_dropped(tail: bytes, stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    store = stores.start()
    session = used(store)
    before = store.session(session)
    log = logs(store, session)[-1]
    data = log.read_bytes()
    log.write_bytes(data + (data[:100] if tail == b"half" else tail))
    again = stores.start()
    assert same(again.session(session), before)
    assert "of its log are incomplete or damaged, and are dropped" in caplog.text
    advance(again, session, 9)
    after = again.session(session)
    assert same(stores.start().session(session), after)


@pytest.mark.parametrize("suffix", [".memory", ".json"])
def test_a_damaged_snapshot(suffix: str, stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    """The one before it, and the logs of both, give the same session."""
    store = stores.start()
    session = used(store)
    store.shut_down()
    store = stores.start()
    advance(store, session, 8, 9)
    before = store.session(session)
    newest = max((store._sessions / session).glob(f"*{suffix}"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 8
    newest.write_bytes(data)
    again = stores.start()
    assert same(again.session(session), before)
    assert "is not used" in caplog.text
    advance(again, session, 9)
    after = again.session(session)
    assert same(stores.start().session(session), after)


def test_a_session_without_whole_files_is_left_alone(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    store = stores.start()
    lost, kept = used(store), used(store)
    for path in (store._sessions / lost).glob("*.json"):
        path.write_text("{")
    again = stores.start()
    assert again.ids() == [kept] and f"session {lost} is left out" in caplog.text
    assert (again._sessions / lost).is_dir()


def test_delete(stores: Stores) -> None:
    store = stores.start()
    session, other = used(store), used(store)
    store.delete(session)
    for attempt in (store.delete, store.session, store.take_turn, store.fork):
        with pytest.raises(SessionNotFound):
            attempt(session)
    assert stores.start().ids() == [other]


def test_forks_are_independent(stores: Stores) -> None:
    store = stores.start()
    session = used(store)
    twin, other = store.fork(session), store.fork(session, name="other", seed=77)
    assert continued(store, twin) == continued(store, session) != continued(store, other)
    store.delete(session)
    advance(store, twin, 1)
    before = [store.session(each) for each in (twin, other)]
    again = stores.start()
    assert [same(again.session(each), wanted) for each, wanted in zip((twin, other), before, strict=True)] == [True] * 2
    assert again.facts(other).name == "other" and again.facts(other).seed == 77


def test_a_full_disk_keeps_the_session(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.start()
    session = used(store)
    before = store.session(session)
    full, write = OSError(errno.ENOSPC, "No space left on device"), os.pwrite

    def half(handle: int, data: bytes, place: int) -> int:
        write(handle, data[:10], place)
        raise full

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(StorageFailed, match=r"was not kept: cannot write to the disk \(No space left on device\)"):
        advance(store, session, 1, 2)
    monkeypatch.undo()
    assert same(store.session(session), before)
    advance(store, session, 3)
    after = store.session(session)
    assert same(stores.start().session(session), after)


def test_a_full_disk_after_a_long_text(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is kept; neither are new sessions and forks."""
    monkeypatch.setattr(session_work, "LOGGED_TOKENS", 30)
    store = stores.start()
    session = used(store)
    before, count = store.session(session), store.count()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensor_file, "save_file", fail)
        with pytest.raises(StorageFailed, match="No space left"):
            advance(store, session, *[1] * 40)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for attempt in (lambda: store.create("letters"), lambda: store.fork(session), lambda: store.delete(session)):
            with pytest.raises(StorageFailed, match="No space left"):
                attempt()
    assert same(store.session(session), before) and store.count() == count
    advance(store, session, 1)
    after = store.session(session)
    again = stores.start()
    assert same(again.session(session), after) and again.count() == count


def test_two_servers_never_use_one_folder(stores: Stores, model: RunSessions) -> None:
    stores.start()
    with pytest.raises(MnemoError, match="another server uses the sessions in .*store: stop it"):
        SessionStore(stores.folder, [model])


def test_sessions_of_other_models(stores: Stores, model: RunSessions) -> None:
    store = stores.start()
    session = used(store)
    stores.kill()
    opened = random_run(seed=1, dtype=torch.float32)
    retrained = RunSessions("letters", opened, model.engine)
    for served, message in (([], "which is not served at present"), ([retrained], "of other weights than 'letters'")):
        other = SessionStore(stores.folder, served)
        problem = other.problem(session)
        assert problem is not None and message in problem and other.ids() == [session]
        with pytest.raises(SessionUnavailable, match=message):
            other.take_turn(session)
        other._stack.close()
    assert stores.start().problem(session) is None
    with pytest.raises(SessionUnavailable, match="is of the model 'letters', not 'words'"):
        stores.start().take_turn(session, "words")


def test_limits(stores: Stores, model: RunSessions) -> None:
    store = stores.start(most_sessions=1)
    session = store.create("letters")
    for attempt in (lambda: store.create("letters"), lambda: store.fork(session)):
        with pytest.raises(TooManySessions, match="there are 1 sessions, the most that are allowed"):
            attempt()
    with pytest.raises(SessionError, match="at most 200 characters, all of them printable"):
        stores.start().create("letters", name="two\nlines")
    with pytest.raises(MnemoError, match="unknown model 'letter'; did you mean 'letters'"):
        stores.start().create("letter")
    with pytest.raises(SessionError, match="more than the 10 B that this server has for all sessions"):
        stores.start(memory_bytes=10).create("letters")
    session = stores.start().create("letters")
    with pytest.raises(SessionError, match="this memory needs .* more than the 1 GiB"):
        stores.start().create("letters", memory_length=1 << 40)
    with pytest.raises(SessionError, match="this memory needs"), taken(stores.start(), session) as turn:
        turn.change_memory(1 << 40, True)
    with pytest.raises(MnemoError, match="memory length -1 is negative"):
        stores.start().create("letters", memory_length=-1)


@pytest.mark.parametrize("on", [True, False])
def test_shut_down_saves_everything(on: bool, stores: Stores) -> None:
    store = stores.start()
    session = used(store)
    with taken(store, session) as turn:
        turn.set_memory(None, on)
        turn.commit()
    advance(store, session, 1, 2, 3, num_tokens=7)
    before = store.session(session)
    store.shut_down()
    assert logs(store, session)[-1].stat().st_size == 0
    assert same(stores.start().session(session), before)


def test_a_session_does_not_depend_on_other_texts(stores: Stores) -> None:
    """Texts that are written in the same steps change a state by rounding; a session keeps nothing of that."""
    opened, states, written = random_run(), [], []
    for others in (0, 3):
        engine = BatchedEngine(opened.run.model, SEGMENT, rows=4)
        model = RunSessions("letters", opened, engine)
        store = SessionStore(stores.folder / str(others), [model])
        session = store.create("letters", seed=5)
        with taken(store, session) as turn:
            turn.read(range(9))
            jobs = [
                WriteJob(state=turn.state, num_tokens=40, sampling=SAMPLING, seed=seed) for seed in range(others + 1)
            ]
            handles = [engine.submit(job) for job in jobs]
            ids = [event.id for event in handles[0].events() if isinstance(event, Token)]
            turn.take_written(ids, seed=0, draws=40)
            turn.commit()
        states.append(store.session(session).state)
        written.append(handles[0].result().state)
        store.shut_down()
        engine.close()
    assert not equal(*written) and equal(*states)
