"""How large the weights, residual rows, attention scores and logits of a model are: what grows before a divergence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.analysis.inputs import Ids, as_ids, checked_segment, empty_state
from mnemo.files.safe_load import is_finite
from mnemo.model import Model, evaluating
from mnemo.ops import Attended


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Root mean squares and largest absolute values while a model reads a text."""

    loss: float
    """Nats per token, without the first one of each segment"""
    weights: dict[str, float]
    """Root mean square of every matrix"""
    rows: list[float]
    """Root mean square of the residual rows after each stage; a stage is a layer, or a group that shares a memory"""
    largest_rows: list[float]
    """Largest element of these rows"""
    scores: list[float]
    """Largest visible attention score of each layer with attention"""
    logits: float
    """Largest logit; with an adaptive softmax, the largest log-probability"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Sizes:
        """The sizes in a file, where None is a size that is not finite."""
        return Sizes(
            loss=_stored(record["loss"]),
            weights={name: _stored(size) for name, size in dict(record["weights"]).items()},
            rows=[_stored(size) for size in record["rows"]],
            largest_rows=[_stored(size) for size in record["largest_rows"]],
            scores=[_stored(size) for size in record["scores"]],
            logits=_stored(record["logits"]),
        )


def sizes(model: Model, ids: Ids, *, segment: int, memory: int | None = None) -> Sizes:
    """Read a text (T,) in segments, and measure all sizes over it.

    `memory`: slots of the long-range layers; default: as configured.
    """
    text, segment = as_ids(model, ids, at_least=2), checked_segment(segment)
    state, scores, logits, losses = empty_state(model, memory), _LargestScores(), 0.0, []
    with evaluating(model), _watching_rows(model) as rows:
        for part in text.split(segment):
            scores.layer = 0
            out, state = model.observe(part[None], state, scores)
            found = model.logits(out)[0]
            logits = max(logits, _largest(found))
            losses.append(nn.functional.cross_entropy(found[:-1].double(), part[1:], reduction="none"))
    return Sizes(
        loss=float(torch.cat(losses).mean()),
        weights={name: _root_mean_square(weight) for name, weight in model.named_parameters() if weight.dim() > 1},
        rows=[_finite_or_infinite((stage.squares / stage.count) ** 0.5) for stage in rows],
        largest_rows=[stage.largest for stage in rows],
        scores=scores.largest,
        logits=logits,
    )


def most_grown(now: Mapping[str, float], first: Mapping[str, float]) -> tuple[str, float] | None:
    """The matrix that has grown by the largest factor, and the factor; NaN counts as infinite.

    Matrices that began as zeros or not finite are left out; None if all are.
    """
    factors = {
        name: _finite_or_infinite(now[name]) / size
        for name, size in first.items()
        if name in now and 0 < size < math.inf
    }
    return max(factors.items(), key=lambda factor: factor[1], default=None)


class _LargestScores:
    """Receives the attention of a model's layers in order."""

    def __init__(self) -> None:
        self.layer, self.largest = 0, []

    def append(self, attended: Attended, /) -> None:
        scores = torch.stack(list(attended.terms.values())).sum(0)
        found = _largest(scores.masked_fill(~attended.visible, 0.0))
        if self.layer == len(self.largest):
            self.largest.append(0.0)
        self.largest[self.layer] = max(self.largest[self.layer], found)
        self.layer += 1


@dataclass
class _Rows:
    squares: float = 0.0
    count: int = 0
    largest: float = 0.0

    def __call__(self, module: nn.Module, args: Any, output: tuple[Tensor, Any]) -> None:
        rows = output[0].double()
        self.squares += float(rows.square().sum())
        self.count += rows.numel()
        self.largest = max(self.largest, _largest(rows))


@contextmanager
def _watching_rows(model: Model) -> Iterator[list[_Rows]]:
    watched = [_Rows() for _ in model.stages]
    with ExitStack() as hooks:
        for stage, rows in zip(model.stages, watched, strict=True):
            hooks.enter_context(stage.register_forward_hook(rows))  # type: ignore[arg-type]
        yield watched


def _largest(values: Tensor) -> float:
    return _finite_or_infinite(float(values.abs().max()))


def _stored(size: object) -> float:
    if size is None:
        return math.inf
    if not is_finite(size):
        raise ValueError(f"a size is {size!r}")
    return float(size)


def _finite_or_infinite(size: float) -> float:
    """NaN as infinity, which is in order with other sizes."""
    return math.inf if math.isnan(size) else size


def _root_mean_square(weight: Tensor) -> float:
    return float(weight.detach().double().square().mean().sqrt())
