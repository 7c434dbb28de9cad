"""infinity-former's continuous memory against first principles and an independent slow version."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.mechanisms import infinite
from helpers.models import random_model, random_tokens, read
from helpers.tolerances import PARITY, assert_close
from torch import Tensor

from mnemo.interop.parity.comparison import check
from mnemo.memory import Plan
from mnemo.memory.infinite import Infinite
from mnemo.memory.infinite.modules import (
    BINS,
    InfiniteStage,
    LongTerm,
    SignalAttention,
    bin_masses,
    density,
    make_basis,
    sticky_points,
)
from mnemo.model import Model


def test_reference_file(golden: Path):
    result = check(golden / "infinite_gpt2_sticky.safetensors", PARITY)
    assert result.status == "passed"
    assert set(result.errors) == {"regression", "coefficients", "densities", "contexts", "sticky", "gradients"}


def test_the_fit_is_ridge_regression():
    """The coefficients minimise the squared error at the block's points and zero pads, plus the ridge."""
    config = infinite(block=6, basis=8, ridge=0.3)
    basis = make_basis(config)
    torch.manual_seed(0)
    block = torch.randn(6, 2, dtype=torch.float64)
    coefficients = (basis.first.T @ block).requires_grad_()
    points = (torch.arange(-3, 9, dtype=torch.float64) + 0.5) / 6
    values = density(points[:, None], basis.centres, basis.widths)
    target = torch.cat([torch.zeros(3, 2), block, torch.zeros(3, 2)]).double()
    objective = (values @ coefficients - target).square().sum() + 0.3 * coefficients.square().sum()
    assert torch.autograd.grad(objective, coefficients)[0].abs().max() < 1e-10


def test_a_reading_is_the_expectation_under_the_querys_density():
    """The closed form against numerical integration over the line."""
    torch.manual_seed(0)
    config = infinite()
    module = LongTerm(config, 12, 2, 6).double()
    coefficients, q = torch.randn(1, config.basis, 12).double(), torch.randn(1, 2, 3, 6).double()
    attended = module.attend(q, coefficients)
    basis = make_basis(config)
    t = torch.linspace(-6, 7, 200_001, dtype=torch.float64)
    weight = density(t, attended.mean[0, 1, 2], attended.variance[0, 1, 2].sqrt())
    expected = torch.trapezoid(weight[:, None] * density(t[:, None], basis.centres, basis.widths), t, dim=0)
    torch.testing.assert_close(attended.basis[0, 1, 2], expected, rtol=1e-7, atol=1e-9)


class SlowRow:
    """One layer's memory of one row, as lists; a block is fitted when the next segment begins."""

    def __init__(self, config: Infinite) -> None:
        self.config = config
        self.memory: list[Tensor] = []
        self.waiting: list[Tensor] = []
        self.coefficients: Tensor | None = None

    def begin(self) -> None:
        if len(self.waiting) >= self.config.block:
            self._fit()

    def _fit(self) -> None:
        block, self.waiting = torch.stack(self.waiting[: self.config.block]), self.waiting[self.config.block :]
        basis = make_basis(self.config)
        if self.coefficients is None:
            self.coefficients = basis.first.T @ block
        else:
            self.coefficients = basis.refit.T @ torch.cat([basis.samples @ self.coefficients, block])

    def end(self, rows: list[Tensor]) -> None:
        self.memory += rows
        self.waiting += self.memory[: -self.config.length]
        self.memory = self.memory[-self.config.length :]
        while len(self.waiting) >= 2 * self.config.block:
            self._fit()


@pytest.mark.parametrize("segments", [[4, 4, 4, 4, 4], [3, 1, 5, 2, 6, 4], [9, 9, 2]])
def test_memory_moves_on_as_written(segments):
    config = infinite(block=3, length=2)
    model = random_model(memory=Plan(long=config), num_layers=1)
    tokens = random_tokens(1, sum(segments))
    row, state = SlowRow(config), model.init(1)
    for part in tokens.split(segments, 1):
        row.begin()
        with torch.no_grad():
            _, state = model(part, state)
        row.end(list(model.embedding(part)[0].detach()))
        memory = state[0].layers[0]
        assert int(memory.waiting_length) == len(row.waiting)
        assert_close(
            memory.waiting[0, : len(row.waiting)], torch.stack(row.waiting) if row.waiting else memory.waiting[0, :0]
        )
        expected = torch.zeros_like(memory.coefficients[0]) if row.coefficients is None else row.coefficients
        assert_close(memory.coefficients[0], expected)


