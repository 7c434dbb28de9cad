"""Memory files: the state of a model after a text, to continue from in another process.

A memory file is a safetensors file. Its metadata hold its checksum, the fingerprint of the model and the layout of the
state (rows, memory lengths, open tokens). From the layout the model builds an empty state, which the file's tensors
must match name by name. The classes of the state come from the model and not from the file, so that loading runs no
code of the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError, shorten
from mnemo.files import atomic, checksum
from mnemo.files.safe_load import parse_json
from mnemo.files.tensor_file import require_whole, stored_checksum, write_tensors
from mnemo.inference.decoder import DecodeState
from mnemo.inference.generation import TextState
from mnemo.memory.state import State, leaves, nbytes, tree_map
from mnemo.model import Model
from mnemo.model.model import Lengths
from mnemo.storage.weights import check_tensors

FORMAT = "mnemo-memory"
FORMAT_VERSION = 1
LONGEST_SEGMENT = 1 << 16
MOST_TEMPLATES = 4096
"""Shapes of states that are kept; there is one for each number of open tokens."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Form and sizes of the stored state."""

    contents: Literal["state", "decode", "reading"]
    """A state between segments, one with an open segment, or one that generation can continue from."""
    batch: int
    lengths: tuple[int, ...]
    """Memory length of every layer."""
    cached: bool
    """Projected keys and values (the form for inference) or inputs."""
    segment: int
    open: int
    """Largest number of open tokens of a row."""

    def __post_init__(self) -> None:
        sizes_fit = 0 <= self.open < self.segment <= LONGEST_SEGMENT
        if self.batch < 1 or not sizes_fit or min(self.lengths, default=0) < 0:
            raise ValueError("a size is out of range")


def is_memory_file(path: Path) -> bool:
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("format") == FORMAT
    except (OSError, SafetensorError):
        return False


class LoadedMemory(NamedTuple):
    memory: Any
    """A `TextState`, a `DecodeState` or a plain state, as it was saved."""
    layout: Layout


def save_memory(
    path: str | Path, model: Model, memory: TextState | DecodeState | State, *, segment: int, vocabulary: str = ""
) -> None:
    """Write a memory file atomically.

    `segment`: the segment length that the text was read with. `vocabulary`: a hash of the tokenizer, if there is one.
    """
    MemoryFiles(model, vocabulary).save(Path(path), memory, segment)


def load_memory(path: str | Path, model: Model, *, vocabulary: str = "") -> LoadedMemory:
    """Load a memory file that this model wrote; any other file is an error of one line."""
    return MemoryFiles(model, vocabulary).load(Path(path))


class MemoryFiles:
    """Saves and loads many memory files of one model whose weights do not change any more.

    The fingerprint and the shapes of states are computed once, because they take longer than a file.
    """

    def __init__(self, model: Model, vocabulary: str = "") -> None:
        self._model, self._vocabulary = model, vocabulary
        self._template = lru_cache(MOST_TEMPLATES)(lambda layout: _template(self._shadow, model, layout))

    @cached_property
    def fingerprint(self) -> str:
        return self._model.fingerprint()

    @cached_property
    def _shadow(self) -> Model:
        return _shadow(self._model)

    def save(self, path: Path, memory: TextState | DecodeState | State, segment: int) -> None:
        """Write a memory file atomically."""
        layout = _layout(self._model, memory, segment)
        tensors = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in leaves(memory)}
        check_tensors(tensors, dict(leaves(self._template(layout))), path)
        metadata = {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "fingerprint": self.fingerprint,
            "vocabulary": self._vocabulary,
            "layout": json.dumps(to_json(layout)),
        }
        try:
            with atomic.new_file(path) as partial:
                write_tensors(partial, tensors, metadata)
        except OSError as error:
            raise MnemoError(f"cannot save {path}: {error.strerror or error}") from None

    def load(self, path: Path) -> LoadedMemory:
        """Load a memory file that this model wrote; any other file is an error of one line."""
        require_whole(path)
        if stored_checksum(path) is None:
            checksum.note_unchecked(path, "memory")
        model = self._model
        try:
            with safe_open(path, "pt") as file:
                layout = _read_metadata(path, file.metadata() or {}, model, self._vocabulary, self.fingerprint)
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except SafetensorError as error:
            raise MnemoError(f"{path} is not a readable memory file: {error}") from None
        template = self._template(layout)
        check_tensors(tensors, dict(leaves(template)), path)
        memory = _fill(template, tensors, model.device)
        _check_values(model, memory, layout, path)
        return LoadedMemory(memory, layout)

    def state_bytes(self, lengths: Lengths) -> int:
        """Bytes of a state between two segments with these memory lengths; nothing of that size is allocated."""
        return nbytes(self._shadow.init(1, lengths, cached=True))


