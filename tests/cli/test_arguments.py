"""Wrong arguments: one line that names the flag and what it takes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
import tyro

from mnemo.cli import arguments
from mnemo.errors import MnemoError


@dataclass(frozen=True, kw_only=True)
class Args:
    run: Annotated[str, tyro.conf.Positional]
    """A run."""
    memory: int | None = None
    temperature: float = 1.0
    out: Path | None = None
    split: Literal["valid", "test"] | None = None
    pair: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError("temperature is negative")


VERB = SimpleNamespace(Args=Args, __doc__="A verb.")


def parse(*argv: str) -> Args:
    return arguments.parse("verb", VERB, argv)


def test_right_arguments() -> None:
    assert parse("x", "--memory", "3", "--split", "test") == Args(run="x", memory=3, split="test")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ((), "missing RUN; mnemo verb --help explains the arguments"),
        (("x", "--memry", "7"), "unknown option '--memry'; did you mean '--memory'?"),
        (("x", "--memry=7"), "unknown option '--memry'; did you mean '--memory'?"),
        (("x", "y"), "unexpected argument 'y'"),
        (("x", "--memory"), "--memory needs a whole number after it"),
        (("x", "--memory", "seven"), "--memory needs a whole number, not 'seven'"),
        (("x", "--temperature", "hot"), "--temperature needs a number, not 'hot'"),
        (("x", "--split", "all"), "--split: 'all' is not one of test, valid"),
        (("x", "--pair", "1", "b"), "--pair needs whole numbers, not '1 b'"),
        (("x", "--temperature", "-1"), "temperature is negative"),
    ],
)
def test_a_mistake_is_one_line(argv: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MnemoError) as error:
        parse(*argv)
    assert str(error.value) == line
    assert capsys.readouterr() == ("", "")


def test_without_the_hook_the_parser_reports_errors_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arguments, "tyro_errors", None)
    with pytest.raises(SystemExit) as stop:
        parse("x", "--memory", "seven")
    assert stop.value.code == 2 and "seven" in capsys.readouterr().err


def test_a_verb_explains_its_arguments() -> None:
    """In a process of its own, as a user calls it: help goes to stdout and is no error."""
    done = subprocess.run([sys.executable, "-m", "mnemo", "convert", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "usage: mnemo convert" in done.stdout
