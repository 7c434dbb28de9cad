"""Show where memory helps on a given text: the loss of every token with and without memory, the attention by distance,
and the alpha of look-ahead memories. Writes an HTML page, its figures as SVG and its numbers as CSV.

    mnemo analyse                 the validation text of the run that was trained last
    mnemo analyse FILE            a text, with the run that was trained last
    mnemo analyse RUN [FILE]      another run
    mnemo analyse RUN --growth    weights, residual rows, scores and logits at every kept checkpoint

- in place of FILE takes the text from a pipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mnemo.cli.console import STDIN
from mnemo.cli.run_arguments import (
    BITS_PER_SYMBOL,
    TextArgs,
    only_text,
    refuse_swapped,
    require_corpus_of,
    require_text,
    with_run,
)
from mnemo.cli.second_segment import require_two_segments
from mnemo.errors import MnemoError
from mnemo.storage.run_header import RUNS, load_header


@dataclass(frozen=True, kw_only=True)
class Args(TextArgs):
    out: Path | None = None
    """Folder for report.html and its files; if unset, analyses/TEXT in the run's folder."""
    limit: int = 20_000
    """Use only the first N tokens of the text; 0: all."""
    segment: int | None = None
    """Segment length; if unset, as in training."""
    memory_length: int | None = None
    """Memory length of the long-range layers; if unset, as in training."""
    growth: bool = False
    """Instead show how large weights, residual rows, attention scores and logits are at every kept checkpoint: what
    grew before a divergence (keep more of them with mnemo train --train.keep)."""


def run(args: Args) -> int:
    _check(args)
    args = _named(args)
    refuse_swapped("analyse", args)
    args = with_run(args)
    require_text(args.text)
    if args.text is None:
        _require_validation_text(Path(args.run or ""))
    if args.growth:
        if args.which != "best":
            raise MnemoError("--growth shows every kept checkpoint: leave --which out")
        from mnemo.cli.analyse_growth import analyse_growth

        return analyse_growth(args)
    _require_two_segments(args)
    from mnemo.cli.analyse_text import analyse

    return analyse(args)


def _check(args: Args) -> None:
    for name, value, least in (
        ("limit", args.limit, 0),
        ("segment", args.segment, 1),
        ("memory length", args.memory_length, 0),
    ):
        if value is not None and value < least:
            raise MnemoError(f"{name} {value} is {'negative' if least == 0 else 'not positive'}")
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        raise MnemoError(f"{args.out} is not a folder")


def _named(args: Args) -> Args:
    """Decide whether a single name is a text's or a run's."""
    if args.run is None:
        return args
    path = Path(args.run)
    is_text = args.run == STDIN or (path.exists() and not path.is_dir())
    is_mistyped = path.suffix == ".txt" and not path.is_dir() and not (RUNS / path).is_dir()
    return only_text(args) if is_text or is_mistyped else args


def _require_two_segments(args: Args) -> None:
    """Raise an error before the model is loaded if the text has one segment, where that is known from its size."""
    header = load_header(Path(args.run or ""))
    segment = args.segment or header.recipe.train.segment
    if args.limit:
        require_two_segments(args.limit, segment, is_limit=True)
    if args.text is None or args.text == STDIN or header.corpus.get("unit") not in BITS_PER_SYMBOL:
        return
    from mnemo.data.text_parts import Part

    size = Part(Path(args.text)).size()
    if size is not None:
        require_two_segments(size, segment, "bytes")


def _require_validation_text(run: Path) -> None:
    """Raise an error if a run's corpus is not on this machine."""
    recipe = load_header(run).recipe
    if recipe.data.task is not None:
        raise MnemoError(f"{run} was trained on a task: name a text, mnemo analyse {run} FILE")
    require_corpus_of(run, recipe)