def _layout(model: Model, memory: TextState | DecodeState | State, segment: int) -> Layout:
    state, count = _parts(memory)
    cached = _is_cached(model, state)
    return Layout(
        contents=_contents(memory),
        batch=len(next(leaves(state))[1]),
        lengths=model.init_lengths(state),
        cached=cached,
        segment=segment,
        open=0 if count is None else int(count.max()),
    )


def _is_cached(model: Model, state: State) -> bool:
    names = [name for name, _ in leaves(state)]
    for cached in (True, False):
        if names == [name for name, _ in leaves(model.init(1, cached=cached))]:
            return cached
    raise MnemoError("this memory was not made by this model")


def _contents(memory: TextState | DecodeState | State) -> Literal["state", "decode", "reading"]:
    if isinstance(memory, TextState):
        return "reading"
    return "decode" if isinstance(memory, DecodeState) else "state"


def _parts(memory: TextState | DecodeState | State) -> tuple[State, Tensor | None]:
    """The committed state, and the open tokens of each row; None if no segment is open."""
    opened = memory.state if isinstance(memory, TextState) else memory
    return (opened.state, opened.count) if isinstance(opened, DecodeState) else (opened, None)


def _template(shadow: Model, model: Model, layout: Layout) -> Any:
    """An empty memory of this layout, without storage; only counts are real tensors, on the CPU."""
    state = shadow.init(layout.batch, layout.lengths, cached=layout.cached)
    if layout.contents == "state":
        return state
    decoder = shadow.decoder(state, segment=layout.segment)
    if layout.open:
        decoder.feed(torch.zeros(layout.batch, layout.open, dtype=torch.int64, device="meta"))
    if layout.contents == "decode":
        return decoder.state()
    hidden = next(shadow.parameters()).new_empty(layout.batch, model.config.dim)
    return TextState(decoder.state(), hidden, torch.zeros(layout.batch, dtype=torch.int64))


def _shadow(model: Model) -> Model:
    """The same model without storage, to compute shapes."""
    with torch.device("meta"):
        return Model(model.config).to(next(model.parameters()).dtype).eval()


def _read_metadata(path: Path, metadata: dict[str, str], model: Model, vocabulary: str, fingerprint: str) -> Layout:
    if metadata.get("format") != FORMAT:
        raise MnemoError(f"{path} is not a memory file (`mnemo read` writes them)")
    if metadata.get("format_version") != str(FORMAT_VERSION):
        found = shorten(str(metadata.get("format_version")))
        raise MnemoError(f"{path} has format_version {found}; this version of mnemo supports {FORMAT_VERSION}")
    if metadata.get("fingerprint") != fingerprint:
        raise MnemoError(f"{path} is the memory file of another model: only the model that wrote it can load it")
    if vocabulary and metadata.get("vocabulary") not in ("", vocabulary):
        raise MnemoError(f"{path} was made with another vocabulary")
    try:
        layout = from_json(Layout, parse_json(metadata["layout"]), f"{path}: layout")
    except (KeyError, ValueError):
        raise MnemoError(f"{path} is damaged: its layout cannot be read") from None
    if len(layout.lengths) != model.config.num_layers:
        raise MnemoError(
            f"{path} is damaged: {len(layout.lengths)} memory lengths for {model.config.num_layers} layers"
        )
    _check_size(path, layout)
    return layout


def _fill(template: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """The template's tree with these tensors; counts stay on the CPU."""
    ordered = iter([tensors[name].to(device if leaf.is_meta else "cpu") for name, leaf in leaves(template)])
    return tree_map(lambda _: next(ordered), template)


def _check_values(model: Model, memory: Any, layout: Layout, path: Path) -> None:
    """Refuse impossible counts: negative ones, more valid slots than there are, another number of open tokens."""
    state, count = _parts(memory)
    resized = leaves(model.resize(state, layout.lengths))
    possible = (
        all(int(leaf.min()) >= 0 for _, leaf in leaves(memory) if not leaf.is_floating_point())
        and all(torch.equal(leaf, clamped) for (_, leaf), (_, clamped) in zip(leaves(state), resized, strict=True))
        and (count is None or int(count.max()) == layout.open)
    )
    if not possible:
        raise MnemoError(f"{path} is damaged: its counts are impossible")


def _check_size(path: Path, layout: Layout) -> None:
    """Refuse a layout that is larger than its file, before anything of that size is built."""
    if layout.batch * (sum(layout.lengths) + layout.open) > path.stat().st_size:
        raise MnemoError(f"{path} is damaged: its layout is larger than the file")
