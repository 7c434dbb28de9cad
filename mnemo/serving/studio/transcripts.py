"""The transcripts of all sessions: the latest in memory, and all of them on disk if there is a folder for them."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.safe_load import read_bytes
from mnemo.serving.studio.transcript import Transcript

MOST_TOKENS = 1 << 25
"""Tokens of all transcripts in memory; those that were not used for the longest time are dropped."""
MOST_BYTES = 1 << 30
SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Transcripts:
    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._loaded: OrderedDict[str, Transcript] = OrderedDict()

    def get(self, session: str, segment: int, unit: str) -> Transcript:
        """Return the transcript of a session; an empty one if there is none, or if its file is damaged."""
        if session not in self._loaded:
            self._loaded[session] = self._load(session) or Transcript(segment, unit)
            self._drop_old()
        self._loaded.move_to_end(session)
        return self._loaded[session]

    def put(self, session: str, transcript: Transcript) -> None:
        self._loaded[session] = transcript
        self.save(session)

    def save(self, session: str) -> None:
        """Write the transcript of a session to the disk, where it survives the server."""
        path = self._path(session)
        if path is None or session not in self._loaded:
            return
        atomic.make_folder(path.parent)
        with atomic.new_file(path) as partial:
            partial.write_bytes(self._loaded[session].to_bytes())

    def keep_only(self, sessions: Iterable[str]) -> None:
        """Drop the transcripts of sessions that no longer exist."""
        kept = set(sessions)
        for session in self._loaded.keys() - kept:
            self._loaded.pop(session, None)
        for path in () if self.folder is None else self.folder.glob("*.npz"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)

    def _load(self, session: str) -> Transcript | None:
        path = self._path(session)
        if path is None or not path.is_file():
            return None
        try:
            return Transcript.from_bytes(read_bytes(path, MOST_BYTES))
        except MnemoError:
            return None  # its text is not shown; the session itself is not affected

    def _path(self, session: str) -> Path | None:
        safe = SESSION_ID.fullmatch(session)
        return None if self.folder is None or safe is None else self.folder / f"{session}.npz"

    def _drop_old(self) -> None:
        total = sum(len(transcript) for transcript in self._loaded.values())
        while total > MOST_TOKENS and len(self._loaded) > 1:
            oldest = next(iter(self._loaded))
            self.save(oldest)
            total -= len(self._loaded.pop(oldest))
