"""Keep the library's matrix products away from instructions that compilers have broken on Hopper GPUs.

A product of a program with four warps or more is compiled to instructions for groups of four warps (WGMMA). One of the
library's kernels, `prepare_wy_repr_bwd_kernel`, had wrong gradients with four warps on Hopper, and right ones with two
(https://github.com/fla-org/flash-linear-attention/issues/984).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

MOST_WARPS = 2
PACKAGE = "fla"
PRODUCT = "tl.dot"


def use_few_warps() -> list[str]:
    """Leave out the variants of products with more than `MOST_WARPS` warps, before the library tunes its kernels. A
    kernel that has no others keeps them.

    Return the names of the kernels that have fewer variants now.
    """
    changed = []
    for name, kernel in tuned_kernels():
        few = [variant for variant in kernel.configs if variant.num_warps <= MOST_WARPS]
        if few and len(few) < len(kernel.configs) and PRODUCT in _source(kernel):
            kernel.configs = few
            changed.append(name)
    return changed


def tuned_kernels() -> Iterator[tuple[str, Any]]:
    """The kernels in the library's imported modules that have several variants, each once."""
    seen = set[int]()
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] != PACKAGE:
            continue
        for name, value in vars(module).items():
            kernel = _tuned(value)
            if kernel is not None and id(kernel) not in seen:
                seen.add(id(kernel))
                yield name, kernel


def _tuned(value: Any) -> Any:
    """The part of a decorated kernel that tries variants; None for everything else."""
    while value is not None and not isinstance(value, type) and hasattr(value, "fn"):
        if isinstance(getattr(value, "configs", None), list):
            return value
        value = value.fn
    return None


def _source(kernel: Any) -> str:
    """Of the function inside of all decorators."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return inspect.getsource(kernel)
