"""Load pickled tensors in a separate process: a script, `restricted_loader.py SOURCE FOLDER`.

This is the only file that opens a pickle. It uses torch's restricted loader, which creates tensors and plain containers
and calls nothing else, and it limits its memory to what the file can need. It writes weights.safetensors and rest.json
into FOLDER. Classes named in NVIDIA's checkpoints are replaced by empty classes; none of their code is imported.
"""

from __future__ import annotations

import json
import pickletools
import re
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WEIGHTS, REST = "weights.safetensors", "rest.json"
STATE_DICTS = ("model_state", "state_dict", "model_state_dict", "model")
"""Entries under which checkpoints store their weights."""
SPARE_BYTES = 512 * 2**20
OLD_FILE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
"""First bytes of files by old versions of torch.save, before it wrote zip archives."""


class Namespace:
    """Replaces argparse.Namespace."""


class Vocab:
    """Replaces the vocabulary class of NVIDIA's code."""


STAND_INS: list[Any] = [(Namespace, "argparse.Namespace"), (Vocab, "utils.vocabulary.Vocab")]


def main(source: Path, folder: Path) -> None:
    limit_memory(source.stat().st_size)
    try:
        with torch.serialization.safe_globals(STAND_INS):
            content = torch.load(source, map_location="cpu", weights_only=True)
        tensors, rest = split(content)
        save(tensors, rest, folder)
    except MemoryError:
        write(folder, {"problem": "memory"})
    except Exception as error:  # the loader raises all kinds of exceptions for damaged files
        write(folder, describe(error, source))


def limit_memory(size: int) -> None:
    """Limit memory to the current use plus four copies of the file; no limit if the system does not report its use."""
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + 4 * size + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, OSError, ValueError):
        return


def describe(error: Exception, source: Path) -> dict[str, Any]:
    """Classify the error. Torch's own message is not used: it advises loading the file without restrictions."""
    name = re.search(r"GLOBAL ([\w.]+)", str(error))
    if name is not None:
        return {"problem": "class", "name": name[1]}
    if "allocate memory" in str(error) or "not enough memory" in str(error):
        return {"problem": "memory"}
    return {"problem": "pickle" if is_plain_pickle(source) else "damaged"}


def is_plain_pickle(source: Path) -> bool:
    """Return whether the file is a plain pickle, not one by torch.save. Its opcodes are listed, not executed."""
    with source.open("rb") as file:
        begin = file.read(len(OLD_FILE))
        if begin[:1] == b"\x80":
            return begin != OLD_FILE
        file.seek(0)
        try:
            return any(step.name == "STOP" for step, _, _ in pickletools.genops(file))
        except Exception:  # opcodes raise all kinds of exceptions
            return False


def split(content: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Separate the tensors of the state dict from the other entries, which are reduced to plain values."""
    if not isinstance(content, dict):
        return {}, {"problem": "content", "name": type(content).__name__}
    inner = [key for key in STATE_DICTS if isinstance(content.get(key), dict)]
    state = content[inner[0]] if inner else content
    tensors = {str(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
    others = {str(key): value for key, value in content.items() if key not in tensors and key not in STATE_DICTS}
    return tensors, {"key": inner[0] if inner else None, "others": plain(others)}


def plain(value: Any, depth: int = 4) -> Any:
    """Return the part of a value that JSON can represent; tensors and values nested too deeply become null."""
    if isinstance(value, (Namespace, Vocab)):
        value = vars(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict) and depth:
        return {str(key): plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth:
        return [plain(item, depth - 1) for item in value]
    return None


def save(tensors: dict[str, torch.Tensor], rest: dict[str, Any], folder: Path) -> None:
    """Write every tensor once; further names of tied tensors go into rest.json."""
    first: dict[Any, str] = {}
    aliases, kept = {}, {}
    for name, tensor in tensors.items():
        storage = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and first.setdefault(storage, name) != name:
            aliases[name] = first[storage]
        else:
            kept[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    save_file(kept, folder / WEIGHTS)
    write(folder, {**rest, "aliases": aliases})


def write(folder: Path, rest: dict[str, Any]) -> None:
    (folder / REST).write_text(json.dumps(rest), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
