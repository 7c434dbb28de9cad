"""Arguments of the verbs that use a trained run, and checks of the names that they contain, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mnemo.cli import console
from mnemo.data.known_corpora import PYTHON, missing
from mnemo.errors import MnemoError
from mnemo.recipes.recipe import Recipe
from mnemo.storage.run_header import Which

Precision = Literal["auto", "fp32", "bf16"]
UNKNOWN_CORPUS = "unknown"
"""Name of the corpus of a run that was converted without one."""
BITS_PER_SYMBOL = ("byte", "char", "symbol")
"""Units whose losses are shown in bits; others as perplexity."""


@dataclass(frozen=True, kw_only=True)
class RunArgs:
    """The arguments of every verb that uses a trained run."""

    run: Annotated[str, tyro.conf.Positional]
    """A run's folder, or its name under runs/."""
    which: Which = "best"
    """The checkpoint with the lowest validation loss, or the last one."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto: a GPU if there is one."""
    json: bool = False
    """Print JSON."""


def require_file(path: Path | None) -> None:
    """Raise an error if a path was given and is not that of a file."""
    if path is not None and not path.is_file():
        raise MnemoError(f"{path} is not a file")


def require_existing(path: Path | None) -> None:
    """Raise an error if a path was given and does not exist."""
    if path is not None and not path.exists():
        raise MnemoError(f"{path} is missing")


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
