"""Arguments of the verbs that use a trained run, and checks of the names that they contain, without importing torch."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro

from mnemo.cli import console
from mnemo.cli.console import STDIN
from mnemo.data.known_corpora import PYTHON, missing
from mnemo.errors import MnemoError
from mnemo.files.safe_load import kind_of
from mnemo.recipes.recipe import Recipe
from mnemo.storage.run_header import RECIPE, RUNS, Which, default_run, find_run, last_run, no_trained_run
from mnemo.storage.shipped import is_shipped

Precision = Literal["auto", "fp32", "bf16"]
UNKNOWN_CORPUS = "unknown"
"""Name of the corpus of a run that was converted without one."""
BITS_PER_SYMBOL = ("byte", "char", "symbol")
"""Units whose losses are shown in bits; others as perplexity."""


@dataclass(frozen=True, kw_only=True)
class RunArgs:
    """The arguments of every verb that uses a trained run."""

    run: Annotated[str | None, tyro.conf.Positional] = None
    """A run's folder, or its name under runs/; if unset, the run that was trained last, else novels-small."""
    which: Which = "best"
    """The checkpoint with the lowest validation loss, or the last one."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto: a GPU if there is one."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class TextArgs(RunArgs):
    """The arguments of a verb that uses a run and a text; a single one of the two names may be given."""

    text: Annotated[str | None, tyro.conf.Positional] = None
    """A text file; xz, gz and bz2 files are decompressed. - takes the text from a pipe."""


RunArgsT = TypeVar("RunArgsT", bound=RunArgs)
TextArgsT = TypeVar("TextArgsT", bound=TextArgs)


def with_run(args: RunArgsT) -> RunArgsT:
    """The arguments with the folder of their run; without a name that of the last run, after a line about it."""
    return replace(args, run=str(chosen_run(args)))


def chosen_run(args: RunArgs) -> Path:
    """The folder of the run that the arguments name.

    Without a name: the last run under runs/, or a model that comes with mnemo if there is none, after a line about it.
    """
    if args.run is None and is_shipped(folder := default_run()):
        print(f"mnemo: {no_trained_run()}: using {folder.name}, which comes with mnemo", file=sys.stderr)
        return folder
    return run_or_last(args.run)


def run_or_last(name: str | None, runs: Path = RUNS) -> Path:
    """The folder of a run; without a name that of the last run, after a line about it."""
    if name is not None:
        return find_run(name, runs)
    folder = last_run(runs)
    print(f"mnemo: using the last run, {folder}", file=sys.stderr)
    return folder


def only_text(args: TextArgsT) -> TextArgsT:
    """The arguments with a single name taken as that of the text: `mnemo read FILE` is `mnemo read LAST_RUN FILE`."""
    return args if args.text is not None or args.run is None else replace(args, run=None, text=args.run)


def require_file(path: Path | None) -> None:
    """Raise an error if a path was given and is not that of a file."""
    if path is not None and not path.is_file():
        raise MnemoError(f"{path} is not a file")


def require_text(path: Path | str | None) -> None:
    """Raise an error if a text was given that is neither a file nor a pipe, or an empty file."""
    if path is None or str(path) == STDIN:
        return
    path = Path(path)
    if path.exists() and not path.is_file():
        hint = "name a single text; mnemo train takes folders" if path.is_dir() else "- takes a text from a pipe"
        raise MnemoError(f"{path} is not a file but {kind_of(path)}: {hint}")
    require_file(path)
    if path.stat().st_size == 0:
        raise MnemoError(f"{path}: it contains no text")


def refuse_swapped(verb: str, args: TextArgs) -> None:
    """Raise an error if the text was named before the run."""
    if args.run is None or args.text is None or not Path(args.run).is_file():
        return
    is_run = any((folder / RECIPE).is_file() for folder in (RUNS / args.text, Path(args.text)))
    if is_run:
        raise MnemoError(f"name the run before the text: mnemo {verb} {args.text} {args.run}")


def require_memory_file(path: Path | None) -> None:
    """Raise an error if a path was given that is not a file of tensors, as memory files are."""
    require_existing(path)
    if path is None:
        return
    begin = b""
    if path.is_file():
        with path.open("rb") as file:
            begin = file.read(9)
    if begin[8:] != b"{":  # the length of the header in 8 bytes, then the header as JSON
        raise MnemoError(f"{path} is not a memory file; make one with: mnemo read RUN TEXT --save FILE.memory")


def require_memory_target(path: Path | None) -> None:
    """Raise an error if a memory cannot be saved at a path, or would replace another file or a folder."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise MnemoError(f"{path.absolute().parent} is not a folder")
    if path.exists():
        from mnemo.storage.memory_file import is_memory_file

        if not is_memory_file(path):
            raise MnemoError(f"{path} exists and is not a memory file: choose another path with --save")


def require_existing(path: Path | None) -> None:
    """Raise an error if a path was given and does not exist."""
    if path is not None and not path.exists():
        raise MnemoError(f"{path} is missing")


def made_folder(path: Path, option: str = "--out") -> Path:
    """Create the folder of an option before the work begins, so that an error costs no time."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # for example a file in its place
        raise MnemoError(f"there can be no folder {path} ({error.strerror}): choose another with {option}") from None
    if not os.access(path, os.W_OK):
        raise MnemoError(f"{path} cannot be written to: choose another folder with {option}")
    return path


def require_corpus(name: str) -> None:
    """Raise an error if a corpus is neither prepared nor the default one, which is prepared when it is needed."""
    from mnemo.data import corpus as corpora

    if name != PYTHON and corpora.find(name) is None:
        raise missing(name)


def require_corpus_of(run: Path, recipe: Recipe) -> None:
    """Raise an error if a run's corpus is missing."""
    try:
        require_corpus(recipe.data.corpus)
    except MnemoError:
        if recipe.data.corpus != UNKNOWN_CORPUS:
            raise
        raise MnemoError(
            f"{run} was converted without a corpus: convert it again with --corpus NAME (a prepared one), or "
            "score a text while converting: mnemo convert SOURCE DEST --eval FILE"
        ) from None


def format_loss(nats: float, unit: str) -> str:
    """`1.2345 bpc` or `23.45 ppl`."""
    return console.format_loss(nats, in_bits=unit in BITS_PER_SYMBOL)
