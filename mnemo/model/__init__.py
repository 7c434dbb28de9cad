"""The transformer: its configuration, layers, positions and embedding. It knows the memory protocol only."""

from mnemo.model.model import (
    InitConfig,
    Model,
    ModelConfig,
    Output,
    attention_objection,
    evaluating,
    stage_layers,
)

__all__ = ["InitConfig", "Model", "ModelConfig", "Output", "attention_objection", "evaluating", "stage_layers"]
