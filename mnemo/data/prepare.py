"""Prepare a corpus: find its text, check it, build a vocabulary, write ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import numpy as np

from mnemo.data import corpus as corpora
from mnemo.data import encoding, known_corpora, text_parts
from mnemo.data.corpus import Corpus, IdWriter, SplitHeader
from mnemo.data.find_texts import DOWNLOADS, Found, Texts, find_texts
from mnemo.data.known_corpora import CORPORA, PYTHON, Option, Published
from mnemo.data.text_files import Accepted
from mnemo.data.text_parts import Part
from mnemo.data.tokenizers import AnyTokenizer, BPETokenizer, ByteTokenizer, CharTokenizer, WordTokenizer
from mnemo.errors import MnemoError, plural, unknown
from mnemo.files import atomic
from mnemo.progress import ShowProgress, silent

DEFAULT_BPE_SIZE = 8192
MIN_TOKENS = 2


def prepare(
    name: str,
    source: Path | str | bytes | None = None,
    tokenizer: Option | None = None,
    *,
    vocab_size: int | None = None,
    root: Path | str | None = None,
    allow_mismatch: bool = False,
    accepted: Accepted | None = None,
    found: Found = lambda files: None,
    show: ShowProgress = silent,
) -> Corpus:
    """Prepare a corpus: one of `CORPORA`, downloaded or from `source`, or any text files under a new name.

    A corpus of that name is replaced. Runs that were trained on another text of that name cannot be resumed then.

    `source`: a file, a folder, an archive, or a text as bytes.
    `tokenizer`: by default the published one for a known corpus, and bytes for others.
    `vocab_size`: largest vocabulary, for words and BPE.
    `allow_mismatch`: accept a text whose sizes or checksums differ from the published corpus.
    `accepted`: what is done with files that are not UTF-8 text; by default they are skipped or refused.
    `found`: called with the chosen and skipped files.
    """
    known, accepted = CORPORA.get(name), accepted or Accepted()
    option: Option = tokenizer or (known.tokenizer if known else "bytes")
    _check_arguments(name, source, option, vocab_size)
    if accepted.binary and option != "bytes":
        raise MnemoError(f"binary data has no {option}: --binary needs --tokenizer bytes")
    keep = allow_mismatch or (known is not None and not known.strict)
    folder = corpora.data_root(root).absolute()
    target = folder / target_name(name, tokenizer)
    with ExitStack() as stack:
        stack.callback(text_parts.release)
        given = Path(source).expanduser() if isinstance(source, (str, Path)) else source
        texts = find_texts(name, given, folder, stack, show, accepted, found)
        problems = _check_files(name, known, texts) if known else []
        _decide(problems, keep)
        chosen = _make_tokenizer(option, name, texts, vocab_size, show)
        with atomic.new_folder(target, replace=True) as new:
            splits = encode_splits(new, name, texts, chosen, show)
            problems += _check_sizes(name, known, option, vocab_size, chosen, splits) if known else []
            _decide(problems, keep)
            corpora.write_header(
                new,
                name=target.name,
                source=texts.source,
                tokenizer=chosen,
                splits=splits,
                mismatches=tuple(problems),
            )
    return Corpus.open(target)


def target_name(name: str, tokenizer: Option | None) -> str:
    """Return the name of a prepared corpus; it includes the tokenizer if that is not the published one."""
    known = CORPORA.get(name)
    return name if known is None else known_corpora.variant_name(name, tokenizer or known.tokenizer)


def load(name_or_path: str | Path, root: Path | str | None = None, show: ShowProgress = silent) -> Corpus:
    """Open a prepared corpus. The default corpus is prepared if needed; for others, the error names the command."""
    if str(name_or_path) != PYTHON or corpora.find(PYTHON, root) is not None:
        return Corpus.open(name_or_path, root)
    target = corpora.data_root(root).absolute() / PYTHON
    return corpora.open_or_remove(target) or _prepare_once(target, show)


def _prepare_once(target: Path, show: ShowProgress) -> Corpus:
    """Prepare the default corpus; of processes that do so at the same time, the first that is complete stays."""
    with atomic.new_folder(target, keep=True) as new:
        made = prepare(PYTHON, root=new, show=show)
        for file in made.path.iterdir():
            file.rename(new / file.name)
        made.path.rmdir()
    return Corpus.open(target)


def _check_arguments(name: str, source: Path | str | bytes | None, option: Option, vocab_size: int | None) -> None:
    known = CORPORA.get(name)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name == DOWNLOADS:
        raise MnemoError(f"'{name}' is not a valid corpus name: use letters, digits, '.', '_' and '-'")
    if source is None and known is None:
        raise known_corpora.missing(name)
    if option not in get_args(Option):
        raise unknown("tokenizer", option, get_args(Option))
    if option == "published" and (known is None or known.tokenizer != option):
        raise MnemoError(f"'{name}' has no published tokenizer: choose bytes, chars, words or bpe")
    if vocab_size is not None and option not in ("words", "bpe"):
        raise MnemoError(f"the vocabulary size of {option} follows from the text: it can be set for words and bpe")
    if vocab_size is not None and vocab_size < 3:
        raise MnemoError(f"a vocabulary of {vocab_size} is too small")


def _decide(problems: Sequence[str], keep: bool) -> None:
    if problems and not keep:
        raise MnemoError(
            "; ".join(problems) + " (use --allow-mismatch to accept it, or another name for your own text)"
        )


def _check_files(name: str, known: Published, texts: Texts) -> list[str]:
    """Compare sizes and checksums of the unpacked files with the published ones."""
    problems = []
    for key, part in texts.files.items():
        data = part.load()
        which = name if key == "all" else f"{name} {key}"
        size, checksum = known.num_bytes.get(key, len(data)), known.checksums.get(key)
        if len(data) != size:
            problems.append(f"{which}: {part.label} has {len(data):,} bytes, the published one {size:,}")
        elif checksum and (found := _checksum(data, checksum)) != checksum:
            problems.append(f"{which}: {part.label} has checksum {found}, the published one {checksum}")
    return problems


def _checksum(data: np.ndarray, like: str) -> str:
    algorithm = like.partition(":")[0]
    digest = hashlib.new(algorithm, np.ascontiguousarray(data).data, usedforsecurity=False)
    return f"{algorithm}:{digest.hexdigest()}"


def _check_sizes(
    name: str,
    known: Published,
    option: Option,
    vocab_size: int | None,
    tokenizer: AnyTokenizer,
    splits: dict[str, SplitHeader],
) -> list[str]:
    """Compare numbers of tokens, symbols and lines with the published ones."""
    problems = []
    expected = known.expected.get(option) if vocab_size is None else None
    if expected is not None:
        for split, size in zip(corpora.SPLITS, expected.sizes, strict=True):
            if splits[split].count != size:
                problems.append(f"{name} {split} has {splits[split].count:,} tokens, the published one {size:,}")
        if tokenizer.vocab_size != expected.vocab_size:
            found, size = tokenizer.vocab_size, expected.vocab_size
            problems.append(f"{name} has {found:,} different symbols, the published one {size:,}")
    for split, lines in known.num_lines.items():
        if splits[split].num_lines != lines:
            problems.append(f"{name} {split} has {splits[split].num_lines:,} lines, the published one {lines:,}")
    return problems


def _make_tokenizer(
    option: Option, name: str, texts: Texts, vocab_size: int | None, show: ShowProgress
) -> AnyTokenizer:
    if option == "bytes" and name != "enwik8":
        return ByteTokenizer()
    if option == "words" and texts.vocabulary is not None:
        return _listed_words(texts.vocabulary)
    known = CORPORA.get(name)
    splits = _counted_splits(option, known, texts)
    total = encoding.total_bytes([part for parts in splits for part in parts])
    decode = option not in ("published", "bytes")
    with show(f"{name}: counting symbols", total, unit="B") as bar:
        pieces = (piece for parts in splits for piece in encoding.chunks(parts, bar, decode=decode))
        return _train(option, pieces, vocab_size, lower=known is not None and known.lower)


def _counted_splits(option: Option, known: Published | None, texts: Texts) -> list[tuple[Part, ...]]:
    """Return the splits whose symbols are counted: all for bytes and characters; for words as published, else train."""
    if option in ("published", "bytes", "chars") or (option == "words" and known and known.count_on == "all"):
        return list(texts.splits.values())
    return [texts.splits["train"]]


def _train(option: Option, pieces: Iterator[encoding.Chunk], vocab_size: int | None, lower: bool) -> AnyTokenizer:
    if option in ("published", "bytes"):
        return ByteTokenizer.train((data for data, _ in pieces), dropped=b"\n" if option == "published" else b"")
    if option == "chars":
        return CharTokenizer.train(text for _, text in pieces)
    if option == "bpe":
        return BPETokenizer.train((text for _, text in pieces), vocab_size or DEFAULT_BPE_SIZE)
    texts = (text.replace(encoding.NUL, "\n") for _, text in pieces)
    return WordTokenizer.train(texts, unknown="<unk>", lower=lower, limit=vocab_size)


def _listed_words(part: Part) -> WordTokenizer:
    """Build the vocabulary from a published list of words; sentences begin and end with the word `<S>`."""
    lines = (line for _, text in part.text() for line in text.split("\n"))
    words = tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
    for special in ("<S>", "<UNK>"):
        if special not in words:
            raise MnemoError(f"{part.label} does not contain the word {special}")
    return WordTokenizer(words, end="<S>", both_ends=True, unknown="<UNK>")


def encode_splits(
    folder: Path, name: str, texts: Texts, tokenizer: AnyTokenizer, show: ShowProgress
) -> dict[str, SplitHeader]:
    """Write the ids of every split to a folder."""
    splits = {}
    for split, parts in texts.splits.items():
        writer = IdWriter(folder, split, tokenizer.vocab_size)
        try:
            with show(f"{name}: encoding {split}", encoding.total_bytes(parts), unit="B") as bar:
                splits[split] = encoding.encode_split(parts, tokenizer, writer, bar)
        finally:
            writer.close()
        if writer.count < MIN_TOKENS:
            found = plural(writer.count, "token")
            raise MnemoError(f"{texts.source} is too short: its {split} split has {found} and needs {MIN_TOKENS}")
    return splits
