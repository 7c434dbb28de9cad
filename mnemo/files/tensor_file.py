"""Safetensors files of this project: written with a format version, checked before they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.json_file import FORMAT_VERSION
from mnemo.files.safe_load import tensors_problem

Tensors = Mapping[str, Tensor]


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors; errors of the library become OSError, so that callers handle a full disk in one place."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path, {"format": "pt", "format_version": str(FORMAT_VERSION), **(metadata or {})})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    path.chmod(0o644)
    atomic.sync(path)


def load_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Load the tensors whose names begin with `prefix`."""
    problem = tensors_problem(path)
    if problem:
        raise MnemoError(f"{path} {problem}")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}
    except SafetensorError as error:
        raise MnemoError(f"{path} is not a readable safetensors file: {error}") from None
