"""A prepared folder: bAbI files, and books in three parts that share no book.

babilong.json           names and checksums of the files; written last, so it marks a complete folder
qa1.train.txt.xz ...    the bAbI files, unchanged
books.train.txt.xz ...  whole books, separated by a NUL byte
"""

from __future__ import annotations

import hashlib
import lzma
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mnemo.data.babilong.background import sentences
from mnemo.data.babilong.generated import check_task, generated_sentences, generated_stories
from mnemo.data.babilong.stories import TASKS, Story, parse_stories
from mnemo.data.tasks.task import TaskSplit
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.json_file import load_json, write_json

HEADER = "babilong.json"
SPLITS: tuple[TaskSplit, ...] = ("train", "valid", "test")
STORY_FILE = re.compile(r"(qa\d+)_.*_(train|test)\.txt")
BOOK_END = "\0"
HELD_OUT = 0.05
"""Share of the training stories that validation uses instead"""
GENERATED = {"train": 10_000, "valid": 500, "test": 1_000}
GENERATED_SENTENCES = 4_000


@dataclass(frozen=True)
class BabiLongData:
    """Stories and sentences of a task; the splits share neither stories nor books."""

    task: str
    folder: Path | None = None
    """A prepared folder; None for generated stories and sentences"""

    def stories(self, split: TaskSplit) -> list[Story]:
        if self.folder is None:
            return generated_stories(self.task, GENERATED[split], SPLITS.index(split))
        stories = parse_stories(self._text(f"{self.task}.{'test' if split == 'test' else 'train'}"), self.task)
        if split == "test":
            return stories
        border = _story_begin(stories, round(len(stories) * (1 - HELD_OUT)))
        return stories[:border] if split == "train" else stories[border:]

    def sentences(self, split: TaskSplit, most: int | None = None) -> Iterator[str]:
        """Yield sentences of the books of a split; `most`: characters at which to stop."""
        if self.folder is None:
            yield from generated_sentences(GENERATED_SENTENCES, SPLITS.index(split))
            return
        count = 0
        for sentence in chain.from_iterable(map(sentences, self._text(f"books.{split}").split(BOOK_END))):
            if most is not None and count >= most:
                return
            count += len(sentence)
            yield sentence

    def _text(self, name: str) -> str:
        assert self.folder is not None
        path = self.folder / f"{name}.txt.xz"
        try:
            data = lzma.decompress(path.read_bytes())
        except FileNotFoundError:
            raise MnemoError(f"{self.folder} has no {path.name}") from None
        except lzma.LZMAError:
            raise MnemoError(f"{path} is damaged") from None
        if load_json(self.folder / HEADER)["sha256"].get(name) != hashlib.sha256(data).hexdigest():
            raise MnemoError(f"{path} is not as it was prepared")
        return data.decode()


def _story_begin(stories: list[Story], near: int) -> int:
    """Return the first story from `near` on that does not continue the one before it."""
    while 0 < near < len(stories) and stories[near].facts[: len(stories[near - 1].facts)] == stories[near - 1].facts:
        near += 1
    return near


def load_data(task: str, folder: Path | str | None) -> BabiLongData:
    """Open a prepared folder; None for generated stories and sentences."""
    if folder is None:
        check_task(task)
        return BabiLongData(task)
    folder = Path(folder)
    if not (folder / HEADER).is_file():
        raise MnemoError(f"{folder} is not prepared: mnemo prepare babilong --from BABI --books BOOKS --root DIR")
    known = [name for name in TASKS if (folder / f"{name}.test.txt.xz").is_file()]
    if task not in known:
        raise MnemoError(f"{folder} has no task '{task}'; it has {', '.join(known)}")
    return BabiLongData(task, folder)


def prepare_babilong(babi: Path, books: Path, target: Path, most: int | None = None) -> dict[str, int]:
    """Write a prepared folder and return the bytes of its texts. `most`: bytes of the training books to keep.

    `babi`: a folder or tar archive with files such as qa1_single-supporting-fact_train.txt. `books`: a text file for
    each book, or files named train, valid and test with NUL bytes between books.
    """
    texts = {f"{task}.{split}": text for (task, split), text in _story_texts(babi).items()}
    if not texts:
        raise MnemoError(f"{babi} has no files of the bAbI tasks, such as qa1_single-supporting-fact_train.txt")
    for split, chosen in _split_books(books).items():
        texts[f"books.{split}"] = BOOK_END.join(_first_books(chosen, most if split == "train" else None)).encode()
    with atomic.new_folder(target, replace=True) as new:
        for name, data in texts.items():
            (new / f"{name}.txt.xz").write_bytes(lzma.compress(data))
        checksums = {name: hashlib.sha256(data).hexdigest() for name, data in texts.items()}
        write_json(new / HEADER, {"format": "mnemo-babilong", "sha256": checksums})
    return {name: len(data) for name, data in texts.items()}


def _story_texts(source: Path) -> dict[tuple[str, str], bytes]:
    """Return bAbI files by task and split; of several versions of a file the longest one."""
    if source.is_dir():
        found = [(path.name, path.read_bytes()) for path in sorted(source.rglob("*.txt"))]
    elif source.is_file() and tarfile.is_tarfile(source):
        with tarfile.open(source) as archive:
            members = [member for member in archive.getmembers() if member.isfile()]
            found = [(Path(member.name).name, archive.extractfile(member).read()) for member in members]  # type: ignore[union-attr]
    else:
        raise MnemoError(f"{source} is neither a folder nor a tar archive")
    texts: dict[tuple[str, str], bytes] = {}
    for name, data in found:
        match = STORY_FILE.fullmatch(name)
        if match and match[1] in TASKS and len(data) > len(texts.get((match[1], match[2]), b"")):
            texts[match[1], match[2]] = data
    return texts


def _split_books(source: Path) -> dict[TaskSplit, list[str]]:
    paths = sorted(path for path in source.rglob("*.txt*") if path.is_file()) if source.is_dir() else [source]
    texts = {path: _book_text(path) for path in paths}
    named: dict[TaskSplit, list[str]] = {
        split: [book for path, text in texts.items() if split in path.name for book in text.split(BOOK_END)]
        for split in SPLITS
    }
    if all(named.values()):
        return named
    books = [book for text in texts.values() for book in text.split(BOOK_END) if book.strip()]
    if len(books) < 3:
        raise MnemoError(f"{source} has {len(books)} books; training, validation and test need different ones")
    return {"train": books[2:], "valid": books[1:2], "test": books[:1]}


def _book_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    except (UnicodeDecodeError, lzma.LZMAError):
        raise MnemoError(f"{path} is not UTF-8 text") from None


def _first_books(books: list[str], most: int | None) -> Iterator[str]:
    """Yield whole books until `most` bytes are reached; at least one."""
    total = 0
    for book in books:
        yield book
        total += len(book.encode())
        if most is not None and total >= most:
            return
