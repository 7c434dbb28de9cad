"""What a model with memory keeps of a text that it has read, and the file format for it.

The memory after a text consists of the state before the open segment and of the token ids of the open segment. The
open segment holds 1 to `segment` tokens: a full segment is written to the memory when a further token follows. Size
and cost of continuing therefore do not depend on the length of the text.

A memory file is a safetensors file. Its metadata hold a checksum, the fingerprint of the model that wrote it, and the
number of tokens. The classes of the state come from the model and not from the file: loading runs no code of the file.
Shapes: B rows, m memory tokens, D width, N open tokens.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mnemo.errors import MnemoError, shorten
from mnemo.files import atomic
from mnemo.files.tensor_file import require_whole, stored_checksum, write_tensors
from mnemo.memory.state import State, leaves, select, to, tree_map
from mnemo.storage.weights import check_like, check_tensors

FORMAT = "mnemo-text-memory"
FORMAT_VERSION = 1
OPEN = "open"
STATE = "state."
BOUND_TO = ("kind", "start", "associative", "tokens", "mask", "positions")
"""Options of the memory that give the same state another meaning"""


@dataclass(frozen=True)
class TextMemory:
    """The memory after a text: `model.read` returns it, `generate`, `read` and a call of the model continue from it."""

    state: State
    """The state before the open segment; its tensors have a row for each text"""
    open: Tensor
    """(B, N): token ids of the open segment, which are read again when the text is continued"""
    num_tokens: int
    """Tokens read so far, those of the open segment included"""

    def for_batch(self, batch: int, device: torch.device) -> TextMemory:
        """Return the memory with `batch` rows on a device: each row is repeated for several continuations."""
        rows = len(self.open)
        if batch % rows:
            raise MnemoError(f"this memory belongs to {rows} texts: it cannot be continued in {batch} rows")
        index = torch.arange(rows, device=device).repeat_interleave(batch // rows)
        return replace(self, state=select(to(self.state, device), index), open=self.open.to(device)[index])

    def split_last(self) -> tuple[TextMemory, Tensor]:
        """Return the memory before the last token, and the ids (B, 1) of the last token."""
        return replace(self, open=self.open[:, :-1], num_tokens=self.num_tokens - 1), self.open[:, -1:]


def fingerprint(model: Any) -> str:
    """Return a hash of the weights and of the options of the memory: a memory belongs to the model that wrote it."""
    options = {name: getattr(model.config, name) for name in BOUND_TO}
    if model.config.attend_previous:  # left out otherwise: files of earlier versions stay valid
        options["attend_previous"] = True
    sha = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def save_text_memory(path: Path, memory: TextMemory, model: Any) -> None:
    """Write a memory file atomically."""
    tensors = {STATE + name: leaf.detach().cpu().clone() for name, leaf in leaves(memory.state)}
    check_tensors(tensors, _expected(model, len(memory.open)), path)
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "fingerprint": fingerprint(model),
        "num_tokens": str(memory.num_tokens),
    }
    try:
        with atomic.new_file(path) as partial:
            write_tensors(partial, tensors | {OPEN: memory.open.cpu().clone()}, metadata)
    except OSError as error:
        raise MnemoError(f"cannot save {path}: {error.strerror or error}") from None


def load_text_memory(path: Path, model: Any) -> TextMemory:
    """Load a memory file that this model wrote; any other file is an error of one line."""
    require_whole(path)
    if stored_checksum(path) is None:
        raise MnemoError(f"{path} has no checksum: it is not a memory file that `save_memory` wrote")
    try:
        with safe_open(path, "pt") as file:
            num_tokens = _check_metadata(path, file.metadata() or {}, model)
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise MnemoError(f"{path} is not a readable memory file: {error}") from None
    opened = _check_open(path, tensors.pop(OPEN, None), num_tokens, model)
    expected = _expected(model, len(opened))
    check_tensors(tensors, expected, path)
    ordered = iter([tensors[name].to(model.device) for name in expected])
    state = tree_map(lambda _: next(ordered), model.first_state(1))
    return TextMemory(state, opened.to(model.device), num_tokens)


def _expected(model: Any, batch: int) -> dict[str, Tensor]:
    return {STATE + name: leaf for name, leaf in leaves(model.first_state(batch))}


def _check_metadata(path: Path, metadata: dict[str, str], model: Any) -> int:
    """Return the number of tokens; raise MnemoError for another format, version or model."""
    if metadata.get("format") != FORMAT:
        raise MnemoError(f"{path} is not the memory file of a transformers model (`model.save_memory` writes them)")
    if metadata.get("format_version") != str(FORMAT_VERSION):
        found = shorten(str(metadata.get("format_version")))
        raise MnemoError(f"{path} has format_version {found}; this version of mnemo supports {FORMAT_VERSION}")
    if metadata.get("fingerprint") != fingerprint(model):
        raise MnemoError(f"{path} is the memory file of another model: only the model that wrote it can load it")
    count = metadata.get("num_tokens", "")
    if not count.isascii() or not count.isdecimal() or len(count) > 18:
        raise MnemoError(f"{path} is damaged: its number of tokens is {shorten(count)!r}")
    return int(count)


def _check_open(path: Path, opened: Tensor | None, num_tokens: int, model: Any) -> Tensor:
    """Return the ids of the open segment; raise MnemoError if no text could have given them."""
    if opened is None or opened.dim() != 2 or not len(opened):
        raise MnemoError(f"{path} is damaged: it has no open segment")
    check_like(opened, torch.empty(opened.shape, dtype=torch.int64), OPEN, path)
    width, vocabulary = opened.shape[1], len(model.get_input_embeddings().weight)
    possible = 1 <= width <= min(model.config.segment, num_tokens)
    if not possible or int(opened.min()) < 0 or int(opened.max()) >= vocabulary:
        raise MnemoError(f"{path} does not fit this model: its open segment has {width} tokens of {num_tokens}")
    return opened
