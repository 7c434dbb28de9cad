"""Rows of a table, and the sum of their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.deterministic
from helpers.tolerances import assert_close

from mnemo.ops import table_rows as module
from mnemo.ops.table_rows import table_rows


def test_rows_and_gradients_are_those_of_an_index() -> None:
    ids, weights = torch.randint(5, (3, 7)), torch.randn(3, 7, 4).double()
    results = []
    for function in (table_rows, lambda ids, table: table[ids]):
        table = torch.arange(20.0).double().view(5, 4).requires_grad_()
        rows = function(ids, table)
        results.append((rows, *torch.autograd.grad((rows * weights).sum(), table)))
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_the_chosen_algorithms_stay_as_they_were(mode: int) -> None:
    torch.set_deterministic_debug_mode(mode)
    settings: Any = torch.utils.deterministic
    filled = settings.fill_uninitialized_memory
    try:
        with pytest.raises(ZeroDivisionError), module._deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert not settings.fill_uninitialized_memory
            raise ZeroDivisionError
        assert torch.get_deterministic_debug_mode() == mode
        assert settings.fill_uninitialized_memory == filled
    finally:
        torch.set_deterministic_debug_mode(0)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [50, 204, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_the_same_in_every_run(num_rows: int, dtype: torch.dtype) -> None:
    """Few rows that occur many times, for which PyTorch's default adds up in a random order."""
    ids = torch.randint(num_rows, (32768,), device="cuda") % torch.randint(1, num_rows, (32768,), device="cuda")
    gradient = torch.randn(32768, 512, device="cuda").to(dtype)
    found = [module.add_up_rows(gradient, ids, num_rows) for _ in range(6)]
    assert all(torch.equal(found[0], other) for other in found[1:])
    expected = torch.zeros(num_rows, 512, device="cuda", dtype=torch.float64)
    expected.index_add_(0, ids, gradient.double())
    assert float((found[0].double() - expected).norm() / expected.norm()) < (1e-2 if dtype == torch.bfloat16 else 1e-5)
