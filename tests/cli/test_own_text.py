"""`mnemo train mybook.txt`: a corpus made on the way, a recipe by size, and one line for what cannot work."""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_runs import WORDS

from mnemo import cli
from mnemo.data import corpus as corpora
from mnemo.data.own_text import opened_text, shares, text_name
from mnemo.data.text_files import Accepted
from mnemo.recipes.own_text import own_text_recipe
from mnemo.storage.run_folder import RunHeader, load_header

SMALL = [
    *("--train.steps", "3", "--train.batch", "2", "--train.segment", "8", "--evaluation.limit", "60"),
    *("--model.num-layers", "1", "--model.dim", "8", "--model.num-heads", "1", "--model.head-dim", "4"),
    *("--model.inner-dim", "8", "--model.memory.long.length", "8", "--train.device", "cpu"),
]


def sentences(count: int = 120) -> str:
    draw = random.Random(0)
    return "".join(" ".join(draw.choices(WORDS, k=9)) + ".\n" for _ in range(count))


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MNEMO_DATA", str(tmp_path / "data"))
    Path("mybook.txt").write_text(sentences())


def started(*argv: str) -> RunHeader:
    """Train for three steps; the header of the run that this made."""
    before = set(Path("runs").glob("*"))
    assert cli.main(["train", *argv, *SMALL]) == 0
    (folder,) = set(Path("runs").glob("*")) - before
    return load_header(folder)


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert cli.main(["train", *argv]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


def corpora_made() -> list[str]:
    return [corpus.name for corpus in corpora.prepared()]


def test_a_file_becomes_a_corpus_and_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    header = started("mybook.txt")
    assert "next: mnemo chat, mnemo generate, mnemo analyse, mnemo eval" in capsys.readouterr().out
    assert header.recipe.train.steps == 3 and header.preset is None
    (name,) = corpora_made()
    assert header.recipe.data.corpus == name and name.startswith("mybook-")
    assert Path("runs/mybook-1").is_dir()
    corpus = corpora.Corpus.open(name)
    text = b"".join(corpus.split(split).ids.tobytes() for split in corpus.splits)
    assert text.decode() == sentences()


def test_the_same_text_is_prepared_once_and_a_changed_one_anew() -> None:
    started("mybook.txt")
    (name,) = corpora_made()
    header = corpora.data_root() / name / corpora.HEADER
    written = header.stat().st_mtime_ns
    started("mybook.txt")
    assert corpora_made() == [name] and header.stat().st_mtime_ns == written
    Path("mybook.txt").write_text(sentences(130))
    started("mybook.txt")
    assert len(corpora_made()) == 2
    assert sorted(path.name for path in Path("runs").iterdir()) == ["mybook-1", "mybook-2", "mybook-3"]


def test_runs_that_start_together_share_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    real, faster = corpora.write_header, []

    def write_header(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(corpora, "write_header", real)
        faster.append(started("mybook.txt"))
        real(*args, **options)

    monkeypatch.setattr(corpora, "write_header", write_header)
    assert cli.main(["train", "mybook.txt", *SMALL]) == 0
    assert corpora_made() == [faster[0].recipe.data.corpus]
    assert sorted(path.name for path in Path("runs").iterdir()) == ["mybook-1", "mybook-2"]


def test_a_run_that_cannot_start_leaves_its_name_free(capsys: pytest.CaptureFixture[str]) -> None:
    complaint(capsys, "mybook.txt", *SMALL, "--train.batch", "5000")
    started("mybook.txt")
    complaint(capsys, "mybook.txt", *SMALL, "--train.batch", "5000")
    assert [path.name for path in Path("runs").iterdir()] == ["mybook-1"]


def test_a_folder_of_runs_that_cannot_be_made_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").symlink_to("disk-that-is-not-there/runs")
    assert "runs" in complaint(capsys, "mybook.txt", *SMALL)


def test_a_damaged_corpus_is_made_again() -> None:
    started("mybook.txt")
    (name,) = corpora_made()
    (corpora.data_root() / name / "train.bin").write_bytes(b"short")
    started("mybook.txt")
    corpora.Corpus.open(name).verify()


def test_a_run_on_own_text_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    started("mybook.txt")
    assert cli.main(["train", "--resume", "mybook-1"]) == 0


def test_a_folder_of_texts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("letters").mkdir()
    for i in range(3):
        Path("letters", f"{i}.txt").write_text(sentences(40 + i))
    Path("letters", "picture.png").write_bytes(bytes(range(256)) * 9)
    header = started("letters")
    err = capsys.readouterr().err
    assert "letters: 3 text files" in err and "skipped: 1 binary (picture.png)" in err
    assert header.corpus["name"].startswith("letters-") and header.corpus["documents"]


def test_text_from_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sentences().encode())))
    assert started("-").corpus["name"].startswith("stdin-")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "the text that was piped in is empty" in complaint(capsys, "-")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "several processes cannot share a pipe" in complaint(capsys, "-")


