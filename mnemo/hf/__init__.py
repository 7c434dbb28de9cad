"""Mnemo models in the Hugging Face ecosystem. Importing this package registers them with the Auto classes:

    import mnemo.hf
    model = AutoModelForCausalLM.from_pretrained(FOLDER)

This package is an adapter: the core never imports transformers. Names are loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mnemo.errors import MnemoError, install_command

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise MnemoError(f"mnemo.hf needs the transformers library, version 5: {install_command('hf')}") from None

if int(transformers.__version__.partition(".")[0]) < 5:
    raise MnemoError(f"mnemo.hf needs transformers 5, not {transformers.__version__}: {install_command('hf')}")

if TYPE_CHECKING:
    from mnemo.hf.cache import MnemoCache
    from mnemo.hf.configuration import MnemoConfig
    from mnemo.hf.graph_export import export_onnx, export_step, step_state
    from mnemo.hf.memory_tokens.adapter import load_adapter, save_adapter
    from mnemo.hf.memory_tokens.attach import add_memory
    from mnemo.hf.memory_tokens.cache import MemoryCache
    from mnemo.hf.memory_tokens.curriculum import Curriculum, CurriculumCallback
    from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM, MemoryForSequenceClassification
    from mnemo.hf.memory_tokens.options import MemoryConfig
    from mnemo.hf.memory_tokens.text_memory import TextMemory
    from mnemo.hf.modeling import MnemoForCausalLM
    from mnemo.hf.run_folders import from_run, to_run
    from mnemo.hf.tokenization import MnemoTokenizer
    from mnemo.hf.training import StreamData, StreamTrainer

_HOME = {
    "mnemo.hf.cache": ("MnemoCache",),
    "mnemo.hf.configuration": ("MnemoConfig",),
    "mnemo.hf.graph_export": ("export_onnx", "export_step", "step_state"),
    "mnemo.hf.run_folders": ("from_run", "to_run"),
    "mnemo.hf.memory_tokens.adapter": ("load_adapter", "save_adapter"),
    "mnemo.hf.memory_tokens.attach": ("add_memory",),
    "mnemo.hf.memory_tokens.cache": ("MemoryCache",),
    "mnemo.hf.memory_tokens.curriculum": ("Curriculum", "CurriculumCallback"),
    "mnemo.hf.memory_tokens.modeling": ("MemoryForCausalLM", "MemoryForSequenceClassification"),
    "mnemo.hf.memory_tokens.options": ("MemoryConfig",),
    "mnemo.hf.memory_tokens.text_memory": ("TextMemory",),
    "mnemo.hf.modeling": ("MnemoForCausalLM",),
    "mnemo.hf.tokenization": ("MnemoTokenizer",),
    "mnemo.hf.training": ("StreamData", "StreamTrainer"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Curriculum",
    "CurriculumCallback",
    "MemoryCache",
    "MemoryConfig",
    "MemoryForCausalLM",
    "MemoryForSequenceClassification",
    "MnemoCache",
    "MnemoConfig",
    "MnemoForCausalLM",
    "MnemoTokenizer",
    "StreamData",
    "StreamTrainer",
    "TextMemory",
    "add_memory",
    "export_onnx",
    "export_step",
    "from_run",
    "load_adapter",
    "save_adapter",
    "step_state",
    "to_run",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mnemo.hf' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _register() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    importlib.import_module("mnemo.hf.memory_tokens.attach")  # registers the models with memory tokens
    from mnemo.hf.configuration import MnemoConfig
    from mnemo.hf.modeling import MnemoForCausalLM
    from mnemo.hf.tokenization import MnemoTokenizer

    AutoConfig.register(MnemoConfig.model_type, MnemoConfig, exist_ok=True)
    AutoModelForCausalLM.register(MnemoConfig, MnemoForCausalLM, exist_ok=True)
    AutoTokenizer.register(MnemoConfig, MnemoTokenizer, exist_ok=True)


_register()
