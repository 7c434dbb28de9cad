"""Kernels of a library are compared with plain PyTorch before they are timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from helpers.stand_in_delta import Mixer, use_stand_in
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.bench.alternatives.delta_reference import (
    LARGEST_ERROR,
    OUTPUT,
    Checked,
    block_errors,
    delta_rule,
    require_right_kernels,
)
from mnemo.bench.alternatives.gated_delta import GatedDelta, GatedDeltaStage, GatedDeltaState
from mnemo.errors import MnemoError

KINDS = [
    GatedDelta(num_heads=2, head_dim=4, inner_dim=8),
    GatedDelta(decay="channel", num_heads=2, head_dim=4, value_ratio=1, inner_dim=8),
]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)


def block(config: GatedDelta, dtype: torch.dtype = torch.float32) -> Checked:
    return Checked(config, 12, 2, 9, torch.device("cpu"), dtype, nullcontext())


def errors_of(config: GatedDelta) -> dict[str, float]:
    return require_right_kernels(block(config))


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.decay)
def test_a_right_block_has_no_error(config: GatedDelta) -> None:
    errors = errors_of(config)
    weights = ("mixer.A_log", "mixer.dt_bias", "mixer.q_proj.weight", "mixer.v_conv1d.weight", "mlp.up_proj.weight")
    assert {OUTPUT, "state, matrices", "state, keys", "gradient, input"} <= errors.keys()
    assert {f"gradient, {name}" for name in weights} <= errors.keys()
    assert max(errors.values()) < 1e-4


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_a_block_is_compared_in_the_types_of_the_training() -> None:
    """Rows between blocks are in bf16 there, and the sums of the comparison in float32."""
    seen = []

    def read(self: GatedDeltaStage, x: Tensor, state: GatedDeltaState) -> tuple[Tensor, GatedDeltaState]:
        seen.extend([x.dtype, state.keys.dtype, state.matrices.dtype])
        with torch.autocast("cpu", torch.bfloat16):
            return original(self, x, state)

    original = GatedDeltaStage.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GatedDeltaStage, "read", read)
        errors = block_errors(block(KINDS[0], torch.bfloat16))
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert 1e-3 < max(errors.values()) < LARGEST_ERROR


Read = tuple[Tensor, Tensor]


def wrong_gradient(factor: float) -> Callable[[Mixer, list[Tensor], Read], Read]:
    def change(mixer: Mixer, heads: list[Tensor], read: Read) -> Read:
        read[0].register_hook(lambda gradient: gradient * factor)
        return read

    return change


def wrong_state(mixer: Mixer, heads: list[Tensor], read: Read) -> Read:
    return read[0], read[1] * (1 + 2 * LARGEST_ERROR)


def wrong_last_row(mixer: Mixer, heads: list[Tensor], read: Read) -> Read:
    signs = torch.tensor([1.0, -1.0])
    return read[0] * signs[:, None, None, None], read[1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (wrong_gradient(1 + 2 * LARGEST_ERROR), "gradient, "),
        (wrong_gradient(float("nan")), "gradient, "),
        (wrong_state, "state, matrices"),
        (wrong_last_row, OUTPUT),
    ],
    ids=["gradient", "nan", "state", "last row"],
)
def test_a_single_wrong_tensor_is_found(
    change: Callable[[Mixer, list[Tensor], Read], Read], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Mixer._read

    def broken(self: Mixer, heads: list[Tensor], x: Tensor, matrices: Tensor) -> Read:
        return change(self, heads, read(self, heads, x, matrices))

    monkeypatch.setattr(Mixer, "_read", broken)
    errors = block_errors(block(KINDS[0]))
    assert all(error < 1e-4 for name, error in errors.items() if not name.startswith(named))
    with pytest.raises(MnemoError, match=f"are wrong here: a block's {named}"):
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
    empty = torch.zeros(1, 1, 2, 2)
    read, _ = delta_rule(q, k, v, torch.zeros(1, 3, 1, 1), full, empty)
    assert_close(read[0, :, 0], torch.tensor([[1.0, 2.0], [1.0, 2.0], [5.0, 6.0]]))
    halved = torch.tensor([0.5, 0.25]).log().expand(1, 3, 1, 2)  # by dimension of the keys
    read, matrices = delta_rule(q.flip(3), k, v, halved, full, empty)
    assert_close(read[0, :, 0], torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.75, 1.0]]))
    assert_close(matrices[0, 0], torch.tensor([[5.0, 0.75], [6.0, 1.0]]))
