"""Kernels that start before the one before them has ended (programmatic dependent launch, Hopper and later).

A chain of short kernels spends much of its time on launches, and on waiting for the first loads of each kernel. With an
early start, the programs of a kernel are on the card while the kernels before it still run. They load what these do not
write (weights, keys and values of earlier tokens), and then wait. A short kernel lets the next one start with its first
instruction, so several of them may be waiting at the same time.

What may be read before waiting is what was written before the last kernel with a normal start. All stores come after
waiting, and every program waits: so the end of a kernel is also the end of all kernels before it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
except ImportError:
    triton = None
try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # type: ignore[import-not-found]
except ImportError:  # an older Triton, without early starts
    gdc_launch_dependents = gdc_wait = None

CAPABILITY = (9, 0)
"""The first cards with early starts"""
_chain = threading.local()


def possible(device: torch.device) -> bool:
    """Whether a device starts kernels early; `MNEMO_EARLY_KERNELS=0` turns it off."""
    if gdc_wait is None or device.type != "cuda" or os.environ.get("MNEMO_EARLY_KERNELS") == "0":
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY


@contextmanager
def early_starts(wanted: bool) -> Iterator[None]:
    """Kernels that this thread launches in this context start early, if `wanted`.

    The last kernel before the context must have a normal start.
    """
    before, _chain.early = is_early(), wanted
    try:
        yield
    finally:
        _chain.early = before


def is_early() -> bool:
    return getattr(_chain, "early", False)


def launch_options(*constants: torch.Tensor | None) -> dict[str, Any]:
    """Options of a launch. `constants`: what the kernel reads before it waits; a copy just made would not be ready."""
    if is_early() and all(x is None or x.is_contiguous() for x in constants):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


if triton is not None:

    @triton.jit
    def let_next_start(EARLY: tl.constexpr):
        if EARLY:
            gdc_launch_dependents()  # type: ignore[misc]

    @triton.jit
    def wait_for_previous(EARLY: tl.constexpr):
        if EARLY:
            gdc_wait()  # type: ignore[misc]

    @triton.jit
    def prefetch(pointers, BYTES: tl.constexpr):
        """Load BYTES, a multiple of 16, from each pointer to the card's second cache."""
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
            "=r,l,r",
            [pointers.to(tl.int64), tl.full(pointers.shape, BYTES, tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
