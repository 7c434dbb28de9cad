"""Norms and projections of a memory with the segment after it, against separate norms, concatenation and products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.ops.joined_projection import project_joined
from mnemo.ops.projection import TILE_ROWS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def together(memory: Tensor, x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    key_value, query, gate = weights if len(weights) == 3 else (*weights, None)
    found = project_joined(torch.cat([memory, x.detach()], 1), x, key_value, query, gate)
    return list(found[: 1 + len(weights)])


def apart(memory: Tensor, x: Tensor, key_value: Tensor, *others: Tensor) -> list[Tensor]:
    keys, values = F.linear(torch.cat([memory, x], 1), key_value).chunk(2, -1)
    return [keys, values, *(F.linear(x, other) for other in others)]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [3, TILE_ROWS])
def test_outputs_and_gradients_are_those_of_separate_products(rows: int, gated: bool) -> None:
    memory, x = draw(2, 5, 4), draw(2, rows, 4).requires_grad_()
    weights = [draw(count, 4).requires_grad_() for count in ((12, 6, 2) if gated else (12, 6))]
    found, expected = together(memory, x, weights), apart(memory, x, *weights)
    slopes = [torch.randn_like(y) for y in expected]
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)
    by_found, by_expected = (torch.autograd.grad(ys, [x, *weights], slopes) for ys in (found, expected))
    for a, b in zip(by_found, by_expected, strict=True):
        assert_close(a, b)
    operands = (draw(2, 5 + rows, 4), x, weights[0], weights[1], weights[2] if gated else None)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(project_joined, operands, test_utils=tests)


@pytest.mark.native
@pytest.mark.parametrize(("memory", "rows", "width"), [(7, 5, 24), (1, 3, 1024), (4, 9, 40)])
def test_joined_norms_are_norms_of_all_rows(memory: int, rows: int, width: int) -> None:
    kernels = pytest.importorskip("mnemo.ops.cuda.join_norms")
    held, x, slope = (draw(3, count, width, dtype=torch.float32).to(DEVICE) for count in (memory, rows, rows))
    x.requires_grad_()
    normed, joined, scale = kernels.join_norms(held, x, 1e-5)
    want = F.rms_norm(torch.cat([held, x], 1), (width,), eps=1e-5)
    assert_close(joined, want.detach())
    assert torch.equal(normed, joined[:, memory:]) and normed.is_contiguous()
    assert_close(scale, (x.square().mean(-1) + 1e-5).rsqrt().detach())
    found, expected = (torch.autograd.grad(y, x, slope)[0] for y in (normed, want[:, memory:]))
    assert_close(found, expected)
    assert not joined.requires_grad and not scale.requires_grad


@pytest.mark.native
def test_the_kernel_is_tested_before_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Any = pytest.importorskip("mnemo.ops.cuda.join_norms")
    assert kernels._failure(DEVICE, torch.float32, 24) is None
    right = kernels.join_norms
    monkeypatch.setattr(kernels, "join_norms", lambda memory, x, eps: [1.1 * out for out in right(memory, x, eps)])
    assert (kernels._failure(DEVICE, torch.float32, 24) or "").startswith("error")
