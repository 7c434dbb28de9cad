"""The transformer: its configuration, layers, positions and embedding. It uses the memory protocol only."""

from mnemo.model.config import InitConfig, ModelConfig, attention_obstacle
from mnemo.model.model import Model, Output, evaluating
from mnemo.model.stages import stage_layers

__all__ = ["InitConfig", "Model", "ModelConfig", "Output", "attention_obstacle", "evaluating", "stage_layers"]
