"""A model over several processes: each reads its rows of every batch, and gradients become those of the whole batch.

DDP keeps all weights in every process, FSDP a share of them. Both average gradients over processes, so each process's
objective is multiplied by their number (`Window.weight`); both want a gradient for the same weights in every process,
though rows may differ in what they use: those that a batch may leave out get a zero from everywhere, and where no row
used them, that zero is dropped, because Adam moves weights whose gradient is zero and leaves alone those without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mnemo.data.streams import Batch
from mnemo.errors import MnemoError
from mnemo.memory.protocol import Stage
from mnemo.memory.state import State, tree_map
from mnemo.model import Model, ModelConfig
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.storage.weights import build_model, check_weights, load_weights
from mnemo.training.processes import Alone, AnyWorld
from mnemo.training.segment_window import Window

Loss = Callable[..., tuple[Tensor | None, Tensor | float, State]]
BYTES_PER_WEIGHT = 4
"""Copies of a model's weights that training with Adam needs: themselves, their gradients, two moments."""
SHARE_OF_GPU = 0.6
"""Of its memory; the rest is for activations."""


class Rows(NamedTuple):
    begin: int
    end: int

    @staticmethod
    def of(world: AnyWorld, count: int) -> Rows:
        """This process's of so many rows: as many as every other's, or one more."""
        each, more = divmod(count, world.size)
        return Rows(*(rank * each + min(rank, more) for rank in (world.rank, world.rank + 1)))

    def take(self, batch: Batch) -> Batch:
        return Batch(*(None if part is None else part[self.begin : self.end] for part in batch))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Spread:
    """How one process takes part in the training of a model."""

    kind: Literal["one process", "DDP", "FSDP"]
    forward: Loss
    """Takes what `segment_loss` takes"""
    part: Callable[[bool], AbstractContextManager[Any]]
    """Around the work on a part of the rows; gradients wait for the last one before they are exchanged"""
    idle: Callable[[Window], list[nn.Parameter]]
    """Weights that no row of a window uses, in any process"""
    whole: Callable[[], AbstractContextManager[Model]]
    """The model with all its weights, to be evaluated"""


def spread(model: Model, loss: Loss, world: AnyWorld, config: TrainConfig, device: torch.device) -> Spread:
    """Put a model, whose weights are on the CPU, on this process's device, alone or with the other processes."""
    if isinstance(world, Alone):
        model.to(device)
        return Spread("one process", loss, lambda last: nullcontext(), lambda window: [], lambda: nullcontext(model))
    kind = layout(model, config, device)
    join = _fsdp if kind == "fsdp" else _ddp
    return join(model, _SegmentLoss(model, loss, config.bptt_memory == "checkpoint"), device)


def layout(model: Model, config: TrainConfig, device: torch.device) -> Literal["ddp", "fsdp"]:
    if config.parallel != "auto":
        return config.parallel
    if device.type != "cuda" or _has_conditional_weights(model.config):
        return "ddp"
    needed = BYTES_PER_WEIGHT * sum(p.numel() * p.element_size() for p in model.parameters())
    total = torch.cuda.get_device_properties(device).total_memory
    return "ddp" if needed <= SHARE_OF_GPU * total else "fsdp"


def check(recipe: Recipe, world: AnyWorld) -> None:
    """Refuse what several processes cannot train."""
    if isinstance(world, Alone):
        return
    config = recipe.train
    if config.batch < world.size * config.accumulate:
        parts = f" in {config.accumulate} parts" if config.accumulate > 1 else ""
        raise MnemoError(f"{config.batch} rows are too few for {world.size} processes{parts}: each needs one or more")
    if config.bptt_memory == "replay":
        raise MnemoError("bptt_memory=replay is for one process: checkpoint needs as little memory in several")
    if config.parallel == "fsdp" and (config.precision == "fp16" or config.compile):
        raise MnemoError("parallel=fsdp takes neither fp16 nor compile: use bf16, or parallel=ddp")
    if _has_conditional_weights(recipe.model) and (config.parallel == "fsdp" or config.bptt):
        raise MnemoError("in several processes, an infinite memory with a gate takes parallel=ddp and no bptt")


class _SegmentLoss(nn.Module):
    """A segment's loss as a module, because DDP and FSDP work around the forward pass of one."""

    def __init__(self, model: Model, loss: Loss, again: bool) -> None:
        super().__init__()
        self.model, self._loss, self._again = model, loss, again

    def forward(self, batch: Batch | None, state: State, scored: bool) -> tuple[Tensor | None, Tensor | float, State]:
        if batch is None:
            return _zero(self.parameters()), 0.0, state
        if self._again:
            # Inside, so that computing it again is no second forward pass to DDP.
            read: Any = checkpoint(self._loss, self.model, batch, state, scored, use_reentrant=False)
        else:
            read = self._loss(self.model, batch, state, scored)
        nll, aux, state = read
        return nll, aux, tree_map(_own, state)


def _own(leaf: Tensor) -> Tensor:
    """FSDP's hooks want no views of other tensors."""
    return leaf.clone() if leaf.requires_grad and leaf._is_view() else leaf