def test_without_anything_forgotten_it_is_transformer_xl():
    xl = random_model(memory=20)
    tokens = random_tokens(2, 16)
    other = random_model(memory=Plan(long=infinite(length=20)))
    own = {name: tensor for name, tensor in other.state_dict().items() if ".long_term." in name}
    shared = {name.replace(".layer.", ".units.0.layer."): tensor for name, tensor in xl.state_dict().items()}
    other.load_state_dict({**shared, **own})
    assert torch.equal(read(other, tokens, 4)[0], read(xl, tokens, 4)[0])


def test_the_far_past_is_read():
    model = random_model(memory=Plan(long=infinite(length=2, block=2)), num_layers=1)
    tokens = random_tokens(1, 20)
    changed = tokens.clone()
    changed[0, 1] = (changed[0, 1] + 1) % 23
    moved = (read(model, tokens, 2)[0] - read(model, changed, 2)[0])[0].abs().amax(-1)
    assert moved[19] > 1e-8


def test_the_gate_learns_from_the_newest_block_only():
    model = random_model(memory=Plan(long=infinite(length=2, block=4, gate="layer"))).train()
    tokens, state = random_tokens(2, 16), None
    reached = []
    for part in tokens.split(4, 1):
        out, state = model(part, state)
        model.zero_grad()
        model.loss(out, part).sum().backward()
        gate = [p.grad for n, p in model.named_parameters() if "gate" in n]
        reached.append(any(g is not None and bool(g.any()) for g in gate))
    assert reached == [False, False, True, True]


def test_kl_is_free_in_the_mean_by_default_and_pulled_when_published():
    attended = SignalAttention(torch.zeros(1), torch.tensor([[[0.3]]]), torch.tensor([[[0.01]]]), torch.zeros(1))
    free = LongTerm(infinite(kl_deviation=0.1), 4, 1, 4)
    assert float(free.divergence(attended)) == pytest.approx(0.0, abs=1e-6)
    pulled = LongTerm(infinite(kl_deviation=0.1).published(), 4, 1, 4)
    assert float(pulled.divergence(attended)) == pytest.approx(0.5 * 1.3**2 / 0.01, rel=1e-6)


def test_sticky_points_follow_the_attention_and_the_rows_own_count():
    config = infinite(samples=2000, sticky=True)
    masses = torch.zeros(3, BINS, dtype=torch.float64)
    masses[0, 10], masses[0, 90] = 1.0, 3.0
    masses[1, 5] = 1.0
    points = sticky_points(masses, torch.tensor([4, 4, 0]), config)
    low, high = 10 / BINS, 90 / BINS
    assert set(points[0].tolist()) == {low, high}
    assert abs(float((points[0] == high).double().mean()) - 0.75) < 4 * math.sqrt(0.75 * 0.25 / 2000)
    assert (points[0].diff() >= 0).all()
    assert torch.equal(points[2], torch.arange(1, 2001, dtype=torch.float64) / 2000)
    again = sticky_points(masses[:1], torch.tensor([4]), config)
    other = sticky_points(masses[:1], torch.tensor([5]), config)
    assert torch.equal(again[0], points[0])
    assert not torch.equal(other[0], points[0])


def test_bin_masses_are_the_densities_integrals():
    attended = SignalAttention(
        torch.zeros(1),
        torch.full((1, 1, 1), 0.5).double(),
        torch.full((1, 1, 1), 1e-4, dtype=torch.float64),
        torch.zeros(1),
    )
    masses = bin_masses(attended, None)
    assert float(masses.sum()) == pytest.approx(1.0, abs=1e-12)
    within = math.erf(1 / 128 / math.sqrt(2e-4)) / 2
    assert float(masses[0, 64]) == pytest.approx(within, rel=1e-12)


def test_parameters_of_lamemos_row():
    """Three projections and two readers a layer, one shared gate: 159.7M with 16 layers of the base model."""
    config = infinite(gate="shared", basis=150, widths=(0.01, 0.05))
    stage = random_model(memory=Plan(long=config), num_layers=2, dim=10, num_heads=2, head_dim=5).stages[0]
    assert isinstance(stage, InfiniteStage)
    own = sum(p.numel() for n, p in stage.named_parameters() if ".layer." not in n)
    assert own == 2 * (3 * 10 * 10 + 2 * 150) + (3 * 10 * 10 + 10)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="tau"):
        Infinite(tau=1.0)
    with pytest.raises(ValueError, match="basis functions"):
        Infinite(basis=7)
    assert isinstance(Model(random_model(memory=Plan(long=infinite())).config), Model)
