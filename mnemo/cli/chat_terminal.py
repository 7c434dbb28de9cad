"""Input and output of `mnemo chat`: a terminal with line editing, or a pipe."""

from __future__ import annotations

import importlib
import io
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from mnemo.cli import console

BLOCK = '"""'
"""On a line of its own: the begin and end of a text of several lines."""
PASTE_SECONDS = 0.05
"""Lines that arrive within this time after another belong to one paste."""


class Stopper:
    """Whether Ctrl-C was pressed since a reply began."""

    def __init__(self) -> None:
        self.pressed = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note Ctrl-C instead of raising KeyboardInterrupt, which could come in the middle of a token."""
        self.pressed = False
        if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
            yield
            return
        before = signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _press(self, number: int, frame: Any) -> None:
        self.pressed = True


class Terminal:
    def __init__(self, commands: Sequence[str], source: TextIO | None = None) -> None:
        """`commands`: names for completion by the tab key."""
        self.source = source or sys.stdin
        self.interactive = self.source.isatty()
        if isinstance(self.source, io.TextIOWrapper):
            self.source.reconfigure(errors="replace")
        if self.interactive:
            _edit_lines(commands)

    def text(self, prompt: str) -> str | None:
        """The next text: a line, the lines of a paste, or the lines between two lines of three quotes. None: the end.

        A line that was begun is dropped by Ctrl-C.
        """
        try:
            line = self._line(prompt)
            return None if line is None else self._rest_of_block() if line.strip() == BLOCK else self._with_paste(line)
        except KeyboardInterrupt:
            self.status("")
            return self.text(prompt)

    def _line(self, prompt: str = "") -> str | None:
        """A line without its end; None at the end of the input."""
        if self.interactive:
            try:
                return input(prompt)
            except EOFError:
                self.status("")
                return None
        line = self.source.readline()
        return line.rstrip("\r\n") if line else None

    def _rest_of_block(self) -> str:
        lines = []
        while (line := self._line()) is not None and line.strip() != BLOCK:
            lines.append(line)
        return "\n".join(lines)

    def _with_paste(self, line: str) -> str:
        """The line and those that arrived together with it, unless it is a command."""
        lines = [line]
        while self.interactive and not line.startswith("/") and _waiting(self.source):
            more = self._line()
            if more is None:
                break
            lines.append(more)
        return "\n".join(lines)

    def write(self, piece: str) -> None:
        """Show a piece of the model's text at once."""
        console.write_text(sys.stdout, piece)

    def status(self, line: str) -> None:
        """Show a line about the chat, apart from its text."""
        console.dim(line)


def _edit_lines(commands: Sequence[str]) -> None:
    """Turn on history and completion, if this Python has them."""
    try:
        readline = importlib.import_module("readline")
    except ImportError:
        return

    def complete(begun: str, number: int) -> str | None:
        found = [f"/{name}" for name in commands if f"/{name}".startswith(begun)]
        return found[number] if begun.startswith("/") and number < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    # libedit, which replaces GNU readline on macOS, has another syntax.
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")


def _waiting(source: TextIO) -> bool:
    try:
        return bool(select.select([source], [], [], PASTE_SECONDS)[0])
    except (OSError, ValueError):  # Windows: only sockets can be waited for
        return False
