"""Synthetic text in which memory pays at once: songs whose verse is sung several times.

Every song has made-up words, and every verse of a song has the same ones. A model that sees the verse before can copy
it; a model that sees a few characters must guess the letters. The text depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from mnemo.data.corpus import IdWriter, SplitHeader, write_header
from mnemo.data.tokenizers import ByteTokenizer
from mnemo.files import atomic

WORDS, LETTERS = 6, 7
"""Words of a verse, and letters of a word."""
VERSES = 4
"""Times that a verse is sung."""
SPLITS = {"train": 2000, "valid": 32, "test": 160}
"""Songs of each split."""
SEED = 0
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def song(random: np.random.Generator) -> str:
    verse = " ".join(_word(random) for _ in range(WORDS))
    return f"{verse}\n" * VERSES


def _word(random: np.random.Generator) -> str:
    """Consonants and vowels in turns, such as dorabil."""
    kinds = [(CONSONANTS, VOWELS)[at % 2] for at in range(LETTERS)]
    return "".join(kind[random.integers(len(kind))] for kind in kinds)


def songs(split: str, count: int) -> Iterator[str]:
    """The songs of a split; those of two splits share no random numbers."""
    random = np.random.default_rng([SEED, list(SPLITS).index(split)])
    return (song(random) for _ in range(count))


def write_songs(target: Path, counts: Mapping[str, int]) -> None:
    """Write this many songs of each split as a corpus of bytes."""
    tokenizer = ByteTokenizer()
    with atomic.new_folder(target, replace=True) as folder:
        splits = {name: _write(folder, name, count, tokenizer) for name, count in counts.items()}
        write_header(folder, name=target.name, source="generated songs", tokenizer=tokenizer, splits=splits)


def _write(folder: Path, split: str, count: int, tokenizer: ByteTokenizer) -> SplitHeader:
    text = "".join(songs(split, count))
    writer = IdWriter(folder, split, tokenizer.vocab_size)
    try:
        writer.write(tokenizer.encode(text))
        return writer.finish(num_bytes=len(text), num_words=len(text.split()), num_lines=text.count("\n"))
    finally:
        writer.close()
