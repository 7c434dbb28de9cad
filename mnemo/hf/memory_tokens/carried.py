"""The memory that a call of a model returns, and from which the next call continues.

Memory tokens are a tensor (B, m, D). An associative memory is a tuple with the associations of every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.layer_memory import Memories
from mnemo.memory import TokensState
from mnemo.memory.state import leaves, tree_map, tree_zip

Carried = Tensor | Memories


def carried(state: TokensState) -> Carried:
    """Return the part of a state that passes from segment to segment."""
    return state.memory if state.inner is None else state.inner


def continued(empty: TokensState, memory: Carried, repeat: bool = False) -> TokensState:
    """Return the state of a text that continues from `memory`; `empty` is that of a new text.

    `repeat`: several rows of the batch may continue from one row of the memory.
    """
    given, batch = _repeated(empty, memory, repeat), len(empty.started)
    if any(len(leaf) != batch for _, leaf in leaves(given)):
        raise _misfit(empty, memory)
    if empty.inner is None:
        return TokensState(given.to(empty.memory), torch.ones_like(empty.started), None)  # type: ignore[union-attr]
    return empty._replace(inner=tree_zip(lambda leaf, like: leaf.to(like), given, empty.inner))


def _repeated(empty: TokensState, memory: Carried, repeat: bool) -> Carried:
    needed = carried(empty)
    if isinstance(memory, Tensor) != isinstance(needed, Tensor) or len(memory) == 0:
        raise _misfit(empty, memory)
    shapes = [[leaf.shape[1:] for _, leaf in leaves(part)] for part in (memory, needed)]
    rows = len(next(leaf for _, leaf in leaves(memory)))
    if shapes[0] != shapes[1] or rows == 0 or len(empty.started) % rows:
        raise _misfit(empty, memory)
    times = len(empty.started) // rows if repeat else 1
    return tree_map(lambda leaf: leaf.repeat_interleave(times, 0), memory) if times > 1 else memory


def _misfit(empty: TokensState, memory: Carried) -> MnemoError:
    needed = carried(empty)
    if isinstance(memory, Tensor) and isinstance(needed, Tensor):
        return MnemoError(f"memory has shape {tuple(memory.shape)}; this model needs {tuple(needed.shape)}")
    batch = len(empty.started)
    kind = f"memory tokens {tuple(needed.shape)}" if isinstance(needed, Tensor) else f"{len(needed)} layers"
    return MnemoError(f"this is not a memory that this model returned for {batch} rows: it needs {kind}")
