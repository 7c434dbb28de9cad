"""The Compressive Transformer against an independent slow version and the identities that tie it to Transformer-XL."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.mechanisms import compressive
from helpers.models import random_model, random_tokens, read
from helpers.tolerances import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mnemo.memory import CompressiveState
from mnemo.memory.compressive import Compressive
from mnemo.memory.compressive.modules import CompressiveStage
from mnemo.memory.state import leaves
from mnemo.model import Model


class SlowRow:
    """One layer's memories of one row as Python lists, after the paper's Algorithm 1."""

    def __init__(self, stage: CompressiveStage) -> None:
        self.stage, self.config = stage, stage.config
        self.memory: list[Tensor] = []
        self.compressed: list[Tensor] = []
        self.waiting: list[Tensor] = []

    def write(self, rows: list[Tensor]) -> None:
        self.memory += rows
        gone, self.memory = self.memory[: -self.config.length], self.memory[-self.config.length :]
        self.waiting += gone
        while len(self.waiting) >= self.config.ratio:
            block, self.waiting = self.waiting[: self.config.ratio], self.waiting[self.config.ratio :]
            self.compressed = [*self.compressed, self._squeeze(torch.stack(block))][-self.config.compressed :]
        if self.config.remainder == "drop":
            self.waiting = []

    def _squeeze(self, block: Tensor) -> Tensor:
        if self.config.function == "mean":
            return block.mean(0)
        if self.config.function == "max":
            return block.max(0).values
        convolution: Any = self.stage.compress.convolutions[0]
        out = convolution.bias.clone()
        for step in range(self.config.ratio):
            out = out + convolution.weight[:, :, step] @ block[step]
        return out


@torch.no_grad()
def slow_logits(model: Model, tokens: Tensor, segments: list[int]) -> tuple[Tensor, list[SlowRow]]:
    """Logits of one row, attention by explicit loops over heads, queries and keys."""
    stages: list[Any] = list(model.stages)
    rows = [SlowRow(stage) for stage in stages]
    outs = []
    for part in tokens.split(segments, 1):
        x = model.embedding(part)[0]
        for stage, row in zip(stages, rows, strict=True):
            new = list(x)
            x = slow_layer(model, stage, x, [*row.compressed, *row.memory])
            row.write(new)
        outs.append(model.softmax.logits(x, model.embedding))
    return torch.cat(outs), rows


def slow_layer(model: Model, stage: CompressiveStage, x: Tensor, memory: list[Tensor]) -> Tensor:
    layer, positions = stage.layer, model.positions
    attention: Any = layer.attention  # type: ignore[attr-defined]
    heads, size = attention.num_heads, attention.head_dim
    keys = torch.stack([*memory, *x])
    q = attention.query(x).view(-1, heads, size)
    k, v = attention.key_value(keys).view(-1, 2, heads, size).unbind(1)
    frequency = 10000.0 ** (-torch.arange(0, x.shape[1], 2, dtype=x.dtype) / x.shape[1])
    contexts = torch.zeros(len(x), heads, size, dtype=x.dtype)
    for i in range(len(x)):
        for h in range(heads):
            scores = []
            for j in range(len(memory) + i + 1):
                angle = (len(memory) + i - j) * frequency
                r = positions.projections[layer.index](torch.cat([angle.sin(), angle.cos()])).view(heads, size)[h]  # type: ignore[index, union-attr]
                u, w = positions.u[0, h], positions.v[0, h]  # type: ignore[index]
                scores.append(((q[i, h] + u) @ k[j, h] + (q[i, h] + w) @ r) / math.sqrt(size))
            weights = torch.softmax(torch.stack(scores), 0)
            contexts[i, h] = weights @ v[: len(scores), h]
    return layer.finish(x[None], contexts.flatten(1)[None])[0]


@settings(deadline=None, max_examples=12)
@given(
    segments=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    length=st.integers(1, 5),
    compressed=st.integers(1, 4),
    ratio=st.integers(1, 4),
    function=st.sampled_from(["conv", "mean", "max"]),
    remainder=st.sampled_from(["wait", "drop"]),
    seed=st.integers(0, 9),
)
def test_equals_an_independent_slow_version(segments, length, compressed, ratio, function, remainder, seed):
    options = dict(length=length, compressed=compressed, ratio=ratio, function=function, remainder=remainder)
    model = random_model(seed, memory=compressive(**options), num_layers=2)
    tokens = random_tokens(1, sum(segments), seed)
    got, state = read(model, tokens, segments)
    expected, rows = slow_logits(model, tokens, segments)
    assert_close(got[0], expected)
    for memory, row in zip(state, rows, strict=True):
        assert isinstance(memory, CompressiveState)
        for name, kept in (("hidden", row.memory), ("compressed", row.compressed)):
            buffer = getattr(memory, name)[0]
            valid = buffer[len(buffer) - len(kept) :]
            assert_close(valid, torch.stack(kept) if kept else valid)
        assert int(memory.compressed_length) == len(row.compressed)
        assert int(memory.waiting_length) == len(row.waiting)
        waited = memory.waiting[0, : len(row.waiting)]
        assert_close(waited, torch.stack(row.waiting) if row.waiting else waited)


def test_without_compressed_memory_it_is_transformer_xl():
    tokens = random_tokens(2, 17)
    xl = random_model(memory=5)
    other = Model(random_model(memory=compressive(length=5, compressed=0)).config).double().eval()
    other.load_state_dict({name: tensor for name, tensor in xl.state_dict().items()})
    expected, _ = read(xl, tokens, 4)
    got, _ = read(other, tokens, 4)
    assert torch.equal(got, expected)


def test_compressed_rows_reach_further_back_than_the_memory():
    """One layer, memory 2, two compressed slots of two rows: six tokens back and not one more."""
    model = random_model(memory=compressive(length=2, compressed=2, ratio=2), num_layers=1)
    tokens = random_tokens(1, 11)
    before, _ = read(model, tokens, 2)
    for where in range(10):
        changed = tokens.clone()
        changed[0, where] = (changed[0, where] + 1) % 23
        moved = float((read(model, changed, 2)[0] - before)[0, 10].abs().max())
        assert (moved > 0) == (where >= 4), where


@pytest.mark.parametrize("loss", ["attention", "autoencoding"])
def test_each_loss_reaches_its_own_weights_only(loss):
    """The language model learns nothing from the compression's loss, nor the other way round."""
    model = random_model(memory=compressive(length=3, compressed=3, ratio=2, loss=loss)).train()
    tokens = random_tokens(2, 12)
    state = model.init(2)
    for part in tokens[:, :8].split(4, 1):
        out, state = model(part, state)
    out, _ = model(tokens[:, 8:], state)

    def reached(value: Tensor) -> set[bool]:
        grads = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, retain_graph=True)
        names = [name for name, _ in model.named_parameters()]
        return {
            ".compress." in name for name, grad in zip(names, grads, strict=True) if grad is not None and grad.any()
        }

    assert reached(out.aux["compression"]) == {True}
    assert reached(model.loss(out, tokens[:, 8:]).sum()) == {False}


