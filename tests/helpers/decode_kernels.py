"""Run with TRITON_INTERPRET=1: the decoding kernels against plain PyTorch."""

from __future__ import annotations

from copy import deepcopy

import torch
from helpers.models import random_model, random_tokens, set_seed
from helpers.tolerances import assert_close

from mnemo.inference.decoder import Decoder
from mnemo.inference.ring_decoder import RingDecoder
from mnemo.ops.cuda import decode_kernels
from mnemo.ops.cuda.decode_attention import Table, decode_attention_plain

SHAPES = [(1, 2, 70, 8), (3, 2, 37, 41), (2, 1, 5, 16), (2, 2, 130, 64)]


def tables(heads: int, slots: int, size: int) -> list[Table]:
    r, u, w = torch.randn(heads, slots, size), torch.randn(heads, size), torch.randn(heads, size)
    return [Table(r, u, w), Table(r, u, None, torch.randn(heads, slots)), Table()]


def check_attention() -> None:
    set_seed(0)
    for batch, heads, slots, size in SHAPES:
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


def check_norms() -> None:
    for size in (5, 16, 40):
        x, y = torch.randn(2, 3, size), torch.randn(2, 3, size)
        weight, bias = torch.randn(size), torch.randn(size)
        total, out = decode_kernels.add_norm(x, y, weight, bias, 1e-5)
        assert_close(total, x + y)
        assert_close(out, torch.nn.functional.layer_norm(x + y, (size,), weight, bias, 1e-5))


def check_rings() -> None:
    """A whole model, in float32 with the kernels and in float64 without."""
    for changes in (dict(memory=9), dict(memory=2, norm="pre", same_length=True)):
        tokens, sizes = random_tokens(3, 40), dict(num_layers=2, head_dim=16, dim=32)
        rough = random_model(dtype=torch.float32, **changes, **sizes)
        with torch.no_grad():
            for parameter in rough.parameters():
                parameter.mul_(0.3)
        exact = deepcopy(rough).double()
        windows, rings = Decoder(exact, exact.init(3), 4), RingDecoder(rough, rough.init(3), 4)
        for decoder in (windows, rings):
            decoder.feed(tokens[:, :6], lengths=[6, 2, 5])
        for step in range(6, 11):
            token = tokens[:, step : step + 1]
            assert_close(rings.feed(token).hidden, windows.feed(token).hidden.float())


if __name__ == "__main__":
    check_attention()
    check_norms()
    check_rings()
