from __future__ import annotations

import errno
import importlib.metadata
import io
import json
import os
import platform
import pty
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from mnemo import __version__, cli
from mnemo.cli import console
from mnemo.errors import CheckFailed, MnemoError, unknown


@dataclass(frozen=True, kw_only=True)
class FakeArgs:
    memory_length: int = 3
    """How far back."""
    json: bool = False
    """For programs."""


@pytest.fixture
def fake_verb(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A verb module as the command line expects one; tests give it the `run` or `main` they need."""
    module = types.ModuleType("mnemo_fake_verb", "A verb for tests.")
    setattr(module, "Args", FakeArgs)  # noqa: B010
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.VERBS, "fake", cli.Verb(module.__name__, "for tests"))
    return module


def raising(error: BaseException) -> Any:
    def run(args: object) -> int:
        raise error

    return run


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"], ["-h"], ["help"]):
        assert cli.main(argv) == 0
        out = capsys.readouterr().out
        assert all(f"\n  {verb}" in out for verb in cli.VERBS)


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    assert f"mnemo {verb}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    versions = f"mnemo {__version__}, torch {version('torch')}, Python {platform.python_version()}, "
    assert capsys.readouterr().out == f"{versions}{platform.system()} {platform.machine()}\n"


def test_version_without_torch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert cli.main(["--version"]) == 0
    assert f"mnemo {__version__}, no torch, Python" in capsys.readouterr().out


def test_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr() == ("", "mnemo: error: unknown verb 'trian'; did you mean 'train'?\n")


def test_flags_reach_the_verb_and_its_exit_code_comes_back(fake_verb: Any) -> None:
    seen = []
    fake_verb.run = lambda args: seen.append(args) or 5
    assert cli.main(["fake", "--memory-length", "7", "--json"]) == 5
    assert seen == [FakeArgs(memory_length=7, json=True)]


def test_a_verb_may_parse_for_itself(fake_verb: Any) -> None:
    fake_verb.main = lambda argv: len(argv)
    assert cli.main(["fake", "a", "--anything"]) == 2
    assert cli.main(["fake"]) == 0


def test_unknown_flag_names_the_nearest(fake_verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fake", "--memory-lenght", "7"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("did you mean '--memory-length'?\n") and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MnemoError("no such corpus"), 2, "error: no such corpus"),
        (MnemoError("two\nlines"), 2, "error: two lines"),
        (unknown("preset", "xll", ["xl", "other"]), 2, "error: unknown preset 'xll'; did you mean 'xl'?"),
        (CheckFailed("too far off"), 1, "check failed: too far off"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: No space left on device"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), 2, "error: No such file: a.txt"),
        (PermissionError(errno.EACCES, "Permission denied", "b"), 2, "error: Permission denied: b"),
        (OSError("unreachable"), 2, "error: unreachable"),
        (SystemExit("stopped"), 1, "stopped"),
        (
            ZeroDivisionError("by zero"),
            70,
            "internal error: ZeroDivisionError: by zero (MNEMO_TRACEBACK=1 shows the traceback)",
        ),
    ],
)
def test_every_failure_is_one_line(
    fake_verb: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    fake_verb.run = raising(error)
    assert cli.main(["fake"]) == code
    assert capsys.readouterr() == ("", f"mnemo: {line}\n")


def test_traceback_on_request(
    fake_verb: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MNEMO_TRACEBACK", "1")
    fake_verb.run = raising(ZeroDivisionError("by zero"))
    assert cli.main(["fake"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_help_starts_without_heavy_imports() -> None:
    program = (
        "import sys; from mnemo.cli import main; code = main(['--help']);"
        "print(sorted({'torch', 'numpy', 'tyro', 'rich', 'matplotlib', 'jinja2'} & set(sys.modules)), code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = (
        "import sys, types, mnemo.cli as cli\n"
        "module = types.ModuleType('fake')\n"
        "module.main = lambda argv: [print('x' * 1000) for _ in range(1000)] and 0\n"
        "sys.modules['fake'] = module\n"
        "cli.VERBS['fake'] = cli.Verb('fake', '')\n"
        "raise SystemExit(cli.main(['fake']))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "mnemo", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"mnemo {__version__}, torch ")


def test_table_aligns_words_left_and_numbers_right() -> None:
    text = console.format_table([["xl", 1.23456, 7], ["longer", None, 1234]], ["name", "ppl", "n"])
    assert text.splitlines() == [
        "name      ppl     n",
        "------  -----  ----",
        "xl      1.235     7",
        "longer      -  1234",
    ]
    assert console.format_table([], ["name"]) == "name\n----"


def test_json_is_valid_whatever_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"ppl": float("inf"), "sweep": [1.5, float("nan")]})
    assert json.loads(capsys.readouterr().out) == {"ppl": None, "sweep": [1.5, None]}


def test_progress_prints_plain_lines_off_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with console.progress("reading", 4, unit="files", every=5.0, stream=stream) as bar:
        for note in ("", "a", "", ""):
            now[0] += 3.0
            bar.advance(1, note)
    assert stream.getvalue().splitlines() == [
        "reading: 2/4 files (50%), 6s left, a",
        "reading: 4/4 files (100%), 0s left, a",
        "reading: 4/4 files (100%), in 12s, a",
    ]


def test_progress_draws_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with console.progress("downloading", 6e6, unit="B", stream=stream) as bar:
        bar.advance(1.5e6, "[mirror]")
    assert "downloading" in stream.getvalue() and "1.5/6.0 MB (25%) " in stream.getvalue()
    assert "[mirror]" in stream.getvalue()


def test_times_read_well() -> None:
    assert [console.format_time(seconds) for seconds in (7.6, 125, 12000)] == ["8s", "2m05s", "3h20m"]


def test_output_to_a_closed_terminal_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, handle = pty.openpty()
    with os.fdopen(handle, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        monkeypatch.setattr("sys.stderr", io.StringIO())
        console.drop_lost_output(pipes=True)
        assert output.isatty()  # it is open
        os.close(terminal)
        with pytest.raises(OSError, match="Input/output"):
            print("not shown", flush=True)
        console.drop_lost_output(pipes=False)
        print("nor this", flush=True)


def ends_of_a_pipe() -> tuple[int, int]:
    return os.pipe()


def ends_of_a_socket() -> tuple[int, int]:
    first, second = socket.socketpair()
    return first.detach(), second.detach()


@pytest.mark.parametrize("connect", [ends_of_a_pipe, ends_of_a_socket])
def test_output_without_a_reader_goes_nowhere_after_a_signal(
    connect: Callable[[], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = connect()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        monkeypatch.setattr("sys.stderr", io.StringIO())
        console.drop_lost_output(pipes=True)
        print("shown", flush=True)
        assert os.read(reader, 100) == b"shown\n"
        os.close(reader)
        console.drop_lost_output(pipes=False)
        with pytest.raises(BrokenPipeError):
            print("not shown", flush=True)
        assert console.interrupted(signal.SIGINT) == 130
        print("nor this", flush=True)
