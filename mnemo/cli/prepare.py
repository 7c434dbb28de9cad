"""Turn a corpus into token ids: a published one by name, or your own text files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from mnemo.cli import console
from mnemo.cli.console import STDIN, piped_text
from mnemo.data.known_corpora import CORPORA, command_for
from mnemo.errors import MOST_LISTED, MnemoError
from mnemo.lazy import LazyModule

if TYPE_CHECKING:
    from mnemo.data import corpus as corpora
    from mnemo.data.corpus import Corpus
    from mnemo.data.text_files import TextFiles
else:
    corpora = LazyModule("mnemo.data.corpus")

BABILONG = "babilong"
"""Stories and books instead of token ids: their tokens depend on the model that is tuned"""


@dataclass(frozen=True, kw_only=True)
class Args:
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """A corpus of --list, or a new name for your own text."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FILE|DIR|-")] = None
    """Use this file, folder or archive (xz, gz, bz2, zip, tar) instead of a download; - takes a text from a pipe. Of a
    folder, text files are used: hidden and binary files, links out of it, runs and corpora are skipped. Files named
    train, valid and test become these splits; other text is split 90/5/5 in order."""
    books: Annotated[Path | None, tyro.conf.arg(metavar="FILE|DIR")] = None
    """babilong: background books, a text file each, or files named train, valid and test with NUL bytes between books.
    --from is then a folder or tar archive of the bAbI tasks."""
    encoding: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Encoding of text files that are not UTF-8, such as latin-1 or utf-16; skip: leave them out. If unset, they are
    refused."""
    binary: bool = False
    """Take the bytes of all files as they are, also of files that are not text."""
    tokenizer: Literal["bytes", "chars", "words", "bpe"] | None = None
    """How to split text into tokens; if unset, as published for corpora of --list, bytes for others."""
    vocab_size: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Largest vocabulary; if unset, all words, and 8192 for bpe."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of prepared corpora; if unset, $MNEMO_DATA or the user's cache folder."""
    replace: bool = False
    """Replace a prepared corpus of the same name."""
    allow_mismatch: bool = False
    """Keep a text whose sizes or checksums differ from the published ones."""
    json: bool = False
    """Print JSON."""
    list_all: Annotated[bool, tyro.conf.arg(name="list")] = False
    """List the published corpora and the prepared ones."""


def run(args: Args) -> int:
    if args.list_all:
        _print_list(args)
        return 0
    if args.name is None:
        raise MnemoError("name a corpus to prepare; mnemo prepare --list shows those known by name")
    if args.name == BABILONG:
        return _prepare_babilong(args)
    from mnemo.data.prepare import prepare
    from mnemo.data.text_files import Accepted

    _refuse_to_replace(args)
    _say_before(args)
    found: list[TextFiles] = []

    def list_files(files: TextFiles) -> None:
        found.append(files)
        print_files(files)

    corpus = prepare(
        args.name,
        piped_text() if str(args.source) == STDIN else args.source,
        args.tokenizer,
        vocab_size=args.vocab_size,
        root=args.root,
        allow_mismatch=args.allow_mismatch,
        accepted=Accepted(encoding=args.encoding, binary=args.binary),
        found=list_files,
        show=console.progress,
    )
    for mismatch in corpus.mismatches:
        print(f"mnemo: warning: {mismatch}", file=sys.stderr)
    if args.json:
        console.print_json(_summary(corpus) | (_files(found[0]) if found else {}))
    else:
        _print_corpus(corpus)
    return 0


def _prepare_babilong(args: Args) -> int:
    if args.source is None or args.books is None:
        raise MnemoError("babilong needs the bAbI tasks and books: mnemo prepare babilong --from BABI --books BOOKS")
    for path in (args.source, args.books):
        if not path.exists():
            raise MnemoError(f"{path} does not exist")
    from mnemo.data.babilong.folder import HEADER, prepare_babilong

    target = corpora.data_root(args.root) / BABILONG
    if (target / HEADER).is_file() and not args.replace:
        raise MnemoError(f"babilong is prepared already, in {target}; --replace prepares it again")
    sizes = prepare_babilong(args.source, args.books, target)
    if args.json:
        console.print_json({"path": str(target), "bytes": sizes})
        return 0
    console.table([(name, f"{size:,}") for name, size in sorted(sizes.items())], ["text", "bytes"])
    print(f"in {target}")
    return 0


