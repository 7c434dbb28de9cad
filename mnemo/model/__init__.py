"""The transformer: its configuration, layers, positions and embedding. It uses the memory protocol only.

The configuration classes import no torch; the other names are loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.lazy import lazy_names
from mnemo.model.config import InitConfig, ModelConfig

if TYPE_CHECKING:
    from mnemo.model.model import Model, Output, attention_obstacle, evaluating, rows_obstacle
    from mnemo.model.stages import stage_layers

__all__ = [
    "InitConfig",
    "Model",
    "ModelConfig",
    "Output",
    "attention_obstacle",
    "evaluating",
    "rows_obstacle",
    "stage_layers",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.model.model": ("Model", "Output", "attention_obstacle", "evaluating", "rows_obstacle"),
        "mnemo.model.stages": ("stage_layers",),
    },
)
