"""Commands in processes that start fast: they are forked from one that has imported torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from helpers import ranks

from mnemo import cli

PRINTED, MESSAGES = "printed", "messages"


Main = Callable[[list[str]], int]
"""The main function of a command: it takes the arguments, and returns the exit code."""


def start(arguments: Sequence[str], folder: Path, main: Main = cli.main) -> BaseProcess:
    """Start `mnemo ARGUMENTS`, or another command, in a folder; files PRINTED and MESSAGES get its output."""
    process = ranks.parent().Process(target=_run, args=(main, list(arguments), folder, os.environ["MNEMO_DATA"]))
    process.start()
    return process


def _run(main: Main, arguments: list[str], folder: Path, data: str) -> None:
    os.chdir(folder)
    os.environ["MNEMO_DATA"] = data
    for name, stream in ((PRINTED, sys.stdout), (MESSAGES, sys.stderr)):
        with (folder / name).open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.exit(main(arguments))
