"""Write text with a run, from a prompt or from a memory that `mnemo read` has saved.

Text is printed token by token. Continuation k uses seed + k, so that it can be repeated alone with that seed.
Without RUN, the run that was trained last is used. The sample is saved in the run's `results` folder, where
`mnemo report` finds it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mnemo.cli import console
from mnemo.cli.run_arguments import Precision, RunArgs, require_memory_file, require_text, with_run
from mnemo.config import digest
from mnemo.errors import MnemoError, require_not_negative, require_positive, shorten
from mnemo.inference.sampling_options import Sampling
from mnemo.inference.weight_formats import WeightFormat
from mnemo.lazy import LazyModule

if TYPE_CHECKING:
    from torch import Tensor

    from mnemo.cli import opened_run
    from mnemo.data.tokenizers import AnyTokenizer, Decoder
    from mnemo.session import text_run
    from mnemo.session.text_run import OpenedRun
else:
    opened_run = LazyModule("mnemo.cli.opened_run")
    text_run = LazyModule("mnemo.session.text_run")

LONG_PROMPT = 4096
"""Prompts with more tokens show a progress bar."""


@dataclass(frozen=True, kw_only=True)
class Args(RunArgs):
    prompt: str | None = None
    """Text to continue; without prompt and memory, the start of a document."""
    prompt_file: Path | None = None
    """A file with the text to continue; - takes it from a pipe."""
    memory: Path | None = None
    """Continue from a memory that `mnemo read` has saved with the same run."""
    tokens: int = 256
    """Number of tokens to write."""
    temperature: float = 1.0
    """Divisor of the logits: below 1 likely tokens become likelier; 0 always takes the likeliest."""
    top_k: int | None = None
    """Choose among the k likeliest tokens."""
    top_p: float | None = None
    """Choose among the likeliest tokens that together reach this probability."""
    seed: int = 0
    """Seed of the random numbers."""
    continuations: int = 1
    """Number of texts to write from the same start."""
    memory_length: int | None = None
    """Memory length of the long-range layers; if unset, as in training or in the saved memory."""
    no_save: bool = False
    """Do not save the sample in the run's folder."""
    precision: Precision = "auto"
    """Compute in fp32 or bf16; auto: bf16 on a GPU if the run was trained in it."""
    weights: WeightFormat = "fp32"
    """On a CPU, round the weights of the layers: int8 is faster, bf16 only for some models."""


def run(args: Args) -> int:
    _check(args)
    if args.run is not None and " " in args.run and args.prompt is None and not Path(args.run).exists():
        raise MnemoError(f"a text to continue follows --prompt: mnemo generate --prompt '{shorten(args.run)}'")
    args = with_run(args)
    from mnemo.inference.generation import generate, read
    from mnemo.inference.ring_decoder import suits
    from mnemo.inference.segment_scorer import with_dtype
    from mnemo.memory.state import to

    opened = opened_run.open_to_write(args, args.weights)
    state, segment = opened_run.start_state(opened, args.memory, args.memory_length)
    prompt, model = _prompt(args, opened), opened.run.model
    half = opened_run.half_precision(args.precision, opened.run)
    if half is not None and suits(model.config):
        model, state = with_dtype(model, half), to(state, dtype=half)
    calls = opened.run.decoding == "calls" and args.memory is None
    if prompt is not None:
        show = console.progress if len(prompt) > LONG_PROMPT else None
        state, _ = read(model, prompt, segment=len(prompt) if calls else segment, state=state, progress=show)
    printer = _Printer(opened.tokenizer, prompt if args.prompt is not None else None, sys.stdout)
    generated = generate(
        model,
        state=state,
        num_tokens=args.tokens,
        segment=1 if calls else segment,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        continuations=args.continuations,
        on_token=None if args.json else lambda step, tokens: printer.add(int(tokens[0])),
    )
    texts = [_continuation(opened.tokenizer, prompt, row) for row in generated.tokens]
    record = _record(args, texts)
    if args.json:
        console.print_json(record | {"step": opened.run.step, "tokens": generated.tokens.tolist()})
    else:
        printer.finish(texts[1:])
    if not args.no_save:
        _save(opened, record)
    return 0


def _check(args: Args) -> None:
    if args.prompt is not None and args.prompt_file is not None:
        raise MnemoError("--prompt and --prompt-file cannot be combined")
    if args.prompt == "":
        raise MnemoError("the prompt is empty")
    require_not_negative("memory length", args.memory_length)
    for name, value in (("--tokens", args.tokens), ("--continuations", args.continuations)):
        require_positive(name, value)
    if not 0 <= args.seed < 2**62:
        raise MnemoError(f"seed {args.seed} is not between 0 and 2^62")
    Sampling(args.temperature, args.top_k, args.top_p).check()
    require_text(args.prompt_file)
    require_memory_file(args.memory)


def _prompt(args: Args, opened: OpenedRun) -> Tensor | None:
    """Token ids of the prompt; None to continue from a memory alone."""
    if args.prompt is not None:
        return text_run.encode(opened.tokenizer, args.prompt, "the prompt")
    if args.prompt_file is not None:
        return opened_run.encode_text(opened.tokenizer, args.prompt_file)
    return None if args.memory is not None else text_run.document_start(opened)


class _Printer:
    """Prints the first continuation while it is generated, then the others."""

    def __init__(self, tokenizer: AnyTokenizer, prompt: Tensor | None, output: TextIO) -> None:
        self.output, self.decoder = output, tokenizer.decoder()
        self.prompt = prompt

    def add(self, token: int) -> None:
        if self.prompt is not None:
            console.write_text(self.output, self.decoder.feed(self.prompt.tolist()))
            self.prompt = None
        console.write_text(self.output, self.decoder.feed([token]))

    def finish(self, others: Iterable[str]) -> None:
        console.write_text(self.output, self.decoder.finish() + "\n")
        for number, text in enumerate(others, 2):
            console.write_text(self.output, f"--- continuation {number} ---\n{text}\n")


def _continuation(tokenizer: AnyTokenizer, prompt: Tensor | None, row: Tensor) -> str:
    """The text after the prompt; the prompt decides whether it begins with a space."""
    decoder: Decoder = tokenizer.decoder()
    if prompt is not None:
        decoder.feed(prompt.tolist())
    return decoder.feed(row.tolist()) + decoder.finish()


def _record(args: Args, texts: list[str]) -> dict[str, Any]:
    return {
        "kind": "sample",
        "prompt": args.prompt or "",
        "prompt_file": None if args.prompt_file is None else str(args.prompt_file),
        "memory": None if args.memory is None else str(args.memory),
        "memory_length": args.memory_length,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "seed": args.seed,
        "num_tokens": args.tokens,
        "which": args.which,
        "texts": texts,
    }


def _save(opened: OpenedRun, record: dict[str, Any]) -> None:
    """Save a sample; one with the same settings is replaced."""
    folder = opened_run.result_folder(opened.run)
    if folder is not None:
        settings = {name: value for name, value in record.items() if name != "texts"}
        path = opened_run.save_result(folder, f"sample-{digest(settings)[:8]}", opened.run, record)
        print(f"saved {path}", file=sys.stderr)
