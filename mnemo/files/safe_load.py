"""Load untrusted files: anything but plain data of a reasonable size is refused with an error of one line.

No number in a file is trusted: a size is compared with the size of the file before memory of that size is allocated.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from mnemo.errors import MnemoError, shorten

MAX_JSON_BYTES = 1 << 26
"""More than any JSON file of this project needs; parsing this much takes seconds, in the worst case half a minute."""
MAX_LINES_BYTES = 1 << 28
"""Limit of files with one JSON object per line."""
MAX_HEADER_BYTES = 100_000_000
"""Limit of the safetensors library."""
MAX_DEPTH = 64
MAX_DIGITS = 19
"""Longer integers do not fit into 64 bits."""
LENIENT_DIGITS = 300
"""Longer integers do not fit into a float."""
ITEM_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of safetensors' types."""


def is_count(value: object, largest: int = 2**63 - 1) -> TypeGuard[int]:
    """Whether the value is a whole number from 0 to `largest`; booleans are not."""
    return type(value) is int and 0 <= value <= largest


def is_finite(value: object) -> TypeGuard[int | float]:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def kind_of(path: Path) -> str:
    """What is at a path that exists, in words."""
    mode = path.stat().st_mode
    kinds = {
        "a folder": stat.S_ISDIR,
        "a pipe": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
        "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
    }
    return next((words for words, test in kinds.items() if test(mode)), "a file")


def file_size(path: Path) -> int:
    """Bytes of a regular file. Folders, devices and pipes, which would block, are refused."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise MnemoError(f"{path} is missing") from None
    except OSError as error:
        raise MnemoError(f"cannot read {path}: {error.strerror or error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise MnemoError(f"{path} is {'a folder' if stat.S_ISDIR(found.st_mode) else 'not a regular file'}")
    return found.st_size


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    size = file_size(path)
    if size > limit:
        raise MnemoError(f"{path} has {size:,} bytes: more than the allowed {limit:,}")
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise MnemoError(f"cannot read {path}: {error.strerror or error}") from None


def load_object(path: Path) -> dict[str, Any]:
    """Load the object in a JSON file."""
    try:
        data = parse_json(read_bytes(path))
    except ValueError as error:
        raise MnemoError(f"{path} is damaged or truncated: {error}") from None
    if not isinstance(data, dict):
        raise MnemoError(f"{path} is damaged: it holds no JSON object")
    return data


def parse_json(data: str | bytes, lenient: bool = False) -> Any:
    """Parse strict JSON: UTF-8, finite numbers of 64 bits, no duplicate keys, no deep nesting; else raise ValueError.

    `lenient`: for data that is only displayed. Numbers may be too large or NaN, and text may be broken.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text at byte {error.start:,}") from None
    try:
        hooks: dict[str, Any] = {} if lenient else {"parse_constant": _refuse, "parse_float": _float}
        integer = partial(_integer, most=LENIENT_DIGITS if lenient else MAX_DIGITS)
        value = json.loads(text, object_pairs_hook=_unique, parse_int=integer, **hooks)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at character {error.pos:,})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_tree(value, lenient)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"it has '{shorten(twice)}' twice")
    return found


def _refuse(literal: str) -> NoReturn:
    raise ValueError(f"it holds {literal}, which is no number")


def _integer(digits: str, most: int) -> int:
    if len(digits.lstrip("-")) > most:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"it holds {shorten(digits)}, which is too large for a float")
    return value


def _check_tree(value: Any, lenient: bool) -> None:
    """Refuse deep nesting, and text that cannot be encoded."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        for text in () if lenient else _texts(level):
            if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                raise ValueError("it holds half of a surrogate pair, which is no text")
        level = [item for parent in level for item in _children(parent) if isinstance(item, (dict, list))]
        depth += 1


def _children(parent: Any) -> Iterator[Any]:
    return iter(parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ())


def _texts(level: list[Any]) -> Iterator[str]:
    for parent in level:
        if isinstance(parent, str):
            yield parent
        elif isinstance(parent, dict):
            yield from parent
        yield from (item for item in _children(parent) if isinstance(item, str))


def tensors_problem(path: Path) -> str | None:
    """The problem of a safetensors file, found from its size and header alone; None if there is none."""
    try:
        size = file_size(path)
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if start.startswith((b"\x80", b"PK")) and length > size:
                return "is a pickle, not safetensors: it could run code, so it is not loaded"
            if size < 8 or 8 + length > size:
                return "is truncated or not safetensors"
            if length > MAX_HEADER_BYTES:
                return f"is not safetensors: a header of {length:,} bytes"
            entries = parse_json(file.read(length))
    except MnemoError as error:
        return str(error).removeprefix(f"{path} ")
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except ValueError:
        return "is not safetensors: its header cannot be read"
    return _entries_problem(entries, size - 8 - length)


def _entries_problem(entries: Any, available: int) -> str | None:
    """Tensors must follow each other without gaps, fill the file, and have the size of their shapes."""
    if not isinstance(entries, dict):
        return "is not safetensors: its header cannot be read"
    spans = []
    for name, entry in entries.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
                return "is not safetensors: its metadata are not text"
            continue
        span = _span(entry)
        if span is None:
            return f"is not safetensors: its header has no valid position and size for '{shorten(name)}'"
        spans.append(span)
    end = 0
    for first, last in sorted(spans):
        if first != end:
            return "is damaged: its tensors overlap or leave gaps"
        end = last
    return None if end == available else f"is truncated: {available:,} of {end:,} bytes of tensors"


def _span(entry: Any) -> tuple[int, int] | None:
    """First and last offset of a tensor's bytes; None if their number does not match its shape."""
    if not isinstance(entry, dict) or entry.get("dtype") not in list(ITEM_BITS):
        return None
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return None
    if not all(map(is_count, (*shape, *offsets))):
        return None
    bits = math.prod(shape) * ITEM_BITS[entry["dtype"]]
    return (offsets[0], offsets[1]) if (offsets[1] - offsets[0]) * 8 == bits else None


def is_inside(folder: Path, path: Path) -> bool:
    """Whether a path is directly in its folder after links are resolved."""
    try:
        return path.resolve().parent == folder.resolve()
    except (OSError, RuntimeError, ValueError):
        return False


def open_own(path: Path, mode: int = os.O_WRONLY | os.O_CREAT) -> int:
    """Open a file for writing and return its descriptor; a link to another file is refused."""
    try:
        handle = os.open(path, mode | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError as error:
        raise MnemoError(f"cannot write {path}: {error.strerror or error}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise MnemoError(f"cannot write {path}: it is not a regular file")
    return handle


def require(fields: Mapping[str, bool], path: Path) -> None:
    """Raise an error that names the first field that is not valid."""
    for name, holds in fields.items():
        if not holds:
            raise MnemoError(f"{path} is damaged: its '{name}' is missing or out of range")
