"""Checksums of JSON and tensor files: equal content gives equal files, and any other content is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers.edited_files import flip_bit
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.files import checksum, json_file, safe_load
from mnemo.files.json_file import load_json, write_json
from mnemo.files.tensor_file import file_checksum, load_tensors, require_whole, stored_checksum, write_tensors

TENSORS = {
    "b": torch.arange(6.0).reshape(2, 3),
    "a": torch.zeros(3, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "none": torch.zeros(0, 4),
}
METADATA = {"zebra": "1", "alpha": "é\n", "middle": '{"x": [1, 2]}'}


def test_equal_tensors_are_equal_files(tmp_path: Path) -> None:
    write_tensors(tmp_path / "one", TENSORS, METADATA)
    write_tensors(tmp_path / "two", dict(reversed(TENSORS.items())), dict(reversed(METADATA.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert stored_checksum(tmp_path / "one") == file_checksum(tmp_path / "one")
    write_tensors(tmp_path / "other", TENSORS | {"count": torch.tensor(8)}, METADATA)
    assert stored_checksum(tmp_path / "other") != stored_checksum(tmp_path / "one")


def test_equal_tensors_are_equal_files_in_another_process(tmp_path: Path) -> None:
    """The library writes metadata in an order that differs between processes."""
    code = "import sys; from pathlib import Path; import torch; from mnemo.files.tensor_file import write_tensors;"
    code += "write_tensors(Path(sys.argv[1]), {'w': torch.ones(3)}, {name: name for name in 'abcdefgh'})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "one")], check=True, env=environment)
    write_tensors(tmp_path / "two", {"w": torch.ones(3)}, {name: name for name in "abcdefgh"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_any_flipped_bit_of_a_tensor_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, TENSORS, METADATA)
    whole = load_tensors(path)
    assert all(torch.equal(whole[name], tensor) for name, tensor in TENSORS.items())
    for at in range(path.stat().st_size):
        flip_bit(path, at, at % 8)
        with pytest.raises(MnemoError):
            load_tensors(path)
        flip_bit(path, at, at % 8)
    load_tensors(path)


def test_any_flipped_bit_of_a_json_file_is_found(tmp_path: Path) -> None:
    path, content = tmp_path / "file.json", {"a": 1.5, "b": [1, {"c": "x"}], "d": None, "e": -0.0}
    write_json(path, content)
    assert load_json(path) == {"format_version": 1, **content}
    for at in range(path.stat().st_size):
        flip_bit(path, at, at % 8)
        with pytest.raises(MnemoError):
            load_json(path)
        flip_bit(path, at, at % 8)


def test_a_json_file_may_be_indented_anew_but_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"steps": 12})
    path.write_text(json.dumps(json.loads(path.read_text()), indent=8))
    assert load_json(path)["steps"] == 12
    path.write_text(path.read_text().replace("12", "13"))
    with pytest.raises(MnemoError, match="does not match its checksum: .*; if you have changed it on purpose, remove"):
        load_json(path)
    lines = [line for line in path.read_text().splitlines() if '"checksum"' not in line]
    path.write_text("\n".join(lines))
    assert load_json(path)["steps"] == 13


def test_a_file_of_another_content_is_not_the_expected_one(tmp_path: Path) -> None:
    write_tensors(tmp_path / "one", {"w": torch.zeros(3)})
    write_tensors(tmp_path / "two", {"w": torch.ones(3)})
    expected = stored_checksum(tmp_path / "one")
    assert require_whole(tmp_path / "one", expected)
    with pytest.raises(MnemoError, match="two is not the file that was saved"):
        require_whole(tmp_path / "two", expected)


def test_a_file_is_hashed_once_while_it_does_not_change(tmp_path: Path) -> None:
    path, hashed = tmp_path / "file", list[Path]()
    path.write_bytes(b"content")
    os.utime(path, (0, 0))
    later = time.time() + 60

    def compute(path: Path) -> str:
        hashed.append(path)
        return checksum.of_file(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum.time, "time", lambda: later)
        first = checksum.remembered(path, compute)
        assert checksum.remembered(path, compute) == first and len(hashed) == 1
        flip_bit(path, 0)
        assert checksum.remembered(path, compute) != first and len(hashed) == 2


def test_the_rate(tmp_path: Path) -> None:
    """256 MB take less than 128 ms of processor time, which is 2 GB/s; other programs do not count."""
    path = tmp_path / "file"
    write_tensors(path, {"w": torch.zeros(1 << 26)})
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        file_checksum(path)
        seconds.append(time.process_time() - begin)
    assert path.stat().st_size / min(seconds) > 2e9


def test_a_large_json_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    with path.open("wb") as file:
        file.truncate(120_000_000)
    with pytest.raises(MnemoError, match="has 120,000,000 bytes: more than the allowed 67,108,864"):
        load_json(path)
    monkeypatch.setattr(json_file, "MAX_JSON_BYTES", 100)
    with pytest.raises(MnemoError, match="would have [0-9]+ bytes: more than the allowed 100"):
        write_json(tmp_path / "new.json", {"text": "x" * 200})
    assert not (tmp_path / "new.json").exists()


def test_the_largest_vocabulary_fits_into_a_json_file(tmp_path: Path) -> None:
    """One Billion Word has the largest published vocabulary, of 793,471 words."""
    write_json(tmp_path / "file.json", {"words": [f"word-of-a-corpus-{index}" for index in range(793_471)]})
    assert (tmp_path / "file.json").stat().st_size < safe_load.MAX_JSON_BYTES / 2


def test_old_tensor_files_have_no_checksum(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {"w": torch.ones(3)}
    save_file(tensors, tmp_path / "old", {"format": "pt"})
    assert stored_checksum(tmp_path / "old") is None and not require_whole(tmp_path / "old")
    assert torch.equal(load_tensors(tmp_path / "old")["w"], tensors["w"])
