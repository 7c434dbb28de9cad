"""The commands of `mnemo chat`: lines that begin with a slash. They print nothing, and return the lines to show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mnemo.cli import console
from mnemo.cli.run_arguments import format_loss, require_memory_file
from mnemo.errors import MnemoError, unknown
from mnemo.progress import ShowProgress
from mnemo.session.branches import Branches
from mnemo.session.session import Session
from mnemo.session.text_loss import TextLoss

OFF = "off"
FIRST_RETRY = 2**31
"""Seeds of other replies, apart from those of branches; torch's generator on a CPU uses the lowest 32 bits only."""


class Leave(Exception):
    """Raised by /quit."""


class Command(NamedTuple):
    usage: str
    help: str
    run: Callable[[Chat, str], list[str]]


class Chat:
    """The branches of a chat and its settings."""

    def __init__(
        self, session: Session, *, num_tokens: int, seed: int = 0, progress: ShowProgress | None = None
    ) -> None:
        self.branches, self.num_tokens, self.progress = Branches(session, seed), num_tokens, progress
        self._before_reply: dict[str, Session] = {}
        self._retries = 0

    @property
    def session(self) -> Session:
        return self.branches.current

    def command(self, line: str) -> list[str]:
        """Run a command, and return the lines that it shows."""
        name, _, argument = line.removeprefix("/").strip().partition(" ")
        if name not in COMMANDS:
            raise unknown("command", f"/{name}", [f"/{known}" for known in COMMANDS])
        return COMMANDS[name].run(self, argument.strip())

    def begin_reply(self) -> None:
        """Remember the session before a reply, for /again."""
        self._before_reply[self.branches.name] = self.session.fork()

    def take_back_reply(self) -> None:
        """Return to the session before the last reply, with other random numbers."""
        if self.branches.name not in self._before_reply:
            raise MnemoError("there is no reply to replace")
        self._retries += 1
        sampling, before = self.session.sampling, self._before_reply[self.branches.name]
        self.branches.current = before.fork(seed=FIRST_RETRY + self._retries)
        self.session.sampling = sampling

    def set_memory(self, length: int | None, *, on: bool) -> None:
        """Change the memory, also of the session before the last reply: /again writes it with the changed memory."""
        self.session.set_memory(length, on=on)
        if before := self._before_reply.get(self.branches.name):
            before.set_memory(length, on=on)

    def keep_reply(self) -> None:
        """The last reply cannot be replaced any more: the session has changed since."""
        self._before_reply.pop(self.branches.name, None)


def describe_read(loss: TextLoss) -> str:
    """`read 1,234 tokens, 2.1234 bpc`"""
    text = f"read {loss.tokens:,} {'token' if loss.tokens == 1 else 'tokens'}"
    return text if loss.loss is None else f"{text}, {format_loss(loss.loss, loss.unit)}"


def _read(chat: Chat, argument: str) -> list[str]:
    loss = chat.session.read_file(_path(argument, "/read FILE"), chat.progress)
    chat.keep_reply()
    return [describe_read(loss)]


def _save(chat: Chat, argument: str) -> list[str]:
    path = _path(argument, "/save FILE")
    chat.session.save(path)
    return [f"saved {path}"]


def _load(chat: Chat, argument: str) -> list[str]:
    path = _path(argument, "/load FILE")
    require_memory_file(path)
    chat.session.load(path)
    chat.keep_reply()
    return [f"loaded {path}"]


def _fork(chat: Chat, argument: str) -> list[str]:
    chat.branches.fork(argument)
    return [f"branch {argument}: a copy, which goes on independently"]


def _switch(chat: Chat, argument: str) -> list[str]:
    chat.branches.switch(argument)
    return [f"branch {argument}"]


def _list(chat: Chat, argument: str) -> list[str]:
    rows = [
        ("*" if name == chat.branches.name else "", name, session.memory().line())
        for name, session in chat.branches.items()
    ]
    return console.format_table(rows, ("", "branch", "state")).splitlines()


def _forget(chat: Chat, argument: str) -> list[str]:
    chat.session.forget()
    chat.keep_reply()
    return ["everything read and written in this branch is forgotten"]


