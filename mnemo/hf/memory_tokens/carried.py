"""The memory that a call of a model returns, and from which the next call continues.

Memory tokens are a tensor (B, m, D). An associative memory is a tuple with the associations of every layer. If segments
attend to the previous one, its keys and values are part of the memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.layer_memory import Memories
from mnemo.hf.memory_tokens.previous_segment import LayerStates, PreviousSegment
from mnemo.memory import TokensState
from mnemo.memory.state import leaves, tree_map, tree_zip


class TokensAndPrevious(NamedTuple):
    """Memory tokens of a model whose segments attend to the previous one."""

    tokens: Tensor
    """(B, m, D)"""
    previous: PreviousSegment


Carried = Tensor | Memories | TokensAndPrevious | LayerStates | PreviousSegment


def carried(state: TokensState) -> Carried:
    """Return the part of a state that passes from segment to segment."""
    if state.inner is None:
        return state.memory
    return TokensAndPrevious(state.memory, state.inner) if state.memory.shape[1] else state.inner


def associations_of(memory: Carried | None) -> Memories:
    """Return the associations of every layer; none if the memory has no associative part."""
    if isinstance(memory, LayerStates):
        return memory.memories
    plain = type(memory) is tuple  # not a NamedTuple
    return memory if plain else ()  # type: ignore[return-value]


def continued(empty: TokensState, memory: Carried, repeat: bool = False) -> TokensState:
    """Return the state of a text that continues from `memory`; `empty` is that of a new text.

    `repeat`: several rows of the batch may continue from one row of the memory.
    """
    given, batch = _repeated(empty, memory, repeat), len(empty.started)
    if any(len(leaf) != batch for _, leaf in leaves(given)):
        raise _misfit(empty, memory)
    given = tree_zip(lambda leaf, like: leaf.to(like), given, carried(empty))
    if isinstance(given, Tensor):
        return TokensState(given, torch.ones_like(empty.started), None)
    if isinstance(given, TokensAndPrevious):
        return TokensState(given.tokens, torch.ones_like(empty.started), given.previous)
    return empty._replace(inner=given)


def _repeated(empty: TokensState, memory: Carried, repeat: bool) -> Carried:
    needed = carried(empty)
    if isinstance(memory, Tensor) != isinstance(needed, Tensor) or len(memory) == 0:
        raise _misfit(empty, memory)
    shapes = [[(name, leaf.shape[1:]) for name, leaf in leaves(part)] for part in (memory, needed)]
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
    return MnemoError(f"this is not a memory that this model returned for {batch} rows: it needs {_in_words(needed)}")


def _in_words(needed: Carried) -> str:
    if isinstance(needed, Tensor):
        return f"memory tokens {tuple(needed.shape)}"
    if isinstance(needed, TokensAndPrevious):
        return f"memory tokens {tuple(needed.tokens.shape)} and the previous segment"
    if isinstance(needed, PreviousSegment):
        return "the previous segment"
    layers = needed.memories if isinstance(needed, LayerStates) else needed
    return f"{len(layers)} layers" + (" and the previous segment" if isinstance(needed, LayerStates) else "")
