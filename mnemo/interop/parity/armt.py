"""Compare with reference files of ARMT, the associative memory of layers: loss, logits, states and all gradients.

The authors' module wraps layers of one of our models. The file has that model's configuration, its weights under our
names, and the tokens of several segments; the gradient of the loss flows through all of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.config import from_json
from mnemo.errors import MnemoError
from mnemo.interop.convert.transformer_xl import empty_model
from mnemo.interop.parity.reference import Reference
from mnemo.memory import AssociativeState, TokensState
from mnemo.model import Model, ModelConfig


def check(reference: Reference) -> None:
    model = load(reference)
    tokens = reference.ids("tokens")
    logits, states = read(model, tokens, reference.setting("segment", int))
    for number, (scores, state) in enumerate(zip(logits, states, strict=True)):
        reference.check("logits", f"seg{number}/logits", scores)
        _check_state(reference, f"seg{number}/", state)
    loss = F.cross_entropy(torch.cat(logits, 1)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    reference.check("losses", "loss", loss)
    loss.backward()
    for name, parameter in model.named_parameters():
        if f"grad/{name}" in reference:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            reference.check("gradients", f"grad/{name}", gradient)


def load(reference: Reference) -> Model:
    """Return the file's model, with its weights."""
    reference.setting("commit", str)
    reference.setting("options", dict)
    model = empty_model(from_json(ModelConfig, reference.config.get("model"), "model"))
    weights = reference.group("weights/")
    if {name: tensor.shape for name, tensor in weights.items()} != {
        name: tensor.shape for name, tensor in model.state_dict().items()
    }:
        raise MnemoError("the weights are not those of the configuration")
    if any(tensor.dtype != torch.float64 for tensor in weights.values()):
        raise MnemoError("reference values must be float64")
    model.load_state_dict(weights, assign=True)
    return model.eval()


def read(model: Model, tokens: Tensor, segment: int) -> tuple[list[Tensor], list[TokensState]]:
    """Return the logits of every segment, and the state after it, with gradient between segments."""
    if segment < 1:
        raise MnemoError(f"configuration: segments of {segment} tokens")
    state, logits, states = None, [], []
    for part in tokens.split(segment, 1):
        out, state = model(part, state)
        logits.append(model.logits(out))
        states.append(state)
    return logits, states


def _check_state(reference: Reference, prefix: str, state: TokensState) -> None:
    for index, memory in enumerate(state.inner):
        if not isinstance(memory, AssociativeState):
            raise MnemoError(f"configuration: layer {index} has no associative memory")
        reference.check("states", f"{prefix}matrix.{index}", memory.matrix)
        if memory.normaliser.numel():
            reference.check("states", f"{prefix}normaliser.{index}", memory.normaliser)
