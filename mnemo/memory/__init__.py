"""Memories: the data that a layer keeps of earlier segments. One file a mechanism."""

from mnemo.memory.compressive import Compressive, CompressiveState
from mnemo.memory.infinite import Infinite, InfiniteState
from mnemo.memory.kv_buffer import KeyValueCache
from mnemo.memory.lookahead import Lookahead, LookaheadState
from mnemo.memory.memory_tokens import (
    MemoryTokens,
    RecurrentMemory,
    TokensState,
    WithMemoryTokens,
    with_memory_of,
)
from mnemo.memory.plan import AnyInputMemory, AnyMemory, Plan
from mnemo.memory.recurrent import LSTM, QRNN, LSTMState, QRNNState
from mnemo.memory.xl import XL, XLState

__all__ = [
    "LSTM",
    "QRNN",
    "XL",
    "AnyInputMemory",
    "AnyMemory",
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
    "XLState",
    "with_memory_of",
]
