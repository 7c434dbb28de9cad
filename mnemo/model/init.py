"""The published initialisation of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mnemo.memory.protocol import DrawsOwnWeights
from mnemo.model.config import InitConfig
from mnemo.model.layers.modules import RMSNorm

RESIDUAL = ("attention.output.weight", "feed_forward.outer.weight")
"""Weights whose products are added to the residual."""
PROJECTIONS = ("embedding.projections", "softmax.projections")


@torch.no_grad()
def initialize(model: nn.Module, config: InitConfig, kept: tuple[str, ...] = ()) -> None:
    """Draw weights from N(0, std), norm weights from N(1, std), embedding projections narrower; biases are 0.

    Parameters whose names begin with one of `kept` have been drawn already.
    """
    num_residual = sum(name.endswith(RESIDUAL) for name, _ in model.named_parameters())
    for name, parameter in model.named_parameters():
        # Parameters on the meta device have shapes only: their values are loaded later, and drawing is slow there.
        if not parameter.is_meta and not name.startswith(kept):
            _draw(parameter, name, model.get_submodule(name.rpartition(".")[0]), config)
            if name.endswith(RESIDUAL):
                parameter.mul_(_residual_factor(config, num_residual))


def _residual_factor(config: InitConfig, count: int) -> float:
    return {"same": 1.0, "scaled": max(1, count) ** -0.5, "zero": 0.0}[config.residual]


def _draw(parameter: Tensor, name: str, owner: nn.Module, config: InitConfig) -> None:
    if isinstance(owner, (nn.LayerNorm, RMSNorm)):
        _draw_norm(parameter, name, config)
    elif isinstance(owner, DrawsOwnWeights):
        owner.reset_parameters()
    elif name.endswith("bias") or ".biases." in name:
        parameter.zero_()
    elif config.kind == "uniform":
        parameter.uniform_(-config.bound, config.bound)
    else:
        parameter.normal_(0.0, config.projection_std if name.startswith(PROJECTIONS) else config.std)


def _draw_norm(parameter: Tensor, name: str, config: InitConfig) -> None:
    if name.endswith("weight"):
        parameter.normal_(1.0, config.std)
    elif config.norm_bias_std:
        parameter.normal_(0.0, config.norm_bias_std)
    else:
        parameter.zero_()
