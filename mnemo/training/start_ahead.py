"""Import torch's compilers and create the CUDA context in threads, while a model is built.

Together these take seconds. Imports hold Python's lock; creating a context, drawing weights and reading files do not.
torch's modules import each other in circles, so nothing else of torch may be imported meanwhile: this covers the
building of a model only, and no test of a kernel.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from mnemo.recipes.recipe import TrainConfig

COMPILERS = ("torch._dynamo", "torch._inductor.compile_fx")


@contextmanager
def start_ahead(device: torch.device, config: TrainConfig) -> Iterator[None]:
    """Prepare the device and the compilers of a run beside the body; on a CPU, nothing.

    Random generators must have been seeded before, because the device's are made here.
    """
    work: list[Callable[[], None]] = []
    if device.type == "cuda":
        work.append(lambda: _create_context(device))
        if config.compile is not False:
            work.append(_import_compilers)
    threads = [threading.Thread(target=one, name="mnemo-start") for one in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _import_compilers() -> None:
    with suppress(Exception):  # an error appears again, and is reported, where they are used
        for name in COMPILERS:
            importlib.import_module(name)


def _create_context(device: torch.device) -> None:
    with suppress(Exception):
        torch.empty(1, device=device)
