"""Adapters to the Hugging Face libraries. Names load when they are used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemo.hf.memory.adapter import load_adapter, save_adapter
    from mnemo.hf.memory.attach import add_memory
    from mnemo.hf.memory.cache import MemoryCache
    from mnemo.hf.memory.curriculum import Curriculum, CurriculumCallback
    from mnemo.hf.memory.modeling import MemoryForCausalLM, MemoryForSequenceClassification
    from mnemo.hf.memory.options import MemoryConfig

_HOME = {
    "mnemo.hf.memory.adapter": ("load_adapter", "save_adapter"),
    "mnemo.hf.memory.attach": ("add_memory",),
    "mnemo.hf.memory.cache": ("MemoryCache",),
    "mnemo.hf.memory.curriculum": ("Curriculum", "CurriculumCallback"),
    "mnemo.hf.memory.modeling": ("MemoryForCausalLM", "MemoryForSequenceClassification"),
    "mnemo.hf.memory.options": ("MemoryConfig",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Curriculum",
    "CurriculumCallback",
    "MemoryCache",
    "MemoryConfig",
    "MemoryForCausalLM",
    "MemoryForSequenceClassification",
    "add_memory",
    "load_adapter",
    "save_adapter",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mnemo.hf' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
