"""Forward pass and loss compiled, for every segment of a run's nominal shape: as one graph, or layer by layer.

One graph takes a minute or two to compile. All layers are alike, so that one of them can be compiled for all: seconds,
and what is fused inside of a layer is the same. Odd segments, such as an epoch's last one, run as they are written: a
graph of their own would take longer to compile than they take to run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.data.streams import Batch
from mnemo.memory.state import State
from mnemo.model import Model, Output, stage_layers
from mnemo.model.positions import RelativePositions
from mnemo.training.step import Forward, segment_loss

COMPILERS = ("torch._dynamo", "torch._inductor")
LAYER_METHODS = ("keys_values", "attend", "finish")
"""Together nearly all of a layer's work."""


def against_compiling(model: Model) -> str | None:
    """Why a model cannot be compiled as one graph, or None."""
    memories = model.config.memory.memories(model.config.num_layers)
    return next((reason for memory in memories if (reason := memory.traits.compile_obstacle)), None)


def is_adaptive(model: Model) -> bool:
    """How many targets fall into each bin of the softmax depends on the data: no compiled graph can hold that."""
    return len(model.softmax.bins) > 1


class Compiled:
    """`segment_loss` compiled; as it is written where compiling fails, which `note` is then told."""

    def __init__(
        self,
        model: Model,
        *,
        length: int,
        recompute: bool,
        note: Callable[[str], None],
        backend: str = "inductor",
        by_layer: bool = False,
    ) -> None:
        self.plain: Forward = partial(segment_loss, recompute=recompute)
        self._length, self._note = length, note
        compiler = partial(torch.compile, fullgraph=True, dynamic=False, backend=backend)
        self._compiled: Forward | None = (
            _by_layer(model, self.plain, compiler) if by_layer else _as_one(model, self.plain, recompute, compiler)
        )

    def __call__(
        self, model: Model, batch: Batch, state: State, scored: bool = True
    ) -> tuple[Tensor | None, Tensor | float, State]:
        if self._compiled is not None and batch.tokens.shape[1] == self._length and batch.lengths is None:
            try:
                return self._compiled(model, batch, state, scored)
            except RuntimeError as error:
                if not type(error).__module__.startswith(COMPILERS):
                    raise
                self._compiled = None
                self._note(f"compiling failed, going on without it, slower: {_first_line(error)}")
        return self.plain(model, batch, state, scored)

    @property
    def failed(self) -> bool:
        return self._compiled is None


def _as_one(model: Model, plain: Forward, recompute: bool, compiler: Callable[..., Any]) -> Forward:
    if is_adaptive(model):
        return partial(_loss_apart, compiler(partial(_hidden, recompute=recompute)))
    return compiler(plain)


def _by_layer(model: Model, plain: Forward, compiler: Callable[..., Any]) -> Forward:
    """Every method is compiled once, whatever the number of modules that have it."""
    methods = _methods(model)
    compiled = {key: compiler(getattr(*key)) for key in {(type(module), name) for module, name in methods}}
    exchanged = [(module, name, partial(compiled[type(module), name], module)) for module, name in methods]

    def forward(
        model: Model, batch: Batch, state: State, scored: bool = True
    ) -> tuple[Tensor | None, Tensor | float, State]:
        with _exchanged(exchanged), warnings.catch_warnings():
            # The compiler looks whether a layer's inputs have gradients, and is warned that they have none.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            return plain(model, batch, state, scored)

    return forward


def _methods(model: Model) -> list[tuple[nn.Module, str]]:
    """What to compile: plain stages that find all of their weights in their layer, parts of other layers, the loss.

    A stage as a whole saves the copies, sums and random draws at the borders of its parts. Where positions have weights
    of their own for every layer, each would be compiled anew.
    """
    plan, memories = model.config.memory, model.config.memory.memories(model.config.num_layers)
    shared = isinstance(model.positions, RelativePositions) and model.positions.config.shared_projection
    found: list[tuple[nn.Module, str]] = []
    if shared:
        groups = zip(model.stages, stage_layers(plan, model.config.num_layers), strict=True)
        found += [(stage, "forward") for stage, group in groups if memories[group[0]].traits.key_value_cache]
    whole = {stage.layer for stage, _ in found}
    found += [(layer, name) for layer in model.layers() if layer not in whole for name in LAYER_METHODS]
    if shared and len(whole) < model.config.num_layers:
        found.append((model.positions, "shared"))
    return found if is_adaptive(model) else [*found, (model, "loss")]


@contextmanager
def _exchanged(functions: list[tuple[nn.Module, str, Callable[..., Any]]]) -> Iterator[None]:
    """Inside, modules use other functions for some of their methods; evaluations see nothing of it."""
    for module, name, function in functions:
        object.__setattr__(module, name, function)
    try:
        yield
    finally:
        for module, name, _ in functions:
            object.__delattr__(module, name)


def _hidden(
    model: Model, batch: Batch, state: State, scored: bool, recompute: bool
) -> tuple[Tensor, Tensor | float, State]:
    out, state = model(batch.tokens, state, lengths=batch.lengths, starts=batch.starts, recompute=recompute)
    return out.hidden, sum(out.aux.values()), state


def _loss_apart(
    read: Callable[..., tuple[Tensor, Tensor | float, State]], model: Model, batch: Batch, state: State, scored: bool
) -> tuple[Tensor | None, Tensor | float, State]:
    hidden, aux, state = read(model, batch, state, scored)
    return model.loss(Output(hidden, {}), batch.targets).sum() if scored else None, aux, state


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