def test_data_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    first = started("mybook.txt")
    assert started("--data", "mybook.txt").recipe == first.recipe
    assert started("tiny-bytes", "--data=mybook.txt").preset == "tiny-bytes"
    assert load_header(Path("runs/mybook-3")).corpus == first.corpus
    assert "name one text: 'mybook.txt', or the one of --data, 'x'" in complaint(capsys, "mybook.txt", "--data", "x")


def test_a_run_is_tuned_on_own_text() -> None:
    started("mybook.txt")
    Path("other.txt").write_text(sentences(150))
    header = started("other.txt", "--from", "mybook-1")
    assert header.source is not None and header.source["run"].endswith("mybook-1")
    assert header.corpus["name"].startswith("other-")


def test_a_run_is_not_tuned_on_another_vocabulary_of_the_same_size(capsys: pytest.CaptureFixture[str]) -> None:
    other = sentences().translate(str.maketrans({"e": "\u0435"}))
    Path("other.txt").write_text(other)
    for name in ("mybook", "other"):
        assert cli.main(["prepare", name, "--from", f"{name}.txt", "--tokenizer", "chars"]) == 0
    header = started("mybook")
    size, run = header.corpus["vocab_size"], header.recipe
    assert run.data.corpus == "mybook"
    (name,) = [folder.name for folder in Path("runs").iterdir()]
    line = complaint(capsys, "other", "--from", name, *SMALL)
    assert f"{name} has another vocabulary ({size} chars) than corpus 'other' ({size} chars)" in line
    assert len(list(Path("runs").iterdir())) == 1


def test_a_prepared_corpus_is_taken_by_name() -> None:
    assert cli.main(["prepare", "letters", "--from", "mybook.txt", "--tokenizer", "chars"]) == 0
    header = started("letters")
    assert header.corpus["unit"] == "char" and header.recipe.data.corpus == "letters"


def test_presets_win_over_files_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny-bytes").write_text(sentences())
    assert cli.main(["train", "tiny-bytes", "--help"]) == 0
    out, err = capsys.readouterr()
    assert "'tiny-bytes' is a preset and a file: taking the preset; ./tiny-bytes is the file" in err
    assert "Python's standard library" in out
    assert started("./tiny-bytes").corpus["name"].startswith("tiny-bytes-")


def test_help_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "mybook.txt", "--help"]) == 0
    assert "Train on mybook.txt" in capsys.readouterr().out
    assert cli.main(["train", "mybook.txt", "--train.nonsense", "3"]) == 2
    assert corpora_made() == [] and not Path("runs").exists()


def test_what_cannot_work_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no file or folder 'nobook.txt'" in complaint(capsys, "nobook.txt")
    assert "; did you mean 'mybook.txt'?" in complaint(capsys, "mybok.txt")
    assert "there is no file or folder 'nobook'" in complaint(capsys, "--data", "nobook")
    assert "did you mean 'tiny-bytes'" in complaint(capsys, "tiny-byte")
    Path("short.txt").write_text("too short\n")
    line = complaint(capsys, "short.txt")
    assert "short.txt is too short to train on: it has 10 bytes, and 2,000 are needed" in line
    Path("noise").write_bytes(bytes(range(256)) * 20)
    assert "is binary data, not text: --binary" in complaint(capsys, "noise")
    Path("old").mkdir()
    Path("old", "recipe.json").write_text("{}")
    assert "old is a run: mnemo train --resume old" in complaint(capsys, "old")
    line = complaint(capsys, "mybook.txt", "--train.batch", "999")
    assert "999 rows leave 4 tokens of the text in each, less than a segment of 64" in line
    assert "use --train.batch 61 or less, --train.segment 3 or less, or a longer text" in line
    assert "name a preset or your text" in complaint(capsys, "--name", "x")
    assert not Path("runs").exists()


