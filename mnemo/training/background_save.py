"""Writing a checkpoint in a thread, while training goes on.

The tensors are copied when the save begins, so later updates do not change what is written. One save runs at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mnemo.model.memory_limits import memory_bytes
from mnemo.storage.checkpoint import Checkpoint

SHARE_OF_MEMORY = 0.25
"""Share of the machine's memory that copies of the tensors may take; larger ones are written without a copy."""
Parts = Mapping[str, Mapping[str, Tensor]]


def fits_twice(parts: Parts) -> bool:
    """Whether the machine has enough memory for copies of all tensors."""
    total = memory_bytes(torch.device("cpu"))
    needed = sum(tensor.nbytes for tensors in parts.values() for tensor in tensors.values())
    return total is None or needed <= SHARE_OF_MEMORY * total


def copies(parts: Parts) -> dict[str, dict[str, Tensor]]:
    """Copies in the host's memory."""
    return {
        part: {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        for part, tensors in parts.items()
    }


class BackgroundSave:
    """A save that runs in a thread of its own."""

    def __init__(self, work: Callable[[], Checkpoint]) -> None:
        self._work = work
        self._result: Checkpoint | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Checkpoint:
        """Wait for the end; return the checkpoint, or raise the error of the thread."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
