"""The one reader of files from outside: what it takes, and what it refuses before anything follows from it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.edited_files import edit_json
from helpers.tiny_runs import tiny_run
from helpers.toy_runs import toy
from safetensors.torch import save_file

from mnemo import cli
from mnemo.errors import MnemoError
from mnemo.files.safe_load import file_size, is_count, is_inside, load_object, open_own, parse_json, tensors_problem
from mnemo.model import Model, ModelConfig
from mnemo.recipes.recipe import ScheduleConfig, TrainConfig


def test_plain_data_is_read_as_it_is() -> None:
    value = {"a": [1, -2.5, True, None, "é😀"], "b": {"c": {}}, "n": 2**63 - 1}
    assert parse_json(json.dumps(value)) == value == parse_json(json.dumps(value, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "Infinity"),
        ("[1e999]", "too large for a float"),
        ("[" + "9" * 5000 + "]", "5000 digits"),
        ("[" * 100 + "]" * 100, "64 deep"),
        ("[" * 100_000 + "]" * 100_000, "too deeply"),
        ('["\\ud800"]', "surrogate"),
        (b"\xff\xfe", "not UTF-8 text at byte 0"),
    ],
)
def test_what_is_no_strict_json_is_refused(text: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_what_is_only_shown_may_be_odd() -> None:
    assert parse_json('[1e999, "\\ud800", 1' + "0" * 30 + "]", lenient=True) == [float("inf"), "\ud800", 10**30]
    with pytest.raises(ValueError, match="twice"):
        parse_json('{"a": 1, "a": 2}', lenient=True)


def test_counts_are_whole_numbers() -> None:
    assert is_count(0) and is_count(7, 7)
    assert not any(is_count(value) for value in (-1, True, 1.0, "1", None, 2**63)) and not is_count(8, 7)


def test_pipes_folders_and_long_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MnemoError, match="pipe is not a regular file"):
        load_object(tmp_path / "pipe")
    with pytest.raises(MnemoError, match="is a folder"):
        load_object(tmp_path)
    with pytest.raises(MnemoError, match="is missing"):
        file_size(tmp_path / "none")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(1 << 40)  # a hole: no disk is used, and none may be read
    with pytest.raises(MnemoError, match="more than the"):
        load_object(tmp_path / "long")


def test_names_must_stay_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.bin").write_bytes(b"x")
    (tmp_path / "inside" / "link.bin").symlink_to(tmp_path / "outside.bin")
    (tmp_path / "inside" / "own.bin").write_bytes(b"x")
    folder = tmp_path / "inside"
    assert is_inside(folder, folder / "own.bin")
    for name in ("../outside.bin", "link.bin", str(tmp_path / "outside.bin"), "../inside/../outside.bin"):
        assert not is_inside(folder, folder / name)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(MnemoError, match="cannot write"):
        open_own(tmp_path / "lock")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MnemoError, match="cannot write"):
        open_own(tmp_path / "pipe")
    assert (tmp_path / "precious").read_text() == "mine"


def tensors(path: Path, entries: Any, body: bytes = b"") -> Path:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("entries", "size", "why"),
    [
        ({"a": entry([2], [0, 8]), "b": entry([1], [8, 12])}, 12, None),
        ({"a": entry([0, 5], [0, 0]), "b": entry([1], [0, 4])}, 4, None),
        ({"__metadata__": {"format": "pt"}}, 0, None),
        ({"a": entry([2], [0, 8]), "b": entry([1], [4, 8])}, 8, "overlap"),
        ({"a": entry([1], [4, 8])}, 8, "gaps"),
        ({"a": entry([10**12], [0, 4 * 10**12])}, 8, "truncated"),
        ({"a": entry([10**12], [0, 8])}, 8, "no valid position and size for 'a'"),
        ({"a": entry([2**62, 2**62], [0, 8])}, 8, "no valid position and size for 'a'"),
        ({"a": entry([-2], [0, -8])}, 8, "no valid position and size for 'a'"),
        ({"a": entry([2], [8, 0])}, 8, "no valid position and size for 'a'"),
        ({"a": entry([2], [0, 8], "OBJECT")}, 8, "no valid position and size for 'a'"),
        ({"a": entry([2], [0, 8], ["F32"])}, 8, "no valid position and size for 'a'"),  # type: ignore[arg-type]
        ({"a": {"dtype": "F32"}}, 0, "no valid position and size for 'a'"),
        ({"__metadata__": {"format": 1}}, 0, "metadata"),
        ([1], 0, "cannot be read"),
        (b"\xff", 0, "cannot be read"),
        (b'{"a": 1, "a": 2}', 0, "cannot be read"),
    ],
)
def test_headers_of_tensors_must_describe_their_file(entries: Any, size: int, why: str | None, tmp_path: Path) -> None:
    problem = tensors_problem(tensors(tmp_path / "x.safetensors", entries, bytes(size)))
    assert problem is None if why is None else problem is not None and why in problem


def test_what_is_no_file_of_tensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for content, why in [(b"", "truncated"), (b"\x80\x04" + b"x" * 9, "pickle"), (b"\xff" * 20, "truncated")]:
        path.write_bytes(content)
        problem = tensors_problem(path)
        assert problem is not None and why in problem
    save_file({"a": torch.zeros(3)}, path)
    assert tensors_problem(path) is None
    assert tensors_problem(tmp_path) == "is a folder"


HUGE: dict[str, Any] = {
    "vocab_size": 10**15,
    "num_layers": 10**6,
    "dim": 10**9,
    "num_heads": 10**9,
    "inner_dim": 10**12,
}


@pytest.mark.parametrize("name", HUGE)
def test_no_model_is_built_of_a_huge_number(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = .* is out of range"):
        ModelConfig(**{name: HUGE[name]})


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("model", "dim"), 10**9, "dim = 1000000000 is out of range"),
        (("model", "memory", "long", "length"), 10**12, "length = 1000000000000 is out of range"),
        (("model", "memory", "long", "length"), 2**24, "needs at least"),
        (("model", "vocab_size"), 10**15, "vocab_size = 1000000000000000 is out of range"),
        (("model", "vocab_size"), 2**30, "is of another configuration"),
        (("train", "batch"), -1, "must be positive"),
        (("test", "batch"), 10**9, "too few for 1000000000 rows"),
        (("model", "memory", "long", "type"), ["XL"], "unknown type"),
    ],
)
def test_a_recipe_of_huge_numbers_takes_no_memory(
    path: tuple[str, ...], value: Any, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run(), run)

    def change(node: dict[str, Any]) -> None:
        for key in ("recipe", *path[:-1]):
            node = node[key]
        node[path[-1]] = value

    edit_json(run / "recipe.json", change)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mnemo.model.memory_limits.memory_bytes", lambda device: 2**28)
        assert cli.main(["eval", str(run)]) == 2
    assert why in capsys.readouterr().err


def test_training_that_cannot_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mnemo.model.memory_limits.memory_bytes", lambda device: 2**20)
    assert cli.main(["train", "tiny-bytes", "--data.corpus", toy(), "--name", "never"]) == 2
    assert "needs at least" in capsys.readouterr().err


def test_a_link_in_a_run_is_not_written_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, precious = tmp_path / "run", tmp_path / "precious"
    shutil.copytree(tiny_run(), run)
    precious.write_text("mine" * 1000)
    for name in ("lock", "metrics.jsonl"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(precious)
        assert cli.main(["train", "--resume", str(run)]) == 2
        assert "cannot write" in capsys.readouterr().err
        assert precious.read_text() == "mine" * 1000
        (run / name).unlink()
        shutil.copy(tiny_run() / name, run / name)


@pytest.mark.parametrize("tokens", [torch.zeros(4, dtype=torch.int64), torch.zeros(1, 4), torch.zeros(1, 0).long()])
def test_a_model_says_what_tokens_it_takes(tokens: torch.Tensor) -> None:
    model = Model(ModelConfig(num_layers=1, dim=8, num_heads=1, head_dim=4, inner_dim=8))
    with pytest.raises(MnemoError, match=r"expected token ids \(batch, length\) of int64, not"):
        model(tokens)


def test_counts_of_a_schedule_are_checked() -> None:
    with pytest.raises(ValueError, match="warm-up"):
        ScheduleConfig(warmup=-1)
    with pytest.raises(ValueError, match="seed"):
        TrainConfig(seed=-1)
