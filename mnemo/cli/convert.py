"""Convert published weights to a run of mnemo, and back. Pickles are loaded by torch's restricted loader only.

    mnemo convert SOURCE DEST                  SOURCE: a Hugging Face TransfoXL folder, a state dict of the authors'
                                               PyTorch code, of LaMemo or RMT, NVIDIA's checkpoint, TensorFlow
                                               variables as .npz, or a run of mnemo
    mnemo convert RUN DEST --to hf             a run of mnemo (or any SOURCE) for other code

Settings that neither weights nor configuration contain are given by flags (--memory, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mnemo.cli.console import STDIN
from mnemo.cli.run_arguments import require_corpus, require_file
from mnemo.errors import MnemoError
from mnemo.interop.convert.destination import check_free
from mnemo.memory.configuration import Start


@dataclass(frozen=True, kw_only=True)
class Args:
    source: Annotated[Path, tyro.conf.Positional]
    """Folder or file to convert."""
    dest: Annotated[Path, tyro.conf.Positional]
    """Folder to create."""
    to: Literal["mnemo", "authors", "hf", "nvidia", "lamemo", "rmt", "tf"] = "mnemo"
    """A run of mnemo, or weights and configuration for other code."""
    memory: int | None = None
    """Memory length (mem_len)."""
    segment: int | None = None
    """Segment length (tgt_len); if unknown, 128."""
    num_heads: int | None = None
    """Attention heads (n_head), if the weights do not show them."""
    clamp: int | None = None
    """Largest distance that positions distinguish (clamp_len); 0 for no limit."""
    cutoffs: str | None = None
    """Ends of the bins of an adaptive softmax, for example 20000,40000,200000, if one table holds all bins."""
    same_length: bool = False
    """Every token attends to the same number of tokens."""
    no_same_length: bool = False
    """Tokens attend to all earlier ones of their segment and to the memory; for weights without a configuration."""
    norm: Literal["post", "pre"] | None = None
    """Norms after or before each branch (pre_lnorm)."""
    mem_at_end: Literal["yes", "no"] | None = None
    """RMT: memory tokens also follow each segment."""
    config: Path | None = None
    """JSON file of constructor arguments by their published names; if unset, config.json next to the weights."""
    vocab: Path | None = None
    """vocab.json or vocab.txt; if unset, the one next to the weights."""
    no_vocab: bool = False
    """Convert the weights without a vocabulary."""
    corpus: str | None = None
    """Prepared corpus to evaluate the run on; without a vocabulary file, the model gets its vocabulary."""
    eval: str | None = None
    """Prepared corpus, or text file (- for a pipe), to score the converted model on."""
    split: Literal["valid", "test", "train"] = "valid"
    """Split of that corpus."""
    batch: int = 10
    """Rows of text that are scored side by side, each starting with an empty memory."""
    limit: int | None = None
    """Score only the first N symbols."""
    start: Start | None = None
    """First memory of the score: empty, or full of zeros; if unset, as in the original code."""
    device: str = "auto"
    """Device of the score: cpu, cuda, cuda:1 or mps; auto: a GPU if there is one."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    _check(args)
    from mnemo.cli.convert_weights import convert

    return convert(args)


def _check(args: Args) -> None:
    check_free(args.dest)
    if args.eval is not None and args.to != "mnemo":
        raise MnemoError("--eval scores runs of mnemo only: remove --to")
    if not args.source.exists():
        raise MnemoError(f"{args.source} does not exist")
    if args.eval is not None and args.eval != STDIN and not Path(args.eval).is_file():
        require_corpus(args.eval)
    if args.same_length and args.no_same_length:
        raise MnemoError("--same-length and --no-same-length contradict each other")
    require_file(args.config)
    published_arguments(args)


def published_arguments(args: Args) -> dict[str, Any]:
    """The settings that were given by flags, by their published names."""
    arguments: dict[str, Any] = {
        "mem_len": args.memory,
        "tgt_len": args.segment,
        "n_head": args.num_heads,
        "clamp_len": args.clamp,
        "cutoffs": None if args.cutoffs is None else _numbers(args.cutoffs),
        "same_length": True if args.same_length else False if args.no_same_length else None,
        "pre_lnorm": None if args.norm is None else args.norm == "pre",
        "mem_at_end": None if args.mem_at_end is None else args.mem_at_end == "yes",
    }
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, least in (("mem_len", 0), ("tgt_len", 1), ("n_head", 1)):
        if given.get(name, least) < least:
            raise MnemoError(f"{name} {given[name]} is too small")
    return given


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise MnemoError(f"--cutoffs takes numbers such as 20000,40000,200000, not '{text}'") from None
