"""Give a Hugging Face model a memory, and train it to answer questions about facts hidden in long texts (BABILong).

    mnemo tune MODEL --out DIR                                 20 minutes on generated stories and sentences
    mnemo prepare babilong --from BABI --books BOOKS           real stories and books
    mnemo tune MODEL --out DIR --data DATA --minutes 60        trains for an hour
    mnemo tune MODEL --out DIR --data DATA --minutes 60 --resume

Training starts with samples of one segment; longer ones follow when held-out samples are answered. One step in ten is
on text of books. DIR/model is then the model with its memory for from_pretrained, after `import mnemo.hf`; results.json
and accuracy.svg show the accuracy by length, with memory and with the memory cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mnemo.cli import console
from mnemo.errors import MnemoError
from mnemo.recipes.tuning import Tuning


@dataclass(frozen=True, kw_only=True)
class Args(Tuning):
    json: bool = False
    """Print the results as JSON instead of progress."""


def run(args: Args) -> int:
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
    if args.json:
        console.print_json([result.as_dict() for result in tuned.results])
    elif tuned.folder is not None:
        print(f"model: {tuned.folder}")
    return 0


def _check_model(name: str) -> None:
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise MnemoError(f"'{name}' does not exist")
    elif not path.is_dir() and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise MnemoError(f"'{name}' is no folder; models of the Hugging Face hub are named OWNER/NAME")


def _say(line: str) -> None:
    print(line, flush=True)


def _silent(line: str) -> None:
    pass
