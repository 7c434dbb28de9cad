"""The loss of a segment compiled, for every segment of a run's usual shape: as one graph, or layer by layer.

One graph takes a minute or two to compile. All layers are alike, so one of them can be compiled for all: that takes
seconds, and inside a layer the same operations are fused. Segments of other shapes, such as an epoch's last one, are
not compiled: compiling them would take longer than running them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.data.streams import Batch
from mnemo.errors import one_line
from mnemo.memory.state import State
from mnemo.model import Model, Output, stage_layers
from mnemo.model.positions.modules import RelativePositions
from mnemo.ops.sources import sources_hash
from mnemo.training.weight_update import LossTerms, SegmentLoss, segment_loss, target_losses

COMPILERS = ("torch._dynamo", "torch._inductor")
LAYER_METHODS = ("keys_values", "attend", "finish")
"""Together nearly all of a layer's work."""
WHOLE_LAYER = ("output_after", "output_after_joined")
"""Each is all of a layer's work, for mechanisms that need no part of it by itself."""


def against_compiling(model: Model) -> str | None:
    """Why a model cannot be compiled as one graph, or None."""
    memories = model.config.memory.memories(model.config.num_layers)
    return next((reason for memory in memories if (reason := memory.traits.compile_obstacle)), None)


def is_adaptive(model: Model) -> bool:
    """Whether the softmax has bins: the number of targets in each depends on the data."""
    return len(model.softmax.bins) > 1


def sizes_vary(model: Model) -> bool:
    """Whether the shapes of the loss depend on the targets, so that it cannot be compiled."""
    return is_adaptive(model) and not model.softmax.fixed_sizes


def with_fixed_bins(model: Model) -> Model:
    """A copy that shares all weights; the bins of its softmax have fixed sizes."""
    fixed = copy.copy(model)
    fixed._modules = {**model._modules, "softmax": copy.copy(model.softmax)}
    fixed.softmax.fixed_sizes = True
    return fixed


class CompiledLoss:
    """`segment_loss` compiled. If compiling fails, `note` is called, and segments run uncompiled from then on."""

    def __init__(
        self,
        model: Model,
        *,
        length: int,
        recompute: bool,
        note: Callable[[str], None],
        backend: str = "inductor",
        by_layer: bool = False,
        z_loss: float = 0.0,
    ) -> None:
        self.plain: SegmentLoss = partial(segment_loss, recompute=recompute, z_loss=z_loss)
        self._length, self._note = length, note
        self._compiled: SegmentLoss | None
        if by_layer:
            self._compiled = _by_layer(model, self.plain, backend)
        else:
            self._compiled = _as_one(model, self.plain, recompute, z_loss, backend)

    def __call__(self, model: Model, batch: Batch, state: State, scored: bool = True) -> LossTerms:
        if self._compiled is not None and batch.tokens.shape[1] == self._length and batch.lengths is None:
            try:
                return self._compiled(model, batch, state, scored)
            except RuntimeError as error:
                if not type(error).__module__.startswith(COMPILERS):
                    raise
                self._compiled = None
                self._note(f"compiling failed, continuing without it, slower: {one_line(error)}")
        return self.plain(model, batch, state, scored)


def _as_one(model: Model, plain: SegmentLoss, recompute: bool, z_loss: float, backend: str) -> SegmentLoss:
    if sizes_vary(model):
        return partial(_loss_apart, _compile(partial(_hidden, recompute=recompute), backend), z_loss)
    return _compile(plain, backend)


def _by_layer(model: Model, plain: SegmentLoss, backend: str) -> SegmentLoss:
    """The loss computed by a copy of the model with compiled methods; the model itself stays uncompiled."""
    compiled = with_compiled_methods(model, _methods(model), backend)

    def forward(model: Model, batch: Batch, state: State, scored: bool = True) -> LossTerms:
        with warnings.catch_warnings():
            # The compiler looks at the gradients of a layer's inputs, for which torch warns that they have none.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            return plain(compiled, batch, state, scored)

    return forward


def _methods(model: Model) -> dict[nn.Module, tuple[str, ...]]:
    """The methods to compile: whole stages without weights besides their layer's, layers or their parts, the loss.

    A compiled stage or layer saves the copies, sums and random draws at the borders of its parts. If every layer has
    its own weights for positions, each stage would be compiled separately.
    """
    plan, memories = model.config.memory, model.config.memory.memories(model.config.num_layers)
    shared = isinstance(model.positions, RelativePositions) and model.positions.config.shared_projection
    groups = zip(model.stages, stage_layers(plan, model.config.num_layers), strict=True)
    single = [stage for stage, group in groups if memories[group[0]].traits.key_value_cache]
    found: dict[nn.Module, tuple[str, ...]] = {stage: ("forward",) for stage in single} if shared else {}
    whole = {stage.layer for stage in single}
    if not shared:
        found |= {layer: WHOLE_LAYER for layer in model.layers() if layer in whole}
    found |= {layer: LAYER_METHODS for layer in model.layers() if layer not in whole}
    if shared and len(whole) < model.config.num_layers:
        found[model.positions] = ("shared",)
    return found if sizes_vary(model) else found | {model: ("loss", "loss_and_squared_lse")}


def with_compiled_methods(model: Model, methods: Mapping[nn.Module, tuple[str, ...]], backend: str) -> Model:
    """A copy of a model that shares its weights, buffers and hooks, and has compiled methods in some modules."""
    copies: dict[nn.Module, nn.Module] = {}
    compiled = copy_modules(model, copies)
    for module, names in methods.items():
        copies[module].__class__ = _compiled_class(type(module), names, backend)
    return compiled


def copy_modules(model: Model, copies: dict[nn.Module, nn.Module]) -> Model:
    """A copy of a model and all of its modules that shares their weights, buffers and hooks.

    `copies` receives the copy of every module.
    """

    def copied(module: nn.Module | None) -> nn.Module | None:
        if module is None:
            return None
        if module not in copies:
            other = copies[module] = copy.copy(module)
            other._modules = {name: copied(child) for name, child in module._modules.items()}
        return copies[module]

    return copied(model)  # type: ignore[return-value]


@cache
def _compiled_class(kind: type, names: tuple[str, ...], backend: str) -> type:
    """A subclass whose methods are compiled: once, for all modules of the class and all models of this process."""
    return type(f"Compiled{kind.__name__}", (kind,), {name: _compile(getattr(kind, name), backend) for name in names})


def _compile(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    # Graphs in torch's caches contain backward passes of Mnemo's operators, but are found by their forward passes only.
    torch.compiler.config.cache_key_tag = f"mnemo {sources_hash()}"
    return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)


def _hidden(
    model: Model, batch: Batch, state: State, scored: bool, recompute: bool
) -> tuple[Tensor, Tensor | float, State]:
    out, state = model(batch.tokens, state, lengths=batch.lengths, starts=batch.starts, recompute=recompute)
    return out.hidden, sum(out.aux.values()), state


def _loss_apart(
    hidden_rows: Callable[..., tuple[Tensor, Tensor | float, State]],
    z_loss: float,
    model: Model,
    batch: Batch,
    state: State,
    scored: bool,
) -> LossTerms:
    """The loss of rows from a compiled graph, itself not compiled."""
    hidden, aux, state = hidden_rows(model, batch, state, scored)
    if not scored:
        return None, 0.0, aux, state
    return *target_losses(model, Output(hidden, {}), batch.targets, z_loss), aux, state
