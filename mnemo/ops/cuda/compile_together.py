"""Compile the kernels of forward and backward pass at the same time, before the first call that needs them.

Triton compiles a kernel when it is first launched, one after the other. Here all launches of a call are gone through
without running any kernel, and their compilers run in threads: they do not hold Python's lock. Triton also translates C
code that launches a kernel, when it is first launched; here the same threads do that too.
"""

# pyright: basic

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor
from triton.runtime import driver
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


class CompileThreads(ThreadPoolExecutor):
    """Threads that compile kernels, each with the code that launches it."""

    def submit(self, compiled: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return super().submit(lambda: _with_launcher(compiled(*args, **options)))


def _with_launcher(kernel: Any) -> Any:
    """The kernel, whose launcher is in Triton's cache from now on."""
    with suppress(Exception):  # it is made again, and an error reported, where the kernel is launched
        cast(Any, driver.active).launcher_cls(kernel.src, kernel.metadata)
    return kernel


@contextmanager
def launches_only_compile() -> Iterator[None]:
    """Launches by this thread compile their kernels, at the same time, and do not run them."""
    run, thread = JITFunction.run, threading.get_ident()

    def compile_or_run(self: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, warmup=warmup or threading.get_ident() == thread, **options)

    assert AsyncCompileMode is not None
    JITFunction.run = compile_or_run
    try:
        with CompileThreads(os.cpu_count() or 1) as threads, AsyncCompileMode(threads, ignore_errors=True):
            yield
    finally:
        JITFunction.run = run
