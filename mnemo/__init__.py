"""Mnemo: memory transformers. `out, state = model(tokens, state)`.

The public interface. Names are loaded at first use, so that the command line starts without torch. Functions that share
a name with their module are imported from there: `from mnemo.train import train`, likewise `evaluate` and `generate`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mnemo.checkpoint import LoadedRun, open_run
    from mnemo.data.corpus import Corpus, Split
    from mnemo.data.prepare import prepare
    from mnemo.data.streams import Batch, ContiguousStream, SentenceStream
    from mnemo.decode import Decoder, DecodeState
    from mnemo.embedding import EmbeddingConfig
    from mnemo.errors import CheckFailed, MnemoError
    from mnemo.evaluate import Score
    from mnemo.layers import DropoutConfig
    from mnemo.memory import LSTM, QRNN, XL, Compressive, Infinite, Lookahead, MemoryTokens, Plan
    from mnemo.memory_file import load_memory, save_memory
    from mnemo.model import InitConfig, Model, ModelConfig, Output
    from mnemo.ops import relative_attention, relative_attention_reference
    from mnemo.positions import Learned, NoPositions, Relative, Rotary, Shaw, Sinusoidal
    from mnemo.presets import preset
    from mnemo.recipe import DataConfig, EvalConfig, Recipe, TrainConfig
    from mnemo.train import create_run

_HOME = {
    "mnemo.checkpoint": ("LoadedRun", "open_run"),
    "mnemo.data.corpus": ("Corpus", "Split"),
    "mnemo.data.prepare": ("prepare",),
    "mnemo.data.streams": ("Batch", "ContiguousStream", "SentenceStream"),
    "mnemo.decode": ("DecodeState", "Decoder"),
    "mnemo.embedding": ("EmbeddingConfig",),
    "mnemo.errors": ("CheckFailed", "MnemoError"),
    "mnemo.evaluate": ("Score",),
    "mnemo.layers": ("DropoutConfig",),
    "mnemo.memory": ("Compressive", "Infinite", "LSTM", "Lookahead", "MemoryTokens", "Plan", "QRNN", "XL"),
    "mnemo.memory_file": ("load_memory", "save_memory"),
    "mnemo.model": ("InitConfig", "Model", "ModelConfig", "Output"),
    "mnemo.ops": ("relative_attention", "relative_attention_reference"),
    "mnemo.positions": ("Learned", "NoPositions", "Relative", "Rotary", "Shaw", "Sinusoidal"),
    "mnemo.presets": ("preset",),
    "mnemo.recipe": ("DataConfig", "EvalConfig", "Recipe", "TrainConfig"),
    "mnemo.train": ("create_run",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "LSTM",
    "QRNN",
    "XL",
    "Batch",
    "CheckFailed",
    "Compressive",
    "ContiguousStream",
    "Corpus",
    "DataConfig",
    "DecodeState",
    "Decoder",
    "DropoutConfig",
    "EmbeddingConfig",
    "EvalConfig",
    "Infinite",
    "InitConfig",
    "Learned",
    "LoadedRun",
    "Lookahead",
    "MemoryTokens",
    "MnemoError",
    "Model",
    "ModelConfig",
    "NoPositions",
    "Output",
    "Plan",
    "Recipe",
    "Relative",
    "Rotary",
    "Score",
    "SentenceStream",
    "Shaw",
    "Sinusoidal",
    "Split",
    "TrainConfig",
    "create_run",
    "load_memory",
    "open_run",
    "prepare",
    "preset",
    "relative_attention",
    "relative_attention_reference",
    "save_memory",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mnemo' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
