"""The tokenizer in a run's folder, without importing torch."""

from __future__ import annotations

from pathlib import Path

from mnemo.data import tokenizers
from mnemo.data.tokenizers import AnyTokenizer
from mnemo.errors import MnemoError
from mnemo.files.json_file import content_checksum, load_json
from mnemo.storage.run_header import TOKENIZER, load_header


def load_tokenizer(folder: Path) -> AnyTokenizer | None:
    """The tokenizer of a run; None for a run that was not trained on text."""
    path = folder / TOKENIZER
    expected = (load_header(folder).checksums or {}).get(TOKENIZER)
    if not path.exists():
        if expected is not None:
            raise MnemoError(f"{path} is missing: the run was created with a tokenizer")
        return None
    content = load_json(path)
    if expected is not None and content_checksum(content) != expected:
        raise MnemoError(f"{path} is not the tokenizer that {folder} was created with: its checksum is another one")
    return tokenizers.from_json(content.get("tokenizer"))
