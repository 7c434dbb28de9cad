"""What completions need of the store of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from mnemo.inference.generation import AnyState


class SessionTurn(Protocol):
    """A session while one request uses it; other requests for the same session wait."""

    @property
    def state(self) -> AnyState:
        """After the tokens so far; the model's empty state before the first token."""
        ...

    @property
    def tail(self) -> tuple[int, ...]:
        """The last tokens, at least 8 if there are as many: the decoder of the next text needs them."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens read and written so far."""
        ...

    @property
    def seed(self) -> int: ...

    @property
    def draws(self) -> int:
        """Random numbers of the seed that are used up."""
        ...

    async def advance(
        self, *, read: Sequence[int], written: Sequence[int], state: AnyState, seed: int, draws: int
    ) -> None:
        """Move the session forward: log the tokens, then keep the state. Returns when a crash no longer loses them."""
        ...


class SessionStore(Protocol):
    def turn(self, session: str, model: str) -> AbstractAsyncContextManager[SessionTurn]:
        """Wait for the session and lock it. Raises ApiError: 404 if it is unknown, 400 if it is of another model."""
        ...

    async def close(self) -> None:
        """Write everything that is only in memory."""
        ...

    def count(self) -> int:
        """Number of sessions."""
        ...
