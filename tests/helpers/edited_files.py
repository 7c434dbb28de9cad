"""Change the content of Mnemo's files on purpose: with checksums that fit again, or without any."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mnemo.files import checksum
from mnemo.files.json_file import write_json
from mnemo.files.tensor_file import stored_checksum, write_tensors


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change an object and give it the checksum of its new content."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop(checksum.FIELD, None)
    change(content)
    write_json(path, content)


def edit_checkpoint(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the tensors of one file of a checkpoint, and what its JSON says about that file."""
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    write_tensors(path, tensors)

    def describe(progress: dict[str, Any]) -> None:
        progress["files"][path.name] = path.stat().st_size
        progress["checksums"][path.name] = stored_checksum(path)

    edit_json(path.parent / "progress.json", describe)


def flip_bit(path: Path, at: int, bit: int = 0) -> None:
    """Flip one bit of a file in place; a negative position counts from the end."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def remove_checksums(folder: Path) -> None:
    """Bring the files of a folder into the form of earlier versions, without checksums and ids of runs."""
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(_without(content)), encoding="utf-8")
    for path in (*folder.rglob("*.memory"), *folder.rglob("step-*/*.safetensors")):
        _unseal(path)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        dropped = (checksum.FIELD, "checksums", "logs", "run_id")
        return {key: _without(item) for key, item in value.items() if key not in dropped}
    return value


def _unseal(path: Path) -> None:
    with safe_open(path, "pt") as file:
        metadata = {key: value for key, value in (file.metadata() or {}).items() if key != checksum.FIELD}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    size = path.stat().st_size
    save_file(tensors, path, metadata)
    progress = path.parent / "progress.json"
    if progress.exists():
        text = progress.read_text(encoding="utf-8")
        progress.write_text(text.replace(f'"{path.name}": {size}', f'"{path.name}": {path.stat().st_size}'))
