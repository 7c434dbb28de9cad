"""The timed steps of every case, with equal weights: Mnemo as users run it, and the published formulation.

A contender is built right before it is timed. One call of its step is one training update, some evaluated segments, or
some generated tokens. Both sides read the same random text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.bench.cases import SMALL, Case
from mnemo.bench.narrow_cases import narrow_cases
from mnemo.bench.published_memories import PublishedLamemo, PublishedTokens
from mnemo.bench.published_xl import PublishedModel
from mnemo.data.streams import Batch
from mnemo.errors import CheckFailed
from mnemo.inference.generation import TokenWriter
from mnemo.inference.narrow_weights import with_narrow_weights
from mnemo.inference.sampling_options import Sampling
from mnemo.inference.segment_scorer import open_scorer, with_dtype
from mnemo.memory.state import State
from mnemo.model import Model, Output
from mnemo.ops import using
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.engine import Engine
from mnemo.training.optimizers import build_optimizer
from mnemo.training.precision import autocast, state_dtype
from mnemo.training.update_input import UpdateInput

EXACT = 1e-10
"""Largest allowed difference of losses, logits and weights in float64, relative to max(1, largest value)."""
NARROW = {"bf16": 2e-2, "int8": 4e-2}
"""The same for losses and logits with fewer bits, against the published formulation in fp32. bf16 has the tolerance of
the tests; int8 weights are rounded by up to 1/254 of the largest in their row, bf16 by 1/512 of themselves."""
CLIP = 0.25
RATE = 2.0**-12
"""Learning rate, close to the papers' 2.5e-4 and exact in float32, which CUDA graphs use."""
NUM_SEGMENTS = 16
"""Number of different segments, which are repeated."""

Step = Callable[[], Tensor]
"""Runs one step and returns values that must be equal on both sides: a mean loss, a segment's losses, or logits."""


@dataclass(frozen=True)
class Contender:
    step: Step
    tokens: int
    """Tokens of one call"""
    weights: int = 0
    """Bytes of weights, gradients and optimizer state"""


def segments(case: Case, device: torch.device) -> Iterator[Batch]:
    """Return an endless iterator of random tokens and targets (B, L) on the device, equal for all contenders."""
    shape = (NUM_SEGMENTS, 2, case.batch, case.segment)
    drawn = torch.randint(case.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(device)
    return cycle([Batch(tokens, targets) for tokens, targets in drawn])


def build_model(case: Case, device: torch.device, dtype: torch.dtype = torch.float32) -> Model:
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]), device:
        torch.manual_seed(0)
        model = Model(case.config())
    return model.to(dtype).train(case.training)


def published_of(case: Case, model: Model) -> nn.Module:
    """Return the published formulation with the weights of a model."""
    if case.mechanism == "lookahead":
        return PublishedLamemo.of(model, case.memory).train(model.training)
    if case.mechanism == "tokens":
        return PublishedTokens.of(model).train(model.training)
    return PublishedModel.of(model, case.plan().lengths(case.num_layers))


def builders(case: Case, device: torch.device) -> dict[str, Callable[[], Contender]]:
    """Return functions that build the contenders of a case, with full memories."""

    def ours(case: Case) -> Contender:
        model = build_model(case, device)
        return _contender(case, model, our_step(case, model, full=True))

    def theirs(case: Case) -> Contender:
        model = published_of(case, build_model(case, device))
        return _contender(case, model, published_step(case, model, full=True))

    def theirs_in_half() -> Contender:
        model = published_of(case, build_model(case, device, torch.bfloat16))
        return _contender(case, model, published_step(replace(case, precision="fp32"), model, full=True))

    narrow = narrow_cases(case, device)
    found: dict[str, Callable[[], Contender]] = {"mnemo": partial(ours, case)}
    found |= {name: partial(ours, other) for name, other in narrow.items()}
    found["published"] = partial(theirs, case)
    if narrow and case.training:
        found["published, bf16"] = partial(theirs, replace(case, precision="bf16"))
    elif narrow or (case.precision == "bf16" and not case.training):
        found["published, bf16 weights"] = theirs_in_half
    return found


def _contender(case: Case, model: nn.Module, step: Step) -> Contender:
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return Contender(step, case.tokens, size * 4 if case.training else size)


def our_step(case: Case, model: Model, full: bool) -> Step:
    """Return Mnemo's step; `full`: training starts with a memory full of zeros, else with an empty one."""
    if case.training:
        dtype = state_dtype(case.precision)
        state = model.zeros(case.batch, dtype=dtype) if full else model.init(case.batch, dtype=dtype)
        return training_step(case, model, state)
    return _evaluation(case, model) if case.section == "evaluation" else _generation(case, model)


def published_step(case: Case, model: nn.Module, full: bool) -> Step:
    if case.training:
        return _published_training(case, model, full)
    assert isinstance(model, PublishedModel)
    return _published_evaluation(case, model) if case.section == "evaluation" else _published_generation(case, model)


def train_config(case: Case) -> TrainConfig:
    return TrainConfig(
        batch=case.batch,
        segment=case.segment,
        bptt=case.bptt,
        bptt_window="tumbling",
        precision=case.precision,
        compile=case.compile,
        cuda_graph=case.cuda_graph,
    )


def training_step(case: Case, model: Model, state: State) -> Step:
    """Return a step that trains the model, starting from the given state, and returns the loss before the update."""
    config, data, states = train_config(case), segments(case, model.device), (state,)
    engine = Engine(model, build_optimizer(model, config.optimizer), config)

    def step() -> Tensor:
        nonlocal states
        batches = tuple(next(data) for _ in range(1 + case.bptt))
        done = engine.update(UpdateInput(batches, tuple(batch.targets.numel() for batch in batches)), states, RATE)
        states = done.states
        return done.loss

    return step


