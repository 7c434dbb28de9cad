"""Coverage-guided fuzzing of the readers of outside files, with atheris (pip install atheris):

    python tests/campaign/atheris_readers.py CORPUS_FOLDER -runs=100000 -rss_limit_mb=2048 -timeout=20

A first byte chooses the reader, the rest is its file. Nothing but a MnemoError (or a ValueError of the JSON reader,
which is its way of refusing) may come out. The corpus folder is filled with whole files where it is empty.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["OMP_NUM_THREADS"] = "1"

import atheris  # type: ignore[import-not-found]

PARTS = ["mnemo.files.safe_load", "mnemo.config", "mnemo.data", "mnemo.report", "mnemo.interop.parity"]

with atheris.instrument_imports(include=PARTS):  # type: ignore[attr-defined]
    from mnemo.config import from_json
    from mnemo.data import tokenizers
    from mnemo.data.corpus import Corpus
    from mnemo.errors import MnemoError
    from mnemo.files.safe_load import parse_json, tensors_problem
    from mnemo.interop.parity import comparison as parity
    from mnemo.recipes.recipe import Recipe
    from mnemo.report.runs import read_run
    from mnemo.storage.memory_file import Layout
    from mnemo.storage.run_header import load_header

PLACE = Path(tempfile.mkdtemp(prefix="mnemo-atheris-"))


def _json(data: bytes) -> None:
    parse_json(data)


def _tokenizer(data: bytes) -> None:
    tokenizer = tokenizers.from_json(parse_json(data))
    tokenizer.decode(tokenizer.encode("the cat"))


def _recipe(data: bytes) -> None:
    from_json(Recipe, parse_json(data))


def _layout(data: bytes) -> None:
    from_json(Layout, parse_json(data))


def _tensors(data: bytes) -> None:
    tensors_problem(_file("x.safetensors", data))


def _parity(data: bytes) -> None:
    parity.check(_file("x.safetensors", data))


def _header(data: bytes) -> None:
    _file("recipe.json", data)
    load_header(PLACE)


def _corpus(data: bytes) -> None:
    _file("header.json", data)
    Corpus.open(PLACE)


def _metrics(data: bytes) -> None:
    _file("metrics.jsonl", data)
    read_run(PLACE, "run")


READERS: list[Callable[[bytes], None]] = [
    *(_json, _tokenizer, _recipe, _layout, _tensors, _parity, _header, _corpus, _metrics),
]


def _file(name: str, data: bytes) -> Path:
    path = PLACE / name
    path.unlink(missing_ok=True)  # a mapped file must not change its length
    path.write_bytes(data)
    return path


def test_one(data: bytes) -> None:
    if not data:
        return
    reader = READERS[data[0] % len(READERS)]
    refusals = (MnemoError, ValueError) if reader not in (_parity, _header, _corpus, _metrics) else (MnemoError,)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(*refusals):
        reader(data[1:])


def fill(folder: Path) -> None:
    """One whole file for every reader."""
    from helpers.fuzz_targets import seeds

    folder.mkdir(parents=True, exist_ok=True)
    place = seeds()
    names = {
        0: "run/recipe.json",
        1: "words/tokenizer.json",
        4: "run.memory",
        5: "data_40_iterators.safetensors",
        6: "run/recipe.json",
        7: "data/corpus-words/header.json",
        8: "run/metrics.jsonl",
    }
    for number, name in names.items():
        (folder / f"seed-{number}").write_bytes(bytes([number]) + (place / name).read_bytes())


if __name__ == "__main__":
    where = Path(next((word for word in sys.argv[1:] if not word.startswith("-")), "atheris-corpus"))
    if not where.is_dir() or not any(where.iterdir()):
        fill(where)
    atheris.Setup(sys.argv, test_one)
    atheris.Fuzz()
