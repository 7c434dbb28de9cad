"""The decoding kernels against plain PyTorch, natively or in Triton's interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import torch
import torch.nn.functional as F
from helpers.models import random_model, random_tokens, set_seed
from helpers.tolerances import assert_close

from mnemo.inference.decoder import Decoder
from mnemo.inference.fused_layers import suit
from mnemo.inference.ring_decoder import RingDecoder
from mnemo.memory import XL, Plan
from mnemo.model.layers.rows import ACTIVATIONS
from mnemo.model.positions import NoPositions, Rotary, Shaw
from mnemo.ops.cuda import decode_kernels, decode_rows
from mnemo.ops.cuda.decode_attention import Table, decode_attention_plain
from mnemo.ops.cuda.decode_kernels import Parts, Tiling, attend_parts, put_together
from mnemo.ops.cuda.decode_projection import Norm, project, project_normed, project_parts

PLAN = Plan(long=XL(length=7), short=XL(length=2), num_long=1)
SIZES: dict[str, Any] = dict(num_layers=2, head_dim=16, dim=32)
SHAPES = [(3, 2, 37, 41), (1, 2, 70, 8), (2, 1, 5, 16), (2, 2, 130, 64)]
SIZES_OF_PRODUCTS = [(1, 40, 24), (3, 40, 24), (1, 128, 70), (18, 72, 20)]


def tables(heads: int, slots: int, size: int) -> list[Table]:
    r, u, w = torch.randn(heads, slots, size), torch.randn(heads, size), torch.randn(heads, size)
    return [Table(r, u, w), Table(r, u, None, torch.randn(heads, slots)), Table()]


def check_attention(shapes: Sequence[tuple[int, int, int, int]] = SHAPES) -> None:
    set_seed(0)
    for batch, heads, slots, size in shapes:
        q, k, v = (torch.randn(batch, heads, size) for _ in range(3))
        ring = torch.randn(2, batch, heads, slots, size)
        assert decode_kernels.suit(ring)
        at, limits = torch.randint(slots, (batch,)), torch.randint(1, slots + 1, (batch,))
        limits[0] = 1
        for table in tables(heads, slots, size):
            ours, plain = ring.clone(), ring.clone()
            got = decode_kernels.attend(q, k, v, ours, table, at, limits)
            assert_close(got, decode_attention_plain(q, k, v, plain, table, at, limits))
            assert torch.equal(ours, plain)


def check_tilings() -> None:
    """Texts that share a program, any number of parts, tiles loaded ahead; texts that see few keys."""
    batch, heads, slots, size = 5, 2, 70, 16
    q, k, v = (torch.randn(batch, heads, size) for _ in range(3))
    ring = torch.randn(2, batch, heads, slots, size)
    at, limits = torch.randint(slots, (batch,)), torch.tensor([1, 70, 33, 2, 17])
    table = tables(heads, slots, size)[0]
    want = decode_attention_plain(q, k, v, ring.clone(), table, at, limits)
    for tiles in ((1, 16, 1, 4, 1), (2, 16, 3, 4, 1), (4, 32, 2, 4, 2), (4, 16, 5, 8, 3)):
        got = attend_parts(q, k, v, ring.clone(), table, at, limits, Tiling(*tiles))
        assert_close(got if isinstance(got, torch.Tensor) else put_together(got, batch, q.dtype), want)


def check_projections(sizes: Sequence[tuple[int, int, int]] = SIZES_OF_PRODUCTS) -> None:
    for batch, width, outputs in sizes:
        x, branch, weight = torch.randn(batch, width), torch.randn(batch, width), torch.randn(outputs, width)
        bias, gain, shift = torch.randn(outputs), torch.randn(width), torch.randn(width)
        for name, activation in cast("dict[Any, Any]", ACTIVATIONS).items():
            assert_close(project(x, weight, bias, name), activation(F.linear(x, weight, bias)))
        assert_close(project(x, weight), x @ weight.T)
        for keep_sum, added, moved in itertools.product((False, True), (branch, None), (shift, None)):
            norm = Norm(gain, moved, 1e-5)
            kept, out = project_normed(x, added, norm, weight, bias, keep_sum=keep_sum)
            total = x if added is None else x + added
            shape = (width,)
            normed = F.rms_norm(total, shape, gain, 1e-5)
            if moved is not None:
                normed = F.layer_norm(total, shape, gain, moved, 1e-5)
            assert_close(kept, total if keep_sum else normed)
            assert_close(out, F.linear(normed, weight, bias))


def check_projected_parts() -> None:
    """The contexts of attention in parts, multiplied by weights."""
    batch, heads, slots, size = 1, 3, 70, 16
    q, k, v = (torch.randn(batch, heads, size) for _ in range(3))
    ring, weight = torch.randn(2, batch, heads, slots, size), torch.randn(24, heads * size)
    at, limits = torch.tensor([5]), torch.tensor([slots])
    table = tables(heads, slots, size)[0]
    parts = attend_parts(q, k, v, ring.clone(), table, at, limits, Tiling(1, 16, 5, 4, 1))
    assert isinstance(parts, Parts)
    want = decode_attention_plain(q, k, v, ring, table, at, limits) @ weight.T
    assert_close(project_parts(parts, batch, weight), want)


def check_embedding() -> None:
    ids, table = torch.randint(9, (3, 1)), torch.randn(9, 40)
    assert_close(decode_rows.look_up(ids, table, 3.0), F.embedding(ids, table) * 3)


def check_choice() -> None:
    """The first of the likeliest tokens; rows without one are reported."""
    logits, finite = torch.randn(3, 37), torch.ones((), dtype=torch.bool)
    logits[1, 5], logits[1, 30] = 9.0, 9.0
    assert decode_rows.can_take(logits)
    tokens = decode_rows.take_likeliest(logits, finite)
    assert tokens[1] == 5 and torch.equal(tokens, logits.argmax(-1)) and finite
    for value in (float("nan"), float("inf")):
        finite.fill_(True)
        logits[2, 3] = value
        decode_rows.take_likeliest(logits, finite)
        assert not finite


MODELS: list[dict[str, Any]] = [
    dict(memory=9),
    dict(memory=2, norm="pre", same_length=True),
    dict(memory=PLAN, positions=Rotary(), norm="pre", final_norm=True, norm_kind="rms", qk_norm=True),
    dict(memory=6, positions=Shaw(distances=5), activation="gelu"),
    dict(memory=5, positions=NoPositions(), activation="squared_relu", norm_kind="rms"),
    dict(memory=5, head_gate=True),
    dict(memory=5, head_dim=5),
]


def check_rings(changes: dict[str, Any], batch: int) -> None:
    """Whole models, in float32 with the kernels and in float64 without."""
    tokens = random_tokens(batch, 40)
    rough = random_model(dtype=torch.float32, **{**SIZES, **changes})
    with torch.no_grad():
        for parameter in rough.parameters():
            parameter.mul_(0.3)
    exact = deepcopy(rough).double()
    windows, rings = Decoder(exact, exact.init(batch), 4), RingDecoder(rough, rough.init(batch), 4)
    fused = suit(rough, rough.embedding.tables[0], torch.zeros(batch, 1, 1))
    assert fused == (not rough.config.head_gate)
    for decoder in (windows, rings):
        decoder.feed(tokens[:, :6], lengths=[6, 2, 5][:batch])
    for step in range(6, 9):
        token = tokens[:, step : step + 1]
        assert_close(rings.feed(token).hidden, windows.feed(token).hidden.float())
