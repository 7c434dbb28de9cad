"""The loss of large vocabularies: the plain loss's numbers and gradients, and never all logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.tolerances import assert_close
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mnemo.ops import cross_entropy
from mnemo.ops.cross_entropy import backward_chunks, forward_chunks, linear_cross_entropy

TOKENS, WIDTH, WORDS, ROWS = 23, 6, 40, 4


def operands(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((TOKENS, WIDTH), (WORDS, WIDTH), (WORDS,))
    hidden, weight, bias = (torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)
    targets = torch.randint(WORDS, (TOKENS,), generator=draw)
    targets[[0, 7]] = -1
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), targets


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "CPU_LOGITS", ROWS * WORDS)


def plain(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="none", ignore_index=-1)


def with_gradients(function: Any, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    *leaves, targets = operands(dtype)
    loss = function(*leaves, targets)
    slope = torch.linspace(-1, 2, TOKENS, dtype=loss.dtype)
    return [loss, *torch.autograd.grad(loss, leaves, slope)]


def test_chunks_give_the_plain_loss_and_gradients(small_chunks: None) -> None:
    for found, expected in zip(with_gradients(linear_cross_entropy), with_gradients(plain), strict=True):
        assert_close(found, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_compiles_as_one_graph(small_chunks: None) -> None:
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    for found, expected in zip(with_gradients(compiled), with_gradients(plain), strict=True):
        assert_close(found, expected)


def test_half_precision_keeps_wide_losses_and_gradients(small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # some processors claim bf16 and die of it
    *leaves, targets = operands(torch.float32)
    hidden = leaves[0].detach().bfloat16().requires_grad_()
    weight, bias = leaves[1:]
    loss = linear_cross_entropy(hidden, weight, bias, targets)
    found = torch.autograd.grad(loss.sum(), [hidden, *leaves[1:]])
    expected = torch.autograd.grad(plain(leaves[0], weight, bias, targets).sum(), leaves)
    assert loss.dtype == torch.float32
    assert [gradient.dtype for gradient in found] == [torch.bfloat16, torch.float32, torch.float32]
    for a, b in zip(found, expected, strict=True):
        assert (a.float() - b).norm() < 0.02 * b.norm()


def test_what_is_kept_for_the_gradient_is_no_logits(small_chunks: None) -> None:
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        linear_cross_entropy(*operands())
    inputs = [TOKENS * WIDTH, WORDS * WIDTH, WORDS, TOKENS]
    assert sorted(kept) == sorted([*inputs, TOKENS]) and max(kept) < TOKENS * WORDS


class Largest(TorchDispatchMode):
    """The largest tensor that anything makes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor) and "view" not in str(function) and "split" not in str(function):
                self.size = max(self.size, tensor.numel())
        return out


def test_nothing_larger_than_a_chunk_of_logits_is_made() -> None:
    hidden, weight, bias, targets = (tensor.detach() for tensor in operands())
    with Largest() as largest:
        _, lse = forward_chunks(hidden, weight, bias, targets, ROWS)
        backward_chunks(torch.ones_like(lse), hidden, weight, bias, targets, lse, ROWS)
    assert largest.size <= WORDS * WIDTH < TOKENS * WORDS
