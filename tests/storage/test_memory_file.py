"""Memory files: bitwise round trips, and one clear line for every file that is not one."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.mechanisms import MECHANISMS, few_first
from helpers.models import random_model, random_tokens
from safetensors import safe_open
from safetensors.torch import save_file

from mnemo.errors import MnemoError
from mnemo.files import checksum
from mnemo.files.tensor_file import settle
from mnemo.inference.generation import TextState, generate, read
from mnemo.memory import XL, Plan
from mnemo.memory.state import leaves, tree_map
from mnemo.model import Model
from mnemo.model.embedding import EmbeddingConfig
from mnemo.storage.memory_file import load_memory, save_memory

PLAN = Plan(long=XL(length=5), short=XL(length=2), num_long=2)
SEGMENT = 4


def reading(model: Model, length: int = 14, segment: int = SEGMENT) -> TextState:
    return read(model, random_tokens(1, length)[0], segment=segment)[0]


def assert_same(a: Any, b: Any) -> None:
    for (name, left), (other, right) in zip(leaves(a), leaves(b), strict=True):
        assert name == other
        assert left.dtype == right.dtype and left.device == right.device
        assert torch.equal(left, right)
    assert type(a) is type(b)


def edit(path: Path, tensors: dict[str, torch.Tensor] | None = None, **metadata: str | None) -> None:
    """Write the file anew with other tensors or metadata."""
    with safe_open(path, "pt") as file:
        values = {name: file.get_tensor(name) for name in file.keys()}
        old = file.metadata()
    changed = old | {checksum.FIELD: checksum.BLANK} | metadata
    kept = {name: value for name, value in changed.items() if value is not None}
    save_file(values if tensors is None else values | tensors, path, kept)
    settle(path)


def edit_layout(path: Path, **changes: Any) -> None:
    with safe_open(path, "pt") as file:
        layout = json.loads(file.metadata()["layout"])
    edit(path, layout=json.dumps(layout | changes))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [14, 12, 1])
def test_a_reading_round_trips_bit_for_bit(tmp_path: Path, dtype: torch.dtype, length: int) -> None:
    model = random_model(memory=PLAN, dtype=dtype)
    memory = reading(model, length)
    save_memory(tmp_path / "a.memory", model, memory, segment=SEGMENT)
    loaded = load_memory(tmp_path / "a.memory", model)
    assert_same(loaded.memory, memory)
    assert loaded.layout.segment == SEGMENT
    assert int(loaded.memory.tokens) == length


def test_an_open_segment_of_a_model_with_adaptive_embeddings(tmp_path: Path) -> None:
    embedding = EmbeddingConfig(cutoffs=(4,), div_val=2)
    model, path = random_model(memory=PLAN, embedding=embedding), tmp_path / "a.memory"
    memory = reading(model, length=14)
    save_memory(path, model, memory, segment=SEGMENT)
    assert_same(load_memory(path, model).memory, memory)


@torch.no_grad()
@pytest.mark.parametrize("name", few_first())
def test_every_mechanism(tmp_path: Path, name: str) -> None:
    model, path = random_model(**MECHANISMS[name]), tmp_path / "a.memory"
    _, state = model(random_tokens(2, SEGMENT), model.init(2))
    for memory in (reading(model), state):
        save_memory(path, model, memory, segment=SEGMENT)
        assert_same(load_memory(path, model).memory, memory)


@torch.no_grad()
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("lengths", [None, 9, (0, 3, 1)])
def test_plain_states_round_trip(tmp_path: Path, cached: bool, lengths: Any) -> None:
    model = random_model(memory=PLAN)
    _, state = model(random_tokens(3, 6), model.init(3, lengths, cached=cached))
    save_memory(tmp_path / "a.memory", model, state, segment=SEGMENT)
    assert_same(load_memory(tmp_path / "a.memory", model).memory, state)


def test_rows_with_open_segments_of_different_lengths(tmp_path: Path) -> None:
    model = random_model(memory=PLAN)
    decoder = model.decoder(model.init(3, cached=True), segment=SEGMENT)
    decoder.feed(random_tokens(3, 7), [7, 4, 1])
    state = decoder.state()
    save_memory(tmp_path / "a.memory", model, state, segment=SEGMENT)
    assert_same(load_memory(tmp_path / "a.memory", model).memory, state)


def test_going_on_from_a_file_equals_going_on_at_once(tmp_path: Path) -> None:
    model = random_model(memory=PLAN)
    memory = reading(model)
    save_memory(tmp_path / "a.memory", model, memory, segment=SEGMENT)
    loaded = load_memory(tmp_path / "a.memory", model)
    at_once, later = (
        generate(model, state=state, num_tokens=9, segment=SEGMENT, seed=3) for state in (memory, loaded.memory)
    )
    assert torch.equal(at_once.tokens, later.tokens)
    assert_same(at_once.text_state, later.text_state)


def test_another_plan_of_the_same_weights_may_read_it(tmp_path: Path) -> None:
    model = random_model(memory=PLAN)
    memory = reading(model)
    save_memory(tmp_path / "a.memory", model, memory, segment=SEGMENT)
    other = model.variant(memory=Plan(long=XL(length=30)))
    assert_same(load_memory(tmp_path / "a.memory", other).memory, memory)


def test_saving_neither_draws_random_numbers_nor_changes_the_memory(tmp_path: Path) -> None:
    model = random_model()
    memory = reading(model)
    before, copy = torch.get_rng_state(), tree_map(torch.clone, memory)
    save_memory(tmp_path / "a.memory", model, memory, segment=SEGMENT)
    load_memory(tmp_path / "a.memory", model)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(memory, copy)


@functools.cache
def saved_once() -> tuple[bytes, Model]:
    model = random_model(memory=PLAN)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.memory"
        save_memory(path, model, reading(model), segment=SEGMENT, vocabulary="abc")
        return path.read_bytes(), model


def saved(tmp_path: Path) -> tuple[Path, Model]:
    content, model = saved_once()
    (tmp_path / "a.memory").write_bytes(content)
    return tmp_path / "a.memory", model


def refused(path: Path, model: Model, message: str) -> None:
    with pytest.raises(MnemoError, match=message) as caught:
        load_memory(path, model)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_memory_of_another_model(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    model = random_model(memory=PLAN)
    load_memory(path, model)
    with torch.no_grad():
        model.layers()[0].attention.query.weight[0, 0] += 1e-6
    refused(path, model, "memory file of another model")


def test_another_vocabulary(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    load_memory(path, model, vocabulary="abc")
    with pytest.raises(MnemoError, match="another vocabulary"):
        load_memory(path, model, vocabulary="xyz")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_files(tmp_path: Path, keep: int) -> None:
    path, model = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, model, "truncated")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00" + b"c" * 30, "pickle"),
        (b"PK\x03\x04" + b"\0" * 100, "pickle|not safetensors"),
        (b"plain text, a book perhaps", "not safetensors"),
        (b"\x04\x00\x00\x00\x00\x00\x00\x00nope", "not safetensors"),
    ],
)
def test_files_of_other_kinds(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.memory"
    path.write_bytes(content)
    refused(path, random_model(), message)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere.memory", random_model(), "missing")
    refused(tmp_path, random_model(), "missing")


def test_safetensors_that_are_no_memory(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "weights.safetensors")
    refused(tmp_path / "weights.safetensors", random_model(), "not a memory file")


def test_another_format_version(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    edit(path, format_version="99")
    refused(path, model, "format_version 99")


@pytest.mark.parametrize("layout", [None, "", "[]", "{", '{"contents": "code"}'])
def test_a_layout_that_cannot_be_read(tmp_path: Path, layout: str | None) -> None:
    path, model = saved(tmp_path)
    edit(path, layout=layout)
    refused(path, model, "layout")


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 0},
        {"batch": 10**15},
        {"lengths": [5, 5]},
        {"lengths": [2, 10**12, 5]},
        {"lengths": [2, -1, 5]},
        {"lengths": [2, 5, 6]},
        {"open": 4},
        {"open": 1},
        {"segment": 10**12},
        {"contents": "state"},
        {"contents": "reading.__class__"},
    ],
)
def test_a_layout_that_does_not_fit(tmp_path: Path, changes: dict[str, Any]) -> None:
    path, model = saved(tmp_path)
    edit_layout(path, **changes)
    refused(path, model, "damaged|layout|another configuration")


@pytest.mark.parametrize(
    "tensors",
    [
        {"state.state.0.keys": torch.zeros(1, 2, 3, 6, dtype=torch.float64)},
        {"state.state.0.keys": torch.zeros(1, 2, 2, 6, dtype=torch.float32)},
        {"state.state.0.length": torch.tensor([3])},
        {"state.state.0.length": torch.tensor([-1])},
        {"state.count": torch.tensor([1])},
        {"state.count": torch.tensor([7])},
        {"tokens": torch.tensor([-5])},
        {"surplus": torch.zeros(1)},
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    path, model = saved(tmp_path)
    edit(path, tensors)
    refused(path, model, "damaged|another configuration")


def test_a_state_of_another_configuration_is_not_saved(tmp_path: Path) -> None:
    model = random_model(memory=PLAN)
    other = random_model(memory=PLAN, num_heads=3, head_dim=4)
    with pytest.raises(MnemoError, match="another configuration"):
        save_memory(tmp_path / "a.memory", model, reading(other), segment=SEGMENT)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = saved(tmp_path)
    before = path.read_bytes()

    def full(tensors: Any, filename: Path, metadata: Any) -> None:
        filename.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mnemo.files.tensor_file.save_file", full)
    with pytest.raises(MnemoError, match="No space left"):
        save_memory(path, model, reading(model, 9), segment=SEGMENT)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.gpu
def test_a_memory_moves_between_devices(tmp_path: Path) -> None:
    model = random_model(memory=PLAN)
    memory = reading(model)
    save_memory(tmp_path / "a.memory", model, memory, segment=SEGMENT)
    on_gpu = load_memory(tmp_path / "a.memory", model.cuda()).memory
    assert on_gpu.hidden.is_cuda and not on_gpu.tokens.is_cuda
    going_on = generate(model, state=on_gpu, num_tokens=9, segment=SEGMENT).tokens
    save_memory(tmp_path / "b.memory", model, on_gpu, segment=SEGMENT)
    assert_same(load_memory(tmp_path / "b.memory", model.cpu()).memory, memory)
    assert torch.equal(generate(model, state=memory, num_tokens=9, segment=SEGMENT).tokens, going_on)
