"""Find the texts of a corpus: in a folder, in an archive, at its published address, or in Python's library."""

from __future__ import annotations

import fnmatch
import os
import re
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mnemo.data import novels, text_parts
from mnemo.data.corpus import SPLITS
from mnemo.data.download import fetch
from mnemo.data.known_corpora import CORPORA, NOVELS, PYTHON, Published
from mnemo.data.text_files import Accepted, TextFiles, all_files, choose_text_files, temporary_folder
from mnemo.data.text_parts import Part
from mnemo.errors import MnemoError
from mnemo.progress import ShowProgress

Found = Callable[[TextFiles], None]
"""Called with the files that were chosen and skipped."""
DOWNLOADS = "downloads"
"""Folder of downloads in the folder of prepared corpora; no corpus may have this name."""
PYTHON_LIMIT = 8_000_000
_NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data"}
_SPLIT_WORDS = {split: split for split in SPLITS} | dict.fromkeys(("validation", "val", "dev"), "valid")


@dataclass(frozen=True)
class Texts:
    splits: Mapping[str, tuple[Part, ...]]
    files: Mapping[str, Part]
    """The published files that the splits come from, for checks."""
    source: str
    vocabulary: Part | None = None
    """A file that lists the words of the vocabulary."""


def find_texts(
    name: str,
    source: Path | bytes | None,
    folder: Path,
    stack: ExitStack,
    show: ShowProgress,
    accepted: Accepted,
    found: Found,
) -> Texts:
    """Return the texts of a corpus. Downloads go to `folder`; unpacked archives are removed when `stack` closes.

    `found` is called with the chosen files of a text that is not a published one.
    """
    published = CORPORA.get(name)
    if published is None:
        assert source is not None
        files = choose_text_files(source, accepted, folder, stack)
        found(files)
        return local(files.parts, files.source)
    if name == PYTHON:
        if source is not None:
            raise MnemoError("the corpus 'python' is Python's own library: use another name for your text")
        return python_library()
    if isinstance(source, bytes):
        raise MnemoError(f"'{name}' is a published corpus of files: use another name for your text")
    if source is not None:
        return named(name, published, _all_parts(name, [source], folder, stack), str(source))
    files = [fetch(download, folder / DOWNLOADS / name, show) for download in published.downloads]
    urls = ", ".join(download.urls[0] for download in published.downloads)
    return named(name, published, _all_parts(name, files, folder, stack), urls)


def _all_parts(name: str, paths: Sequence[Path], folder: Path, stack: ExitStack) -> list[Part]:
    """Return every file of the paths, of any content: a published corpus is checked by its checksums."""
    parts = [chosen.part for path in paths for chosen in all_files(path, [], folder, stack)]
    if name == NOVELS and novels.has_books(parts):
        return novels.join_books(parts, temporary_folder(folder, stack))
    return parts


