"""Random damage to valid files: changed JSON values, changed safetensors headers, changed bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

NASTY: list[Any] = [
    *(None, True, False, "", "x" * 5000, [], {}, [[]], {"type": "XL"}, 0, 1, -1, 2, 255, 2**31, 2**63 - 1, -(2**63)),
    *(10**9, 10**12, 10**15, 10**30, 0.5, -0.5, 1e308, -1e308, 5e-324, 1e15, "\x1b]0;x\x07", "\u202e", "\0", "NaN"),
    *("../../../etc/passwd", "/etc/passwd", "/dev/zero", ".", "..", "O", "object", "f8", "<u4", "F64", "BF16", "cuda"),
    *([0], [1, 2], [-1, 5], [10**12], ["a"], {"length": 10**12}, "\ud800", [0] * 100, "published", "bpe", "LSTM"),
]
RAW = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b"[" * 3000,
    b'{"a":' * 2000,
    b"\xff",
    b"\\ud800",
    b"\0",
]


def mutate(draw: random.Random, data: bytes) -> bytes:
    """Apply one to three changes that suit the file's kind."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = _mutate_once(draw, data)
    return data


def _mutate_once(draw: random.Random, data: bytes) -> bytes:
    structural = _json_tree if data[:1] in b"{[" else _json_lines if data[:2] == b'{"' else _tensor_header
    return draw.choice((structural, structural, structural, _bytewise))(draw, data)


def _bytewise(draw: random.Random, data: bytes) -> bytes:
    kinds: list[Callable[[random.Random, bytes], bytes]] = [_truncate, _flip, _splice, _insert, _zero]
    return draw.choice(kinds)(draw, data)


def _place(draw: random.Random, data: bytes) -> int:
    return draw.randrange(min(len(data), draw.choice((64, 4096, 1 << 30))) + 1)


def _truncate(draw: random.Random, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def _flip(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 4, 32))):
        if changed:
            changed[min(_place(draw, data), len(changed) - 1)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _splice(draw: random.Random, data: bytes) -> bytes:
    first, second, third = sorted(_place(draw, data) for _ in range(3))
    return data[:second] + data[first:second] + data[third:]


def _insert(draw: random.Random, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + draw.choice([*RAW, bytes([draw.randrange(256)])]) + data[at:]


def _zero(draw: random.Random, data: bytes) -> bytes:
    first, last = sorted(_place(draw, data) for _ in range(2))
    return data[:first] + bytes(last - first) + data[last:]


def _json_tree(draw: random.Random, data: bytes) -> bytes:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return _json_lines(draw, data)
    return _write(draw, change_tree(draw, tree))


def _json_lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return draw.choice(RAW)
    at = draw.randrange(len(lines))
    try:
        lines[at] = _write(draw, change_tree(draw, json.loads(lines[at]))) + b"\n"
    except (ValueError, RecursionError):
        return _bytewise(draw, data)
    return b"".join(lines)


def _write(draw: random.Random, tree: Any) -> bytes:
    """JSON text of a tree, sometimes with text that is invalid JSON."""
    text = json.dumps(tree).encode()
    if draw.random() < 0.15:
        mark = json.dumps("@@").encode()
        marked = json.dumps(_replaced(draw, tree, "@@")).encode()
        text = marked.replace(mark, draw.choice(RAW), 1)
    if draw.random() < 0.05 and text.startswith(b"{"):
        text = b'{"format_version": 1, ' + text[1:]
    return text


def change_tree(draw: random.Random, tree: Any) -> Any:
    """A copy with one node replaced, removed, renamed, duplicated, wrapped or swapped with another."""
    kind = draw.choice(("value", "value", "value", "number", "remove", "rename", "wrap", "other", "add"))
    paths = _paths(tree)
    if kind == "value":
        return _replaced(draw, tree, copy.deepcopy(draw.choice(NASTY)))
    if kind == "number":
        numbers = [path for path in paths if isinstance(_at(tree, path), (int, float))]
        return _set(tree, draw.choice(numbers), draw.choice(NUMBERS)) if numbers else tree
    if kind == "wrap":
        path = draw.choice(paths)
        return _set(tree, path, [_at(tree, path)])
    if kind == "other":
        return _set(tree, draw.choice(paths), copy.deepcopy(_at(tree, draw.choice(paths))))
    return _change_keys(draw, tree, kind)


NUMBERS = [-1, 0, 1, 2, 3, 7, 64, 1000, 10**6, 10**9, 10**12, 2**53, 0.5, 1e300, -3.5]


def _change_keys(draw: random.Random, tree: Any, kind: str) -> Any:
    tree = copy.deepcopy(tree)
    parents = [_at(tree, path) for path in _paths(tree) if isinstance(_at(tree, path), (dict, list))]
    parents = [parent for parent in parents if parent]
    if not parents:
        return draw.choice(NASTY)
    parent = draw.choice(parents)
    if isinstance(parent, list):
        parent.pop(draw.randrange(len(parent))) if kind == "remove" else parent.append(draw.choice(NASTY))
        return tree
    key = draw.choice(list(parent))
    value = copy.deepcopy(draw.choice(NASTY)) if kind == "add" else parent.pop(key)
    if kind != "remove":
        parent[draw.choice((f"{key}x", key[:-1], "type", "new"))] = value
    return tree


def _paths(tree: Any, path: tuple[Any, ...] = (), limit: int = 400) -> list[tuple[Any, ...]]:
    found = [path]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:20]) if isinstance(tree, list) else ()
    for key, value in items:
        if len(found) > limit:
            break
        found += _paths(value, (*path, key), limit)
    return found


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _set(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    tree = copy.deepcopy(tree)
    _at(tree, path[:-1])[path[-1]] = value
    return tree


def _replaced(draw: random.Random, tree: Any, value: Any) -> Any:
    return _set(tree, draw.choice(_paths(tree)), value)


def _tensor_header(draw: random.Random, data: bytes) -> bytes:
    """Change a safetensors file's header or its metadata; change plain bytes if the file has no such header."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        if not isinstance(header, dict) or 8 + length > len(data):
            raise ValueError
    except (ValueError, RecursionError):
        return _bytewise(draw, data)
    text = _write(draw, _change_metadata(draw, header) if draw.random() < 0.5 else change_tree(draw, header))
    size = len(text) if draw.random() < 0.95 else draw.choice((0, 1, len(text) + 1, 10**9, 2**63))
    return size.to_bytes(8, "little") + text + data[8 + length :]


def _change_metadata(draw: random.Random, header: dict[str, Any]) -> Any:
    """Change a JSON text that is stored as a string in the metadata, such as a configuration."""
    metadata = header.get("__metadata__")
    inner = (
        [key for key, text in metadata.items() if isinstance(text, str) and text[:1] == "{"]
        if isinstance(metadata, dict)
        else []
    )
    if not inner:
        return change_tree(draw, header)
    key = draw.choice(inner)
    try:
        changed = _write(draw, change_tree(draw, json.loads(metadata[key]))).decode("utf-8", "replace")  # type: ignore[index]
    except (ValueError, RecursionError):
        return change_tree(draw, header)
    return {**header, "__metadata__": {**metadata, key: changed}}  # type: ignore[dict-item]