def _refuse_to_replace(args: Args) -> None:
    from mnemo.data.prepare import target_name

    name = args.name or ""
    if args.source is None and name not in CORPORA and Path(name).expanduser().exists():
        raise MnemoError(f"'{name}' is a file or folder: mnemo prepare NAME --from {name}")
    target = target_name(name, args.tokenizer)
    there = corpora.data_root(args.root) / target / corpora.HEADER
    if there.is_file() and not args.replace:
        raise MnemoError(f"corpus '{target}' is prepared already, in {there.parent}; --replace prepares it again")


def _say_before(args: Args) -> None:
    known = CORPORA.get(args.name or "")
    if known is not None and known.note and args.source is None:
        print(f"{args.name}: {known.note}", file=sys.stderr)


def print_files(files: TextFiles) -> None:
    """Print the chosen files of a folder with their sizes, and what was skipped, on stderr; of one file nothing."""
    if len(files.chosen) > 1 or files.skipped:
        print(f"{files.source}: {len(files.chosen):,} text files, {files.size:,} bytes", file=sys.stderr)
        for name, _, size in files.chosen[:MOST_LISTED]:
            print(f"  {size:>12,}  {name}", file=sys.stderr)
    if len(files.chosen) > MOST_LISTED:
        print(f"  {'...':>12}  and {len(files.chosen) - MOST_LISTED:,} more", file=sys.stderr)
    if files.skipped:
        print(f"skipped: {files.skipped_by_reason()}", file=sys.stderr)


def _files(files: TextFiles) -> dict[str, Any]:
    return {
        "files": [{"name": name, "bytes": size} for name, _, size in files.chosen],
        "skipped": [skipped._asdict() for skipped in files.skipped],
    }


def _print_corpus(corpus: Corpus) -> None:
    columns = zip(*map(_counts, corpus.splits.values()), strict=True)
    aligned = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    console.table(
        zip(corpus.splits, *aligned, strict=True), ["split", "tokens", "bytes", "words", "lines", "documents"]
    )
    print(f"{corpus.name}: {corpus.vocab_size:,} {corpus.tokenizer.unit} symbols, from {corpus.source}")
    print(f"in {corpus.path}")


def _counts(split: corpora.SplitHeader) -> list[str]:
    documents = split.documents.count if split.documents else None
    numbers = (split.count, split.num_bytes, split.num_words, split.num_lines, documents)
    return ["-" if number is None else f"{number:,}" for number in numbers]


def _summary(corpus: Corpus) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "path": str(corpus.path),
        "source": corpus.source,
        "unit": corpus.tokenizer.unit,
        "vocab_size": corpus.vocab_size,
        "mismatches": list(corpus.mismatches),
        "splits": {
            name: {
                "tokens": split.count,
                "bytes": split.num_bytes,
                "words": split.num_words,
                "lines": split.num_lines,
                "documents": split.documents.count if split.documents else None,
                "sha256": split.sha256,
            }
            for name, split in corpus.splits.items()
        },
    }


def _print_list(args: Args) -> None:
    ready = {corpus.name: corpus for corpus in corpora.prepared(args.root)}
    names = [*CORPORA, *(name for name in ready if name not in CORPORA)]
    if args.json:
        console.print_json([_listed(name, ready.get(name)) for name in names])
        return
    rows = []
    for name in names:
        item = _listed(name, ready.get(name))
        size = " / ".join(f"{count:,}" for count in item["tokens"]) if item["tokens"] else "-"
        rows.append([name, item["title"], size, "yes" if item["prepared"] else item["command"]])
    console.table(rows, ["corpus", "text", "tokens (train / valid / test)", "prepared"])
    print(f"in {corpora.data_root(args.root)}")


def _listed(name: str, corpus: Corpus | None) -> dict[str, Any]:
    known = CORPORA.get(name)
    tokens = [split.count for split in corpus.splits.values()] if corpus else None
    if tokens is None and known is not None and known.tokenizer in known.expected:
        tokens = list(known.expected[known.tokenizer].sizes)
    return {
        "name": name,
        "title": known.title if known else f"{corpus.tokenizer.unit}s of {corpus.source}" if corpus else "",
        "tokens": tokens,
        "prepared": corpus is not None,
        "path": str(corpus.path) if corpus else None,
        "command": command_for(name),
    }
