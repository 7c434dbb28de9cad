"""What is measured: a training step and evaluation, each in Mnemo and in the published formulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mnemo.bench.published import PublishedModel
from mnemo.errors import CheckFailed
from mnemo.layers import DropoutConfig
from mnemo.memory import XL, Plan
from mnemo.model import InitConfig, Model, ModelConfig
from mnemo.optimize import build_optimizer, clip_gradients
from mnemo.recipe import OptimizerConfig
from mnemo.state import State

EXACT = 1e-10
"""Largest difference of losses and gradients in float64, relative to max(1, largest value)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    summary: str
    training: bool
    segment: int
    memory: int
    batch: int
    required: float
    """How many times as fast as the published formulation Mnemo must be."""
    dropout: float = 0.0
    attention_dropout: float = 0.0
    vocab_size: int = 204
    num_layers: int = 6
    dim: int = 256
    num_heads: int = 8
    head_dim: int = 32
    inner_dim: int = 1024
    init_std: float = 0.02

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.batch * self.segment

    def config(self) -> ModelConfig:
        return ModelConfig(
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
            dim=self.dim,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            inner_dim=self.inner_dim,
            memory=Plan(long=XL(length=self.memory)),
            dropout=DropoutConfig.published(self.dropout, attention=self.attention_dropout),
            init=InitConfig(std=self.init_std),
        )


CASES = {
    case.name: case
    for case in (
        Case(
            name="train",
            summary="training step: forward, backward, clipping, Adam",
            training=True,
            segment=256,
            memory=256,
            batch=4,
            required=2.0,
        ),
        Case(
            name="train-dropout",
            summary="training step with dropout 0.1 everywhere",
            training=True,
            segment=256,
            memory=256,
            batch=4,
            required=2.0,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        Case(
            name="eval",
            summary="evaluation behind a full memory",
            training=False,
            segment=64,
            memory=2048,
            batch=4,
            required=5.0,
        ),
    )
}

Step = Callable[[], Tensor]
"""Reads the next segment and returns its losses (B, L)."""


def segments(case: Case, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Random tokens and targets (B, L), the same for every reader."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, case.batch, case.segment)
    while True:
        tokens, targets = torch.randint(case.vocab_size, shape, generator=generator).to(device)
        yield tokens, targets


def build(case: Case, device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Model, PublishedModel]:
    """The same weights in both formulations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Model(case.config())
    model.to(device, dtype).train(case.training)
    return model, PublishedModel.of(model, case.memory)


def contenders(case: Case, model: Model, published: PublishedModel) -> dict[str, Step]:
    if case.training:
        ours = training_step(case, model, model.init(case.batch))
        return {"mnemo": ours, "published": _published_training(case, published)}
    return {"mnemo": _evaluation(case, model), "published": _published_evaluation(case, published)}


def training_step(case: Case, model: Model, state: State) -> Step:
    """Steps that train the model from a state on."""
    optimizer = build_optimizer(model, OptimizerConfig())
    data = segments(case, _device(model))

    def step() -> Tensor:
        nonlocal state
        tokens, targets = next(data)
        optimizer.zero_grad()
        out, state = model(tokens, state)
        losses = model.loss(out, targets)
        losses.mean().backward()
        clip_gradients(model.parameters(), 0.25)
        optimizer.step()
        return losses.detach()

    return step


def _published_training(case: Case, model: PublishedModel) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=OptimizerConfig().lr)
    data, memories = segments(case, _device(model)), None

    def step() -> Tensor:
        nonlocal memories
        tokens, targets = next(data)
        optimizer.zero_grad()
        losses, memories = model(tokens.t().contiguous(), targets.t().contiguous(), memories)
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return losses.detach().t()

    return step


def _evaluation(case: Case, model: Model) -> Step:
    data, state = segments(case, _device(model)), model.zeros(case.batch, cached=True)
    tables = model.tables(case.segment, state)

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal state
        tokens, targets = next(data)
        out, state = model(tokens, state, tables=tables)
        return model.loss(out, targets)

    return step


def _published_evaluation(case: Case, model: PublishedModel) -> Step:
    data = segments(case, _device(model))
    memories = model.zeros(case.batch)

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal memories
        tokens, targets = next(data)
        losses, memories = model(tokens.t().contiguous(), targets.t().contiguous(), memories)
        return losses.t()

    return step


def _device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


SMALL = {"segment": 8, "memory": 20, "batch": 2, "num_layers": 2, "dim": 32, "num_heads": 2, "head_dim": 8}
"""Sizes of the check."""


def check(case: Case, device: torch.device) -> float:
    """The largest difference between both formulations on a small model in float64, over segments that fill the
    memory: losses and, in training, updated weights. Above `EXACT` it is an error, and nothing should be timed."""
    small = replace(case, **SMALL, inner_dim=48, vocab_size=11, dropout=0.0, attention_dropout=0.0, init_std=0.3)
    model, published = build(small, device, torch.float64)
    ours, theirs = contenders(small, model, published).values()
    worst = max(_difference(ours(), theirs()) for _ in range(4))
    if case.training:
        expected = dict(PublishedModel.of(model, small.memory).named_parameters())
        worst = max(worst, *(_difference(expected[name], p) for name, p in published.named_parameters()))
    if not worst <= EXACT:
        raise CheckFailed(f"bench {case.name}: the formulations differ by {worst:.1e}, so no speed is reported")
    return worst


@torch.no_grad()
def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))
