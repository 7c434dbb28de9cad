"""One query that sees every key, against the equation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.tolerances import TOLERANCES, assert_close, relative_error

from mnemo.ops import Causal, relative_attention, relative_attention_reference
from mnemo.ops.cpu import eager

KEYS = 9


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls went this way."""
    made: list[int] = []
    right = eager.attend_single

    def counted(*args):
        made.append(1)
        return right(*args)

    monkeypatch.setattr(eager, "attend_single", counted)
    return made


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("positions", ["all", "no biases", "none"])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_single_query_equals_the_equation(
    batch: int, ahead: int, positions: str, side_by_side: bool, calls: list[int]
) -> None:
    """Keys and tables in either layout, in views of larger buffers."""
    q, k, v = draw(batch, 2, 1, 6), draw(batch, 2, KEYS + 4, 6), draw(batch, 2, KEYS + 4, 6)[:, :, 1 : KEYS + 1]
    r = None if positions == "none" else draw(2, KEYS + 3 + ahead, 6)
    u, w = (draw(2, 6), draw(2, 6)) if positions == "all" else (None, None)
    if side_by_side:
        k = k.transpose(2, 3).contiguous().transpose(2, 3)
        r = None if r is None else r.transpose(1, 2).contiguous().transpose(1, 2)
    k = k[:, :, 2 : KEYS + 2]
    see: dict[str, Any] = {"offset": KEYS - 1, "ahead": 0 if r is None else ahead, "mask": Causal(window=KEYS)}
    with torch.no_grad():
        out, lse = relative_attention(q, k, v, r, u, w, **see)
    assert lse is None
    assert_close(out, relative_attention_reference(q, k, v, r, u, w, **see).out)
    assert calls == [1]


def test_a_single_query_in_bf16(calls: list[int]) -> None:
    q, k, v, r, u, w = (
        x.bfloat16()
        for x in (draw(3, 2, 1, 8), draw(3, 2, KEYS, 8), draw(3, 2, KEYS, 8), draw(2, KEYS, 8), *draw(2, 2, 8))
    )
    with torch.no_grad():
        out, _ = relative_attention(q, k, v, r, u, w, offset=KEYS - 1)
    wanted = relative_attention_reference(*(x.double() for x in (q, k, v, r, u, w)), offset=KEYS - 1).out
    assert relative_error(out, wanted) < TOLERANCES[torch.bfloat16].rtol
    assert calls == [1]


def test_whatever_hides_a_key_goes_another_way(calls: list[int]) -> None:
    q, k, r = draw(2, 2, 1, 6), draw(2, 2, KEYS, 6), draw(2, KEYS, 6)
    last: dict[str, Any] = {"offset": KEYS - 1}
    hidden: tuple[dict[str, Any], ...] = (
        {"offset": KEYS - 2},
        last | {"mask": Causal(window=KEYS - 1)},
        last | {"lengths": torch.tensor([KEYS, 4])},
        last | {"bias": draw(2, KEYS)},
    )
    for see in hidden:
        with torch.no_grad():
            out, _ = relative_attention(q, k, k, r, **see)
        assert_close(out, relative_attention_reference(q, k, k, r, **see).out)
    assert calls == []
