"""Errors of sessions; each has the HTTP status and the code that the server answers with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from mnemo.errors import MnemoError


class SessionError(MnemoError):
    """A request on a session that cannot be carried out; the session is as it was before."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_value"


class SessionNotFound(SessionError):
    status, code = 404, "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session '{session_id[:80]}'")


class SessionBusy(SessionError):
    """Raised for a second request on a session that another request is changing."""

    status, code = 409, "session_busy"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} is busy: another request is changing it; try again when it is done, or fork it"
        )


class SessionUnavailable(SessionError):
    """Raised if a session's model is not served, has other weights now, or all its files are damaged."""

    status, code = 409, "session_unavailable"


class TooManySessions(SessionError):
    status, code = 429, "too_many_sessions"


class StorageFailed(SessionError):
    """Raised if the disk is full or fails; the session keeps its last acknowledged state."""

    status, code = 507, "storage_failed"


@contextmanager
def storage_errors() -> Iterator[None]:
    """A full or failing disk as an error of one line."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"the request was not kept: cannot write to the disk ({error.strerror or error})") from None
