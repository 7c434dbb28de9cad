"""A corpus with its lines in random order, as the sentences of One Billion Word are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mnemo.data.corpus import Corpus, IdWriter, Split, SplitHeader, write_header
from mnemo.data.prepare import load
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.papers.jobs import Place, job

SHUFFLE = "xl-shuffle-lines"
FOLDER = "corpus"
SEED = 0
SHORTEST = 2
"""Tokens that a line must have, for one of them to be predicted."""


@job(SHUFFLE)
def shuffle_lines(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    corpus = load(settings["corpus"], show=place.progress)
    counts = write_shuffled(corpus, place.folder / FOLDER, settings["longest"])
    return {"lines": counts}


def write_shuffled(corpus: Corpus, target: Path, longest: int | None = None) -> dict[str, int]:
    """Write the lines of every split in random order, each a document, as a corpus in the folder `target`.

    `longest`: use only this many tokens of each split. Returns the number of lines by split.
    """
    end = int(corpus.tokenizer.encode("\n")[-1])
    with atomic.new_folder(target, replace=True) as folder:
        splits = {name: _write(folder, corpus.split(name), end, corpus.vocab_size, longest) for name in corpus.splits}
        source = f"lines of {corpus.name} in random order"
        write_header(folder, name=target.name, source=source, tokenizer=corpus.tokenizer, splits=splits)
    return {name: 0 if split.documents is None else split.documents.count for name, split in splits.items()}


def _write(folder: Path, split: Split, end: int, vocab_size: int, longest: int | None) -> SplitHeader:
    ids = np.asarray(split.ids[:longest])
    lines = [line for line in np.split(ids, np.flatnonzero(ids == end) + 1) if len(line) >= SHORTEST]
    if len(lines) < SHORTEST:
        raise MnemoError(f"split '{split.name}' has too few lines to shuffle")
    writer = IdWriter(folder, split.name, vocab_size)
    try:
        for place in np.random.default_rng(SEED).permutation(len(lines)):
            writer.begin_documents(np.zeros(1, dtype=np.int64))
            writer.write(lines[place])
        return writer.finish(num_bytes=split.num_bytes, num_words=split.num_words, num_lines=len(lines))
    finally:
        writer.close()
