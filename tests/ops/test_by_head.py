"""The CPU's path for inference against the equation."""

from __future__ import annotations

import pytest
import torch
from helpers.tolerances import TOLERANCES, assert_close, relative_error

from mnemo.ops import Causal, relative_attention, relative_attention_reference
from mnemo.ops.cpu import by_head, eager


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every call that can goes head by head; how many did."""
    calls: list[int] = []
    right = by_head.attend_by_head

    def counted(*args, **options):
        calls.append(1)
        return right(*args, **options)

    monkeypatch.setattr(by_head, "FEWEST_SCORES", 1)
    monkeypatch.setattr(eager, "attend_by_head", counted)
    monkeypatch.setattr(eager, "QUERY_BLOCK", 5)
    return calls


@pytest.mark.parametrize("window", [None, 1, 4, 30])
@pytest.mark.parametrize(("num_queries", "memory"), [(4, 0), (4, 9), (7, 3), (12, 20)])
@pytest.mark.parametrize("ragged", [False, True])
def test_heads_one_by_one_equal_the_equation(
    num_queries: int, memory: int, window: int | None, ragged: bool, always: list[int]
) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = num_queries + memory

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = draw(3, 2, num_queries, 6), draw(3, keys, 2, 6).transpose(1, 2), draw(3, 2, keys + 5, 6)[:, :, :keys]
    r, u, w = draw(2, keys, 6), draw(2, 6), draw(2, 6)
    lengths = torch.tensor([keys, num_queries, num_queries + memory // 2]) if ragged else None
    see = {"offset": memory, "mask": Causal(window=window), "lengths": lengths}
    with torch.no_grad():
        out, lse = relative_attention(q, k, v, r, u, w, **see, with_lse=True)
        plain, _ = relative_attention(q, k, v, r, **see)
    wanted = relative_attention_reference(q, k, v, r, u, w, **see)
    assert lse is not None
    assert_close(out, wanted.out)
    assert_close(lse, wanted.lse)
    assert_close(plain, relative_attention_reference(q, k, v, r, **see).out)
    assert len(always) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-3, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("rows_at_once", [1, 2, 5])
def test_scores_of_any_size_have_finite_exponentials(
    size: float, dtype: torch.dtype, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores grow with the square of the operands: those of the largest overflow, all of them or none of a row."""
    monkeypatch.setattr(by_head, "MOST_SCORES", rows_at_once * 5 * 9)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(5, 2, length, 6, generator=generator).to(dtype) * size for length in (5, 9))
    q[:, :, 2] *= -1
    v, r = torch.randn(5, 2, 9, 6, generator=generator).to(dtype), torch.randn(2, 9, 6, generator=generator).to(dtype)
    with torch.no_grad():
        out, lse = relative_attention(q, k, v, r, offset=4, with_lse=True)
    wanted = relative_attention_reference(*(x.double() for x in (q, k, v, r)), offset=4)
    assert lse is not None
    eps = torch.finfo(dtype).eps
    assert float((lse - wanted.lse).abs().max()) <= 4 * eps * max(1.0, float(wanted.lse.abs().max()))
    assert float((out - wanted.out).abs().max()) <= 200 * eps  # probabilities are as exact as their scores are large


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_heads_one_by_one_in_bf16(size: float, always: list[int]) -> None:
    """With the larger size, exponentials overflow unless the largest score is subtracted."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    q, k, v = draw(3, 2, 12, 16) * size, draw(3, 2, 32, 16), draw(3, 2, 32, 16)
    tables = draw(2, 32, 16), draw(2, 16), draw(2, 16)
    with torch.no_grad():
        out, lse = relative_attention(q, k, v, *tables, offset=20, with_lse=True)
    in_training, _ = relative_attention(q.requires_grad_(), k, v, *tables, offset=20)
    wanted = relative_attention_reference(*(x.detach().double() for x in (q, k, v, *tables)), offset=20)
    assert lse is not None
    assert relative_error(lse, wanted.lse) < TOLERANCES[torch.bfloat16].rtol
    # Large scores are rounded far, in training too; here unnormalised sums and their divisors are rounded besides.
    assert relative_error(out, wanted.out) < 1.5 * relative_error(in_training.detach(), wanted.out)
    assert len(always) == 1


def test_training_and_other_tables_go_another_way(always: list[int]) -> None:
    q = torch.randn(1, 1, 4, 6)
    relative_attention(q, q, q, torch.randn(1, 4, 6), offset=0)
    with torch.no_grad():
        relative_attention(q, q, q, bias=torch.randn(1, 4), offset=0)
        relative_attention(q.half(), q.half(), q.half(), torch.randn(1, 4, 6).half(), offset=0)
    assert always == []
