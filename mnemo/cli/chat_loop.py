"""The turns of `mnemo chat`: a text is read, a reply is written, a line shows the memory."""

from __future__ import annotations

from contextlib import closing

from mnemo.cli import console, opened_run
from mnemo.cli.chat import Args
from mnemo.cli.chat_commands import COMMANDS, Chat, Leave, describe_read
from mnemo.cli.chat_terminal import Stopper, Terminal
from mnemo.errors import MnemoError
from mnemo.inference.sampling_options import Sampling
from mnemo.session.session import Session

EXIT_FAILED_TURN = 2


def chat(args: Args) -> int:
    sampling = Sampling(args.temperature, args.top_k, args.top_p)
    opened = opened_run.open_to_write(args, args.weights)
    session = Session(opened, sampling=sampling, seed=args.seed, memory_length=args.memory_length)
    if args.memory is not None:
        session.load(args.memory)
        if args.memory_length is not None:
            session.set_memory(args.memory_length)
    chat = Chat(session, num_tokens=args.tokens, seed=args.seed, progress=console.progress)
    loop = _Loop(chat, Terminal(list(COMMANDS)), args.json)
    loop.greet()
    loop.run()
    # A person at a terminal has seen the errors; a script has only the exit code.
    return EXIT_FAILED_TURN if loop.failed and not loop.terminal.interactive else 0


class _Loop:
    """One turn after the other, until the input ends."""

    def __init__(self, chat: Chat, terminal: Terminal, json: bool) -> None:
        self.chat, self.terminal, self.json, self.stopper = chat, terminal, json, Stopper()
        self.failed = False
        """Whether any turn ended with an error."""

    def greet(self) -> None:
        if self.terminal.interactive:
            run = self.chat.session.opened.run
            self.terminal.status(f"{run.path.name}, step {run.step:,}: type text and it goes on; /help lists commands")
            self._show_memory()

    def run(self) -> None:
        while (text := self.terminal.text(self._prompt())) is not None:
            try:
                self._turn(text)
            except Leave:
                return
            except MnemoError as error:
                self.failed = True
                self.terminal.status(f"error: {error}")
            except KeyboardInterrupt:
                self.terminal.status("interrupted: nothing was read")

    def _prompt(self) -> str:
        return "> " if len(self.chat.branches.items()) == 1 else f"{self.chat.branches.name}> "

    def _turn(self, text: str) -> None:
        if text.startswith("/") and not text.startswith("//"):
            self._command(text)
            return
        text = text[1:] if text.startswith("//") else text
        loss = self.chat.session.read(text) if text else None
        self.chat.begin_reply()
        self._reply(None if loss is None else describe_read(loss))

    def _command(self, line: str) -> None:
        for shown in self.chat.command(line):
            self.terminal.status(shown)
        if line.split()[0] == "/again":
            self._reply()
        elif line.split()[0] in ("/read", "/load", "/forget", "/fork", "/switch"):
            self._show_memory()

    def _reply(self, before: str | None = None) -> None:
        pieces = []
        with self.stopper.listening(), closing(self.chat.session.write(self.chat.num_tokens)) as writing:
            for piece in writing:
                pieces.append(piece)
                if not self.json:
                    self.terminal.write(piece)
                if self.stopper.pressed:
                    break
        self._end_reply("".join(pieces), before)

    def _end_reply(self, text: str, before: str | None) -> None:
        if self.json:
            use = self.chat.session.memory()
            layers = [layer._asdict() for layer in use.layers]
            console.print_json_line(
                {"text": text, "tokens": use.tokens, "stopped": self.stopper.pressed, "layers": layers}
            )
            return
        ended = self.terminal.interactive and text.endswith("\n")
        self.terminal.write("" if ended else "\n")
        self._show_memory(*[part for part in (before, "stopped" if self.stopper.pressed else None) if part])

    def _show_memory(self, *before: str) -> None:
        self.terminal.status("; ".join([*before, self.chat.session.memory().line()]))
