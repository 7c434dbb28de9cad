"""Read and write with a model in turns: type or paste text, and the model goes on writing.

    mnemo chat                    with the run that was trained last, or with the model that comes with mnemo
    mnemo chat RUN                with another run
    echo "Once" | mnemo chat      one reply for every line

A line shows how the memory fills. Commands begin with a slash, and /help lists them: read a file, save and load the
memory, fork the text, turn the memory off. Ctrl-C stops a reply; Ctrl-D leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mnemo.cli.run_arguments import RunArgs, require_memory_file, with_run
from mnemo.errors import require_positive
from mnemo.inference.sampling_options import Sampling
from mnemo.inference.weight_formats import WeightFormat


@dataclass(frozen=True, kw_only=True)
class Args(RunArgs):
    memory: Path | None = None
    """Continue from a memory that /save or `mnemo read` has saved with the same run."""
    tokens: int = 200
    """Number of tokens of a reply."""
    temperature: float = 0.8
    """Divisor of the logits: below 1 likely tokens become likelier; 0 always takes the likeliest."""
    top_k: int | None = None
    """Choose among the k likeliest tokens."""
    top_p: float | None = None
    """Choose among the likeliest tokens that together reach this probability."""
    seed: int = 0
    """Seed of the random numbers."""
    memory_length: int | None = None
    """Memory length of the long-range layers; if unset, as in training or in the saved memory."""
    weights: WeightFormat = "fp32"
    """On a CPU, round the weights of the layers: int8 is faster, bf16 only for some models."""


def run(args: Args) -> int:
    require_positive("--tokens", args.tokens)
    Sampling(args.temperature, args.top_k, args.top_p).check()
    require_memory_file(args.memory)
    args = with_run(args)
    from mnemo.cli.chat_loop import chat

    return chat(args)
