"""Choose text files: in a folder, in an archive, or a single one. What is not text is left out by name, or refused.

Hidden files, links that lead out of the folder, run folders and prepared corpora are never part of a text.
"""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from mnemo.data import text_parts
from mnemo.data.text_parts import Part
from mnemo.errors import MnemoError

SKIP = "skip"
"""In place of an encoding: leave out files that are not UTF-8."""
MOST_NAMED = 3
"""Names in a message, of any number of files."""
CONTROL_SHARE, NUL_SHARE = 0.02, 0.2
"""Larger shares of control characters, or of NULs (which end documents), are binary data."""
_PIECE = 1 << 22
_CONTROLS = [code for code in range(1, 32) if chr(code) not in "\t\n\r\f\v\b\x1b"]
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_RUN_FILES = ("tokenizer.json", "metrics.jsonl", "checkpoints")

Reason = Literal["binary", "empty", "hidden", "not UTF-8", "link", "run", "corpus", "not a regular file", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """What is done with files that are not UTF-8 text."""

    encoding: str | None = None
    """Encoding of text files that are not UTF-8; `SKIP`: leave them out; None: refuse."""
    binary: bool = False
    """Take the bytes of every file as they are, also of files that are not text."""

    def __post_init__(self) -> None:
        if self.encoding in (None, SKIP):
            return
        try:
            "".encode(self.encoding)
        except LookupError:
            raise MnemoError(
                f"unknown encoding '{self.encoding}': use latin-1, cp1252, utf-16 or another of Python's, or {SKIP}"
            ) from None


class Chosen(NamedTuple):
    name: str
    """Path below the folder or in the archive."""
    part: Part
    size: int
    """Bytes as UTF-8, after decompression."""


class Skipped(NamedTuple):
    name: str
    reason: Reason


@dataclass
class TextFiles:
    source: str
    chosen: list[Chosen] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        return [chosen.part for chosen in self.chosen]

    @property
    def size(self) -> int:
        return sum(chosen.size for chosen in self.chosen)

    def skipped_by_reason(self) -> str:
        """`3 binary (a.bin, b.bin, c.bin), 1 hidden (.git)`, with the names of a few."""
        names: dict[str, list[str]] = {}
        for name, reason in sorted(self.skipped):
            names.setdefault(reason, []).append(name)
        return ", ".join(f"{len(those):,} {reason} ({_few(those)})" for reason, those in sorted(names.items()))


def _few(names: Sequence[str]) -> str:
    return ", ".join([*names[:MOST_NAMED], *(["..."] if len(names) > MOST_NAMED else [])])


def choose_text_files(source: Path | bytes, accepted: Accepted, folder: Path, stack: ExitStack) -> TextFiles:
    """Return the text files of a file, a folder, an archive, or a text given as bytes.

    Archives are unpacked into `folder`, until `stack` closes.
    """
    if isinstance(source, bytes):
        path = temporary_folder(folder, stack) / "text.txt"
        path.write_bytes(source)
        found, alone = [Chosen("the text", Part(path), -1)], True
        texts = TextFiles("the text that was piped in")
    else:
        texts = TextFiles(str(source))
        found, alone = all_files(source, texts.skipped, folder, stack), source.is_file()
    _choose(texts, found, accepted, alone and len(found) == 1)
    if not texts.chosen:
        if texts.skipped and not alone:
            raise MnemoError(f"{texts.source} has no text files; skipped: {texts.skipped_by_reason()}")
        raise MnemoError(f"{texts.source} is empty: there is no text to prepare")
    return texts


def all_files(path: Path, skipped: list[Skipped], folder: Path, stack: ExitStack) -> list[Chosen]:
    """Return every file of a path, of any content, in a fixed order; sizes are not known yet."""
    if not path.exists():
        raise MnemoError(f"{path} does not exist")
    if text_parts.is_tar(path):
        unpacked = temporary_folder(folder, stack)
        text_parts.unpack_tar(path, unpacked)
        path = unpacked
    if not path.is_dir():
        return list(_members(path, path.name))
    kind = _special(path)
    if kind is not None:
        raise MnemoError(f"{path} is a {kind}, not a text")
    files = sorted(_walk(path, skipped), key=lambda file: file.parts)
    return [chosen for file in _without_twins(files) for chosen in _members(file, file.relative_to(path).as_posix())]


def temporary_folder(folder: Path, stack: ExitStack) -> Path:
    """A folder inside of `folder` that is removed when `stack` closes."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".unpacked.", dir=folder)))


def _walk(root: Path, skipped: list[Skipped]) -> Iterator[Path]:
    """Yield the visible regular files below a folder; links are followed only to files in it."""
    inside = Path(os.path.realpath(root))

    def skip(path: Path, reason: Reason) -> None:
        skipped.append(Skipped(path.relative_to(root).as_posix(), reason))

    for folder, subfolders, names in os.walk(root, onerror=lambda error: skip(Path(error.filename), "unreadable")):
        entered = []
        for name in sorted(subfolders):
            reason = _reason_against_folder(Path(folder, name))
            entered.append(name) if reason is None else skip(Path(folder, name), reason)
        subfolders[:] = entered
        for path in (Path(folder, name) for name in names):
            reason = _reason_against_file(path, inside)
            if reason is not None:
                skip(path, reason)
            else:
                yield path


def _reason_against_folder(path: Path) -> Reason | None:
    if text_parts.is_hidden([path.name]):
        return "hidden"
    return "link" if path.is_symlink() else _special(path)


def _special(path: Path) -> Literal["run", "corpus"] | None:
    """Whether a folder was written by training or by `mnemo prepare`."""
    if (path / "recipe.json").is_file() and any((path / name).exists() for name in _RUN_FILES):
        return "run"
    return "corpus" if (path / "header.json").is_file() and (path / "train.bin").is_file() else None


def _reason_against_file(path: Path, inside: Path) -> Reason | None:
    if text_parts.is_hidden([path.name]):
        return "hidden"
    if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
        return "link"
    if not path.is_file():
        return "not a regular file"
    return None if os.access(path, os.R_OK) else "unreadable"


def _without_twins(files: Sequence[Path]) -> list[Path]:
    """Leave out links to files that are in the list themselves."""
    real = {os.path.realpath(file) for file in files if not file.is_symlink()}
    return [file for file in files if not file.is_symlink() or os.path.realpath(file) not in real]


def _members(path: Path, name: str) -> Iterator[Chosen]:
    if path.suffix != ".zip":
        yield Chosen(name, Part(path), -1)
        return
    for member in text_parts.zip_members(path):
        yield Chosen(f"{name}:{member}", Part(path, member), -1)


def _choose(texts: TextFiles, found: Sequence[Chosen], accepted: Accepted, alone: bool) -> None:
    """Sort the files into chosen and skipped ones; text in an unknown encoding is refused."""
    refused: list[str] = []
    for name, part, _ in found:
        kind, detail = ("text", "") if accepted.binary and len(part.load()) else kind_of_text(part)
        if kind == "binary" and alone and accepted.encoding in (None, SKIP):
            raise MnemoError(f"{part.label} is binary data, not text: --binary takes its bytes as they are")
        if accepted.encoding not in (None, SKIP) and (kind == "not UTF-8" or (kind == "binary" and alone)):
            part, kind = replace(part, encoding=accepted.encoding), "text"
        if kind == "text":
            texts.chosen.append(Chosen(name, part, len(part.load())))
        elif kind == "not UTF-8" and accepted.encoding is None:
            refused.append(f"{part.label} ({detail})")
        else:
            texts.skipped.append(Skipped(name, kind))
    if refused:
        raise _refusal(refused, alone)


def _refusal(refused: Sequence[str], alone: bool) -> MnemoError:
    skip = "" if alone else f", --encoding {SKIP} leaves it out"
    return MnemoError(
        f"not UTF-8 text: {_few(refused)}; --encoding NAME converts it (NAME: latin-1, cp1252, utf-16, ...){skip}, "
        "--binary takes its bytes as they are"
    )


def kind_of_text(part: Part) -> tuple[Literal["text", "binary", "empty", "not UTF-8"], str]:
    """What a file holds; for text in another encoding, also the first byte that shows it."""
    data = part.load()
    if not len(data):
        return "empty", ""
    if data[:2].tobytes() in _UTF16_MARKS:
        return "not UTF-8", "it begins like UTF-16"
    counts, invalid = np.zeros(256, dtype=np.int64), _first_invalid(data)
    for begin in range(0, len(data), _PIECE):
        counts += np.bincount(data[begin : begin + _PIECE], minlength=256)
    if counts[_CONTROLS].sum() > CONTROL_SHARE * len(data) or counts[0] > NUL_SHARE * len(data):
        return "binary", ""
    if invalid is None:
        return "text", ""
    if counts[0]:
        return "binary", ""
    return "not UTF-8", f"byte {int(data[invalid]):#04x} at offset {invalid:,}"


def _first_invalid(data: np.ndarray) -> int | None:
    """Offset of the first byte that is not UTF-8; None if all are."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(data), _PIECE):
        kept = len(decoder.getstate()[0])
        try:
            decoder.decode(data[begin : begin + _PIECE].tobytes(), final=begin + _PIECE >= len(data))
        except UnicodeDecodeError as error:
            return begin - kept + error.start
    return None
