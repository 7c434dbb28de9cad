"""Checks of weights, position frequencies and gradients that all reference files share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mnemo.errors import MnemoError, unknown
from mnemo.interop.convert.tensor_map import TensorMap
from mnemo.interop.parity.reference import Reference


def require_float64(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters; an error if one of them is not float64."""
    if any(tensor.dtype != torch.float64 for tensor in parameters.values()):
        raise MnemoError("reference values must be float64")
    return parameters


def check_frequencies(reference: Reference, key: str, dim: int) -> None:
    """Compare the frequencies of the sinusoids, if the file has them."""
    if key in reference:
        exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        reference.check("positions", key, 10000.0**-exponents)


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
