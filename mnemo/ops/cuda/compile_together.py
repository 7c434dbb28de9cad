"""Compile the kernels of forward and backward pass at the same time, before the first call that needs them.

Triton compiles a kernel when it is first launched, one after the other. Here all launches of a call are gone through
without running any kernel, and their compilers run in threads: they do not hold Python's lock.
"""

# pyright: basic

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from mnemo.ops.cuda import launch
from mnemo.ops.cuda.launch import Arguments

try:
    from triton.runtime._async_compile import AsyncCompileMode
except ImportError:  # another version of Triton: kernels are compiled one by one
    AsyncCompileMode = None

MOST_KINDS = 8
"""Kinds of calls in a process whose kernels are compiled together; segments of many lengths would be many kinds."""
_seen: set[tuple[Any, ...]] = set()


def compile_attention(call: Arguments) -> None:
    """Compile the kernels of both passes of a call, unless such a call was seen before."""
    if AsyncCompileMode is None or len(_seen) >= MOST_KINDS or not call.q.is_cuda:
        return
    kind = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else x for x in vars(call).values())
    if kind in _seen or torch.cuda.is_current_stream_capturing():
        return
    _seen.add(kind)
    # A kernel that cannot be compiled fails again, and is reported, where it is launched.
    with suppress(Exception), launches_only_compile():
        keep = launch.keep_scores(call)
        out, lse, scores = launch.attend(call, keep)
        launch.differentiate(call, out, lse, scores if keep else None, out, None)


@contextmanager
def launches_only_compile() -> Iterator[None]:
    """Launches by this thread compile their kernels, at the same time, and do not run them."""
    run, thread = JITFunction.run, threading.get_ident()

    def compile_or_run(self: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, warmup=warmup or threading.get_ident() == thread, **options)

    assert AsyncCompileMode is not None
    JITFunction.run = compile_or_run
    try:
        with ThreadPoolExecutor(os.cpu_count() or 1) as threads, AsyncCompileMode(threads, ignore_errors=True):
            yield
    finally:
        JITFunction.run = run