def test_names_of_texts(tmp_path: Path) -> None:
    Path("My book (2).tar.gz").touch()
    assert text_name(Path("My book (2).tar.gz")) == "My-book-2"
    assert text_name(tmp_path / "mybook.txt") == "mybook"
    assert text_name(Path(".")) == tmp_path.name.replace(".", "-")
    Path("書.txt").touch()
    assert text_name(Path("書.txt")) == "text"


@pytest.mark.parametrize("size", [2000, 30_000, 100_000, 10**7])
def test_short_texts_hold_out_more(size: int) -> None:
    train, valid, test = shares(size)
    assert train + valid + test == pytest.approx(1) and valid == test
    assert 0.05 <= valid <= 0.1 and (valid * size >= 4999 or valid == 0.1)


@pytest.mark.parametrize("size", [2000, 10_000, 50_000, 300_000, 5_000_000, 10**9])
@pytest.mark.parametrize("gpu", [False, True])
def test_recipes_fit_texts_of_every_size(size: int, gpu: bool) -> None:
    train, valid, _ = shares(size)
    recipe = own_text_recipe("x", int(train * size), int(valid * size), gpu=gpu)
    row = int(train * size) // recipe.train.batch
    assert row > recipe.train.segment  # at least a segment and its targets
    assert valid * size >= 2 * recipe.evaluation.batch
    tokens = recipe.train.steps * recipe.train.batch * recipe.train.segment
    assert tokens <= 61 * size and recipe.train.steps >= 10
    assert tokens <= 2_000_000 or gpu  # minutes on a CPU


def test_longer_texts_and_gpus_get_larger_models() -> None:
    dims = [own_text_recipe("x", size, 5000, gpu=gpu).model.dim for size, gpu in ((10**7, False), (10**5, True))]
    assert [*dims, own_text_recipe("x", 10**7, 5000, gpu=True).model.dim] == [128, 256, 512]


def test_an_own_text_in_another_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mybook.txt").write_bytes(sentences().replace("dog", "Vögel").encode("latin-1"))
    assert "--encoding NAME converts it" in complaint(capsys, "mybook.txt")
    header = started("mybook.txt", "--encoding", "latin-1")
    ids = corpora.Corpus.open(header.recipe.data.corpus).split("train").ids
    assert "Vögel" in ids.tobytes().decode()


def test_the_smallest_text_trains() -> None:
    Path("mybook.txt").write_text(sentences()[:2000])
    with opened_text(Path("mybook.txt"), Accepted()) as text:
        assert text.num_tokens["valid"] >= 150
    assert cli.main(["train", "mybook.txt", "--train.steps", "1", "--train.device", "cpu"]) == 0


@pytest.mark.parametrize("flag", ["--memory", "--model.memory"])
def test_another_papers_memory_on_own_text(flag: str) -> None:
    tokens = ["--model.tokens.num", "2"]
    assert cli.main(["train", "mybook.txt", flag, "rmt", *tokens, *SMALL[:-4], "--train.device", "cpu"]) == 0
    recipe = load_header(Path("runs/mybook-1")).recipe
    assert recipe.model.tokens is not None and recipe.train.bptt == 2 and recipe.model.memory.long.length == 0


def test_an_unknown_memory_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown memory 'rnt'; did you mean 'rmt'" in complaint(capsys, "mybook.txt", "--memory", "rnt")


def test_a_memory_is_a_preset_unless_a_file_has_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "rmt", "--help"]) == 0
    assert "rmt: training tiny-bytes-rmt" in capsys.readouterr().err
    Path("rmt").write_text(sentences())
    assert cli.main(["train", "rmt", "--help"]) == 0
    assert "Train on rmt" in capsys.readouterr().out
