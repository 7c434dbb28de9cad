"""Compile all variants of a library's kernel at the same time, before the library times them one after the other.

Triton's autotuner compiles a variant when it is its turn, on one CPU core: for the kernels of Kimi Delta Attention, 340
variants. Which of them is chosen does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mnemo.bench.alternatives.few_warps import tuned_kernels


def compile_variants_at_once() -> None:
    """For all kernels in the library's imported modules."""
    from mnemo.ops.cuda.compile_together import AsyncCompileMode

    if AsyncCompileMode is not None:
        for _, kernel in tuned_kernels():
            _compile_before_timing(kernel)


def _compile_before_timing(kernel: Any) -> None:
    """The autotuner asks which variants suit new arguments, and then times them."""
    from mnemo.ops.cuda.compile_together import launches_only_compile

    choose = kernel.prune_configs

    def chosen(options: Mapping[str, Any]) -> list[Any]:
        variants: list[Any] = choose(options)
        # A variant that cannot be compiled fails again when it is timed, where the autotuner leaves it out.
        with suppress(Exception), launches_only_compile():
            for variant in variants:
                if variant.pre_hook is None:  # it may change arguments
                    kernel.fn.run(*kernel.nargs.values(), **options, **variant.all_kwargs())
        return variants

    kernel.prune_configs = chosen
