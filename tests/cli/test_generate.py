"""`mnemo generate` and `mnemo read`: text as it comes, memories across processes, samples in the run's folder."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import commands
from helpers.tiny_runs import SEGMENT, tiny_run

from mnemo.cli import main
from mnemo.cli.generate import _Printer
from mnemo.data.corpus import Corpus
from mnemo.data.tokenizers import ByteTokenizer
from mnemo.inference.generation import generate, read
from mnemo.storage.memory_file import load_memory
from mnemo.storage.run_folder import open_run

BOOK = "the cat sat under a tree\n" * 5


def verb(name: str, *options: object, run: Path | None = None) -> int:
    return main([name, str(run or tiny_run()), "--device", "cpu", *map(str, options)])


def answer(capsys: pytest.CaptureFixture[str], name: str, *options: object) -> dict[str, Any]:
    assert verb(name, *options, "--json") == 0
    return json.loads(capsys.readouterr().out)


def book(folder: Path, text: str = BOOK, name: str = "book.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def ids(text: str) -> torch.Tensor:
    return torch.from_numpy(Corpus.open("tiny-bytes").tokenizer.encode(text).astype("int64"))


def test_text_behind_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run(tiny_run(), device="cpu")
    tokens = generate(run.model, ids("the cat")[None], num_tokens=12, segment=SEGMENT, seed=5).tokens[0]
    text = Corpus.open("tiny-bytes").tokenizer.decode(ids("the cat").tolist() + tokens.tolist())
    assert verb("generate", "--prompt", "the cat", "--tokens", "12", "--seed", "5") == 0
    out, err = capsys.readouterr()
    assert out == text + "\n"
    path = Path(err.strip().removeprefix("saved "))
    record = json.loads(path.read_text())
    assert record["kind"] == "sample" and record["format_version"] == 1
    assert record["prompt"] == "the cat" and "the cat" + record["texts"][0] == text
    path.unlink()


def test_several_continuations(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "generate", "--continuations", 3, "--tokens", 9, "--no-save")
    assert len(found["texts"]) == 3
    alone = answer(capsys, "generate", "--seed", 2, "--tokens", 9, "--no-save")
    assert alone["tokens"] == found["tokens"][2:]
    assert verb("generate", "--continuations", 3, "--tokens", 9, "--no-save") == 0
    out = capsys.readouterr().out
    assert "--- continuation 2 ---\n" + found["texts"][1] in out
    assert "--- continuation 3 ---\n" + found["texts"][2] in out
    assert not list((tiny_run() / "results").glob("sample-*"))


def test_without_a_prompt_a_document_begins(capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run(tiny_run(), device="cpu")
    expected = generate(run.model, ids("\0")[None], num_tokens=6, segment=SEGMENT).tokens
    assert answer(capsys, "generate", "--tokens", 6, "--no-save")["tokens"] == expected.tolist()


def test_a_prompt_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_file = answer(capsys, "generate", "--prompt-file", book(tmp_path), "--tokens", 8, "--no-save")
    by_text = answer(capsys, "generate", "--prompt", BOOK, "--tokens", 8, "--no-save")
    assert by_file["tokens"] == by_text["tokens"]


def test_words_are_separated_from_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--prompt", "the cat", "--tokens", "5", "--temperature", "0", "--no-save")
    assert verb("generate", *options, run=tiny_run("words")) == 0
    out = capsys.readouterr().out
    assert out.startswith(("the cat ", "the cat\n"))


class Recorder(io.StringIO):
    """Notes what a reader at the other end of a pipe has got after every flush."""

    encoding = "utf-8"

    def __init__(self) -> None:
        super().__init__()
        self.got: list[str] = []

    def flush(self) -> None:
        self.got.append(self.getvalue())


def test_tokens_are_printed_as_they_come_and_characters_whole() -> None:
    output = Recorder()
    printer = _Printer(ByteTokenizer(), None, output)
    for byte in "aé!".encode():
        printer.add(byte)
    assert output.got == ["a", "a", "aé", "aé!"]
    printer.finish(["b"])
    assert output.getvalue() == "aé!\n--- continuation 2 ---\nb\n"


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Recorder()
    monkeypatch.setattr(output, "isatty", lambda: True)
    printer = _Printer(ByteTokenizer(), torch.tensor([27]), output)
    for byte in b"[2J\t\n\x9b":
        printer.add(byte)
    printer.finish([])
    assert output.getvalue() == "\ufffd[2J\t\n\ufffd\n"


def test_a_narrow_encoding_does_not_stop_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Recorder()
    monkeypatch.setattr(Recorder, "encoding", "ascii")
    printer = _Printer(ByteTokenizer(), None, output)
    for byte in "é!".encode():
        printer.add(byte)
    assert output.getvalue() == "?!"


def test_reading_scores_saves_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run(tiny_run(), device="cpu")
    first, second = tmp_path / "a.memory", tmp_path / "b.memory"
    half = len(BOOK) // 2
    assert verb("read", book(tmp_path, BOOK[:half], "1.txt"), "--save", first) == 0
    out = capsys.readouterr().out
    reading, score = read(run.model, ids(BOOK[:half]), segment=SEGMENT)
    assert out.startswith(f"read {half:,} tokens: {score.nats:,.1f} nats, ")
    assert f"saved {first}" in out
    told = answer(capsys, "read", book(tmp_path, BOOK[half:], "2.txt"), "--memory", first, "--save", second)
    _, score = read(run.model, ids(BOOK[half:]), segment=SEGMENT, state=reading)
    assert told["nats"] == score.nats
    assert told["tokens_in_all"] == len(BOOK)
    whole = answer(capsys, "generate", "--prompt", BOOK, "--tokens", 20, "--temperature", 0, "--no-save")
    later = answer(capsys, "generate", "--memory", second, "--tokens", 20, "--temperature", 0, "--no-save")
    assert later["tokens"] == whole["tokens"]


def test_another_process_goes_on_from_a_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = tmp_path / "book.memory"
    assert verb("read", book(tmp_path), "--save", memory) == 0
    capsys.readouterr()
    options = ["--memory", str(memory), "--prompt", "the ", "--tokens", "30", "--device", "cpu", "--no-save"]
    assert main(["generate", str(tiny_run()), *options]) == 0
    here = capsys.readouterr().out
    there = commands.start(["generate", str(tiny_run()), *options], tmp_path)
    there.join()
    assert there.exitcode == 0 and (tmp_path / commands.PRINTED).read_text() == here


def test_memory_lengths_are_chosen_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = tmp_path / "a.memory"
    told = answer(capsys, "read", book(tmp_path), "--save", memory, "--memory-length", 40)
    assert told["memory_lengths"] == [40, 40]
    run = open_run(tiny_run(), device="cpu")
    assert load_memory(memory, run.model).layout.lengths == (40, 40)
    shorter = tmp_path / "b.memory"
    answer(capsys, "read", book(tmp_path), "--memory", memory, "--save", shorter, "--memory-length", 3)
    assert load_memory(shorter, run.model).layout.lengths == (3, 3)
    options = ("--prompt", BOOK, "--tokens", 9, "--temperature", 0, "--no-save")
    assert answer(capsys, "generate", "--memory", memory, *options, "--memory-length", 0)["texts"]


def test_compressed_texts_are_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "book.txt.xz"
    packed.write_bytes(lzma.compress(BOOK.encode()))
    assert answer(capsys, "read", packed)["nats"] == answer(capsys, "read", book(tmp_path))["nats"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a", "--prompt-file", "b"], "cannot be combined"),
        (["--prompt-file", "nowhere.txt"], "nowhere.txt is not a file"),
        (["--memory", "nowhere.memory"], "nowhere.memory is missing"),
        (["--memory-length", "-1"], "negative"),
        (["--tokens", "0"], "--tokens 0"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "2"], "top_p"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_bad_input_is_one_clear_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("generate", *options, "--no-save") == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert message in line and out == ""


def test_an_unknown_symbol_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("generate", "--prompt", "the 漢", "--no-save", run=tiny_run("chars")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the prompt: character '漢' at position 4 is not in the vocabulary" in line


def test_memories_that_cannot_be_gone_on_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = tmp_path / "a.memory"
    assert verb("read", book(tmp_path), "--save", memory) == 0
    capsys.readouterr()
    assert verb("generate", "--memory", memory, "--no-save", run=tiny_run("words")) == 2
    assert "memory file of another model" in capsys.readouterr().err
    memory.write_bytes(memory.read_bytes()[:-1])
    assert verb("generate", "--memory", memory, "--no-save") == 2
    assert "truncated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "save", "message"),
    [("", "a.memory", "no text"), ("漢", "a.memory", "'漢'"), (BOOK, "no/where.memory", "is not a folder")],
)
def test_texts_that_cannot_be_read(
    text: str, save: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("read", book(tmp_path, text), "--save", tmp_path / save, run=tiny_run("chars")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / save).exists()


def test_a_run_writes_and_reads_without_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = answer(capsys, "generate", "--prompt", "the cat", "--tokens", 8, "--no-save")
    run = tiny_run()
    monkeypatch.setenv("MNEMO_DATA", str(tmp_path / "elsewhere"))
    assert answer(capsys, "generate", "--prompt", "the cat", "--tokens", 8, "--no-save")["texts"] == expected["texts"]
    assert verb("read", book(tmp_path), run=run) == 0


def test_half_precision_is_for_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("generate", "--precision", "bf16") == 2
    assert "bf16 is for GPUs" in capsys.readouterr().err
