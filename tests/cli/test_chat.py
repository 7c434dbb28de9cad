"""`mnemo chat`: turns and commands through a pipe, and a terminal with Ctrl-C and Ctrl-D."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.sessions import TEXT, random_session
from helpers.tiny_runs import tiny_run

from mnemo.cli import main
from mnemo.cli.chat_commands import COMMANDS, Chat, Leave
from mnemo.cli.chat_terminal import Stopper, Terminal
from mnemo.errors import MnemoError
from mnemo.inference.sampling_options import Sampling
from mnemo.session.session import Session
from mnemo.session.text_run import with_tokenizer
from mnemo.storage.run_folder import open_run


def chat(lines: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["chat", str(tiny_run()), "--device", "cpu", "--tokens", "12", *options])


def session(temperature: float = 0.8, seed: int = 0) -> Session:
    run = with_tokenizer(open_run(tiny_run(), device="cpu"))
    return Session(run, sampling=Sampling(temperature), seed=seed)


def small_chat() -> Chat:
    return Chat(random_session(), num_tokens=5)


def test_every_line_gets_a_reply(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    expected = session(seed=7)
    expected.read("the cat")
    first = expected.generate(12)
    expected.read("a dog")
    assert chat("the cat\na dog\n", monkeypatch, "--seed", "7") == 0
    out, err = capsys.readouterr()
    assert out == f"{first}\n{expected.generate(12)}\n"
    read, after = err.splitlines()
    assert read.startswith("read 7 tokens, ") and read.endswith("; segment 3/8; 19 tokens read")
    assert "; memory: 2 long layers ██████████ 8/8; " in read
    assert after.endswith("; 36 tokens read")


def test_an_empty_line_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    expected = session()
    expected.read("the cat")
    parts = expected.generate(12), expected.generate(12)
    assert chat("the cat\n\n", monkeypatch) == 0
    assert capsys.readouterr().out == f"{parts[0]}\n{parts[1]}\n"


def test_blocks_and_slashes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for lines, text in (('"""\nthe cat\n\n sat\n"""\n', "the cat\n\n sat"), ("//etc\n", "/etc")):
        expected = session(temperature=0)
        expected.read(text)
        assert chat(lines, monkeypatch, "--temperature", "0") == 0
        assert capsys.readouterr().out == expected.generate(12) + "\n"


def test_json_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    expected = session()
    expected.read("the cat")
    assert chat("the cat\n\n", monkeypatch, "--json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["text"] == expected.generate(12) and first["tokens"] == 19 and first["stopped"] is False
    assert second["tokens"] == 31
    assert first["layers"][0] == {"layer": 1, "mechanism": "XL", "long": True, "filled": 8, "slots": 8}


def test_memories_are_read_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "book.txt").write_text("the cat sat under a tree\n" * 3)
    expected = session(temperature=0)
    expected.read_file(tmp_path / "book.txt")
    text, save = expected.generate(12), tmp_path / "a.memory"
    assert chat(f"/read {tmp_path / 'book.txt'}\n/save {save}\n", monkeypatch) == 0
    assert f"saved {save}" in capsys.readouterr().err
    assert chat(f"/load {save}\n\n", monkeypatch, "--temperature", "0") == 0
    assert capsys.readouterr().out == text + "\n"
    assert chat("\n", monkeypatch, "--temperature", "0", "--memory", str(save)) == 0
    assert capsys.readouterr().out == text + "\n"
    options = ["--device", "cpu", "--tokens", "12", "--temperature", "0", "--no-save"]
    assert main(["generate", str(tiny_run()), "--memory", str(save), *options]) == 0
    assert capsys.readouterr().out == text + "\n"


def test_mistakes_do_not_end_the_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    mistakes = {
        "/raed x": "unknown command '/raed'; did you mean '/read'?",
        "/read nowhere.txt": "nowhere.txt is not a file",
        "/read": "name a file: /read FILE",
        "/save x": "nothing to save",
        "/load nowhere.memory": "nowhere.memory is missing",
        f"/load {__file__}": "is not a memory file; make one with: mnemo read",
        "/again": "there is no reply to replace",
        "/memory -1": "/memory needs a whole number, not '-1'",
        "/temperature hot": "/temperature needs a number, not 'hot'",
        "/temperature -1": "temperature -1.0 is negative",
        "/top-p 2": "top_p 2.0 is not in (0, 1]",
        "/tokens 0": "at least one token",
        "/switch b": "unknown branch 'b'",
        "/fork": "a branch needs a name",
    }
    assert chat("\n".join(mistakes) + "\n/quit\nnever read\n", monkeypatch) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == len(mistakes)
    for line, message in zip(lines, mistakes.values(), strict=True):
        assert line.startswith("error: ") and message in line


def test_wrong_options_are_refused_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat("", monkeypatch, "--temperature", "-1") == 2
    assert "temperature" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["chat", str(tiny_run()), "--tokens", "0"]) == 2
    assert "--tokens 0" in capsys.readouterr().err


def test_branches_go_on_independently() -> None:
    chat = small_chat()
    chat.session.read(TEXT[:6])
    chat.command("/fork one")
    assert chat.branches.name == "one" and chat.session.num_tokens == 6
    chat.session.read(TEXT[:3])
    chat.command("/switch main")
    assert chat.session.num_tokens == 6
    with pytest.raises(MnemoError, match="there is a branch 'one' already"):
        chat.command("/fork one")
    listed = "\n".join(chat.command("/list"))
    assert "*  main" in listed and "9 tokens read" in listed


def test_forget_and_memory() -> None:
    chat = small_chat()
    chat.session.read(TEXT)
    assert chat.command("/memory 3")[1] == "  3 long layers, XL  ████████████████████ 3 of 3 slots"
    chat.command("/memory off")
    assert not chat.session.remembers
    chat.command("/memory on")
    assert chat.session.remembers and chat.session.memory().layers[0].slots == 5
    chat.command("/forget")
    assert chat.session.num_tokens == 0


def test_settings() -> None:
    chat = small_chat()
    chat.command("/fork other")
    for line in ("/temperature 0.5", "/top-k 7", "/top-p 0.9", "/tokens 9"):
        shown = chat.command(line)
    assert shown == ["temperature 0.5, top-k 7, top-p 0.9, 9 tokens a reply"]
    assert chat.num_tokens == 9
    chat.command("/switch main")
    assert chat.session.sampling == Sampling(0.5, 7, 0.9)
    chat.command("/top-k off")
    assert chat.command("/top-p off") == ["temperature 0.5, top-k off, top-p off, 9 tokens a reply"]


def test_again_replaces_the_last_reply() -> None:
    chat = small_chat()
    chat.command("/temperature 5")
    chat.session.read(TEXT[:5])
    chat.begin_reply()
    first = chat.session.generate(20)
    chat.command("/again")
    assert chat.session.num_tokens == 5
    second = chat.session.generate(20)
    chat.command("/again")
    assert len({first, second, chat.session.generate(20)}) == 3
    chat.command("/forget")
    with pytest.raises(MnemoError, match="no reply"):
        chat.command("/again")


def test_again_differs_from_a_reply_of_a_small_seed() -> None:
    chat = small_chat()
    chat.command("/temperature 5")
    chat.command("/seed 1")
    chat.begin_reply()
    first = chat.session.generate(20)
    chat.command("/again")
    assert chat.session.generate(20) != first


def test_again_uses_the_changed_memory() -> None:
    chat = small_chat()
    chat.session.read(TEXT)
    chat.begin_reply()
    chat.session.generate(3)
    chat.command("/memory off")
    chat.command("/again")
    assert not chat.session.remembers
    assert all(layer.filled == 0 for layer in chat.session.memory().layers)
    assert chat.session.num_tokens == len(TEXT)


def test_seeds_repeat_a_reply() -> None:
    chat = small_chat()
    chat.session.read(TEXT[:5])
    other = chat.session.fork(seed=11)
    chat.command("/seed 11")
    assert chat.session.generate(9) == other.generate(9)


def test_help_names_every_command() -> None:
    text = "\n".join(small_chat().command("/help"))
    assert all(f"  /{name}" in text for name in COMMANDS)
    with pytest.raises(Leave):
        small_chat().command("/quit")


def test_ctrl_c_is_noted_and_the_handler_restored() -> None:
    import signal

    before, stopper = signal.getsignal(signal.SIGINT), Stopper()
    with stopper.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stopper.pressed
    assert signal.getsignal(signal.SIGINT) is before
    with stopper.listening():
        assert not stopper.pressed


def test_bytes_that_are_no_text_do_not_stop_a_pipe() -> None:
    source = io.TextIOWrapper(io.BytesIO(b"a\xff\nb\n"), encoding="utf-8")
    terminal = Terminal([], source)
    assert [terminal.text("") for _ in range(3)] == ["a\ufffd", "b", None]


class Dialogue:
    """A process with a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.far, near = pty.openpty()
        self.process = subprocess.Popen(command, stdin=near, stdout=near, stderr=near, start_new_session=False)
        os.close(near)
        self.seen = ""

    def send(self, text: str) -> None:
        os.write(self.far, text.encode())

    def wait_for(self, text: str, seconds: float = 120) -> str:
        """Everything shown up to `text`, which is then forgotten."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if select.select([self.far], [], [], 0.2)[0]:
                self.seen += os.read(self.far, 65536).decode("utf-8", "replace")
        before, _, self.seen = self.seen.partition(text)
        return before


@pytest.fixture
def dialogue() -> Any:
    command = [sys.executable, "-m", "mnemo", "chat", str(tiny_run()), "--device", "cpu", "--tokens", "1000000"]
    opened = Dialogue(*command)
    yield opened
    opened.process.kill()
    opened.process.wait()
    os.close(opened.far)


@pytest.mark.slow
def test_a_terminal_with_ctrl_c_and_ctrl_d(dialogue: Dialogue) -> None:
    dialogue.wait_for("/help lists commands")
    dialogue.wait_for("0 tokens read")
    dialogue.wait_for("> ")
    dialogue.send("the cat\n")
    dialogue.wait_for("the cat")
    time.sleep(0.5)
    dialogue.process.send_signal(2)
    assert "read 7 tokens" in dialogue.wait_for("; stopped; memory: ")
    dialogue.wait_for("> ")
    dialogue.send("/tokens 3\n")
    dialogue.wait_for("3 tokens a reply")
    dialogue.wait_for("> ")
    dialogue.send("one line\nand another\n")  # a paste: one text, one reply
    assert "read 20 tokens" in dialogue.wait_for("; memory: ")
    dialogue.wait_for("> ")
    dialogue.send("\x04")
    assert dialogue.process.wait(60) == 0
