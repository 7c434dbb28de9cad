"""Named sessions of one model, of which one is current. A branch costs nothing until it is continued."""

from __future__ import annotations

from mnemo.errors import MnemoError, unknown
from mnemo.session.session import Session

FIRST = "main"


class Branches:
    def __init__(self, session: Session, seed: int = 0) -> None:
        self._sessions, self._seed, self.name = {FIRST: session}, seed, FIRST

    @property
    def current(self) -> Session:
        return self._sessions[self.name]

    @current.setter
    def current(self, session: Session) -> None:
        self._sessions[self.name] = session

    def fork(self, name: str) -> None:
        """Copy the current session under a new name, with other random numbers, and make the copy current."""
        if not name or name in self._sessions:
            raise MnemoError(f"there is a branch '{name}' already" if name else "a branch needs a name")
        self._seed += 1
        self._sessions[name] = self.current.fork(self._seed)
        self.name = name

    def switch(self, name: str) -> None:
        """Make another session current."""
        if name not in self._sessions:
            raise unknown("branch", name, self._sessions)
        self.name = name

    def items(self) -> list[tuple[str, Session]]:
        """Names and sessions, in the order of their creation."""
        return list(self._sessions.items())