def test_compressing_leaves_the_key_value_projection_in_training():
    """The widespread port detaches this weight for good at the first compression."""
    model = random_model(memory=compressive(length=3, compressed=3, ratio=2)).train()
    state = model.init(2)
    for part in random_tokens(2, 16).split(4, 1):
        out, state = model(part, state)
        (model.loss(out, part).sum() + sum(out.aux.values())).backward()
    for layer in model.layers():
        assert layer.attention.key_value.weight.requires_grad
        gradient = layer.attention.key_value.weight.grad
        assert gradient is not None
        assert gradient.abs().max() > 1e-3


def test_the_reconstruction_loss_is_the_papers():
    """Content attention of the segment to the rows that leave, against attention to what they become."""
    model = random_model(memory=compressive(length=4, compressed=4, ratio=2), num_layers=1).train()
    tokens = random_tokens(2, 12)
    _, state = model(tokens[:, :4])
    out, _ = model(tokens[:, 4:8], state)
    (stage,) = list(model.stages)
    assert isinstance(stage, CompressiveStage)
    attention: Any = stage.layer.attention  # type: ignore[attr-defined]
    h, old = model.embedding(tokens[:, 4:8]), model.embedding(tokens[:, :4])

    def read_from(rows: Tensor) -> Tensor:
        q = attention.query(h).view(2, 4, 2, 6)
        k, v = attention.key_value(rows).view(2, -1, 2, 2, 6).unbind(2)
        weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(6), -1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    expected = (read_from(old) - read_from(stage.compress(old))).square().mean()
    assert_close(out.aux["compression"], expected)


def test_most_used_rows_survive_in_their_order():
    from mnemo.memory.compressive.modules import _most_used

    rows = torch.arange(8.0).view(1, 8, 1).expand(2, -1, -1)
    received = torch.tensor([[5, 1, 9, 1, 1, 8, 1, 7], [1, 2, 3, 4, 9, 9, 9, 9]], dtype=torch.float32)
    usage = torch.stack([received, torch.ones(2, 8)], -1)
    kept = _most_used(rows, usage, torch.tensor([4, 2]), 2)[..., 0]
    assert kept[0].tolist() == [0, 2, 5, 7]
    assert kept[1, :2].tolist() == [2, 3]


def test_zeros_fill_both_memories():
    model = random_model(memory=compressive(length=3, compressed=2, ratio=2))
    state = model.zeros(2)
    assert [int(memory.compressed_length[0]) for memory in state] == [2, 2, 2]
    assert all(not leaf.any() for path, leaf in leaves(state) if not path.endswith("length"))


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="power of two"):
        Compressive(function="dilated", ratio=3)
    with pytest.raises(ValueError, match="ratio 0"):
        Compressive(ratio=0)
