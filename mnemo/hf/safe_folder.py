"""Folders of `save_pretrained`: weights as safetensors only, with a file of checksums beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json
from mnemo.files.tensor_file import file_checksum, require_whole

CHECKSUMS = "mnemo_checksums.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class SafeFolder:
    """Mixin for models of transformers, before `PreTrainedModel`."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load like transformers does, but refuse pickles and weights that have changed since they were saved."""
        name = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        if name is not None and Path(name).is_dir():
            check_folder(Path(name) / (kwargs.get("subfolder") or ""))
        loader: Any = super()
        return loader.from_pretrained(*args, **(kwargs | {"use_safetensors": True}))

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save like transformers does, and record the checksums of the weights."""
        saver: Any = super()
        saver.save_pretrained(save_directory, *args, **kwargs)
        write_checksums(Path(save_directory))


def write_checksums(folder: Path) -> None:
    """Record the checksums of the weights that transformers has written to a folder."""
    files = sorted(folder.glob("*.safetensors"))
    if files:
        write_json(folder / CHECKSUMS, {"checksums": {path.name: file_checksum(path) for path in files}})


def check_folder(folder: Path) -> None:
    """Raise MnemoError for a folder without safetensors, which holds a pickle, or with weights that have changed."""
    if not any(folder.glob("*.safetensors")):
        for pattern in PICKLES:
            for path in sorted(folder.glob(pattern)):
                raise MnemoError(f"{path} is a pickle: it could run code, so it is not loaded; safetensors are")
    if not (folder / CHECKSUMS).is_file():
        return
    checksums: Any = load_json(folder / CHECKSUMS).get("checksums")
    if not isinstance(checksums, dict) or any(Path(name).name != name for name in checksums):
        raise MnemoError(f"{folder / CHECKSUMS} is damaged: it does not name the files of the folder")
    for name, expected in checksums.items():
        require_whole(folder / name, str(expected))
