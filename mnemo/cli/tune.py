"""Give a Hugging Face model a memory, and train it to answer questions about facts hidden in long texts (BABILong).

    mnemo tune MODEL --out DIR                                 20 minutes on generated stories and sentences
    mnemo prepare babilong --from BABI --books BOOKS           real stories and books
    mnemo tune MODEL --out DIR --data DATA --minutes 60        trains for an hour
    mnemo tune MODEL --out DIR --data DATA --minutes 60 --resume

Training starts with samples of one segment; longer ones follow when held-out samples are answered. One step in ten is
on text of books. DIR/model is then the model with its memory for from_pretrained, after `import mnemo.hf`; results.json
and accuracy.svg show the accuracy by length, with memory and with the memory cut.

Ctrl-C, SIGTERM, SIGQUIT, SIGUSR1 and SIGHUP finish the step of training, save a checkpoint, and print the command that
goes on; the exit code is 128 + the signal. A second Ctrl-C, SIGTERM or SIGQUIT stops at once.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mnemo.cli import arguments, console
from mnemo.errors import MnemoError
from mnemo.recipes.tuning import Tuning
from mnemo.storage.run_identity import RECIPE

if TYPE_CHECKING:
    from mnemo.hf.tuning.tune import Tuned


@dataclass(frozen=True, kw_only=True)
class Args(Tuning):
    json: bool = False
    """Print the results as JSON instead of progress."""


def main(argv: list[str]) -> int:
    args = arguments.parse("tune", sys.modules[__name__], argv)
    if args.data is not None and not args.data.is_dir():
        raise MnemoError(f"{args.data} is no folder: mnemo prepare babilong --from BABI --books BOOKS writes one")
    _check_model(args.model)
    from mnemo.hf.tuning.tune import measure_zero_shot, speed, tune

    say = _silent if args.json else _say
    if args.speed:
        measured = speed(args, say)
        if args.json:
            console.print_json(measured)
        return 0
    if args.zero_shot:
        results = measure_zero_shot(args, say, console.progress)
        if args.json:
            console.print_json([result.as_dict() for result in results])
        return 0
    tuned = tune(args, say, console.progress)
    if tuned.signal is not None:
        return _stopped(tuned, tuned.signal, args, argv)
    if args.json:
        console.print_json([result.as_dict() for result in tuned.results])
    elif tuned.folder is not None:
        print(f"model: {tuned.folder}")
    return 0


def _stopped(tuned: Tuned, signal: int, args: Args, argv: Sequence[str]) -> int:
    """Say on stderr how training goes on; return the exit code for the signal."""
    console.drop_lost_output(pipes=True)
    command = shlex.join(["mnemo", "tune", *argv, *([] if args.resume else ["--resume"])])
    print(f"mnemo: stopped and saved after step {tuned.steps:,}; resume with: {command}", file=sys.stderr)
    return 128 + signal


def _check_model(name: str) -> None:
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise MnemoError(f"'{name}' does not exist")
    elif (path / RECIPE).is_file():
        raise MnemoError(f"'{name}' is a run of mnemo train, not a Hugging Face model")
    elif not path.is_dir() and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise MnemoError(f"'{name}' is no folder; models of the Hugging Face hub are named OWNER/NAME")


def _say(line: str) -> None:
    console.drop_lost_output(pipes=True)  # Ctrl-C also ends `tee`, and training must still be saved
    print(line, flush=True)


def _silent(line: str) -> None:
    pass
