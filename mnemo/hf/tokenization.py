"""The core's tokenizers (bytes, characters, words, byte pairs) as a transformers tokenizer.

Only their JSON description is saved: no pickle, no code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizer

from mnemo.data.tokenizers import REPLACEMENT, AnyTokenizer, BPETokenizer, ByteTokenizer, CharTokenizer, from_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json

FILE = "mnemo_tokenizer.json"
PADDING = "<|padding|>"


class MnemoTokenizer(PreTrainedTokenizer):
    """Tokenizer of a model of Mnemo; `MnemoTokenizer.of(tokenizer)` or `from_pretrained(FOLDER)` makes one.

    Texts are tokenized exactly as in the core: no tokens are added at the start or the end, and names of special tokens
    in the text are ordinary text. The only additional token is padding, with the id `vocab_size`.
    """

    vocab_files_names = {"vocab_file": FILE}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file: str | None = None, description: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if description is None:
            if vocab_file is None:
                raise MnemoError(f"a Mnemo tokenizer is loaded from a folder with a file {FILE}")
            description = load_json(Path(vocab_file)).get("tokenizer")
        self.core: AnyTokenizer = from_json(description)
        self._symbols = _symbols(self.core)
        self._ids = {symbol: index for index, symbol in enumerate(self._symbols)}
        options = {"pad_token": PADDING, "padding_side": "left", "clean_up_tokenization_spaces": False} | kwargs
        super().__init__(**options | {"split_special_tokens": True})

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, **kwargs: Any) -> MnemoTokenizer:
        return cls(description=tokenizer.to_json(), **kwargs)

    @property
    def vocab_size(self) -> int:
        return len(self._symbols)

    def __call__(self, text: Any = None, *args: Any, return_offsets_mapping: bool = False, **kwargs: Any) -> Any:
        """Encode like transformers does; `return_offsets_mapping` adds the begin and end of each token in the text."""
        encoded = super().__call__(text, *args, **kwargs)
        if return_offsets_mapping:
            encoded["offset_mapping"] = self._offsets(text, encoded, kwargs.get("return_tensors"))
        return encoded

    def _offsets(self, text: Any, encoded: Any, tensors: str | None) -> Any:
        if not isinstance(text, str) and not (isinstance(text, list) and all(isinstance(row, str) for row in text)):
            raise MnemoError("offsets are for a text or a list of texts")
        texts, rows = ([text], [encoded["input_ids"]]) if isinstance(text, str) else (text, encoded["input_ids"])
        rows = encoded["input_ids"] if tensors else rows
        found = [self._offsets_of(*pair) for pair in zip(texts, rows, strict=True)]
        if tensors == "pt":
            return torch.tensor(found)
        if tensors:
            return np.array(found)
        return found[0] if isinstance(text, str) else found

    def _offsets_of(self, text: str, ids: Any) -> list[tuple[int, int]]:
        """Return the offsets of a row of ids, which may be cut on the right, and (0, 0) for its padding."""
        padded = [int(index) == self.pad_token_id for index in ids]
        if self.truncation_side != "right" and padded.count(False) < len(self.core.encode(text)):
            raise MnemoError("offsets of texts that are cut on the left are not supported")
        offsets = iter(token_offsets(self.core, text))
        return [(0, 0) if padding else next(offsets) for padding in padded]

    def get_vocab(self) -> dict[str, int]:
        return self._ids | self.added_tokens_encoder

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return [self._symbols[index] for index in self.core.encode(text).tolist()]

    def _convert_token_to_id(self, token: str) -> int:
        if token not in self._ids:
            raise MnemoError(f"{token!r} is not in the vocabulary of {self.vocab_size}")
        return self._ids[token]

    def _convert_id_to_token(self, index: int) -> str:
        if not 0 <= index < self.vocab_size:
            raise MnemoError(f"token id {index} is beyond the vocabulary of {self.vocab_size}")
        return self._symbols[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self.core.decode(self._ids[token] for token in tokens if token in self._ids)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        name = FILE if filename_prefix is None else f"{filename_prefix}-{FILE}"
        path = Path(save_directory) / name
        write_json(path, {"tokenizer": self.core.to_json()})
        return (str(path),)


def token_offsets(tokenizer: AnyTokenizer, text: str) -> list[tuple[int, int]]:
    """Return begin and end of every token in the text, in characters; parts of a character have its borders."""
    if isinstance(tokenizer, CharTokenizer):
        return [(index, index + 1) for index in range(len(text))]
    if not isinstance(tokenizer, ByteTokenizer | BPETokenizer):
        raise MnemoError("a tokenizer of words does not keep the blanks of a text: its tokens have no offsets")
    ids = tokenizer.encode(text).tolist()
    sizes = [1] * len(ids) if isinstance(tokenizer, ByteTokenizer) else [len(tokenizer.pieces[index]) for index in ids]
    character = np.repeat(np.arange(len(text)), [len(letter.encode()) for letter in text]).tolist()
    if sum(sizes) != len(character):
        raise MnemoError("this tokenizer leaves out some bytes of the text: its tokens have no offsets")
    ends = np.cumsum(sizes).tolist()
    return [(character[end - size], character[end - 1] + 1) for end, size in zip(ends, sizes, strict=True)]


def _symbols(tokenizer: AnyTokenizer) -> list[str]:
    """Return a distinct name for every id."""
    if isinstance(tokenizer, ByteTokenizer):
        return [chr(byte) for byte in tokenizer.symbols]
    if isinstance(tokenizer, CharTokenizer):
        return [*tokenizer.symbols, *[f"<{REPLACEMENT}>"] * tokenizer.unknown]
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.names()
    return list(tokenizer.words)
