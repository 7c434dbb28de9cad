"""One model trained by several processes: each computes its rows of every batch; gradients are those of all rows.

DDP keeps all weights in every process, FSDP a share of them. Both average gradients over processes, so each process
multiplies its objective by their number (`UpdateInput.weight`). Both need a gradient for the same weights in every
process, but rows may differ in the weights that they use. So weights that a batch may leave out get a gradient of zero
in every process. If no row of any process used them, that zero is dropped: Adam moves weights whose gradient is zero,
and leaves those without a gradient unchanged.
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
from mnemo.training.update_input import UpdateInput
from mnemo.training.weight_update import AroundPart, LossTerms, SegmentLoss, nothing_around

BYTES_PER_WEIGHT = 4
"""Tensors of the weights' size that training with Adam needs: weights, gradients, two moments."""
SHARE_OF_GPU = 0.6
"""Share of a GPU's memory for these tensors; the rest is for activations."""


class Rows(NamedTuple):
    """The rows of a batch that one process computes."""

    begin: int
    end: int

    @staticmethod
    def of(world: AnyWorld, count: int) -> Rows:
        """The share of this process in `count` rows; shares differ by one row at most."""
        each, more = divmod(count, world.size)
        return Rows(*(rank * each + min(rank, more) for rank in (world.rank, world.rank + 1)))

    def take(self, batch: Batch) -> Batch:
        return Batch(*(None if part is None else part[self.begin : self.end] for part in batch))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class ParallelModel:
    """How this process takes part in the training of a model."""

    kind: Literal["one process", "DDP", "FSDP"]
    whole_model: Callable[[], AbstractContextManager[Model]]
    """The model with all its weights, for evaluation"""
    forward: tuple[SegmentLoss, str | None] | None = None
    """The loss function, and the reason if it is not compiled; None: the engine chooses it"""
    around_part: AroundPart = nothing_around
    """Exchanges gradients between processes after the last part of the rows, and only then"""
    unused_weights: Callable[[UpdateInput], list[nn.Parameter]] = lambda inputs: []
    """Weights that no row of an update uses, in any process"""
    load_weights: Callable[[Model, Mapping[str, Tensor], Path], None] = load_weights
    """Loads weights into the model, given all of them"""

    @property
    def unrecordable(self) -> str | None:
        """Why updates cannot be recorded as a CUDA graph, or None."""
        return None if self.kind == "one process" else "several processes"


def parallelize(
    model: Model,
    choose_loss: Callable[[], tuple[SegmentLoss, str | None]],
    world: AnyWorld,
    config: TrainConfig,
    device: torch.device,
) -> ParallelModel:
    """Put a model, whose weights are on the CPU, on this process's device, alone or with the other processes.

    `choose_loss` is called for several processes only, before the model is moved.
    """
    if isinstance(world, Alone):
        model.to(device)
        return ParallelModel("one process", lambda: nullcontext(model))
    loss, not_compiled = choose_loss()
    wrap = _fsdp if layout(model, config, device) == "fsdp" else _ddp
    return wrap(model, _SegmentLossModule(model, loss, config.bptt_memory == "checkpoint"), not_compiled, device)


def layout(model: Model, config: TrainConfig, device: torch.device) -> Literal["ddp", "fsdp"]:
    if config.parallel != "auto":
        return config.parallel
    if device.type != "cuda" or _has_conditional_weights(model.config):
        return "ddp"
    needed = BYTES_PER_WEIGHT * sum(p.numel() * p.element_size() for p in model.parameters())
    total = torch.cuda.get_device_properties(device).total_memory
    return "ddp" if needed <= SHARE_OF_GPU * total else "fsdp"


def check_parallel(recipe: Recipe, world: AnyWorld) -> None:
    """Raise MnemoError for recipes that several processes cannot train."""
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


class _SegmentLossModule(nn.Module):
    """A segment's loss as a module, because DDP and FSDP wrap the forward pass of a module."""

    def __init__(self, model: Model, loss: SegmentLoss, again: bool) -> None:
        super().__init__()
        self.model, self._loss, self._again = model, loss, again

    def forward(self, batch: Batch | None, state: State, scored: bool) -> LossTerms:
        if batch is None:
            return _zero(self.parameters()), 0.0, 0.0, state
        if self._again:
            # Inside the module, so that DDP does not see the recomputation as a second forward pass.
            result: Any = checkpoint(self._loss, self.model, batch, state, scored, use_reentrant=False)
        else:
            result = self._loss(self.model, batch, state, scored)
        *losses, state = result
        return *losses, tree_map(_own, state)


