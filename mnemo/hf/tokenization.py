"""The core's tokenizers (bytes, characters, words, byte pairs) as a transformers tokenizer.

Only their JSON description is saved: no pickle, no code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer

from mnemo.data.tokenizers import REPLACEMENT, AnyTokenizer, BPETokenizer, ByteTokenizer, CharTokenizer, from_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json

FILE = "mnemo_tokenizer.json"
PADDING = "<|padding|>"


class MnemoTokenizer(PreTrainedTokenizer):
    """`MnemoTokenizer.of(tokenizer)`, or `from_pretrained(FOLDER)`.

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


def _symbols(tokenizer: AnyTokenizer) -> list[str]:
    """Return a distinct name for every id."""
    if isinstance(tokenizer, ByteTokenizer):
        return [chr(byte) for byte in tokenizer.symbols]
    if isinstance(tokenizer, CharTokenizer):
        return [*tokenizer.symbols, *[f"<{REPLACEMENT}>"] * tokenizer.unknown]
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.names()
    return list(tokenizer.words)
