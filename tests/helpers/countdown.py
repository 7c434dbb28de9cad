"""Functions that kill their process at a call of a chosen number."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

AnyFunction = Callable[..., Any]
MakeMortal = Callable[..., AnyFunction]


def kill_at(operation: int) -> MakeMortal:
    """`mortal(function, last_deed=None)` returns the function with a call counter that all such functions share.

    At call number `operation` the last deed is done in place of the function, and the process is killed.
    """
    left = operation

    def mortal(function: AnyFunction, last_deed: AnyFunction | None = None) -> AnyFunction:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if last_deed is not None:
                    last_deed(*args, **options)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call

    return mortal
