"""A file of reference values from a published implementation, with a record of which values were compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.files.safe_load import parse_json, tensors_problem

LM_RMT = "lm-rmt"
"""Format of files without a `format` whose `source` is LM-RMT."""
LARGEST = 100_000


class Refused(Exception):
    """Raised if the values of a file come from a defect of the published code that ours does not have."""


def largest_error(ours: Tensor, theirs: Tensor) -> float:
    """Return max |a - b| / max(1, max |b|); infinity if shapes differ or the error is not finite."""
    if ours.shape != theirs.shape:
        return math.inf
    if theirs.numel() == 0:
        return 0.0
    ours, theirs = ours.detach().double(), theirs.double()
    error = float((ours - theirs).abs().max()) / max(1.0, float(theirs.abs().max()))
    return error if math.isfinite(error) else math.inf


class Reference:
    def __init__(self, kind: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.kind, self.config = kind, config
        self.errors: dict[str, float] = {}
        """Largest error of each set, such as `losses`"""
        self.worst: dict[str, str] = {}
        """Name of the tensor with that error"""
        self._tensors, self._unused = tensors, set(tensors)

    @staticmethod
    def open(path: Path) -> Reference:
        problem = tensors_problem(path)
        if problem:
            raise MnemoError(f"not a complete safetensors file: it {problem}")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except OSError as error:
            raise MnemoError(f"cannot be loaded: {error.strerror or error}") from None
        except SafetensorError as error:
            raise MnemoError(f"not a complete safetensors file ({error})") from None
        config = _parse(metadata.get("config", "{}"))
        return Reference(_kind(metadata, config), config, tensors)

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def setting(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a field of the configuration; an error if it does not have the given type."""
        value = self.config.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) and kind is int:
            raise MnemoError(f"configuration field '{name}' is {value!r}")
        return value

    def take(self, key: str) -> Tensor:
        if key not in self._tensors:
            raise MnemoError(f"'{key}' is missing")
        self._unused.discard(key)
        return self._tensors[key]

    def ids(self, key: str) -> Tensor:
        """Return two-dimensional token ids."""
        tensor = self.take(key)
        if tensor.dtype != torch.int64 or tensor.dim() != 2 or tensor.numel() == 0:
            raise MnemoError(f"'{key}' does not hold rows of token ids")
        return tensor

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Return all tensors whose names start with `prefix`, by the rest of the name."""
        return {key.removeprefix(prefix): self.take(key) for key in self._tensors if key.startswith(prefix)}

    def check(self, group: str, key: str, ours: Tensor) -> None:
        """Compare with the tensor `key` of the file."""
        self.compare(group, key, ours, self.take(key))

    def compare(self, group: str, name: str, ours: Tensor, theirs: Tensor) -> None:
        error = largest_error(ours, theirs)
        if group not in self.errors or error > self.errors[group]:
            self.errors[group], self.worst[group] = error, name

    def refuse_leftovers(self) -> None:
        """Raise an error if a tensor of the file was neither used nor compared."""
        if self._unused:
            first = min(self._unused)
            more = f" and {len(self._unused) - 1} more" if len(self._unused) > 1 else ""
            raise MnemoError(f"no check uses '{first}'{more}")


def _kind(metadata: Mapping[str, str], config: Mapping[str, Any]) -> str:
    if "format" in metadata:
        return metadata["format"]
    if str(config.get("source", "")).endswith("LM-RMT"):
        return LM_RMT
    raise MnemoError("not a reference file: its metadata has no format")


def _parse(text: str) -> Mapping[str, Any]:
    try:
        config = parse_json(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise MnemoError("its metadata has no configuration in JSON")
    _check_numbers(config)
    return config


def _check_numbers(value: Any) -> None:
    """Refuse numbers larger than any in the small models of reference files."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise MnemoError(f"configuration: {value} is out of range")


def as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)
