"""Run with TRITON_INTERPRET=1: the decoding kernels against plain PyTorch."""

from __future__ import annotations

import torch
from tolerances import assert_close

from mnemo.ops import decode_kernels
from mnemo.ops.decode_attention import Table, decode_attention_plain

SHAPES = [(1, 2, 70, 8), (3, 2, 37, 41), (2, 1, 5, 16), (2, 2, 130, 64)]


def tables(heads: int, slots: int, size: int) -> list[Table]:
    r, u, w = torch.randn(heads, slots, size), torch.randn(heads, size), torch.randn(heads, size)
    return [Table(r, u, w), Table(r, u, None, torch.randn(heads, slots)), Table()]


def main() -> None:
    torch.manual_seed(0)
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


if __name__ == "__main__":
    main()
