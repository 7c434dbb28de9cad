"""Memories: what a layer keeps of earlier segments. One file a mechanism."""

from mnemo.memory.compressive import Compressive, CompressiveState
from mnemo.memory.infinite import Infinite, InfiniteState
from mnemo.memory.lookahead import Lookahead, LookaheadState
from mnemo.memory.memory_tokens import MemoryTokens, RecurrentMemory, TokensState, WithMemoryTokens
from mnemo.memory.plan import AnyMemory, Plan
from mnemo.memory.recurrent import LSTM, QRNN, LSTMState, QRNNState
from mnemo.memory.xl import XL, XLCache, XLState

__all__ = [
    "LSTM",
    "QRNN",
    "XL",
    "AnyMemory",
    "Compressive",
    "CompressiveState",
    "Infinite",
    "InfiniteState",
    "LSTMState",
    "Lookahead",
    "LookaheadState",
    "MemoryTokens",
    "Plan",
    "QRNNState",
    "RecurrentMemory",
    "TokensState",
    "WithMemoryTokens",
    "XLCache",
    "XLState",
]
