"""What makes the CPU fast must not show: cached memories that share buffers, random masks, tiles."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.memory import XL, KeyValueCache, Plan
from mnemo.memory.kv_buffer import SPARE, KeyValues
from mnemo.memory.state import leaves, select, tree_map
from mnemo.model import InitConfig, Model, ModelConfig
from mnemo.model.layers.modules import Dropout
from mnemo.ops import keep_mask, relative_attention
from mnemo.ops.cpu import eager

SLOTS, SEGMENT = 12, 3


@pytest.fixture
def model() -> Model:
    config = ModelConfig(
        vocab_size=11,
        num_layers=2,
        dim=16,
        num_heads=2,
        head_dim=4,
        inner_dim=24,
        memory=Plan(long=XL(length=SLOTS)),
        init=InitConfig(std=0.4),
    )
    return Model(config).double().eval()


def tokens() -> Tensor:
    return torch.randint(11, (2, SEGMENT))


@torch.no_grad()
def read(model: Model, state, text: list[Tensor]):
    outputs = []
    for segment in text:
        out, state = model(segment, state)
        outputs.append(model.logits(out))
    return torch.cat(outputs, 1), state


def test_a_shared_buffer_gives_the_numbers_of_a_memory_that_is_read_anew(model: Model) -> None:
    text = [tokens() for _ in range(13)]  # several times the room of a buffer
    assert SEGMENT * len(text) > 2 * (SLOTS + SLOTS // SPARE)
    cached, _ = read(model, model.init(2, cached=True), text)
    expected, _ = read(model, model.init(2), text)
    assert_close(cached, expected)


def test_a_state_that_is_continued_twice_is_not_disturbed(model: Model) -> None:
    _, state = read(model, model.init(2, cached=True), [tokens() for _ in range(5)])
    before = [leaf.clone() for _, leaf in leaves(state)]
    first, second = [tokens(), tokens()], [tokens(), tokens()]
    _, after_first = read(model, state, first[:1])
    kept = [leaf.clone() for _, leaf in leaves(after_first)]
    other, _ = read(model, state, second)
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, leaves(state), strict=True))
    assert all(torch.equal(a, b) for a, (_, b) in zip(kept, leaves(after_first), strict=True))
    alone = tree_map(torch.clone, state)
    assert_close(other, read(model, alone, second)[0])
    assert_close(read(model, after_first, first[1:])[0], read(model, tree_map(torch.clone, after_first), first[1:])[0])


def test_rows_taken_from_a_shared_buffer_go_on_alone(model: Model) -> None:
    _, state = read(model, model.init(2, cached=True), [tokens() for _ in range(5)])
    segment = tokens()
    both, _ = read(model, state, [segment])
    one, _ = read(model, select(state, torch.tensor([1])), [segment[1:]])
    assert_close(one, both[1:])


def test_a_buffer_of_inference_mode_is_left_alone_outside(model: Model) -> None:
    with torch.inference_mode():
        _, state = read(model, model.init(2, cached=True), [tokens() for _ in range(3)])
    segment = tokens()
    expected, _ = read(model, tree_map(torch.clone, state), [segment])
    assert_close(read(model, state, [segment])[0], expected)


def test_a_cached_memory_lets_gradients_through_its_segment(model: Model) -> None:
    _, state = read(model, model.init(2, cached=True), [tokens() for _ in range(3)])
    out, after = model(tokens(), state)
    model.loss(out, tokens()).sum().backward()
    assert model.layers()[0].attention.query.weight.grad is not None
    assert not any(leaf.requires_grad for _, leaf in leaves(after))


def test_a_memory_is_seldom_copied() -> None:
    length = torch.tensor([SLOTS])
    keys, values = torch.randn(2, 1, 2, SLOTS, 4)
    cache = KeyValueCache(keys, values, length)
    places = set()
    for _ in range(10):
        _, cache = cache.append(KeyValues(torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4)), length)
        places.add(cache.keys.untyped_storage().data_ptr())
    assert len(places) <= -(-10 // (1 + SLOTS // SPARE))


def test_a_changed_cache_does_not_continue_in_the_buffer_of_the_original() -> None:
    keys, values, new = torch.randn(3, 1, 2, SLOTS, 4)
    length, segment = torch.tensor([SLOTS]), KeyValues(new[:, :, :1], new[:, :, :1])
    _, cache = KeyValueCache(keys, values, length).append(segment, length)
    assert cache.buffer is not None
    mixed = cache._replace(values=values)
    assert mixed.buffer is None
    assert torch.equal(mixed.append(segment, length)[0].values[:, :, :SLOTS], values)
    assert torch.equal(cache.append(segment, length)[0].values[:, :, :SLOTS], cache.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mask_drops_its_share_and_keeps_the_mean(dtype: torch.dtype) -> None:
    mask = keep_mask((400, 1001), 0.3, torch.empty(0, dtype=dtype))
    assert mask.dtype == dtype and mask.shape == (400, 1001)
    kept = mask != 0
    assert torch.unique(mask[kept]).tolist() == pytest.approx([1 / 0.7], rel=1e-2 if dtype == torch.bfloat16 else 1e-4)
    deviation = (0.3 * 0.7 / mask.numel()) ** 0.5
    assert abs(float((~kept).double().mean()) - 0.3) < 5 * deviation
    columns, rows = ((~kept).double().mean(dim) for dim in (0, 1))
    assert columns.std() == pytest.approx((0.21 / 400) ** 0.5, rel=0.1)
    assert rows.std() == pytest.approx((0.21 / 1001) ** 0.5, rel=0.15)


def test_masks_follow_the_seed() -> None:
    torch.manual_seed(3)
    first, second = (keep_mask((64,), 0.5, torch.empty(0)) for _ in range(2))
    torch.manual_seed(3)
    again = keep_mask((64,), 0.5, torch.empty(0))
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_locked_dropout_has_one_mask_for_all_positions() -> None:
    x = torch.ones(3, 50, 40, requires_grad=True)
    dropped = Dropout(0.5, locked=True)(x)
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])
    dropped.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, dropped.detach())
    free = Dropout(0.5)(x)
    assert not torch.equal(free, free[:, :1].expand_as(free))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiles_and_whole_calls_agree(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(3, 4, length, 8, dtype=dtype) for length in (70, 100, 100))
    r, u = torch.randn(4, 100, 8, dtype=dtype), torch.randn(4, 8, dtype=dtype)
    whole, _ = relative_attention(q, k, v, r, u, u, offset=30)
    for tile in (1, 3 * 64 * 100, 2 * 4 * 64 * 120):
        monkeypatch.setattr(eager, "CPU_TILE", tile)
        assert_close(relative_attention(q, k, v, r, u, u, offset=30)[0], whole)


def test_softmax_in_place_is_softmax() -> None:
    """The attention overwrites its scores; PyTorch does not promise that this works."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for columns in (1, 3, 16, 17, 100, 1000, 5000):
            scores = torch.randn(7, 5, columns).to(dtype).masked_fill(torch.rand(7, 5, columns) < 0.1, -float("inf"))
            scores[..., 0] = 0
            expected = torch.softmax(scores, -1)
            assert torch.equal(torch.softmax(scores, -1, out=scores), expected)


