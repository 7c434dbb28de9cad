"""Kernels of a library are compared with plain PyTorch before they are timed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from helpers.stand_in_delta import Mixer, use_stand_in
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.bench.alternatives.delta_reference import (
    INPUT,
    LARGEST_ERROR,
    OUTPUT,
    delta_rule,
    kernel_errors,
    require_right_kernels,
)
from mnemo.bench.alternatives.gated_delta import GatedDelta
from mnemo.errors import MnemoError

KINDS = [
    GatedDelta(num_heads=2, head_dim=4, inner_dim=8),
    GatedDelta(decay="channel", num_heads=2, head_dim=4, value_ratio=1, inner_dim=8),
]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)


def errors_of(config: GatedDelta) -> dict[str, float]:
    return require_right_kernels(config, 12, 2, 9, torch.device("cpu"), nullcontext())


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.decay)
def test_a_right_layer_has_no_error_in_output_and_gradients(config: GatedDelta) -> None:
    errors = errors_of(config)
    assert {OUTPUT, INPUT, "A_log", "dt_bias", "q_proj.weight", "v_conv1d.weight", "o_norm.weight"} <= errors.keys()
    assert max(errors.values()) < 1e-4


@pytest.mark.parametrize("factor", [1 + 2 * LARGEST_ERROR, float("nan")])
def test_a_wrong_gradient_alone_is_found(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mixer._read

    def broken(self: Mixer, heads: list[Tensor], x: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
        heads[1].register_hook(lambda gradient: gradient * factor)
        return read(self, heads, x, matrices)

    monkeypatch.setattr(Mixer, "_read", broken)
    assert kernel_errors(KINDS[0], 12, 2, 9, torch.device("cpu"), nullcontext())[OUTPUT] < 1e-4
    with pytest.raises(MnemoError, match=r"are wrong here: '(k_conv1d|k_proj|input)"):
        errors_of(KINDS[0])


def test_kernels_that_fail_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Mixer, *args: Any, **options: Any) -> None:
        raise RuntimeError("needs Triton 3.7.1\nor tilelang")

    monkeypatch.setattr(Mixer, "forward", failing)
    with pytest.raises(MnemoError, match="do not work here: needs Triton 3.7.1"):
        errors_of(KINDS[0])


def test_a_written_value_is_read_by_its_key_until_it_is_replaced_or_decays() -> None:
    """Two orthogonal keys; without decay and with a full write, the matrices are a table."""
    k = torch.eye(2)[[0, 1, 0]][None, :, None]  # (B, L, H, K)
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])[None, :, None]
    q, full = torch.eye(2)[[0, 0, 0]][None, :, None], torch.full((1, 3, 1), 100.0)
    read = delta_rule(q, k, v, torch.zeros(1, 3, 1, 1), full)
    assert_close(read[0, :, 0], torch.tensor([[1.0, 2.0], [1.0, 2.0], [5.0, 6.0]]))
    halved = torch.tensor([0.5, 0.25]).log().expand(1, 3, 1, 2)  # by dimension of the keys
    read = delta_rule(q.flip(3), k, v, halved, full)
    assert_close(read[0, :, 0], torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.75, 1.0]]))
