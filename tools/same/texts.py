"""Pseudo-text for the cases: the same bytes on every machine, with documents and characters of two bytes."""

from __future__ import annotations

import random
from pathlib import Path

VOWELS, CONSONANTS = "aéo", "bdgkst"
NUM_WORDS, LINES, WORDS_IN_LINE = 150, 6, 7


def write_texts(folder: Path) -> None:
    """Write `text.txt`, the corpus of a case, and `page.txt`, a shorter text for `mnemo read`."""
    draw = random.Random(20)
    words = [_word(draw) for _ in range(NUM_WORDS)]
    documents = [_document(draw, words) for _ in range(31)]
    # NUL separates documents; newlines are written as they are on every platform.
    (folder / "text.txt").write_bytes("\0".join(documents[:-1]).encode())
    (folder / "page.txt").write_bytes(documents[-1].encode())


def _word(draw: random.Random) -> str:
    return "".join(draw.choice(CONSONANTS) + draw.choice(VOWELS) for _ in range(draw.randint(1, 3)))


def _document(draw: random.Random, words: list[str]) -> str:
    lines = (" ".join(_choose(draw, words) for _ in range(WORDS_IN_LINE)) for _ in range(LINES))
    return "\n".join(lines) + "\n"


def _choose(draw: random.Random, words: list[str]) -> str:
    """A word; earlier ones are more frequent, as in natural text."""
    return words[int(len(words) * draw.random() ** 2)]
