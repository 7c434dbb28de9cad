"""Checkpoints of several processes, by torch.distributed.checkpoint with its safetensors storage.

Every process writes the tensors that only it has, and a share of those that all have. The files are safetensors whose
headers contain the position of each piece in its tensor, so that any number of processes can load them. Names are those
of a checkpoint of a single process.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.files.tensor_file import settle

SUFFIX = ".safetensors"
PIECES, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"


class Stored(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]


def write(folder: Path, tensors: Mapping[str, Tensor], group: Any) -> dict[str, str]:
    """Write tensors, and return the checksums of this process's files; all processes of the group call this.

    A tensor is whole, a DTensor, or on one process only.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        save(contiguous, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise _cause(error) from None
    own = f"shard-{dist.get_rank(group) + 1:05d}-*{SUFFIX}"
    return {path.name: settle(path) for path in folder.glob(own)}


def gather(own: dict[str, str], group: Any) -> dict[str, str]:
    """The checksums of the files of all processes."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return {name: checksum for part in found for name, checksum in part.items()}


def _cause(error: Any) -> Exception:
    """The error of the first process that failed: OSError for a disk error, RuntimeError for a bug."""
    rank, (cause, _) = min(error.failures.items())
    return OSError(cause.errno, cause.strerror) if isinstance(cause, OSError) else RuntimeError(f"rank {rank}: {cause}")


def layout(folder: Path) -> dict[str, Stored]:
    """Type and shape of every tensor in a folder's files. Pieces must fill their tensor without gaps."""
    pieces: dict[str, list[tuple[Stored, tuple[int, ...]]]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        for name, piece in _pieces(path).items():
            pieces.setdefault(name, []).append(piece)
    return {name: _whole(name, found, folder) for name, found in pieces.items()}


def _pieces(path: Path) -> dict[str, tuple[Stored, tuple[int, ...]]]:
    """The pieces in a file, and the position of each in its tensor."""
    try:
        with safe_open(path, "pt") as file:
            begins = json.loads((file.metadata() or {}).get(PIECES, "{}"))
            found = {}
            for name in file.keys():
                piece = file.get_slice(name)
                shape = tuple(piece.get_shape())
                offset = tuple(begins[name][OFFSETS]) if begins else (0,) * len(shape)
                found[name] = (Stored(DTYPES[piece.get_dtype()], shape), offset)
            return found
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MnemoError(f"{path} is damaged: {error}") from None


DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


def _whole(name: str, pieces: list[tuple[Stored, tuple[int, ...]]], folder: Path) -> Stored:
    (dtype, first), _ = pieces[0]
    is_count = all(type(begin) is int and begin >= 0 for _, offset in pieces for begin in offset)
    alike = all(s.dtype == dtype and len(s.shape) == len(first) == len(offset) for s, offset in pieces)
    if not is_count or not alike:
        raise MnemoError(f"{folder} is damaged: the pieces of '{name}' do not belong together")
    ends = [[begin + size for begin, size in zip(offset, s.shape, strict=True)] for s, offset in pieces]
    shape = tuple(max(sizes) for sizes in zip(*ends, strict=True))
    if sum(math.prod(s.shape) for s, _ in pieces) != math.prod(shape):
        raise MnemoError(f"{folder} is damaged: the pieces of '{name}' do not fill it")
    return Stored(dtype, shape)


def read(
    folder: Path, stored: Mapping[str, Stored], like: Callable[[str], Tensor | None] = lambda name: None
) -> dict[str, Tensor]:
    """Load tensors from a folder. If `like` returns a DTensor for a name, only this process's piece is loaded."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    tensors = {name: _target(found, like(name)) for name, found in stored.items()}
    if not tensors:
        return {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each process loads for itself
        try:
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            raise MnemoError(f"{folder} is damaged: {min(error.failures.items())[1][0]}") from None
    return tensors


def _target(found: Stored, like: Tensor | None) -> Tensor:
    from torch.distributed.tensor import DTensor

    if isinstance(like, DTensor) and tuple(like.shape) == found.shape:
        return torch.zeros_like(like, dtype=found.dtype)
    return torch.empty(found.shape, dtype=found.dtype)
