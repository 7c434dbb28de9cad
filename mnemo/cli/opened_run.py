"""Shared by the verbs that use a trained run: open it with its tokenizer or corpus, save results in its folder."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
import tyro
from torch import Tensor

from mnemo import __version__
from mnemo.cli import console
from mnemo.data import corpus as corpora
from mnemo.data.corpus import Corpus
from mnemo.data.prepare import load
from mnemo.data.tokenizers import AnyTokenizer
from mnemo.errors import MnemoError
from mnemo.files.json_file import write_json
from mnemo.inference.generation import AnyState
from mnemo.model.memory_limits import require_state_room
from mnemo.session.text_run import OpenedRun, encode, encode_file, load_text_memory, resized, with_tokenizer
from mnemo.storage.run_folder import RUNS, LoadedRun, Which, default_run, find_run, open_run
from mnemo.storage.shipped import is_shipped

TextsT = TypeVar("TextsT", bound="TextArgs")
Precision = Literal["auto", "fp32", "bf16"]
STDIN = "-"
"""In place of a file: the text from a pipe."""
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


def only_text(args: TextsT) -> TextsT:
    """Arguments whose single name is the text's: `mnemo read FILE` means `mnemo read LAST_RUN FILE`."""
    if args.text is not None or args.run is None:
        return args
    return replace(args, run=None, text=args.run)


def chosen_run(args: RunArgs) -> Path:
    """The folder of the run that the arguments name.

    Without a name: the last run under runs/, or a model that comes with mnemo if there is none, after a line about it.
    """
    if args.run is not None:
        return find_run(args.run)
    folder = default_run()
    if is_shipped(folder):
        print(f"mnemo: there is no trained run in {RUNS}: using {folder.name}, which comes with mnemo", file=sys.stderr)
    else:
        print(f"mnemo: using the last run, {folder}", file=sys.stderr)
    return folder


def open_with_tokenizer(args: RunArgs) -> OpenedRun:
    """Open a run with the tokenizer in its folder; the corpus need not be on this machine."""
    return with_tokenizer(open_run(chosen_run(args), args.which, args.device))


def open_with_corpus(args: RunArgs) -> tuple[OpenedRun, Corpus]:
    """Open a run with its corpus; warn if the text has changed since training, fail if its vocabulary has."""
    run = open_run(chosen_run(args), args.which, args.device)
    corpus = corpus_of(run)
    return OpenedRun(run, corpus.tokenizer), corpus


def corpus_of(run: LoadedRun) -> Corpus:
    """The corpus that a run was trained on; a changed text is a warning, a changed vocabulary an error."""
    if run.recipe.data.corpus == UNKNOWN_CORPUS and corpora.find(UNKNOWN_CORPUS) is None:
        raise MnemoError(
            f"{run.path} was converted without a corpus: convert it again with --corpus NAME (a prepared one), or "
            "score a text while converting: mnemo convert SOURCE DEST --eval FILE"
        )
    corpus = load(run.recipe.data.corpus, show=console.progress)
    if corpus.vocab_size != run.model.config.vocab_size or corpus.tokenizer.unit != run.corpus.get("unit"):
        raise MnemoError(f"corpus '{corpus.name}' has another vocabulary than the one {run.path} was trained on")
    if run.corpus.get("fingerprint") not in (None, corpus.fingerprint()):
        print(f"mnemo: warning: corpus '{corpus.name}' has changed since {run.path} was trained on it", file=sys.stderr)
    return corpus


def start_state(opened: OpenedRun, memory: Path | None, memory_length: int | None) -> tuple[AnyState, int]:
    """The state to continue from and the segment length: those in a memory file, or those of the run."""
    model = opened.run.model
    if memory_length is not None and memory_length < 0:
        raise MnemoError(f"memory length {memory_length} is negative")
    segment, device = opened.run.recipe.train.segment, model.device
    require_state_room(model.config, device, batch=1, segment=segment, lengths=memory_length, cached=True)
    if memory is None:
        return opened.run.first_state(1, memory_length, cached=True), segment
    state, segment = load_text_memory(memory, opened)
    return state if memory_length is None else resized(model, state, memory_length, segment), segment


def half_precision(choice: Precision, run: LoadedRun) -> torch.dtype | None:
    """The type to compute in; None: that of the weights. `auto`: on a GPU as the run was trained."""
    device = run.model.device
    if choice == "bf16" and device.type == "cpu":
        raise MnemoError("bf16 is for GPUs: on a CPU it is slower and saves no memory")
    if choice == "auto":
        choice = "bf16" if device.type == "cuda" and run.recipe.train.precision == "bf16" else "fp32"
    return torch.bfloat16 if choice == "bf16" else None


def computing_in(half: torch.dtype | None, run: LoadedRun) -> AbstractContextManager[Any]:
    """Compute in the given type on the run's device."""
    return nullcontext() if half is None else torch.autocast(run.model.device.type, half)


def encode_text(tokenizer: AnyTokenizer, path: Path | str) -> Tensor:
    """Token ids of a text file, compressed or not; `-` is the text from a pipe."""
    if str(path) == STDIN:
        return encode(tokenizer, piped_text(), "the text from the pipe")
    return encode_file(tokenizer, Path(path))


def piped_text() -> bytes:
    if sys.stdin.isatty():
        raise MnemoError("- reads the text from a pipe, but there is none: cat TEXT | mnemo VERB -")
    return sys.stdin.buffer.read()


def result_folder(run: LoadedRun) -> Path | None:
    """The run's folder for results; None for a model that comes with mnemo, or, after a warning, if it is read-only."""
    if is_shipped(run.path):
        return None
    folder = run.path / "results"
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / ".tmp-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        print(f"mnemo: warning: results are not saved: {error.strerror}: {folder}", file=sys.stderr)
        return None
    return folder


def save_result(folder: Path, name: str, run: LoadedRun, content: dict[str, Any]) -> Path:
    """Write one result; an earlier one of the same name is replaced."""
    path = folder / f"{name}.json"
    about = {"mnemo_version": __version__, "step": run.step, "corpus": run.corpus.get("name")}
    write_json(path, about | {"unit": run.corpus.get("unit")} | content)
    return path


def format_loss(nats: float, unit: str) -> str:
    """`1.2345 bpc` or `23.45 ppl`."""
    return console.format_loss(nats, in_bits=unit in BITS_PER_SYMBOL)
