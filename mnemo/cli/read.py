"""Read a text once and save the model's memory of it; `mnemo generate --memory` continues from there.

    mnemo read FILE [--save FILE.memory]        with the run that was trained last
    mnemo read RUN FILE [--save FILE.memory]    with another run

- in place of FILE takes the text from a pipe.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mnemo.cli import console
from mnemo.cli.run_arguments import (
    TextArgs,
    format_loss,
    only_text,
    refuse_swapped,
    require_memory_file,
    require_memory_target,
    require_text,
    with_run,
)
from mnemo.errors import MnemoError

if TYPE_CHECKING:
    from mnemo.inference.generation import TextScore, TextState
    from mnemo.session.text_run import OpenedRun


@dataclass(frozen=True, kw_only=True)
class Args(TextArgs):
    save: Annotated[Path | None, tyro.conf.arg(aliases=["--out"])] = None
    """File for the memory, for example BOOK.memory; without it, the text is only scored."""
    memory: Path | None = None
    """Continue from a memory that this command has saved before."""
    memory_length: int | None = None
    """Memory length of the long-range layers; if unset, as in training or in the saved memory."""


def run(args: Args) -> int:
    require_memory_target(args.save)
    args = only_text(args)
    if args.text is None:
        raise MnemoError("name a text to read: mnemo read FILE, or mnemo read RUN FILE")
    refuse_swapped("read", args)
    require_text(args.text)
    require_memory_file(args.memory)
    args = with_run(args)
    from mnemo.cli import opened_run
    from mnemo.inference.generation import read
    from mnemo.session.text_run import vocabulary_digest
    from mnemo.storage.memory_file import save_memory

    opened = opened_run.open_with_tokenizer(args)
    assert args.text is not None
    text = opened_run.encode_text(opened.tokenizer, args.text)
    state, segment = opened_run.start_state(opened, args.memory, args.memory_length)
    reading, score = read(opened.run.model, text, segment=segment, state=state, progress=console.progress)
    opened_run.require_finite(score.nats)
    if args.save is not None:
        vocabulary = vocabulary_digest(opened.tokenizer)
        save_memory(args.save, opened.run.model, reading, segment=segment, vocabulary=vocabulary)
    answer = _answer(args, opened, reading, score, len(text))
    console.print_json(answer) if args.json else _print(answer, opened)
    return 0


def _answer(args: Args, opened: OpenedRun, reading: TextState, score: TextScore, num_tokens: int) -> dict[str, Any]:
    from mnemo.memory.state import nbytes

    return {
        "text": args.text,
        "tokens": num_tokens,
        "tokens_in_all": int(reading.tokens),
        "loss": score.nats / score.tokens if score.tokens else None,
        "nats": score.nats,
        "memory_lengths": list(opened.run.model.memory_lengths(reading.state.state)),
        "memory_bytes": nbytes(reading),
        "saved": None if args.save is None else str(args.save),
    }


def _print(answer: dict[str, Any], opened: OpenedRun) -> None:
    loss = "" if answer["loss"] is None else f", {format_loss(answer['loss'], opened.unit)}"
    before = answer["tokens_in_all"] - answer["tokens"]
    earlier = f" after {before:,} earlier ones" if before else ""
    print(f"read {answer['tokens']:,} tokens{earlier}: {answer['nats']:,.1f} nats{loss}")
    longest = max(answer["memory_lengths"])
    reach = f", {longest:,} tokens a layer at most" if longest else ""
    print(f"memory: {answer['memory_bytes'] / 2**20:.2f} MiB{reach}")
    if answer["saved"]:
        print(f"saved {answer['saved']}")
    else:
        print("not saved: --save BOOK.memory saves it", file=sys.stderr)
