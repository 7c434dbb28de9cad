"""Memories: the data that a layer keeps of earlier segments. One folder a mechanism.

`NAME/__init__.py` describes a mechanism and holds its configuration; `NAME/modules.py` holds its state and its modules,
and alone imports torch. So the names of states and modules are loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.lazy import lazy_names
from mnemo.memory.associative import Associative
from mnemo.memory.compressive import Compressive
from mnemo.memory.infinite import Infinite
from mnemo.memory.lookahead import Lookahead
from mnemo.memory.memory_tokens import MemoryTokens, WriteTokens
from mnemo.memory.own import mechanism
from mnemo.memory.plan import AnyInputMemory, AnyMemory, Plan
from mnemo.memory.recurrent import LSTM, QRNN
from mnemo.memory.xl import XL

if TYPE_CHECKING:
    from mnemo.memory.associative.modules import Associations, AssociativeMemory
    from mnemo.memory.associative.stage import AssociativeState
    from mnemo.memory.compressive.modules import CompressiveState
    from mnemo.memory.infinite.modules import InfiniteState
    from mnemo.memory.kv_buffer import KeyValueCache
    from mnemo.memory.lookahead.modules import LookaheadState
    from mnemo.memory.memory_tokens.modules import RecurrentMemory, TokensState, WithMemoryTokens, with_memory_of
    from mnemo.memory.recurrent.modules import LSTMState, QRNNState
    from mnemo.memory.xl.modules import XLState

__all__ = [
    "LSTM",
    "QRNN",
    "XL",
    "AnyInputMemory",
    "AnyMemory",
    "Associations",
    "Associative",
    "AssociativeMemory",
    "AssociativeState",
    "Compressive",
    "CompressiveState",
    "Infinite",
    "InfiniteState",
    "KeyValueCache",
    "LSTMState",
    "Lookahead",
    "LookaheadState",
    "MemoryTokens",
    "Plan",
    "QRNNState",
    "RecurrentMemory",
    "TokensState",
    "WithMemoryTokens",
    "WriteTokens",
    "XLState",
    "mechanism",
    "with_memory_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.memory.associative.modules": ("Associations", "AssociativeMemory"),
        "mnemo.memory.associative.stage": ("AssociativeState",),
        "mnemo.memory.compressive.modules": ("CompressiveState",),
        "mnemo.memory.infinite.modules": ("InfiniteState",),
        "mnemo.memory.kv_buffer": ("KeyValueCache",),
        "mnemo.memory.lookahead.modules": ("LookaheadState",),
        "mnemo.memory.memory_tokens.modules": ("RecurrentMemory", "TokensState", "WithMemoryTokens", "with_memory_of"),
        "mnemo.memory.recurrent.modules": ("LSTMState", "QRNNState"),
        "mnemo.memory.xl.modules": ("XLState",),
    },
)