def named(name: str, published: Published, parts: Sequence[Part], source: str) -> Texts:
    """Select the files of a published corpus among those given."""
    if "all" in published.files:
        whole = parts[0] if len(parts) == 1 else _one(name, "all", published.files["all"], parts, source)
        size = len(whole.load())
        splits = text_parts.split_at(whole, (size * 90 // 100, size * 95 // 100))
        if name == "text8":
            splits = {split: (text_parts.stripped(part),) for split, (part,) in splits.items()}
        return Texts(splits, {"all": whole}, source)
    found = {key: _matching(names, parts) for key, names in published.files.items()}
    missing = [key for key, matches in found.items() if not matches]
    if missing:
        raise _no_file(name, missing, published, source)
    vocabulary = found.pop("vocabulary", [None])[0]
    splits = {split: tuple(sorted(found[split], key=lambda part: part.name)) for split in SPLITS}
    files = {split: matches[0] for split, matches in splits.items() if len(matches) == 1}
    return Texts(splits, files, source, vocabulary)


def _one(name: str, key: str, names: Sequence[str], parts: Sequence[Part], source: str) -> Part:
    matches = _matching(names, parts)
    if not matches:
        raise _no_file(name, [key], CORPORA[name], source)
    return matches[0]


def _matching(names: Sequence[str], parts: Sequence[Part]) -> list[Part]:
    """Return the parts that match the first pattern with any match; of equal names, the least deeply nested."""
    for pattern in names:
        matches: dict[str, Part] = {}
        for part in sorted(parts, key=lambda part: (len(part.path.parts), part.label)):
            if fnmatch.fnmatchcase(part.name, pattern):
                matches.setdefault(part.name, part)
        if matches:
            return list(matches.values())
    return []


def _no_file(name: str, missing: Sequence[str], published: Published, source: str) -> MnemoError:
    wanted = [f"{key} ({' or '.join(published.files[key])})" for key in missing]
    what = published.files["all"][0] if missing == ["all"] else ", ".join(wanted)
    books = f", and no {novels.WANTED}" if name == NOVELS else ""
    return MnemoError(f"{name}: {source} has no file for {what} (also as .xz, .gz, .bz2 or .zip){books}")


def local(parts: Sequence[Part], source: str, shares: Sequence[float] = (0.90, 0.05, 0.05)) -> Texts:
    """Split the user's files into train, valid and test: by their names, else in order, by these shares."""
    return Texts(_by_name(parts, source) or text_parts.split_in_order(parts, shares), {}, source)


def _by_name(parts: Sequence[Part], source: str) -> dict[str, tuple[Part, ...]] | None:
    groups: dict[str, list[Part]] = {}
    base = Path(os.path.commonpath([part.path.parent for part in parts])) if parts else Path()
    for part in parts:
        groups.setdefault(_split_of(part, base) or "", []).append(part)
    if "train" not in groups or groups.keys() <= {"train", ""}:
        return None
    if "valid" not in groups:
        raise MnemoError(f"{source} has files named train and test, but none named valid")
    return {split: tuple(groups[split]) for split in SPLITS if split in groups}


def _split_of(part: Part, base: Path) -> str | None:
    """Return the split of a file, by a word in its name (`wiki.train.tokens`) or in a folder's (`train/a.txt`)."""
    path = Path(part.member) if part.member else part.path.relative_to(base)
    for text in (part.name, *reversed(path.parts[:-1])):
        for word in re.split(r"[^a-zA-Z]+", text.lower()):
            if word in _SPLIT_WORDS:
                return _SPLIT_WORDS[word]
    return None


def python_library() -> Texts:
    """Return the source files of Python's standard library as documents; of every 20, one is valid and one test."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = _source_files(root)
    if not files:
        raise MnemoError(f"no Python source files in {root}; use your own text: mnemo prepare NAME --from FILE_OR_DIR")
    parts = [Part(file) for file in _thinned(files)]
    splits = {
        "train": tuple(part for i, part in enumerate(parts) if i % 20 not in (9, 19)),
        "valid": tuple(parts[9::20]),
        "test": tuple(parts[19::20]),
    }
    return Texts(splits, {}, f"{root}, {len(parts)} of {len(files)} files (at most {PYTHON_LIMIT / 1e6:g} MB)")


def _source_files(root: Path) -> list[Path]:
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _NOT_SOURCE]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted((file for file in found if file.stat().st_size), key=lambda file: file.parts)


def _thinned(files: Sequence[Path]) -> list[Path]:
    """Select files with at most PYTHON_LIMIT bytes in total, spread evenly over the list."""
    sizes = [file.stat().st_size for file in files]
    share = min(1.0, PYTHON_LIMIT / sum(sizes))
    kept, seen, taken = [], 0, 0
    for file, size in zip(files, sizes, strict=True):
        seen += size
        if taken + size <= share * seen:
            kept.append(file)
            taken += size
    return kept
