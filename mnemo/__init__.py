"""Mnemo: memory transformers. `out, state = model(tokens, state)`.

The public interface. Names are loaded at first use, so that the command line starts without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.lazy import lazy_names

__version__ = "0.2.0"

if TYPE_CHECKING:
    from mnemo.data.corpus import Corpus, Split
    from mnemo.data.prepare import prepare
    from mnemo.data.streams import Batch, ContiguousStream, SentenceStream
    from mnemo.errors import CheckFailed, MnemoError
    from mnemo.evaluation.perplexity import evaluate
    from mnemo.evaluation.score import Score
    from mnemo.inference.decoder import Decoder, DecodeState
    from mnemo.inference.generation import generate
    from mnemo.memory import LSTM, QRNN, XL, Compressive, Infinite, Lookahead, MemoryTokens, Plan
    from mnemo.model import InitConfig, Model, ModelConfig, Output
    from mnemo.model.embedding import EmbeddingConfig
    from mnemo.model.layers import DropoutConfig
    from mnemo.model.positions import Learned, NoPositions, Relative, Rotary, Shaw, Sinusoidal
    from mnemo.ops import relative_attention, relative_attention_reference
    from mnemo.recipes.presets import preset
    from mnemo.recipes.recipe import DataConfig, EvalConfig, Recipe, TrainConfig
    from mnemo.run import Run, open_run
    from mnemo.session.session import Session
    from mnemo.storage.memory_file import load_memory, save_memory
    from mnemo.storage.run_folder import LoadedRun
    from mnemo.training import create_run, train

_HOME = {
    "mnemo.run": ("Run", "open_run"),
    "mnemo.session.session": ("Session",),
    "mnemo.storage.run_folder": ("LoadedRun",),
    "mnemo.data.corpus": ("Corpus", "Split"),
    "mnemo.data.prepare": ("prepare",),
    "mnemo.data.streams": ("Batch", "ContiguousStream", "SentenceStream"),
    "mnemo.inference.decoder": ("DecodeState", "Decoder"),
    "mnemo.model.embedding": ("EmbeddingConfig",),
    "mnemo.errors": ("CheckFailed", "MnemoError"),
    "mnemo.evaluation.perplexity": ("evaluate",),
    "mnemo.evaluation.score": ("Score",),
    "mnemo.model.layers": ("DropoutConfig",),
    "mnemo.inference.generation": ("generate",),
    "mnemo.memory": ("Compressive", "Infinite", "LSTM", "Lookahead", "MemoryTokens", "Plan", "QRNN", "XL"),
    "mnemo.storage.memory_file": ("load_memory", "save_memory"),
    "mnemo.model": ("InitConfig", "Model", "ModelConfig", "Output"),
    "mnemo.ops": ("relative_attention", "relative_attention_reference"),
    "mnemo.model.positions": ("Learned", "NoPositions", "Relative", "Rotary", "Shaw", "Sinusoidal"),
    "mnemo.recipes.presets": ("preset",),
    "mnemo.recipes.recipe": ("DataConfig", "EvalConfig", "Recipe", "TrainConfig"),
    "mnemo.training": ("create_run", "train"),
}

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
    "Run",
    "Score",
    "SentenceStream",
    "Session",
    "Shaw",
    "Sinusoidal",
    "Split",
    "TrainConfig",
    "create_run",
    "evaluate",
    "generate",
    "load_memory",
    "open_run",
    "prepare",
    "preset",
    "relative_attention",
    "relative_attention_reference",
    "save_memory",
    "train",
]


__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
