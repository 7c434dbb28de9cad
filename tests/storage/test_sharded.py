"""Files of several processes: pieces that fill their whole, and rows that are divided without a gap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mnemo.cli import main
from mnemo.errors import MnemoError
from mnemo.storage import sharded as shards
from mnemo.storage.checkpoint import part_of
from mnemo.training.distributed import Rows
from mnemo.training.processes import Alone


def piece(folder: Path, number: int, tensor: torch.Tensor, offset: Any) -> None:
    where = {shards.PIECES: json.dumps({"weight": {shards.OFFSETS: offset}})}
    save_file({"weight": tensor}, folder / f"shard-{number}.safetensors", where)


def test_pieces_are_put_together(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(4, 3)
    piece(tmp_path, 1, whole[:3].clone(), [0, 0])
    piece(tmp_path, 2, whole[3:].clone(), [3, 0])
    save_file({"rng/cpu": torch.ones(2, dtype=torch.uint8)}, tmp_path / "single.safetensors")
    stored = shards.layout(tmp_path)
    assert stored == {"weight": (torch.float32, (4, 3)), "rng/cpu": (torch.uint8, (2,))}
    found = shards.read(tmp_path, stored)
    assert torch.equal(found["weight"], whole)
    assert torch.equal(found["rng/cpu"], torch.ones(2, dtype=torch.uint8))


@pytest.mark.parametrize(
    "offset", [[10**12, 0], [5, 0], [-1, 0], [0, 0], [3], ["3", 0], None, [3, 0, 0], [True, 0]], ids=str
)
def test_pieces_that_do_not_fill_their_whole_are_refused(offset: Any, tmp_path: Path) -> None:
    piece(tmp_path, 1, torch.zeros(3, 3), [0, 0])
    piece(tmp_path, 2, torch.zeros(1, 3), offset)
    with pytest.raises(MnemoError, match="damaged"):
        shards.layout(tmp_path)


def test_pieces_of_two_types_are_refused(tmp_path: Path) -> None:
    piece(tmp_path, 1, torch.zeros(3), [0])
    piece(tmp_path, 2, torch.zeros(3, dtype=torch.int64), [3])
    with pytest.raises(MnemoError, match="do not belong together"):
        shards.layout(tmp_path)


def test_every_tensor_has_its_part() -> None:
    names = {"embedding.tables.0": "weights", "optimizer/norm.weight/exp_avg": "training", "rng/cpu.3": "training"}
    names |= {"average/norm.weight": "training", "12/0.keys": "memory", "positions.u": "weights"}
    assert {name: part_of(name) for name in names} == names


@pytest.mark.parametrize(("count", "size"), [(5, 1), (5, 2), (9, 4), (4, 4), (2, 3)])
def test_rows_are_divided_without_a_gap(count: int, size: int) -> None:
    parts = []
    for rank in range(size):
        world = Alone()
        world.rank, world.size = rank, size
        parts.append(Rows.of(world, count))
    rows = [row for part in parts for row in range(part.begin, part.end)]
    assert rows == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_job_that_may_start_again_needs_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert main(["train", "tiny-bytes"]) == 2
    assert "--max-restarts needs --name" in capsys.readouterr().err


def test_only_the_main_process_reports_what_all_see(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "no-such-preset"]) == 2
    assert capsys.readouterr().err == ""
