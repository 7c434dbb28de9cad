"""The health of a checkpoint, judged before it is written and before older ones are removed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.memory.state import State, leaves
from mnemo.model import Model
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.mean_norm import own_piece
from mnemo.training.processes import AnyWorld
from mnemo.training.run_progress import Progress

MOST_NORMS = 5
"""Number of earlier checkpoints that norms are compared with."""
FEWEST_NORMS = 2
"""With fewer earlier checkpoints, norms are not compared: new weights may grow fast."""

MOST_HEALTHY = 2
"""Healthy checkpoints that are kept to go back to, if `keep` allows as many."""


class Norms(NamedTuple):
    """Field names are those of the checkpoint's JSON."""

    weights: float
    moments: float
    """Of all tensors that the optimizer keeps"""


class Health(NamedTuple):
    norms: Norms
    problem: str | None
    """Why the checkpoint is not one to go back to; None if it is healthy"""

    def to_json(self) -> dict[str, Any]:
        return {"problem": self.problem, **self.norms._asdict()}


@torch.no_grad()
def measure(model: Model, optimizer: torch.optim.Optimizer, states: Sequence[State], world: AnyWorld) -> Norms:
    """Norms over all processes; not finite if any weight, moment or memory is not finite. Waits for the device."""
    moments = [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, Tensor)]
    memories = [leaf for state in states for _, leaf in leaves(state) if leaf.is_floating_point()]
    own = torch.stack([_squares(model.parameters()), _squares(moments), _zero_if_finite(memories)]).tolist()
    divided = type(next(model.parameters()).data) is not Tensor
    weights, moment, memory = world.sums(own)
    parts = 1 if divided else world.size
    return Norms(_root(weights / parts + memory), _root(moment / parts))


def _squares(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of all squares; of divided tensors (FSDP), over this process's pieces."""
    pieces = [own_piece(tensor.detach()) for tensor in tensors if tensor.dim()]
    pieces = [piece for piece in pieces if piece.numel()]
    if not pieces:
        return torch.zeros((), dtype=torch.float64)
    norms = torch._foreach_norm(pieces)  # pyright: ignore[reportPrivateImportUsage]
    return torch.stack([norm.double() for norm in norms]).square().sum().cpu()


def _zero_if_finite(tensors: Sequence[Tensor]) -> Tensor:
    finite = [tensor.isfinite().all() for tensor in tensors]
    ruined = bool(finite) and not bool(torch.stack(finite).all())
    return torch.tensor(math.nan if ruined else 0.0, dtype=torch.float64)


def _root(squares: float) -> float:
    return math.sqrt(squares) if math.isfinite(squares) else squares


def is_finite(norms: Norms) -> bool:
    return all(map(math.isfinite, norms))


def judge(norms: Norms, progress: Progress, config: TrainConfig) -> Health:
    """The health of finite weights and moments after `progress`."""
    return Health(norms, next(_problems(norms, progress, config), None))


def _problems(norms: Norms, progress: Progress, config: TrainConfig) -> Iterator[str]:
    if progress.in_a_row:
        yield f"the last {progress.in_a_row:,} updates were skipped"
    if progress.course.is_suspect:
        yield "loss or gradient norm are above their recent course"
    if len(progress.norms) >= FEWEST_NORMS:
        for name, now, *before in zip(Norms._fields, norms, *progress.norms, strict=True):
            usual = statistics.median(before)
            if now > config.health.weight_growth * usual:
                yield f"the norm of the {name} is {now:.4g}, after {usual:.4g}"


def after_checkpoint(progress: Progress, health: Health, config: TrainConfig) -> Progress:
    """The progress that a checkpoint at the interval of `checkpoint_every` steps stores.

    Only these checkpoints count, because others depend on clocks and signals.
    """
    # New weights are no measure for trained ones.
    norms = (*progress.norms, health.norms)[-MOST_NORMS:] if progress.step else progress.norms
    healthy = progress.healthy if health.problem else (*progress.healthy, progress.step)
    return replace(progress, norms=norms, healthy=healthy[-min(MOST_HEALTHY, config.keep) :])
