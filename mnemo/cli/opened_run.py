"""Shared by the verbs that use a trained run: open it with its tokenizer or corpus, save results in its folder."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemo import __version__
from mnemo.cli import console
from mnemo.cli.console import STDIN, piped_text
from mnemo.cli.run_arguments import Precision, RunArgs, chosen_run, require_corpus_of
from mnemo.data.corpus import Corpus
from mnemo.data.prepare import load
from mnemo.data.text_files import kind_of_text
from mnemo.data.text_parts import Part
from mnemo.data.tokenizers import AnyTokenizer
from mnemo.errors import MnemoError, require_not_negative
from mnemo.files import atomic
from mnemo.files.json_file import write_json
from mnemo.inference.generation import NOT_FINITE, AnyState
from mnemo.inference.narrow_weights import obstacle
from mnemo.inference.weight_formats import WeightFormat
from mnemo.model.memory_limits import require_state_room
from mnemo.session.text_run import (
    OpenedRun,
    encode,
    encode_file,
    load_text_memory,
    resized,
    with_tokenizer,
    with_weights,
)
from mnemo.storage.run_folder import LoadedRun, open_run
from mnemo.storage.shipped import is_shipped

NOT_TEXT = {"binary": "binary data, not text", "not UTF-8": "not UTF-8 text"}


def open_with_tokenizer(args: RunArgs) -> OpenedRun:
    """Open a run with the tokenizer in its folder; the corpus need not be on this machine."""
    return with_tokenizer(open_run(chosen_run(args), args.which, args.device))


def open_to_write(args: RunArgs, weights: WeightFormat) -> OpenedRun:
    """As `open_with_tokenizer`, with weights in a format for generating."""
    return with_weights(open_with_tokenizer(args), weights)


def open_with_corpus(args: RunArgs) -> tuple[OpenedRun, Corpus]:
    """Open a run with its corpus; warn if the text has changed since training, fail if its vocabulary has."""
    run = open_run(chosen_run(args), args.which, args.device)
    corpus = corpus_of(run)
    return OpenedRun(run, corpus.tokenizer), corpus


def corpus_of(run: LoadedRun) -> Corpus:
    """The corpus that a run was trained on; a changed text is a warning, a changed vocabulary an error."""
    require_corpus_of(run.path, run.recipe)
    corpus = load(run.recipe.data.corpus, show=console.progress)
    if corpus.vocab_size != run.model.config.vocab_size or corpus.tokenizer.unit != run.corpus.get("unit"):
        raise MnemoError(f"corpus '{corpus.name}' has another vocabulary than the one {run.path} was trained on")
    if run.corpus.get("fingerprint") not in (None, corpus.fingerprint()):
        print(f"mnemo: warning: corpus '{corpus.name}' has changed since {run.path} was trained on it", file=sys.stderr)
    return corpus


def start_state(opened: OpenedRun, memory: Path | None, memory_length: int | None) -> tuple[AnyState, int]:
    """The state to continue from and the segment length: those in a memory file, or those of the run."""
    model = opened.run.model
    require_not_negative("memory length", memory_length)
    segment, device = opened.run.recipe.train.segment, model.device
    require_state_room(model.config, device, batch=1, segment=segment, lengths=memory_length, cached=True)
    if memory is None:
        return opened.run.first_state(1, memory_length, cached=True), segment
    state, segment = load_text_memory(memory, opened)
    return state if memory_length is None else resized(model, state, memory_length, segment), segment


def half_precision(choice: Precision, run: LoadedRun, segments: bool = False) -> torch.dtype | None:
    """The type to compute in; None: that of the weights. `auto`: on a GPU as the run was trained.

    `segments`: the run reads whole segments, which is faster in bf16 on a CPU, too, if it has such products.
    """
    device = run.model.device
    if choice == "bf16" and device.type == "cpu":
        if not segments:
            raise MnemoError("bf16 is for GPUs: on a CPU it is slower and saves no memory (--weights int8 is faster)")
        refused = obstacle("bf16", device)
        if refused is not None:
            raise MnemoError(f"--precision bf16: {refused}")
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
    tokens, (kind, _) = encode_file(tokenizer, Path(path)), kind_of_text(Part(Path(path)))
    if kind in NOT_TEXT:
        print(f"mnemo: warning: {path} is {NOT_TEXT[kind]}: its bytes are read as they are", file=sys.stderr)
    return tokens


def require_finite(*losses: float) -> None:
    """Raise MnemoError for a loss that is NaN or infinite."""
    if not all(map(math.isfinite, losses)):
        raise MnemoError(NOT_FINITE)


def result_folder(run: LoadedRun) -> Path | None:
    """The run's folder for results; None for a model that comes with mnemo, or, after a warning, if it is read-only."""
    if is_shipped(run.path):
        return None
    folder = run.path / "results"
    try:
        atomic.make_folder(folder)
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
