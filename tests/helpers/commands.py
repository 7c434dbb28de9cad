"""Commands of `mnemo` in processes that start fast: they are forked from one that has imported torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from helpers import ranks

from mnemo import cli

PRINTED, MESSAGES = "printed", "messages"


def start(arguments: Sequence[str], folder: Path) -> BaseProcess:
    """Start `mnemo ARGUMENTS` in a folder; its files PRINTED and MESSAGES get stdout and stderr."""
    process = ranks.parent().Process(target=_run, args=(list(arguments), folder, os.environ["MNEMO_DATA"]))
    process.start()
    return process


def _run(arguments: list[str], folder: Path, data: str) -> None:
    os.chdir(folder)
    os.environ["MNEMO_DATA"] = data
    for name, stream in ((PRINTED, sys.stdout), (MESSAGES, sys.stderr)):
        with (folder / name).open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.exit(cli.main(arguments))
