"""Sessions by id: in memory and on disk, one request at a time for each, and none lost by a kill.

    FOLDER/lock              held by the server that uses the folder
    FOLDER/sessions/ID/      see `mnemo.serving.session_folder`
    FOLDER/uploads/          files of requests that are running; emptied at the start

A request takes a turn on a session, computes with `turn.engine`, and ends with `advance` or `commit`, which returns
when the session's log is on the disk. Without that, the session is left as it was. States of sessions that were not
used for the longest time are dropped from memory when they need more than `memory_bytes`, and are loaded again on use.

    async with store.turn(session_id) as turn:
        handle = turn.engine.submit(ReadJob(state=turn.state, ids=[...]))
        ...
        turn.take_read(...)
        turn.commit()
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError, shorten, unknown
from mnemo.files import atomic
from mnemo.serving.draws import LARGEST_SEED
from mnemo.serving.session_data import Described, Facts, Record, Session, outlined
from mnemo.serving.session_errors import (
    SessionBusy,
    SessionError,
    SessionNotFound,
    SessionUnavailable,
    TooManySessions,
    storage_errors,
)
from mnemo.serving.session_folder import SessionFolder, save_state
from mnemo.serving.session_model import Lengths, SessionModel
from mnemo.serving.session_work import Work
from mnemo.serving.settings import Settings
from mnemo.storage.run_folder import locked
from mnemo.units import size_text

LONGEST_NAME = 200
_notes = logging.getLogger("mnemo.serving")


class Entry:
    """One session of the store. `lock` protects its fields, and is held while its files are written or loaded."""

    def __init__(self, session_id: str, folder: SessionFolder, facts: Facts) -> None:
        self.id, self.folder, self.facts = session_id, folder, facts
        self.state: Any = None
        """None: on disk only"""
        self.nbytes = 0
        self.is_busy = self.is_deleted = False
        self.lock = threading.RLock()


class SessionStore:
    """`models`: those that are served. Every method may be called from any thread, and may wait for the disk."""

    def __init__(
        self,
        folder: Path,
        models: Iterable[SessionModel],
        *,
        memory_bytes: int = Settings.session_memory_bytes,
        most_sessions: int = Settings.max_sessions,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.memory_bytes, self.most_sessions = memory_bytes, most_sessions
        self._sessions, self.uploads = folder / "sessions", folder / "uploads"
        atomic.make_folder(self._sessions)
        self._stack = ExitStack()
        folder.chmod(0o700)  # texts of users
        try:
            self._stack.enter_context(locked(folder))
        except MnemoError:
            raise MnemoError(f"another server uses the sessions in {folder}: stop it, or use another folder") from None
        shutil.rmtree(self.uploads, ignore_errors=True)
        self.uploads.mkdir()
        self._lock = threading.RLock()
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        """Least recently used first"""
        found = [entry for path in sorted(self._sessions.iterdir()) if (entry := self._found(path)) is not None]
        self._entries.update((entry.id, entry) for entry in sorted(found, key=lambda entry: entry.facts.changed))

    def _found(self, path: Path) -> Entry | None:
        """A session that an earlier process has left; None if it is incomplete or damaged."""
        if path.name.startswith(atomic.PREFIX):
            shutil.rmtree(path, ignore_errors=True)
            return None
        try:
            folder = SessionFolder.open(path)
            return Entry(path.name, folder, folder.outline())
        except (MnemoError, OSError) as error:
            _notes.warning(f"mnemo: note: session {path.name} is left out: {error}")
            return None

    def count(self) -> int:
        """Number of sessions."""
        return len(self._entries)

    def ids(self) -> list[str]:
        """Ids of all sessions, the one used last first."""
        with self._lock:
            return list(reversed(self._entries))

    def facts(self, session_id: str) -> Facts:
        """The facts of a session as of its last request that is complete.

        `tail` and `open` are those of its last snapshot unless the session is in memory.
        """
        return self._entry(session_id).facts

    def is_busy(self, session_id: str) -> bool:
        return self._entry(session_id).is_busy

    def is_in_memory(self, session_id: str) -> bool:
        return self._entry(session_id).state is not None

    def problem(self, session_id: str) -> str | None:
        """Why a session cannot be used at present; None if it can."""
        try:
            self._model_of(self._entry(session_id))
        except SessionUnavailable as error:
            return str(error)
        return None

    def model_of(self, session_id: str) -> SessionModel:
        """The model of a session. Raises `SessionUnavailable` if it is not served, or has other weights now."""
        return self._model_of(self._entry(session_id))

    def session(self, session_id: str) -> Session:
        """A session after its last request that is complete, also while another request is changing it."""
        entry = self._entry(session_id)
        session = self._loaded(entry)
        self._used(entry)
        return session

    def create(
        self,
        model_name: str,
        *,
        name: str = "",
        seed: int | None = None,
        memory_length: int | None = None,
        memory_on: bool = True,
        memory_file: Path | None = None,
    ) -> str:
        """Make a session, empty or from a memory file, and return its id; `seed`: None takes a random one."""
        if model_name not in self.models:
            raise unknown("model", model_name, self.models)
        model, now = self.models[model_name], time.time()
        facts = Facts(
            model=model_name,
            fingerprint=model.fingerprint,
            name=checked_name(name),
            created=now,
            changed=now,
            seed=checked_seed(seed),
        )
        if memory_file is None:
            work = Work(model, Session(facts, None))
            self.require_room(model.state_bytes(memory_length))
            work.set_memory(memory_length, memory_on)
            session = work.session
        else:
            session = loaded_session(facts, model, memory_file)
        with self._new_id() as (session_id, path):
            folder = SessionFolder.create(path, session, model)
            self._add(session_id, folder, session, model)
        return session_id

    def require_room(self, size: int) -> None:
        """Refuse a state that alone is larger than the memory of all sessions."""
        if size > self.memory_bytes:
            raise SessionError(
                f"this memory needs {size_text(size)}: more than the {size_text(self.memory_bytes)} that this server "
                "has for all sessions"
            )

    def save_memory(self, session_id: str, path: Path) -> None:
        """Write a memory file of a session, which `create` and `mnemo generate --memory` continue from."""
        facts, state = self.session(session_id)
        if not facts.tokens:
            raise SessionError("there is nothing to save: no text has been read yet")
        with storage_errors():
            save_state(self.model_of(session_id), path, state)

    def fork(self, session_id: str, *, name: str | None = None, seed: int | None = None) -> str:
        """Copy a session, and return the copy's id; `seed`: other random numbers, None: the same ones go on."""
        entry, now = self._entry(session_id), time.time()
        with self._new_id() as (fork_id, path), entry.lock:
            facts = self._existing(entry).facts
            change = Described(
                name=facts.name if name is None else checked_name(name),
                created=now,
                seed=None if seed is None else checked_seed(seed),
            )
            record = Record(number=facts.records + 1, time=now, operations=(change,))
            forked = Entry(fork_id, entry.folder.fork(path, record), outlined(facts, record))
            forked.state, forked.nbytes = entry.state, entry.nbytes
        with self._lock:
            self._entries[fork_id] = forked
        return fork_id

    def delete(self, session_id: str) -> None:
        """Remove a session for ever; it does not come back after a kill when this returns."""
        entry = self._entry(session_id)
        with entry.lock:
            if self._existing(entry).is_busy:
                raise SessionBusy(session_id)
            with storage_errors():
                atomic.remove_folder(entry.folder.path)
            entry.is_deleted, entry.state = True, None
        with self._lock:
            del self._entries[session_id]

    @asynccontextmanager
    async def turn(self, session_id: str, model_name: str | None = None, fork: bool = False) -> AsyncIterator[Turn]:
        """The only right to change a session, for one request. `fork`: only look at it, also while it is busy.

        Raises `SessionNotFound`, `SessionBusy`, and `SessionUnavailable`, also for a session of another model.
        """
        # A thread that loads the session is not interrupted by a client that disconnects: its turn must be given back.
        take = self.look if fork else self.take_turn
        taking = asyncio.ensure_future(asyncio.to_thread(take, session_id, model_name))
        try:
            turn = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(lambda done: done.exception() or done.result().close())
            raise
        try:
            yield turn
        finally:
            closing = asyncio.ensure_future(asyncio.to_thread(turn.close))
            await asyncio.shield(closing)

    def take_turn(self, session_id: str, model_name: str | None = None) -> Turn:
        """As `turn`, for threads: the caller closes it."""
        entry = self._entry_of(session_id, model_name)
        with entry.lock:
            if self._existing(entry).is_busy:
                raise SessionBusy(session_id)
            entry.is_busy = True
        try:
            turn = Turn(self, entry, self._model_of(entry), self._loaded(entry))
        except BaseException:
            entry.is_busy = False
            raise
        self._used(entry)
        return turn

    def look(self, session_id: str, model_name: str | None = None) -> Turn:
        """A copy of a session to continue from, which leaves the session as it is."""
        entry = self._entry_of(session_id, model_name)
        self._used(entry)
        return Turn(None, entry, self._model_of(entry), self._loaded(entry))

    def _entry_of(self, session_id: str, model_name: str | None) -> Entry:
        entry = self._entry(session_id)
        if model_name not in (None, entry.facts.model):
            raise SessionUnavailable(f"session {session_id} is of the model '{entry.facts.model}', not '{model_name}'")
        return entry

    async def close(self) -> None:
        """As `shut_down`, for an event loop."""
        await asyncio.to_thread(self.shut_down)

    def shut_down(self) -> None:
        """Write snapshots of the sessions in memory, so that the next start computes nothing; give up the folder."""
        for entry in list(self._entries.values()):
            with entry.lock:
                self._write_snapshot(entry)
        self._stack.close()

    def finish(self, entry: Entry) -> None:
        """End a turn: write a snapshot if one is due, and let other requests in."""
        with entry.lock:
            entry.is_busy = False
            if entry.folder.snapshot_is_due and not entry.is_deleted:
                self._write_snapshot(entry)
        self._used(entry)

    def keep(self, entry: Entry, session: Session, model: SessionModel) -> None:
        """Continue from this session in memory; its files are written."""
        with entry.lock:
            entry.facts, entry.state, entry.nbytes = session.facts, session.state, model.nbytes(session.state)

    def _write_snapshot(self, entry: Entry) -> None:
        """Save a session that is in memory, if it has changed since the last snapshot; the log still has it if not."""
        if entry.state is None or not entry.folder.log_records or entry.is_deleted:
            return
        try:
            entry.folder.write_snapshot(Session(entry.facts, entry.state), self._model_of(entry))
        except SessionError as error:
            _notes.warning(f"mnemo: note: no snapshot of session {entry.id}: {error}")

    def _entry(self, session_id: str) -> Entry:
        with self._lock:
            if session_id not in self._entries:
                raise SessionNotFound(session_id)
            return self._entries[session_id]

    def _existing(self, entry: Entry) -> Entry:
        if entry.is_deleted:
            raise SessionNotFound(entry.id)
        return entry

    def _model_of(self, entry: Entry) -> SessionModel:
        name = entry.facts.model
        if name not in self.models:
            raise SessionUnavailable(f"session {entry.id} is of the model '{name}', which is not served at present")
        if self.models[name].fingerprint != entry.facts.fingerprint:
            raise SessionUnavailable(f"session {entry.id} is of other weights than '{name}' has now")
        return self.models[name]

    def _loaded(self, entry: Entry) -> Session:
        with entry.lock:
            if self._existing(entry).state is None:
                model = self._model_of(entry)
                self.keep(entry, entry.folder.load(model), model)
            return Session(entry.facts, entry.state)

    def _used(self, entry: Entry) -> None:
        """Count a session as the one used last, and drop states that do not fit."""
        with self._lock:
            if entry.id in self._entries:
                self._entries.move_to_end(entry.id)
            candidates = [each for each in self._entries.values() if each.state is not None]
        sizes = {id(each.state): each.nbytes for each in candidates}  # forks share a state
        for each in candidates:
            if sum(sizes.values()) <= self.memory_bytes:
                return
            sizes.pop(id(self._dropped(each)), None)

    def _dropped(self, entry: Entry) -> Any:
        """Write a session to the disk and drop its state from memory, unless it is busy; return that state."""
        with entry.lock:
            if entry.is_busy:
                return None
            self._write_snapshot(entry)
            state, entry.state = entry.state, None
            return state

    @contextmanager
    def _new_id(self) -> Iterator[tuple[str, Path]]:
        if len(self._entries) >= self.most_sessions:
            raise TooManySessions(f"there are {self.most_sessions:,} sessions, the most that are allowed: delete some")
        session_id = f"session-{secrets.token_hex(8)}"
        yield session_id, self._sessions / session_id

    def _add(self, session_id: str, folder: SessionFolder, session: Session, model: SessionModel) -> None:
        entry = Entry(session_id, folder, session.facts)
        self.keep(entry, session, model)
        with self._lock:
            self._entries[session_id] = entry
        self._used(entry)


