from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from mnemo import cli
from mnemo.cli.prepare import Args, run
from mnemo.errors import MnemoError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("a line of text\n" * 100)
    return path


def test_preparing_prints_a_table_on_stdout(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Args(name="mine", source=text, root=tmp_path / "data")) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["split", "tokens", "bytes", "words", "lines", "documents"]
    assert lines[2].split() == ["train", "1,365", "1,365", "364", "91", "-"]
    assert str(tmp_path / "data" / "mine") in lines[-1]
    assert "encoding train" in err


def test_flags_and_json(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["prepare", "mine", "--from", str(text), "--tokenizer", "words", "--vocab-size", "4"]
    assert cli.main([*argv, "--root", str(tmp_path / "data"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["name"] == "mine" and answer["unit"] == "word" and answer["vocab_size"] == 4
    assert answer["splits"]["train"]["tokens"] == 455 and answer["mismatches"] == []


def test_mismatches_are_warnings_when_allowed(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["prepare", "enwik8", "--from", str(text), "--root", str(tmp_path / "data")]
    assert cli.main(argv) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "has 1,500 bytes, the published one 100,000,000" in err
    assert cli.main([*argv, "--allow-mismatch"]) == 0
    assert "warning: enwik8 train has 1,260 tokens, the published one 88,982,818" in capsys.readouterr().err


def test_the_list_shows_what_is_known_and_what_is_prepared(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    run(Args(name="mine", source=text, root=root))
    capsys.readouterr()
    assert run(Args(list_all=True, root=root)) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["mine"].endswith("yes") and "1,365 / 75 / 60" in lines["mine"]
    assert lines["wikitext-103"].endswith("mnemo prepare wikitext-103")
    assert "103,227,021 / 217,646 / 245,569" in lines["wikitext-103"]
    assert lines["novels"].endswith("mnemo prepare novels")
    assert cli.main(["prepare", "--list", "--json", "--root", str(root)]) == 0
    items = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert items["mine"]["prepared"] and items["mine"]["path"] == str(root / "mine")
    assert not items["lm1b"]["prepared"] and items["lm1b"]["tokens"] is None


def test_a_name_is_needed() -> None:
    with pytest.raises(MnemoError, match="mnemo prepare --list"):
        run(Args())


def test_notes_come_before_a_download(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise MnemoError("offline")

    monkeypatch.setattr("mnemo.data.prepare.prepare", offline)
    with pytest.raises(MnemoError, match="offline"):
        run(Args(name="ptb"))
    assert "Linguistic Data Consortium" in capsys.readouterr().err


def test_files_of_a_folder_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for i in range(25):
        (folder / f"{i:02}.txt").write_text("a line\n" * 20)
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 20)
    argv = ["prepare", "mine", "--from", str(folder), "--root", str(tmp_path / "data")]
    assert cli.main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[0] == f"{folder}: 25 text files, 3,500 bytes" and lines[1].split() == ["140", "00.txt"]
    assert lines[21].split() == ["...", "and", "5", "more"]
    assert lines[22] == "skipped: 1 binary (weights.bin)"
    answer = json.loads(out)
    assert len(answer["files"]) == 25 and answer["files"][0] == {"name": "00.txt", "bytes": 140}
    assert answer["skipped"] == [{"name": "weights.bin", "reason": "binary"}]


def test_flags_for_files_that_are_not_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes("ein Wörtchen\n".encode("latin-1") * 60)
    argv = ["prepare", "mine", "--from", str(tmp_path / "a.txt"), "--root", str(tmp_path / "data")]
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main([*argv, "--encoding", "latin-1"]) == 0
    assert cli.main([*argv, "--binary", "--replace"]) == 0


def test_text_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a line\n" * 99)))
    assert cli.main(["prepare", "mine", "--from", "-", "--root", str(tmp_path / "data"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sum(split["bytes"] for split in answer["splits"].values()) == 7 * 99
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["mine"]