def _ddp(model: Model, module: _SegmentLoss, device: torch.device) -> Spread:
    model.to(device)
    _always_use(model, [*_by_bin(model), *_dead(model)])
    searches = _has_conditional_weights(model.config)
    wrapped = nn.parallel.DistributedDataParallel(module, find_unused_parameters=searches)
    if not searches:
        _settle(wrapped)

    def part(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else wrapped.no_sync()

    def idle(window: Window) -> list[nn.Parameter]:
        return [*_unused_bins(model, window), *_dead(model)]

    return Spread("DDP", _called(wrapped), part, idle, lambda: nullcontext(model))


def _settle(wrapped: nn.Module) -> None:
    """DDP puts gradients into other buckets after its first backward pass, and the last bits of sums depend on the
    buckets: with one pass that needs no data first, a resumed run sums as the uninterrupted one does."""
    nll, _, _ = wrapped(None, None, True)
    nll.backward()
    wrapped.zero_grad(set_to_none=True)


def _fsdp(model: Model, module: _SegmentLoss, device: torch.device) -> Spread:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    _always_use(model, _by_bin(model))
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # memories keep their type
    for stage in model.stages:
        fully_shard(stage, mesh=mesh, mp_policy=policy)
    root: Any = fully_shard(module, mesh=mesh, mp_policy=policy)

    @contextmanager
    def part(last: bool) -> Iterator[None]:
        root.set_requires_gradient_sync(last)
        yield

    @contextmanager
    def whole() -> Iterator[Model]:
        with torch.device("meta"):
            full = build_model(model.config, "fp32").to(next(model.parameters()).dtype)
        full.to_empty(device=device)
        with torch.no_grad():
            for target, source in zip(full.parameters(), model.parameters(), strict=True):
                target.copy_(full_tensor(source))
        yield full

    return Spread("FSDP", _called(root), part, lambda window: _unused_bins(model, window), whole)


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor of which this process may have a piece."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def load_whole(model: Model, weights: Mapping[str, Tensor], path: Path) -> None:
    """Give a model weights of which every process has all."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    def piece(name: str, own: Tensor) -> Tensor:
        whole = weights[name].to(own.device)
        return distribute_tensor(whole, own.device_mesh, own.placements) if isinstance(own, DTensor) else whole

    check_weights(model, weights, path)
    load_weights(model, {name: piece(name, own) for name, own in model.state_dict().items()}, path)


def _called(module: nn.Module) -> Loss:
    return lambda model, batch, state, scored=True: module(batch, state, scored)


def _always_use(model: Model, weights: list[nn.Parameter]) -> None:
    """Give these weights a gradient in every backward pass, of zero where nothing else gives them one."""
    if not weights:
        return
    names = {id(weight): name for name, weight in model.named_parameters()}
    wanted = [names[id(weight)] for weight in weights]

    def touch(module: nn.Module, args: Any, rows: Tensor) -> Tensor | None:
        if not (model.training and torch.is_grad_enabled()):
            return None
        return rows + _zero(model.get_parameter(name) for name in wanted).to(rows.dtype)

    model.embedding.register_forward_hook(touch)


def _zero(weights: Iterable[Tensor]) -> Tensor:
    total: Any = 0.0
    for weight in weights:
        total = total + weight.view(-1)[0] * 0.0
    return total


def _by_bin(model: Model) -> list[nn.Parameter]:
    """Weights of an adaptive embedding's bins, of which rows may use some only."""
    if len(model.embedding.bins) == 1:
        return []
    softmax, embedding = model.softmax, model.embedding
    first = [*embedding.tables, *embedding.projections, *softmax.weights, *softmax.biases] if embedding.split else []
    return _once([*first, *softmax.projections.values()])


def _unused_bins(model: Model, window: Window) -> list[nn.Parameter]:
    """Those of them that no token and no target of the window is in."""
    if len(model.embedding.bins) == 1:
        return []
    embedding, softmax = model.embedding, model.softmax
    read = _bins(model, (batch.tokens for batch in window.batches))
    scored = _bins(model, (batch.targets for batch in window.batches[-window.num_scored :])) | {0}
    used = [*(softmax.projections[str(i)] for i in scored if str(i) in softmax.projections)]
    if embedding.split:
        used += [embedding.tables[i] for i in (read | scored if softmax.tied else read)]
        tied = {i for i in scored if softmax.ties[i]}
        used += [embedding.projections[i] for i in read | tied]
        used += [weights[i] for i in scored for weights in (softmax.weights, softmax.biases) if len(weights)]
    known = {id(weight) for weight in used}
    return [weight for weight in _by_bin(model) if id(weight) not in known]


def _bins(model: Model, ids: Iterable[Tensor]) -> set[int]:
    edges = torch.tensor(model.embedding.bins.edges[1:-1])
    return {bin for part in ids for bin in torch.bucketize(part.flatten(), edges, right=True).unique().tolist()}


def _dead(model: Model) -> list[nn.Parameter]:
    """Weights that no row ever uses."""
    stages = [stage for stage in model.stages if isinstance(stage, Stage)]
    return [stage.get_parameter(name) for stage in stages for name in stage.unused_weights]


def _has_conditional_weights(config: ModelConfig) -> bool:
    """Whether it depends on the data which weights take part in a segment."""
    return any(memory.traits.conditional_weights for memory in config.memory.memories(config.num_layers))


def _once(weights: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(weight): weight for weight in weights}.values())
