"""Adapters to the Hugging Face libraries. Names load when they are used."""

from __future__ import annotations

import importlib
from typing import Any

_MODULE_OF = {
    "Curriculum": "mnemo.hf.memory.curriculum",
    "CurriculumCallback": "mnemo.hf.memory.curriculum",
    "MemoryCache": "mnemo.hf.memory.cache",
    "MemoryConfig": "mnemo.hf.memory.options",
    "MemoryForCausalLM": "mnemo.hf.memory.modeling",
    "MemoryForSequenceClassification": "mnemo.hf.memory.modeling",
    "add_memory": "mnemo.hf.memory.attach",
    "load_adapter": "mnemo.hf.memory.adapter",
    "save_adapter": "mnemo.hf.memory.adapter",
}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mnemo.hf' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
