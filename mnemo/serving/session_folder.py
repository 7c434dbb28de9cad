"""The files of one session.

    000002.json     a snapshot: the facts of the session
    000002.memory   the memory file of that snapshot; an empty session has none
    000002.log      the records since that snapshot
    000003.json ...

The two newest snapshots are kept, each with its log. If the newest is damaged, the one before it and both logs give
the same session. Only the newest log is ever changed, so that a fork shares the other files by hard links.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.json_file import load_json, write_json
from mnemo.serving.session_data import Facts, Record, Session, outlined
from mnemo.serving.session_errors import SessionUnavailable, StorageFailed, storage_errors
from mnemo.serving.session_log import SessionLog, line_of, load_log
from mnemo.serving.session_model import SessionModel
from mnemo.serving.session_work import Work

KEPT = 2
"""Snapshots that are kept."""
SNAPSHOT_TOKENS, SNAPSHOT_RECORDS = 4096, 256
"""Tokens and records of a log after which a snapshot is due."""
LOG, MEMORY, FACTS = ".log", ".memory", ".json"
_NUMBERED = re.compile(r"(\d{6})(\.log|\.memory|\.json)")
DAMAGED = "the files of this session are damaged: none of its snapshots can be loaded"
_notes = logging.getLogger("mnemo.serving")


class SessionFolder:
    """Writes and loads the files of one session. Calls come one at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        self.log = SessionLog(path, 0)
        self.log_tokens = self.log_records = 0
        """Tokens and records since the newest snapshot"""

    @classmethod
    def create(cls, path: Path, session: Session, model: SessionModel) -> SessionFolder:
        """Write a new session; after a kill it exists as a whole or not at all."""
        with storage_errors(), atomic.new_folder(path) as partial:
            cls(partial).write_unlogged(session, model)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> SessionFolder:
        """The folder of an existing session."""
        folder = cls(path)
        # A kill inside of `write_snapshot` leaves an empty log of a snapshot that does not exist.
        logs = [number for number in folder._numbers(LOG) if folder._file(number, LOG).stat().st_size]
        numbers = [*folder._numbers(FACTS), *logs]
        if not numbers:
            raise SessionUnavailable(f"session {path.name} has no files")
        folder._continue(max(numbers))
        return folder

    def _continue(self, number: int) -> None:
        """Append to the log of this number from now on."""
        loaded = load_log(self._file(number, LOG))
        if loaded.damaged:
            self._note(f"the last {loaded.damaged:,} bytes of its log are incomplete or damaged, and are dropped")
        self.number, self.log = number, SessionLog(self._file(number, LOG), loaded.length)
        self.log_tokens, self.log_records = sum(record.tokens for record in loaded.records), len(loaded.records)

    def fork(self, path: Path, change: Record) -> SessionFolder:
        """Write a new session with the same content; `change`: the first record of its own."""
        with storage_errors(), atomic.new_folder(path) as partial:
            for name in sorted(name for name in os.listdir(self.path) if _NUMBERED.fullmatch(name)):
                if self.path / name != self.log.path:
                    _link(self.path / name, partial / name)
            data = self.log.path.read_bytes()[: self.log.length] + line_of(change)
            (partial / self.log.path.name).write_bytes(data)
        return SessionFolder.open(path)

    def append(self, record: Record) -> None:
        """Log a record; it survives a kill when this returns."""
        self.log.append(record)
        self.log_tokens, self.log_records = self.log_tokens + record.tokens, self.log_records + 1

    @property
    def snapshot_is_due(self) -> bool:
        return self.log_tokens >= SNAPSHOT_TOKENS or self.log_records >= SNAPSHOT_RECORDS

    def write_snapshot(self, session: Session, model: SessionModel) -> None:
        """Save the whole session; the log starts again, and files that are not needed any more are removed."""
        number = self.number + 1
        facts, log = self._file(number, FACTS), self._file(number, LOG)
        try:
            with storage_errors():
                log.unlink(missing_ok=True)  # of an attempt that failed
                if session.facts.tokens:
                    save_state(model, self._file(number, MEMORY), session.state)
                log.touch()
                atomic.sync(log)
                atomic.sync(self.path)  # a snapshot never exists without its log
                write_json(facts, to_json(session.facts))
        except StorageFailed:
            with suppress(OSError):  # else a restart would continue from a request that was refused
                facts.unlink(missing_ok=True)
            raise
        self.number, self.log = number, SessionLog(log, 0)
        self.log_tokens = self.log_records = 0
        self._remove(before=min(self._newest_first()[:KEPT]))

    def write_unlogged(self, session: Session, model: SessionModel) -> None:
        """Save a session to which no log leads, twice, so that one damaged file does not lose it."""
        self.write_snapshot(session, model)
        try:
            self.write_snapshot(session, model)
        except StorageFailed as error:
            self._note(f"there is only one copy of its snapshot: {error}")

    def outline(self) -> Facts:
        """The facts of the session as far as they are known without the model: for lists of sessions."""
        for number in self._newest_first():
            try:
                facts = self._facts(number)
            except MnemoError:
                continue  # `load` writes a note
            for record in self._records(number, facts.records).found:
                facts = outlined(facts, record)
            return facts
        raise SessionUnavailable(DAMAGED)

    def load(self, model: SessionModel) -> Session:
        """The session after its last record: the newest snapshot that is whole, and the records since then."""
        for number in self._newest_first():
            try:
                facts = self._facts(number)
                state = model.load(self._file(number, MEMORY)).state if facts.tokens else model.empty(facts.lengths)
            except (MnemoError, OSError) as error:
                self._note(f"snapshot {number} is not used: {error}")
                continue
            return self._replayed(number, Session(facts, state), model)
        raise SessionUnavailable(DAMAGED)

    def _replayed(self, number: int, start: Session, model: SessionModel) -> Session:
        work, records = Work(model, start), self._records(number, start.facts.records)
        for record in records.found:
            work.replay(record)
        if records.lost:
            self._note(f"{records.lost} records are lost, because an earlier one is damaged")
        if records.lost or number != self.number:
            self.write_snapshot(work.session, model)
        return work.session

    def _facts(self, number: int) -> Facts:
        return from_json(Facts, without_version(load_json(self._file(number, FACTS))), "session")

    def _records(self, number: int, last: int) -> _Records:
        """The records after record `last` in the logs from a snapshot on."""
        logs = [load_log(self._file(each, LOG)) for each in sorted(self._numbers(LOG)) if each >= number]
        later = [record for log in logs for record in log.records if record.number > last]
        found = [record for at, record in enumerate(later, last + 1) if record.number == at]
        return _Records(found, len(later) - len(found))

    def _newest_first(self) -> list[int]:
        return sorted(self._numbers(FACTS), reverse=True)

    def _note(self, text: str) -> None:
        _notes.warning(f"mnemo: note: session {self.path.name}: {text}")

    def _remove(self, before: int) -> None:
        """Remove the files of snapshots before this one."""
        for name in os.listdir(self.path):
            match = _NUMBERED.fullmatch(name)
            if match and int(match[1]) < before:
                (self.path / name).unlink(missing_ok=True)

    def _numbers(self, suffix: str) -> list[int]:
        found = (_NUMBERED.fullmatch(name) for name in os.listdir(self.path))
        return [int(match[1]) for match in found if match and match[2] == suffix]

    def _file(self, number: int, suffix: str) -> Path:
        return self.path / f"{number:06}{suffix}"


class _Records(NamedTuple):
    found: list[Record]
    lost: int
    """Records after a gap"""


def without_version(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "format_version"}


def save_state(model: SessionModel, path: Path, state: Any) -> None:
    """Write a memory file; a full or failing disk is an error without a path of this machine."""
    try:
        model.save(path, state)
    except MnemoError as error:
        raise OSError(str(error).rpartition(": ")[2]) from None


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # this file system has no hard links
        shutil.copyfile(source, target)
