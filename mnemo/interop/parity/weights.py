"""Load weights, and compare position frequencies and gradients, as all reference files need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from mnemo.errors import MnemoError, unknown
from mnemo.interop.convert.tensor_map import TensorMap
from mnemo.interop.convert.transformer_xl import empty_model, import_weights
from mnemo.interop.parity.reference import Reference
from mnemo.model import Model, ModelConfig


def load_model(
    reference: Reference,
    config: ModelConfig,
    tensor_map: Callable[[Model], TensorMap],
    parameters: Mapping[str, Tensor],
    frequencies: str,
) -> Model:
    """Build our model with the file's parameters, which must be float64.

    `frequencies`: key of the sinusoids' frequencies, which are compared if the file has them.
    """
    if any(tensor.dtype != torch.float64 for tensor in parameters.values()):
        raise MnemoError("reference values must be float64")
    model = empty_model(config)
    model.load_state_dict(import_weights(parameters, config, tensor_map), assign=True)
    if frequencies in reference:
        exponents = torch.arange(0, config.dim, 2, dtype=torch.float64) / config.dim
        reference.check("positions", frequencies, 10000.0**-exponents)
    return model.eval()


def check_gradients(reference: Reference, prefix: str, model: nn.Module, tensor_map: TensorMap) -> None:
    """Compare the gradients of the model with those in the file, whose names have the given prefix."""
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }
    check_tensors(reference, "gradients", prefix, gradients, tensor_map)


def check_tensors(
    reference: Reference, group: str, prefix: str, ours: Mapping[str, Tensor], tensor_map: TensorMap
) -> None:
    """Compare all tensors of the file whose names have the given prefix with ours."""
    for name in reference.group(prefix):
        if name not in tensor_map:
            raise unknown("parameter", name, tensor_map)
        reference.check(group, f"{prefix}{name}", tensor_map[name].take(ours))
