"""Compile the layers of a model with memory; a layer reads its associative memory before and writes it after.

Reading, the layer and writing are one compiled function. A GPU would otherwise wait for Python between them: each
compiled function checks its arguments at every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnemo.hf.memory_tokens.backbone import body_of
from mnemo.hf.memory_tokens.layer_memory import AssociativeTokens, LayerHooks, layers_of, written_after
from mnemo.memory.associative.modules import Associations, AssociativeMemory

MOST_GRAPHS = 64
"""First, middle and last segments, with gradient and without, and batches of training, checks and tests have graphs of
their own; PyTorch's limit of 8 would run others uncompiled."""


def compile_layers(model: Any) -> None:
    """Compile the layers of a model with memory. All layers share one program."""
    torch._dynamo.config.recompile_limit = max(MOST_GRAPHS, torch._dynamo.config.recompile_limit)
    layers, memory = layers_of(body_of(model.backbone)), model.memory_tokens
    if not isinstance(memory, AssociativeTokens):
        for layer in layers:
            layer.forward = torch.compile(layer.forward, dynamic=False)
        return
    memory.hooks.act_in_layers()
    for index, layer in enumerate(layers):
        layer.forward = _LayerWithMemory(layer, memory.hooks, index)


class _LayerWithMemory:
    """The forward method of a layer, with the memory of the active call."""

    def __init__(self, layer: nn.Module, hooks: LayerHooks, index: int) -> None:
        self.layer, self.hooks, self.index = layer, hooks, index
        self.alone = torch.compile(layer.forward, dynamic=False)
        self.joined = torch.compile(_joined, dynamic=False)

    def __call__(self, rows: Tensor, *args: Any, **kwargs: Any) -> Any:
        call = self.hooks.call
        if call is None:
            return self.alone(rows, *args, **kwargs)
        weights: Any = call.weights[self.index]
        before = None if call.memories is None else call.memories[self.index]
        lengths = call.lengths if call.num_written else None
        out, written = self.joined(self.layer, weights, rows, before, call.num_written, lengths, args, kwargs)
        call.add_written(written)
        return out


def _joined(
    layer: nn.Module,
    weights: AssociativeMemory,
    rows: Tensor,
    before: Associations | None,
    num_written: int,
    lengths: Tensor | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Associations | None]:
    """Return the output of a layer after reading `before`, and the memory after its output."""
    out = type(layer).forward(layer, rows if before is None else weights.add_read(rows, before), *args, **kwargs)
    if num_written == 0:
        return out, None
    return out, written_after(weights, out if isinstance(out, Tensor) else out[0], before, num_written, lengths)