def _own(leaf: Tensor) -> Tensor:
    """A copy of views with gradient, which FSDP's hooks do not accept."""
    return leaf.clone() if leaf.requires_grad and leaf._is_view() else leaf


def _ddp(model: Model, module: _SegmentLossModule, not_compiled: str | None, device: torch.device) -> ParallelModel:
    model.to(device)
    _always_use(model, [*_by_bin(model), *_dead(model), *_late(model)])
    searches = _has_conditional_weights(model.config)
    wrapped = nn.parallel.DistributedDataParallel(module, find_unused_parameters=searches)
    if not searches:
        _settle(wrapped)

    def around_part(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else wrapped.no_sync()

    def unused_weights(inputs: UpdateInput) -> list[nn.Parameter]:
        late = _late(model) if len(inputs.batches) == 1 else []
        return [*_unused_bins(model, inputs), *_dead(model), *late]

    forward = (_called(wrapped), not_compiled)
    return ParallelModel("DDP", lambda: nullcontext(model), forward, around_part, unused_weights)


def _settle(wrapped: nn.Module) -> None:
    """Run one backward pass without data. DDP divides gradients into other buckets after its first backward pass, and
    the last bits of sums depend on the buckets; so a resumed run sums as an uninterrupted one."""
    nll, *_ = wrapped(None, None, True)
    nll.backward()
    wrapped.zero_grad(set_to_none=True)


def _fsdp(model: Model, module: _SegmentLossModule, not_compiled: str | None, device: torch.device) -> ParallelModel:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    _always_use(model, _by_bin(model))
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # memories keep their type
    for stage in model.stages:
        fully_shard(stage, mesh=mesh, mp_policy=policy)
    root: Any = fully_shard(module, mesh=mesh, mp_policy=policy)

    @contextmanager
    def around_part(last: bool) -> Iterator[None]:
        root.set_requires_gradient_sync(last)
        yield

    @contextmanager
    def whole_model() -> Iterator[Model]:
        with torch.device("meta"):
            full = build_model(model.config, "fp32").to(next(model.parameters()).dtype)
        full.to_empty(device=device)
        with torch.no_grad():
            for target, source in zip(full.parameters(), model.parameters(), strict=True):
                target.copy_(full_tensor(source))
        yield full

    def unused_weights(inputs: UpdateInput) -> list[nn.Parameter]:
        return _unused_bins(model, inputs)

    forward = (_called(root), not_compiled)
    return ParallelModel("FSDP", whole_model, forward, around_part, unused_weights, load_whole)


def full_tensor(tensor: Tensor) -> Tensor:
    """A whole tensor, of which this process may hold only a piece."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def load_whole(model: Model, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a model that may hold only pieces of them; every process has all of `weights`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    def piece(name: str, own: Tensor) -> Tensor:
        whole = weights[name].to(own.device)
        return distribute_tensor(whole, own.device_mesh, own.placements) if isinstance(own, DTensor) else whole

    check_weights(model, weights, path)
    load_weights(model, {name: piece(name, own) for name, own in model.state_dict().items()}, path)


def _called(module: nn.Module) -> SegmentLoss:
    return lambda model, batch, state, scored=True: module(batch, state, scored)


def _always_use(model: Model, weights: list[nn.Parameter]) -> None:
    """Give these weights a gradient in every backward pass: zero if the batch does not use them."""
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
    """Weights of an adaptive embedding's bins: rows may use only some of them."""
    if len(model.embedding.bins) == 1:
        return []
    softmax, embedding = model.softmax, model.embedding
    first = [*embedding.tables, *embedding.projections, *softmax.weights, *softmax.biases] if embedding.split else []
    return _once([*first, *softmax.projections.values()])


def _unused_bins(model: Model, inputs: UpdateInput) -> list[nn.Parameter]:
    """Weights of bins that contain no token and no target of an update."""
    if len(model.embedding.bins) == 1:
        return []
    embedding, softmax = model.embedding, model.softmax
    read = _bins(model, (batch.tokens for batch in inputs.batches))
    scored = _bins(model, (batch.targets for batch in inputs.batches[-inputs.num_scored :])) | {0}
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


def _late(model: Model) -> list[nn.Parameter]:
    """Weights that only later segments use: those that write a memory, if its gradient passes between segments."""
    stages = [stage for stage in model.stages if isinstance(stage, Stage)]
    return [stage.get_parameter(name) for stage in stages for name in stage.late_weights]


def _has_conditional_weights(config: ModelConfig) -> bool:
    """Whether it depends on the data which weights take part in a segment."""
    return any(memory.traits.conditional_weights for memory in config.memory.memories(config.num_layers))


def _once(weights: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(weight): weight for weight in weights}.values())
