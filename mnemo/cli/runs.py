"""What the verbs that work on a trained run share: opening it with its corpus, and leaving results in its folder."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mnemo import __version__
from mnemo.cli import console
from mnemo.data import corpus as corpora
from mnemo.data.corpus import Corpus
from mnemo.data.prepare import load
from mnemo.data.sources import Part
from mnemo.data.tokenizers import AnyTokenizer, from_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json
from mnemo.inference.generation import AnyState, TextState
from mnemo.model.memory_limits import require_state_room
from mnemo.storage.memory_file import load_memory
from mnemo.storage.run_folder import TOKENIZER, LoadedRun, Which, open_run
from mnemo.units import bits, perplexity

Precision = Literal["auto", "fp32", "bf16"]
UNKNOWN_CORPUS = "unknown"
"""What a run that was converted without a corpus says of it."""
BITS_PER_SYMBOL = ("byte", "char", "symbol")
"""Units whose losses are told in bits; others in perplexity."""


class OpenedRun(NamedTuple):
    run: LoadedRun
    tokenizer: AnyTokenizer

    @property
    def unit(self) -> str:
        return self.tokenizer.unit


def open_with_tokenizer(name: str, which: Which, device: str) -> OpenedRun:
    """A trained run and the tokenizer that its folder keeps: the corpus need not be on this machine."""
    run = open_run(name, which, device)
    path = run.path / TOKENIZER
    if not path.exists():
        raise MnemoError(f"{run.path} has no {TOKENIZER}: it was not trained on text")
    tokenizer = from_json(load_json(path).get("tokenizer"))
    if tokenizer.vocab_size != run.model.config.vocab_size:
        raise MnemoError(f"{path} has {tokenizer.vocab_size} symbols, the model {run.model.config.vocab_size}")
    return OpenedRun(run, tokenizer)


def open_with_corpus(name: str, which: Which, device: str) -> tuple[OpenedRun, Corpus]:
    """A trained run and its corpus; a warning where the text has changed since, an error where its symbols have."""
    run = open_run(name, which, device)
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
    return OpenedRun(run, corpus.tokenizer), corpus


def start_state(opened: OpenedRun, memory: Path | None, memory_length: int | None) -> tuple[AnyState, int]:
    """What to go on from, and the segment length: the memory that the run starts from, or the one in a file."""
    model = opened.run.model
    if memory_length is not None and memory_length < 0:
        raise MnemoError(f"memory length {memory_length} is negative")
    segment, device = opened.run.recipe.train.segment, next(model.parameters()).device
    require_state_room(model.config, device, batch=1, segment=segment, lengths=memory_length, cached=True)
    if memory is None:
        return opened.run.first_state(1, memory_length, cached=True), segment
    loaded = load_memory(memory, model, vocabulary=vocabulary_digest(opened.tokenizer))
    if not isinstance(loaded.memory, TextState) or loaded.layout.batch != 1:
        raise MnemoError(f"{memory} is not what `mnemo read` writes: one text, read to its end")
    if memory_length is None:
        return loaded.memory, loaded.layout.segment
    opened_state = loaded.memory.state
    resized = opened_state._replace(state=model.resize(opened_state.state, memory_length))
    return loaded.memory._replace(state=resized), loaded.layout.segment


def half_precision(choice: Precision, run: LoadedRun) -> torch.dtype | None:
    """The type to compute in, None for that of the weights: on a GPU, as the run was trained."""
    device = next(run.model.parameters()).device
    if choice == "bf16" and device.type == "cpu":
        raise MnemoError("bf16 is for a GPU: on this CPU it would be slow, and no lighter")
    if choice == "auto":
        choice = "bf16" if device.type == "cuda" and run.recipe.train.precision == "bf16" else "fp32"
    return torch.bfloat16 if choice == "bf16" else None


def encode(tokenizer: AnyTokenizer, text: str | bytes, what: str) -> Tensor:
    """Token ids (T,); an unknown symbol is an error that names it."""
    try:
        ids = tokenizer.encode(text)
    except MnemoError as error:
        raise MnemoError(f"{what}: {error}") from None
    if len(ids) == 0:
        raise MnemoError(f"{what}: there is no text in it")
    return torch.from_numpy(ids.astype(np.int64))


def encode_file(tokenizer: AnyTokenizer, path: Path) -> Tensor:
    """Token ids of a text file, compressed or not."""
    if not path.is_file():
        raise MnemoError(f"{path} is not a file")
    return encode(tokenizer, Part(path).read().tobytes(), str(path))


def vocabulary_digest(tokenizer: AnyTokenizer) -> str:
    return hashlib.sha256(json.dumps(tokenizer.to_json(), sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def result_folder(run: LoadedRun) -> Path | None:
    """The run's folder for results; None, with a warning, where it cannot be written."""
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
    """Write one result, `content["kind"]` of it; the same name again replaces it."""
    path = folder / f"{name}.json"
    about = {"mnemo_version": __version__, "step": run.step, "corpus": run.corpus.get("name")}
    write_json(path, about | {"unit": run.corpus.get("unit")} | content)
    return path


def tell_loss(nats: float, unit: str) -> str:
    """`1.2345 bpc` or `23.45 ppl`."""
    return f"{bits(nats):.4f} bpc" if unit in BITS_PER_SYMBOL else f"{perplexity(nats):.2f} ppl"
