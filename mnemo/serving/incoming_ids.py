"""Token ids of a text that may arrive slowly: an iterable is pulled in a separate thread, with a bounded buffer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mnemo.errors import MnemoError, one_line

MOST_BUFFERED = 2**17
"""Ids that are pulled ahead of the reader."""


class IncomingIds:
    """Cuts incoming pieces of ids into pieces of the lengths that a reader wants.

    `on_change`: called when `take` has something new to return. `check`: raises MnemoError for wrong ids.
    """

    def __init__(self, ids: Iterable[Tensor], on_change: Callable[[], None], check: Callable[[Tensor], None]) -> None:
        self._check, self._on_change = check, on_change
        self._pieces: deque[Tensor] = deque()
        self._buffered, self._ended, self._closed = 0, False, False
        self._error: MnemoError | None = None
        self._changed = threading.Condition()
        if isinstance(ids, (list, tuple)):
            for piece in ids:
                self._add(piece)
            self._ended = True
        else:
            threading.Thread(target=self._pull, args=(ids,), name="incoming ids", daemon=True).start()

    def take(self, count: int) -> Tensor | None:
        """The next `count` ids, fewer at the end (none after it), or None if they have not arrived yet."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._buffered < count and not self._ended:
                return None
            taken = self._cut(count)
            self._changed.notify()
            return taken

    @property
    def exhausted(self) -> bool:
        """Whether everything was taken, and nothing more will arrive."""
        with self._changed:
            return self._ended and not self._buffered and self._error is None

    def _cut(self, count: int) -> Tensor:
        parts = []
        while count and self._pieces:
            piece = self._pieces.popleft()
            parts.append(piece[:count])
            if len(piece) > count:
                self._pieces.appendleft(piece[count:])
            count -= len(parts[-1])
            self._buffered -= len(parts[-1])
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def close(self) -> None:
        """Pull no more pieces."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _has_room(self) -> bool:
        """Wait until few ids are buffered; False after `close`. Only then may the next piece be encoded."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._buffered < MOST_BUFFERED)
            return not self._closed

    def _add(self, piece: Tensor) -> None:
        if piece.dim() != 1 or piece.dtype != torch.int64:
            raise MnemoError(f"a piece of a text is token ids (length,) of int64, not {list(piece.shape)}")
        piece = piece.cpu()
        self._check(piece)
        self._pieces.append(piece)
        self._buffered += len(piece)

    def _pull(self, ids: Iterable[Tensor]) -> None:
        pieces = iter(ids)
        try:
            while self._has_room() and (piece := next(pieces, None)) is not None:
                with self._changed:
                    self._add(piece)
                self._on_change()
        except Exception as error:  # of the caller's iterable: the job fails with it
            wrong = error if isinstance(error, MnemoError) else MnemoError(f"the text broke off: {one_line(error)}")
            with self._changed:
                self._error = wrong
        finally:
            with self._changed:
                self._ended = True
            self._on_change()
