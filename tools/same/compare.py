"""Compare two folders of a case exactly: parsed JSON, lines, tensors bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tools.same.volatile import is_volatile_field, is_volatile_file

MISSING = object()
NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "u1"}
LONGEST_VALUE = 60


class Difference(NamedTuple):
    case: str
    file: str
    field: str
    what: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.field}" if self.field else self.file
        return f"{place}: {self.what}"


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


Found = Iterator[tuple[str, str]]
"""Field and what is different there."""


def compare_case(case: str, base: Path, tree: Path) -> list[Difference]:
    """All differences between the folders of a case at BASE and in the working tree."""
    old, new = _files(base), _files(tree)
    differences = [Difference(case, path, "", "only at BASE") for path in sorted(old - new)]
    differences += [Difference(case, path, "", "only in the working tree") for path in sorted(new - old)]
    for path in sorted(old & new):
        found = _comparer(path)(base / path, tree / path)
        differences += [
            Difference(case, path, field, what) for field, what in found if not is_volatile_field(path, field)
        ]
    return differences


def _files(folder: Path) -> set[str]:
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {path for path in paths if not is_volatile_file(path)}


def _comparer(path: str) -> Callable[[Path, Path], Found]:
    return COMPARERS.get(Path(path).suffix, compare_bytes)


def compare_json(base: Path, tree: Path) -> Found:
    yield from _values("", json.loads(base.read_bytes()), json.loads(tree.read_bytes()))


def compare_json_lines(base: Path, tree: Path) -> Found:
    old, new = ([json.loads(line) for line in path.read_bytes().splitlines()] for path in (base, tree))
    yield from _values("", old, new)


def compare_text(base: Path, tree: Path) -> Found:
    yield from _values("line", base.read_bytes().decode().split("\n"), tree.read_bytes().decode().split("\n"))


def compare_bytes(base: Path, tree: Path) -> Found:
    old, new = base.read_bytes(), tree.read_bytes()
    if old != new:
        yield "", f"{len(old):,} bytes at BASE, {len(new):,} now, with different contents"


def compare_tensors(base: Path, tree: Path) -> Found:
    """Metadata, names, types, shapes and bits of two safetensors files."""
    (old_metadata, old), (new_metadata, new) = load_tensors(base), load_tensors(tree)
    yield from _values("metadata", old_metadata, new_metadata)
    for name in sorted(old.keys() | new.keys()):
        what = _tensor_difference(old.get(name), new.get(name))
        if what:
            yield name, what


COMPARERS: dict[str, Callable[[Path, Path], Found]] = {
    ".json": compare_json,
    ".jsonl": compare_json_lines,
    ".txt": compare_text,
    ".csv": compare_text,
    ".safetensors": compare_tensors,
    ".memory": compare_tensors,
}


def _values(field: str, old: Any, new: Any) -> Found:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _values(f"{field}.{key}".lstrip("."), old.get(key, MISSING), new.get(key, MISSING))
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield field, f"{len(old):,} items at BASE, {len(new):,} now"
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from _values(f"{field}[{index}]", one, other)
    elif not _equal(old, new):
        yield field, f"{_shown(old)} at BASE, {_shown(new)} now"


def _equal(old: Any, new: Any) -> bool:
    """Of the same type and written alike: 1, 1.0 and true differ, as do 0.0 and -0.0; NaN equals NaN."""
    return type(old) is type(new) and repr(old) == repr(new)


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def load_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata (JSON in it parsed) and tensors of a safetensors file, as raw bytes."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    metadata = {name: _parsed(text) for name, text in header.pop("__metadata__", {}).items()}
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), content[begin + start : begin + end])
    return metadata, tensors


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _tensor_difference(old: Tensor | None, new: Tensor | None) -> str | None:
    if old is None or new is None:
        return "only in the working tree" if old is None else "only at BASE"
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"{old.dtype} {list(old.shape)} at BASE, {new.dtype} {list(new.shape)} now"
    return None if old.data == new.data else _bits(old, new)


def _bits(old: Tensor, new: Tensor) -> str:
    if old.dtype not in NUMPY_TYPES:
        return f"bits of a {old.dtype} tensor differ"
    one, other = (np.frombuffer(tensor.data, NUMPY_TYPES[old.dtype]) for tensor in (old, new))
    bits = np.dtype(f"u{one.itemsize}")
    differing = int((one.view(bits) != other.view(bits)).sum())
    largest = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
    return f"{differing:,} of {one.size:,} numbers differ, by {largest:.3g} at most"