class Turn(Work):
    """A session while one request changes it. `commit` makes the changes last; without it they are dropped.

    `store`: None for a copy that is never committed.
    """

    def __init__(self, store: SessionStore | None, entry: Entry, model: SessionModel, session: Session) -> None:
        super().__init__(model, session)
        self._store, self._entry = store, entry
        self.id = entry.id

    @property
    def tail(self) -> tuple[int, ...]:
        """The last tokens; the decoder of the next text needs them."""
        return self.session.facts.tail

    @property
    def tokens(self) -> int:
        """Tokens read and written so far."""
        return self.session.facts.tokens

    @property
    def seed(self) -> int:
        return self.session.facts.seed

    @property
    def draws(self) -> int:
        """Random numbers of the seed that are used up."""
        return self.session.facts.draws

    def change_memory(self, length: Lengths, on: bool) -> None:
        """As `set_memory`, for a length that a client has chosen."""
        assert self._store is not None, "a copy of a session is not changed"
        self._store.require_room(self.model.state_bytes(length))
        self.set_memory(length, on)

    def load(self, path: Path) -> None:
        """Continue from a memory file; name and random numbers stay."""
        self.session, self.is_logged = loaded_session(self.session.facts, self.model, path), False

    async def advance(self, *, read: Sequence[int], state: Any, written: Sequence[int], seed: int, draws: int) -> None:
        """Move the session forward by tokens that were read, then by tokens that were written, and make that last.

        `state`: between the two; `draws`: random numbers of the seed that are used up after both.
        """
        if read:
            self.take_read(self.noted_ids(read), state)
        self.take_written(written, seed=seed, draws=draws)
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self.commit)))

    def commit(self) -> Facts:
        """Log the changes; they survive a kill when this returns. After an error the session is as it was."""
        assert self._store is not None, "a copy of a session is not committed"
        self.settle()
        with self._entry.lock:
            number, now = self.session.facts.records + 1, time.time()
            session = self.session._replace(facts=replace(self.session.facts, records=number, changed=now))
            if self.is_logged:
                self._entry.folder.append(Record(number=number, time=now, operations=tuple(self.operations)))
            else:
                self._entry.folder.write_unlogged(session, self.model)
            self._store.keep(self._entry, session, self.model)
        self.session, self.operations, self.is_logged = session, [], True
        return session.facts

    def close(self) -> None:
        """Drop changes that were not committed, and let other requests in."""
        if self._store is not None:
            self._store.finish(self._entry)


def loaded_session(facts: Facts, model: SessionModel, path: Path) -> Session:
    """A session after the text of a memory file."""
    try:
        state, tokens, lengths = model.load(path)
    except MnemoError as error:
        raise SessionError(str(error).replace(str(path), "the memory file")) from None
    opened = None if model.num_open(state) else ()
    facts = replace(facts, tokens=tokens, tail=(), open=opened, lengths=lengths, memory_on=True)
    return Session(facts, state)


def checked_name(name: str) -> str:
    """A name for display: one line of a bounded length."""
    if len(name) > LONGEST_NAME or any(not letter.isprintable() for letter in name):
        raise SessionError(f"a name has at most {LONGEST_NAME} characters, all of them printable: '{shorten(name)}'")
    return name


def checked_seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbelow(LARGEST_SEED)
    if not 0 <= seed < LARGEST_SEED:
        raise SessionError(f"seed {seed} is not between 0 and 2^62")
    return seed
