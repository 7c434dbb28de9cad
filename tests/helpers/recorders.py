"""A recorder for devices without CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mnemo.memory.state import tree_map, tree_zip


class Rerun:
    """Replaces a CUDA graph on a CPU: replaying runs the program again and copies its results into the first ones."""

    def warm(self, function: Callable[[], Any]) -> None:
        function()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        output = tree_map(torch.clone, function())

        def replay() -> None:
            # Unlike a graph, a rerun has no gradient of an embedding's bin without tokens.
            tree_zip(lambda old, new: old.zero_() if new is None else old.copy_(new), output, function())

        return output, replay
