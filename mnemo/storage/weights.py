"""The weights of a model: build a model, check that stored weights fit it, copy them in."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from mnemo.errors import MnemoError, one_line, unknown
from mnemo.files.tensor_file import Tensors
from mnemo.model import Model, ModelConfig

DEVICES = ("auto", "cpu", "cuda", "cuda:1", "mps")
"""Examples of names; torch knows further ones."""
OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "metal": "mps", "apple": "mps"}
"""What people call devices, and torch's names for them."""


def pick_device(name: str | torch.device) -> torch.device:
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise _unknown_device(name) from None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise MnemoError(f"device '{name}' cannot be used: {str(error).splitlines()[0]}") from None
    return device


def _unknown_device(name: str) -> MnemoError:
    """An error that suggests a name; by its spelling alone, 'gpu' would be taken for a misspelt 'cpu'."""
    kind, colon, index = name.lower().partition(":")
    meant = f"{OTHER_NAMES.get(kind, kind)}{colon}{index}"
    if kind in OTHER_NAMES or (meant != name and meant in DEVICES):
        return MnemoError(f"unknown device '{name}'; did you mean '{meant}'?")
    return unknown("device", name, DEVICES)


def build_model(config: ModelConfig, precision: str) -> Model:
    """A model with new weights, in the type that they are trained in."""
    try:
        model = Model(config)
    except (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise MnemoError(f"model: {one_line(error)}") from None
    return model.double() if precision == "fp64" else model


@torch.no_grad()
def load_weights(model: nn.Module, weights: Tensors, path: Path) -> None:
    """Copy weights into a model; names, shapes and types must match."""
    check_weights(model, weights, path)
    for name, tensor in model.state_dict().items():
        # A copy has an aligned address; on a loaded tensor the last bit of a product could differ.
        tensor.copy_(weights[name])


def check_weights(model: nn.Module, weights: Tensors, path: Path) -> None:
    check_tensors(weights, model.state_dict(), path)


def check_tensors(tensors: Tensors, expected: Tensors, path: Path) -> None:
    """Raise an error if a name, shape or type differs."""
    for name in sorted(expected.keys() ^ tensors.keys()):
        relation = "has no" if name in expected else "has an unexpected"
        raise MnemoError(f"{path} is of another configuration: it {relation} tensor '{name}'")
    for name, tensor in expected.items():
        check_like(tensors[name], tensor, name, path)


def check_like(tensor: Tensor, expected: Tensor, name: str, path: Path) -> None:
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        found, wanted = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (tensor, expected))
        raise MnemoError(f"{path} is of another configuration: '{name}' is {found}, the model has {wanted}")