def attention_gradients(seed: int, dtype: torch.dtype, num_keys: int = 24) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = [(2, 3, 16, 8), (2, 3, num_keys, 8), (2, 3, num_keys, 8), (3, num_keys, 8)]
    inputs = [torch.randn(shape, generator=random).to(dtype).requires_grad_() for shape in shapes]
    out, _ = relative_attention(*inputs, offset=num_keys - 16, impl="eager")
    return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_of_earlier_calls_leave_no_trace(dtype: torch.dtype) -> None:
    eager._kept.last = None
    first = attention_gradients(0, dtype)
    attention_gradients(1, dtype)
    attention_gradients(2, dtype, num_keys=40)
    with torch.inference_mode():
        q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=dtype)
        relative_attention(q, k, v, torch.randn(2, 5, 4, dtype=dtype), offset=0)
    assert all(torch.equal(*pair) for pair in zip(first, attention_gradients(0, dtype), strict=True))


def test_few_bytes_are_kept_for_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    eager._kept.last = None
    attention_gradients(0, torch.float32)
    kept: Any = eager._kept.last
    attention_gradients(0, torch.float32)
    assert eager._kept.last is kept
    monkeypatch.setattr(eager, "KEPT_BYTES", kept[1].num_bytes - 1)
    attention_gradients(0, torch.float32)
    assert eager._kept.last is not kept


def test_kept_buffers_are_where_the_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the default device is when a thread makes its first ones."""
    monkeypatch.setattr(eager, "_kept", threading.local())
    q, r = torch.randn(1, 2, 3, 4), torch.randn(2, 3, 4)
    with torch.device("meta"):
        scratch = eager._scratch(q)
    assert scratch.buffer("scores", 2, 3).device == q.device
    out, _ = relative_attention(q.requires_grad_(), q, q, r, offset=0)
    assert bool(out.isfinite().all())