def _published_training(case: Case, model: nn.Module, full: bool) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    device = _device(model)
    data, half = segments(case, device), autocast(case.precision, device)
    memories: Any = model.zeros(case.batch) if full and not isinstance(model, PublishedTokens) else None  # type: ignore[operator]

    def step() -> Tensor:
        nonlocal memories
        optimizer.zero_grad()
        losses = []
        memories = memories.detach() if isinstance(memories, Tensor) else memories
        for _ in range(1 + case.bptt):
            tokens, targets, *_ = next(data)
            with half:
                part, memories = model(tokens.t().contiguous(), targets.t().contiguous(), memories)
            losses.append(part)
        loss = torch.stack(losses).float().mean() if case.precision == "bf16" else torch.stack(losses).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.detach()

    return step


def _evaluation(case: Case, model: Model) -> Step:
    model = with_dtype(model, torch.bfloat16) if case.precision == "bf16" else model
    data = segments(case, _device(model))
    scorer = open_scorer(model, model.zeros(case.batch, cached=True), case.segment)

    @torch.no_grad()
    def step() -> Tensor:
        losses = None
        for tokens, targets, *_ in islice(data, case.num_segments):
            losses = scorer.score(tokens, targets)
        assert losses is not None
        return losses

    return step


def _published_evaluation(case: Case, model: PublishedModel) -> Step:
    data, half = segments(case, _device(model)), autocast(case.precision, _device(model))
    memories = model.zeros(case.batch)

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal memories
        losses = None
        for tokens, targets, *_ in islice(data, case.num_segments):
            with half:
                losses, memories = model(tokens.t().contiguous(), targets.t().contiguous(), memories)
        assert losses is not None
        return losses.t()

    return step


def _generation(case: Case, model: Model) -> Step:
    """Return a step that generates greedily, token by token."""
    model = model.to(torch.bfloat16) if case.precision == "bf16" else with_narrow_weights(model, case.weights)
    decoder = model.decoder(model.zeros(case.batch, cached=True), segment=case.segment)
    first = decoder.feed(torch.zeros(case.batch, 1, dtype=torch.int64, device=_device(model)))
    writer = TokenWriter(model, decoder, first.hidden[:, -1], Sampling(temperature=0.0))
    draw = torch.zeros_like(writer.draw)

    @torch.no_grad()
    def step() -> Tensor:
        for _ in range(case.new_tokens):
            writer.write(draw)
        return model.logits(Output(writer.hidden[:, None], {}))[:, 0]

    return step


def _published_generation(case: Case, model: PublishedModel) -> Step:
    """Return the same step; here every layer projects the whole memory again for every token."""
    half = autocast(case.precision, _device(model))
    first = torch.zeros(1, case.batch, dtype=torch.int64, device=_device(model))

    @torch.no_grad()
    def read(tokens: Tensor, before: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        with half:
            return model.read(tokens, before)

    logits, memories = read(first, model.zeros(case.batch))

    def step() -> Tensor:
        nonlocal logits, memories
        for _ in range(case.new_tokens):
            logits, memories = read(logits.argmax(-1)[None], memories)
        return logits

    return step


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def check(case: Case, device: torch.device) -> float:
    """Return the largest difference between both sides, for a small model in float64 and four calls.

    Compared are the returned values and, in training, the updated weights. Raises CheckFailed above `EXACT`.
    """
    small = _small(case)
    model = build_model(small, device, torch.float64)
    published = published_of(small, model)
    full = case.mechanism == "lookahead"  # with an empty memory its bias would have no gradient in Adam's first step
    ours, theirs = our_step(small, model, full=full), published_step(small, published, full=full)
    with using("eager"):  # no kernel supports float64; this avoids the warning
        worst = max(_difference(ours(), theirs()) for _ in range(4))
    if case.training:
        expected = dict(published_of(small, model).named_parameters())
        moved = {name: p for name, p in published.named_parameters() if p.grad is not None}
        worst = max(worst, *(_difference(expected[name], p) for name, p in moved.items()))
    if not worst <= EXACT:
        raise CheckFailed(f"bench {case.name}: the formulations differ by {worst:.1e}, so no speed is reported")
    return worst


def check_narrow(case: Case, device: torch.device) -> float | None:
    """The same for Mnemo with fewer bits against the published formulation in fp32; None if a case has no such variant.

    Compared are the first values of every variant: later tokens may differ where two of them are almost as likely.
    Raises CheckFailed above `NARROW`.
    """
    small, found = _small(case), list[float]()
    for name, other in narrow_cases(small, device).items():
        ours = our_step(other, build_model(small, device), full=False)
        theirs = published_step(small, published_of(small, build_model(small, device)), full=False)
        found.append(_difference(ours(), theirs()))
        if not found[-1] <= NARROW["int8" if other.weights == "int8" else "bf16"]:
            raise CheckFailed(f"bench {case.name}: {name} differs by {found[-1]:.1e}, so no speed is reported")
    return max(found, default=None)


def _small(case: Case) -> Case:
    """The case with the sizes of the check."""
    small = replace(case, **SMALL, num_long=None if case.num_long is None else 1)
    small = replace(small, memory=min(small.memory, case.memory))
    return replace(small, segment=case.segment) if case.section == "generation" else small


@torch.no_grad()
def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))
