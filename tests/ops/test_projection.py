"""Projecting constant memory rows with a segment's: the numbers and gradients of one product, with less work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.tolerances import assert_close
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mnemo.memory.protocol import keep_newest, remember
from mnemo.model import Model, ModelConfig
from mnemo.ops.projection import TILE_ROWS, compute_dtype, project_after, project_rows


def operands(memory: int = 6, rows: int = 3, dim: int = 4, width: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, memory, dim), (2, rows, dim), (width, dim))
    held, x, weight = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    return held, x.requires_grad_(), weight.requires_grad_()


def test_it_is_the_product_of_all_rows() -> None:
    memory, x, weight = operands()
    found, expected = torch.cat(project_after(memory, x, weight), -1), F.linear(torch.cat([memory, x], 1), weight)
    assert_close(found, expected)
    slope = torch.randn(expected.shape, dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad(y, (x, weight), slope) for y in (found, expected)), strict=True):
        assert_close(a, b)
    with torch.no_grad():
        assert_close(torch.cat(project_after(memory, x, weight), -1), expected)


@pytest.mark.parametrize("rows", [3, TILE_ROWS])
def test_the_operator_for_gpus_computes_the_same(rows: int) -> None:
    memory, x, weight = operands(memory=5, rows=rows)
    expected, found = torch.cat(project_after(memory, x, weight)), torch.cat(project_rows(memory, x, weight)[:2])
    assert_close(found, expected)
    slope = torch.randn(expected.shape, dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad(y, (x, weight), slope) for y in (found, expected)), strict=True):
        assert_close(a, b)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(project_rows, (memory, x, weight), test_utils=tests)


def test_no_gradient_is_computed_for_the_memory() -> None:
    memory, x, weight = operands(memory=6, rows=3, dim=4, width=10)
    with FlopCounterMode(display=False) as count:
        torch.cat(project_after(memory, x, weight)).sum().backward()
    row = 2 * 4 * 10
    assert count.get_total_flops() == 2 * row * (9 + 9 + 3)  # of two rows: forward, the weight's, the segment's


def test_autocast_decides_the_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # some processors claim bf16 and die of it
    memory, x, weight = (tensor.detach().float().requires_grad_(tensor.requires_grad) for tensor in operands())
    assert compute_dtype(x) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_dtype(x) == torch.bfloat16
        out = torch.cat(project_after(memory, x, weight))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert x.grad is not None and weight.grad is not None
    assert x.grad.dtype == weight.grad.dtype == torch.float32


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_layers_give_the_keys_and_gradients_of_joined_rows(norm: Any) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(vocab_size=3, num_layers=1, dim=8, num_heads=2, head_dim=3, inner_dim=5)
    (layer,) = Model(ModelConfig(**sizes, norm=norm)).double().layers()
    for weight in layer.norm_attention.parameters():
        torch.nn.init.normal_(weight)
    memory, x = torch.randn(2, 6, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    wanted = [x, layer.attention.key_value.weight, *(layer.norm_attention.parameters() if norm == "pre" else ())]
    results = []
    for keys, values in (layer.keys_values(x, memory), layer.keys_values(torch.cat([memory, x], 1))):
        loss = (keys * values.roll(1, 2)).sum() + keys.sin().sum()
        results.append([keys, values, *torch.autograd.grad(loss, wanted)])
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("rows", [2, 5, 9])
@pytest.mark.parametrize("ragged", [False, True])
def test_remembering_keeps_the_newest_rows(rows: int, ragged: bool) -> None:
    memory, x = torch.randn(2, 5, 4), torch.randn(2, rows, 4, requires_grad=True)
    lengths = torch.tensor([1, 2]) if ragged else None
    found = remember(memory, x, lengths)
    assert_close(found, keep_newest(torch.cat([memory, x], 1), 5, lengths, rows, 1))
    assert found.is_contiguous() and not found.requires_grad
    assert remember(memory.bfloat16(), x, lengths).dtype == torch.bfloat16
