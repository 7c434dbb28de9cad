"""A corpus made from the user's own text for one training run: named after the text and its content.

The same text gives the same name, so that a second run uses the corpus of the first; a changed text gives another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mnemo.data import corpus as corpora
from mnemo.data import text_parts
from mnemo.data.corpus import Corpus
from mnemo.data.find_texts import Texts, local
from mnemo.data.prepare import encode_splits
from mnemo.data.text_files import Accepted, TextFiles, choose_text_files
from mnemo.data.tokenizers import ByteTokenizer
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.progress import ShowProgress, silent

SHORTEST = 2000
"""Bytes: a shorter text leaves too little for training and validation."""
LONG_ENOUGH = 5000
"""Bytes of validation text that measure the loss well; short texts give up to a tenth for it."""
FORMAT = 1
"""Part of every name: increased if the same text is split or encoded in another way."""


@dataclass(frozen=True)
class OwnText:
    files: TextFiles
    base: str
    """Name of the text, without folder and suffix."""
    folder: Path
    """Folder of prepared corpora."""

    @cached_property
    def texts(self) -> Texts:
        return local(self.files.parts, self.files.source, shares(self.files.size))

    @cached_property
    def corpus_name(self) -> str:
        digest = hashlib.sha256(f"format {FORMAT}".encode())
        for name, part, size in self.files.chosen:
            digest.update(f"\0{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            digest.update(np.ascontiguousarray(part.load()).data)
        return f"{self.base}-{digest.hexdigest()[:10]}"

    @cached_property
    def num_tokens(self) -> dict[str, int]:
        """Number of tokens of each split; files of a split are separated by one more."""
        sizes = {name: [len(part.load()) for part in parts] for name, parts in self.texts.splits.items()}
        return {name: sum(found) + max(0, len(found) - 1) for name, found in sizes.items()}

    def prepare(self, show: ShowProgress = silent) -> Corpus:
        """Return the corpus of this text; it is written only if it is not there."""
        target = self.folder / self.corpus_name
        if (whole := corpora.open_or_remove(target)) is not None:
            return whole
        with atomic.new_folder(target, keep=True) as new:
            tokenizer = ByteTokenizer()
            splits = encode_splits(new, self.base, self.texts, tokenizer, show)
            name, source = self.corpus_name, self.files.source
            corpora.write_header(new, name=name, source=source, tokenizer=tokenizer, splits=splits)
        return Corpus.open(target)


@contextmanager
def opened_text(source: Path | bytes, accepted: Accepted, root: Path | str | None = None) -> Iterator[OwnText]:
    """Find the text files of a file, a folder or an archive, or take a text as bytes; nothing is written yet."""
    folder = corpora.data_root(root).absolute()
    with ExitStack() as stack:
        stack.callback(text_parts.release)
        files = choose_text_files(source, accepted, folder, stack)
        if files.size < SHORTEST:
            raise MnemoError(
                f"{files.source} is too short to train on: it has {files.size:,} bytes, and {SHORTEST:,} are needed"
            )
        yield OwnText(files, "stdin" if isinstance(source, bytes) else text_name(source), folder)


def text_name(source: Path) -> str:
    """`My book.txt` -> `My-book`: a name for corpora and runs."""
    name = source.resolve().name
    plain = name.partition(".")[0] if source.is_file() else name
    return re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-") or "text"


def shares(size: int) -> tuple[float, float, float]:
    """Shares of train, valid and test: 90, 5 and 5 percent, or 80, 10 and 10 of a short text."""
    held_out = min(0.1, max(0.05, LONG_ENOUGH / size))
    return 1 - 2 * held_out, held_out, held_out