def _memory(chat: Chat, argument: str) -> list[str]:
    if argument == OFF:
        chat.set_memory(None, on=False)
    elif argument == "on":
        chat.set_memory(None, on=True)
    elif argument:
        chat.set_memory(_count(argument, "/memory"), on=True)
    return repr(chat.session.memory()).splitlines()


def _again(chat: Chat, argument: str) -> list[str]:
    chat.take_back_reply()
    return []


def _temperature(chat: Chat, argument: str) -> list[str]:
    return _sample(chat, temperature=_number(argument, "/temperature"))


def _top_k(chat: Chat, argument: str) -> list[str]:
    return _sample(chat, top_k=None if argument == OFF else _count(argument, "/top-k"))


def _top_p(chat: Chat, argument: str) -> list[str]:
    return _sample(chat, top_p=None if argument == OFF else _number(argument, "/top-p"))


def _sample(chat: Chat, **changes: float | None) -> list[str]:
    sampling = chat.session.sampling._replace(**changes)
    sampling.check()
    for _, session in chat.branches.items():
        session.sampling = sampling
    return _settings(chat, "")


def _tokens(chat: Chat, argument: str) -> list[str]:
    count = _count(argument, "/tokens")
    if not count:
        raise MnemoError("/tokens 0: a reply has at least one token")
    chat.num_tokens = count
    return _settings(chat, "")


def _seed(chat: Chat, argument: str) -> list[str]:
    chat.session.reseed(_count(argument, "/seed"))
    return ["the random numbers of this branch start again from that seed"]


def _settings(chat: Chat, argument: str) -> list[str]:
    temperature, top_k, top_p = chat.session.sampling
    limits = f"top-k {OFF if top_k is None else top_k}, top-p {OFF if top_p is None else f'{top_p:g}'}"
    return [f"temperature {temperature:g}, {limits}, {chat.num_tokens:,} tokens a reply"]


def _help(chat: Chat, argument: str) -> list[str]:
    width = max(len(command.usage) for command in COMMANDS.values())
    return [
        "Type or paste text: the model reads it and goes on writing. An empty line: it writes more.",
        'Text of several lines: paste it, or put """ on a line before and after it. //text reads /text.',
        *(f"  /{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()),
        "Ctrl-C stops a reply; Ctrl-D leaves.",
    ]


def _quit(chat: Chat, argument: str) -> list[str]:
    raise Leave


def _path(argument: str, usage: str) -> Path:
    if not argument:
        raise MnemoError(f"name a file: {usage}")
    return Path(argument).expanduser()


def _count(argument: str, name: str) -> int:
    if not argument.isdecimal():
        raise MnemoError(f"{name} needs a whole number, not '{argument}'")
    return int(argument)


def _number(argument: str, name: str) -> float:
    try:
        return float(argument)
    except ValueError:
        raise MnemoError(f"{name} needs a number, not '{argument}'") from None


COMMANDS: dict[str, Command] = {
    "read": Command("read FILE", "read a text file; no reply follows", _read),
    "again": Command("again", "drop the last reply and write another", _again),
    "memory": Command(
        "memory [on|off|N]", "show the memory, turn it on or off, or give the long layers N slots", _memory
    ),
    "forget": Command("forget", "drop everything read and written", _forget),
    "fork": Command("fork NAME", "copy this text and its memory, and go on in the copy", _fork),
    "switch": Command("switch NAME", "go on in another branch", _switch),
    "list": Command("list", "list the branches", _list),
    "save": Command("save FILE", "save the memory; mnemo generate --memory and /load go on from it", _save),
    "load": Command("load FILE", "go on from a saved memory", _load),
    "temperature": Command(
        "temperature X", "below 1 likely tokens become likelier; 0 takes the likeliest", _temperature
    ),
    "top-k": Command("top-k K|off", "choose among the K likeliest tokens", _top_k),
    "top-p": Command("top-p P|off", "choose among the likeliest tokens that together reach P", _top_p),
    "tokens": Command("tokens N", "length of a reply", _tokens),
    "seed": Command("seed N", "start the random numbers again", _seed),
    "settings": Command("settings", "show temperature, limits and length", _settings),
    "help": Command("help", "show this list", _help),
    "quit": Command("quit", "leave", _quit),
}
