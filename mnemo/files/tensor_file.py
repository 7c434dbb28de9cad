"""Safetensors files of this project: written with a format version and a checksum, checked before they are loaded.

Equal tensors give equal files: the tensors are in the order of the library, and the metadata are sorted by name. The
checksum stands in the metadata. It is that of the whole file in which its own digits are zeros. Files that other
libraries write have no place for it; theirs is the checksum of the file as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.files import atomic, checksum
from mnemo.files.json_file import FORMAT_VERSION
from mnemo.files.safe_load import tensors_problem
from mnemo.progress import Advance

Tensors = Mapping[str, Tensor]
METADATA = "__metadata__"


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors; errors of the library become OSError, so that callers handle a full disk in one place."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    described = {"format": "pt", "format_version": str(FORMAT_VERSION), checksum.FIELD: checksum.BLANK}
    try:
        save_file(contiguous, path, {**described, **(metadata or {})})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    path.chmod(0o644)
    settle(path)
    atomic.sync(path)


def load_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Load the tensors whose names begin with `prefix`, after the file's checksum was verified if it has one."""
    require_whole(path)
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}
    except SafetensorError as error:
        raise MnemoError(f"{path} is not a readable safetensors file: {error}") from None


def settle(path: Path) -> str:
    """Sort the metadata of a new file, write its checksum into them if they have a place for it, and return it."""
    with path.open("r+b", buffering=0) as file:
        length, header = _header(file)
        metadata = dict(sorted(header.get(METADATA, {}).items()))
        text = json.dumps({**header, METADATA: metadata}, ensure_ascii=False, separators=(",", ":")).encode()
        text = text.ljust(length)
        if len(text) != length:
            raise OSError(f"the header of {path} cannot be written again in its length")
        hasher = checksum.Hasher(length.to_bytes(8, "little") + text)
        hasher.rest_of(file)
        found = hasher.result()
        file.seek(8)
        file.write(text.replace(checksum.BLANK.encode(), found.encode(), 1))
    return found


def file_checksum(path: Path, bar: Advance | None = None) -> str:
    """Compute the checksum of a safetensors file; the one that it holds counts as zeros."""
    with path.open("rb", buffering=0) as file:
        length, header = _header(file)
        file.seek(0)
        text = file.read(8 + length)
        stored = checksum.find(header.get(METADATA, {}))
        if stored is not None:
            text = text.replace(stored.encode(), checksum.BLANK.encode(), 1)
        if bar is not None:
            bar.advance(len(text))
        hasher = checksum.Hasher(text)
        hasher.rest_of(file, bar=bar)
    return hasher.result()


def stored_checksum(path: Path) -> str | None:
    """The checksum that a safetensors file holds; None if it holds none."""
    with path.open("rb", buffering=0) as file:
        return checksum.find(_header(file)[1].get(METADATA, {}))


def require_whole(path: Path, expected: str | None = None, bar: Advance | None = None) -> bool:
    """Raise MnemoError if a file has another checksum than it holds, or than `expected`; return whether it has one.

    With a progress bar the checksum is computed even if this process has verified the file before.
    """
    problem = tensors_problem(path)
    if problem:
        raise MnemoError(f"{path} {problem}")
    stored = stored_checksum(path)
    if stored is None and expected is None:
        return False
    found = checksum.remembered(path, file_checksum) if bar is None else file_checksum(path, bar)
    if stored is not None:
        checksum.require(path, found, stored)
    if expected is not None and found != expected:
        raise MnemoError(f"{path} is not the file that was saved: its checksum is another one")
    return True


def _header(file: BinaryIO) -> tuple[int, dict[str, Any]]:
    """Length and content of the header; the file's position is then the first tensor's."""
    length = int.from_bytes(file.read(8), "little")
    return length, json.loads(file.read(length))
