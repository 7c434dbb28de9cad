"""State, stage and decoder of infinity-former's memory; see the package for what it is.

Shapes: B batch, L segment, M slots, T rows of a block, N basis functions, S samples, D model width, H heads, d head.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.memory.infinite import Infinite
from mnemo.memory.protocol import (
    Extent,
    Layer,
    Segment,
    Stage,
    fit_slots,
    keep_newest,
    matrix_work,
    mean_of_valid,
    narrowed,
    projection_work,
    widened,
)
from mnemo.memory.shared_steps import RowTensor, SharesSteps, plain_tensors
from mnemo.memory.state import choose, select, tree_map
from mnemo.memory.waiting_rows import leaving, take_rows

BINS = 128
"""Bins of [0, 1] in which sticky memories count attention."""


class Basis(NamedTuple):
    """Constants of the regression, in float64."""

    centres: Tensor
    widths: Tensor
    """(N,) each"""
    first: Tensor
    """(T, N): regression of a block alone"""
    refit: Tensor
    """(S + T, N): regression of the contracted old signal, then a block"""
    samples: Tensor
    """(S, N): the basis at S even points"""


def density(t: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((t - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))


@functools.lru_cache(maxsize=8)
def make_basis(config: Infinite) -> Basis:
    kinds = len(config.widths)
    centres = torch.linspace(0, 1, config.basis // kinds, dtype=torch.float64).repeat_interleave(kinds)
    widths = torch.tensor(config.widths, dtype=torch.float64).repeat(config.basis // kinds)

    def at(points: Tensor) -> Tensor:
        return density(points[:, None], centres, widths)

    def regression(points: Tensor, first: int, count: int) -> Tensor:
        values = at(points)  # (P, N)
        system = values.T @ values + config.ridge * torch.eye(config.basis, dtype=torch.float64)
        return torch.linalg.solve(system, values.T).T[first : first + count]

    block, samples = config.block, config.samples
    even = torch.arange(1, samples + 1, dtype=torch.float64) / samples
    half = (block + 1) // 2
    alone = (torch.arange(-half, block + half, dtype=torch.float64) + 0.5) / block
    shift = 1 / (2 * (block + samples)) if config.exact_padding else 1 / (2 * block + samples)
    pads = torch.linspace(-0.5 + shift, 1.5 - shift, 2 * (block + samples), dtype=torch.float64)
    new = config.tau + (1 - config.tau) * torch.arange(1, block + 1, dtype=torch.float64) / block
    together = torch.cat([pads[pads < 0], config.tau * even, new, pads[pads > 1]])
    before = int((pads < 0).sum())
    return Basis(
        centres, widths, regression(alone, half, block), regression(together, before, samples + block), at(even)
    )


class SignalAttention(NamedTuple):
    """The attention of queries to the signal."""

    context: Tensor
    """(B, L, D), after the output projection"""
    mean: Tensor
    variance: Tensor
    """(B, H, L) of each query's density"""
    basis: Tensor
    """(B, H, L, N) expectations of the basis functions"""


class LongTerm(nn.Module):
    """The continuous memory of one layer."""

    def __init__(self, config: Infinite, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.config, self.num_heads, self.head_dim = config, num_heads, head_dim
        width = num_heads * head_dim
        self.key = nn.Linear(dim, width, bias=False)
        self.value = nn.Linear(dim, width, bias=False)
        self.output = nn.Linear(width, dim, bias=False)
        self.mean = nn.Linear(config.basis, 1, bias=False)
        self.variance = nn.Linear(config.basis, 1, bias=False)
        self.gate = nn.Conv1d(dim, dim, 3, padding=1) if config.gate == "layer" else None

    def fit(self, block: Tensor, old: Tensor, fitted: Tensor, points: Tensor | None, gate: nn.Module | None) -> Tensor:
        """Coefficients (B, N, D) of an old signal and a block (B, T, D) after it.

        `points` (B, S): where the old signal is sampled; at even points if left out.
        """
        basis = make_basis(self.config)
        gate = self.gate if self.gate is not None else gate
        if gate is not None:
            rows = narrowed(block, gate.weight)  # type: ignore[arg-type]
            block = block * torch.sigmoid(gate(rows.transpose(1, 2))).transpose(1, 2)
        first, refit, samples = (table.to(block) for table in (basis.first, basis.refit, basis.samples))
        if points is not None:
            samples = density(points[..., None], basis.centres.to(block), basis.widths.to(block))  # (B, S, N)
        alone = first.T @ block
        contracted = refit.T @ torch.cat([samples @ old, block], 1)
        return torch.where(fitted[:, None, None] > 0, contracted, alone)

    def attend(self, q: Tensor, coefficients: Tensor) -> SignalAttention:
        """Attention of unscaled queries q (B, H, L, d) to the signal."""
        basis, coefficients = make_basis(self.config), coefficients.to(q.dtype)
        shape = (*coefficients.shape[:2], self.num_heads, self.head_dim)
        keys = self.key(coefficients).view(shape).transpose(1, 2)  # (B, H, N, d)
        values = self.value(coefficients).view(shape).transpose(1, 2)
        scores = q @ keys.transpose(-1, -2) / math.sqrt(self.head_dim)  # (B, H, L, N)
        mean = torch.sigmoid(self.mean(scores)).squeeze(-1)
        variance = F.softplus(self.variance(scores)).squeeze(-1).clamp(min=self.config.min_variance)
        centres, widths = basis.centres.to(q), basis.widths.to(q)
        expected = density(mean[..., None], centres, torch.sqrt(variance[..., None] + widths**2))  # (B, H, L, N)
        context = (expected @ values).transpose(1, 2).flatten(2)
        return SignalAttention(self.output(context), mean, variance, expected)

    def divergence(self, attended: SignalAttention) -> Tensor:
        """(B, H, L): the KL divergence of each density from the preferred one."""
        preferred = self.config.kl_deviation**2
        ratio = attended.variance / preferred
        kl = 0.5 * (ratio - torch.log(ratio) - 1)
        if self.config.kl_mean is not None:
            kl = kl + 0.5 * (attended.mean - self.config.kl_mean) ** 2 / preferred
        return kl


def bin_edges(like: Tensor) -> Tensor:
    """(BINS + 1,) edges of equal bins of [0, 1], the outer ones a little wider."""
    edges = torch.linspace(0, 1, BINS + 1, dtype=like.dtype, device=like.device)
    edges[0], edges[-1] = -1e-6, 1 + 1e-6
    return edges


def bin_masses(attended: SignalAttention, used: Tensor | None) -> Tensor:
    """(B, BINS): total attention of the first used[b] queries to each bin of [0, 1]."""
    mean, variance = widened(attended.mean), widened(attended.variance)
    edges = bin_edges(mean)
    scaled = (edges - mean[..., None]) / torch.sqrt(2 * variance[..., None])
    mass = 0.5 * torch.erf(scaled).diff(dim=-1)  # (B, H, L, BINS)
    if used is not None:
        mass = mass * (torch.arange(mass.shape[2], device=used.device) < used[:, None])[:, None, :, None]
    return mass.sum((1, 2)).detach()


def sticky_points(masses: Tensor, drawn: Tensor, config: Infinite) -> Tensor:
    """(B, S) points, denser where attention was, in ascending order: left edges of bins drawn with replacement.

    Even points for rows whose signal has received no attention yet. The draws are a hash of the seed and of `drawn`
    (B,), how often the row has sampled.
    """
    total = masses.sum(-1, keepdim=True)
    cumulative = (masses / total.clamp(min=1e-30)).cumsum(-1)
    uniform = _uniform(drawn, config).to(masses)
    bins = torch.searchsorted(cumulative.contiguous(), uniform.contiguous()).clamp(max=BINS - 1).sort(-1).values
    even = torch.arange(1, config.samples + 1, dtype=masses.dtype, device=masses.device) / config.samples
    return torch.where(total > 0, bins.to(masses) / BINS, even)


def _uniform(drawn: Tensor, config: Infinite) -> Tensor:
    """(B, S) numbers in [0, 1), a pure function of seed, count and index (a 64-bit mix of their sum)."""
    index = torch.arange(config.samples, device=drawn.device)
    x = (config.seed * 0x9E3779B9 + drawn[:, None] * 0x85EBCA6B + index) * 0x2545F4914F6CDD1D
    for shift, factor in ((32, 0x5851F42D4C957F2D), (29, 0x14057B7EF767814F), (32, 1)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((x >> 11) & ((1 << 53) - 1)).double() / 2**53


class InfiniteState(NamedTuple):
    hidden: Tensor
    """(B, M, D) the layer's last inputs, newest last"""
    length: Tensor
    """(B,) valid slots, right-aligned"""
    waiting: Tensor
    """(B, 2 * block - 1, D) rows that left the memory and are not fitted yet, oldest first"""
    waiting_length: Tensor
    """(B,) valid rows, left-aligned"""
    coefficients: Tensor
    """(B, N, D) the signal"""
    fitted: Tensor
    """(B,) blocks in the signal"""
    masses: Tensor
    """(B, BINS) attention of the last segment"""


class InfiniteStates(NamedTuple):
    layers: tuple[InfiniteState, ...]


class InfiniteUnit(nn.Module):
    """One layer with its short-term and long-term memory."""

    def __init__(self, config: Infinite, layer: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.layer: Layer = layer  # type: ignore[assignment]
        self.long_term = LongTerm(config, self.layer.dim, self.layer.num_heads, self.layer.head_dim)

    def init(self, batch: int, length: int, like: Tensor, full: bool) -> InfiniteState:
        config, dim, like = self.config, like.shape[-1], widened(like)
        empty = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return InfiniteState(
            like.new_zeros(batch, length, dim),
            empty + (length if full else 0),
            like.new_zeros(batch, 2 * config.block - 1, dim),
            empty,
            like.new_zeros(batch, config.basis, dim),
            empty.clone(),
            like.new_zeros(batch, BINS),
        )

    def push(self, state: InfiniteState, gate: nn.Module | None) -> InfiniteState:
        """Fit the first block of the waiting rows, in the rows of the batch where it is complete."""
        size, config = self.config.block, self.config
        points = sticky_points(state.masses, state.fitted, config) if config.sticky else None
        new = self.long_term.fit(state.waiting[:, :size], state.coefficients, state.fitted, points, gate)
        whole = state.waiting_length >= size
        rest = F.pad(state.waiting[:, size:], (0, 0, 0, size))
        return state._replace(
            coefficients=torch.where(whole[:, None, None], new, state.coefficients),
            fitted=state.fitted + whole,
            waiting=torch.where(whole[:, None, None], rest, state.waiting),
            waiting_length=state.waiting_length - size * whole,
        )

    def attend(
        self, x: Tensor, keys: Tensor, values: Tensor, state: InfiniteState, count: int, segment: Segment
    ) -> tuple[Tensor, SignalAttention]:
        """The layer's output for rows x that follow `count` others, and their attention to the signal."""
        slots, new = state.hidden.shape[1], count + x.shape[1]
        context, _ = self.layer.attend(
            x, keys, values, segment.scope(self.layer, slots, slots + new, state.length + new)
        )
        attended = self.long_term.attend(self.layer.queries(x), state.coefficients)
        far = attended.context * (state.fitted > 0)[:, None, None]
        if segment.call.notes is not None:
            segment.call.notes[f"mean.{self.layer.index}"] = attended.mean
            segment.call.notes[f"variance.{self.layer.index}"] = attended.variance
        return self.layer.finish(x, context, far), attended

    def write(
        self, x: Tensor, state: InfiniteState, used: Tensor, masses: Tensor, gate: nn.Module | None
    ) -> InfiniteState:
        """The state after the first used[b] rows of x; all complete blocks except the last are fitted now."""
        num_slots, num_new = state.hidden.shape[1], x.shape[1]
        rows = torch.cat([state.hidden, x.detach()], 1)
        state = self._queue(rows, state, used, num_new)
        state = state._replace(
            hidden=keep_newest(rows, num_slots, used, num_new, 1),
            length=(state.length + used).clamp(max=num_slots),
            masses=torch.where(state.fitted[:, None] > 0, masses, torch.zeros_like(masses)),
        )
        size = self.config.block
        while bool((state.waiting_length >= 2 * size).any()):
            pushed = self.push(state, gate)
            many = state.waiting_length >= 2 * size
            state = choose(many, pushed, state)
        return state._replace(waiting=state.waiting[:, : 2 * size - 1].contiguous())

    def work(self, rows: int, slots: int, fits: float) -> float:
        """Multiply-adds without the gate's: projecting the memory, fitting, densities, attention to the signal."""
        config, one = self.config, projection_work(self.layer)
        num_heads, width = self.layer.num_heads, self.layer.num_heads * self.layer.head_dim
        points = 2 * config.samples + 2 * config.block  # a block is always fitted alone, too
        fit = points * config.basis * self.layer.dim
        project = 2 * (slots + config.basis) * one + 2 * rows * one  # the queries again, and the output
        attend = rows * config.basis * (2 * width + 2 * num_heads)
        return fits * fit + project + attend

    def _queue(self, rows: Tensor, state: InfiniteState, used: Tensor, num_new: int) -> InfiniteState:
        """Append the rows that a segment pushes out of the memory to the waiting rows."""
        index, length = leaving(state.waiting, state.waiting_length, state.length, used, state.hidden.shape[1], num_new)
        queue = take_rows(torch.cat([state.waiting, rows], 1), index)
        beyond = torch.arange(index.shape[1], device=rows.device) >= length[:, None]
        return state._replace(waiting=queue.masked_fill(beyond[..., None], 0), waiting_length=length)


class InfiniteStage(Stage):
    def __init__(self, config: Infinite, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.units = nn.ModuleList(InfiniteUnit(config, layer) for layer in layers)
        dim = self.parts()[0].layer.dim
        self.gate = nn.Conv1d(dim, dim, 3, padding=1) if config.gate == "shared" else None

    def parts(self) -> list[InfiniteUnit]:
        return list(self.units)  # type: ignore[arg-type]

    def init(self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False) -> InfiniteStates:
        return InfiniteStates(tuple(unit.init(batch, length, like, full) for unit in self.parts()))

    def forward(self, x: Tensor, state: InfiniteStates, segment: Segment) -> tuple[Tensor, InfiniteStates]:
        after = []
        for unit, memory in zip(self.parts(), state.layers, strict=True):
            x, memory = self._layer(unit, x, memory, segment)
            after.append(memory)
        return x, InfiniteStates(tuple(after))

    def _layer(
        self, unit: InfiniteUnit, x: Tensor, state: InfiniteState, segment: Segment
    ) -> tuple[Tensor, InfiniteState]:
        now = unit.push(state, self.gate)
        keys, values = unit.layer.keys_values(x, now.hidden)
        out, attended = unit.attend(x, keys, values, now, 0, segment)
        if self.training and self.config.kl_weight:
            divergence = unit.long_term.divergence(attended) * (now.fitted > 0)[:, None, None]
            mean = mean_of_valid(divergence.transpose(1, 2), segment.lengths)
            segment.call.losses.add("kl", self.config.kl_weight * mean)
        used = segment.used(x)
        with torch.no_grad():
            after = unit.write(x, now, used, bin_masses(attended, segment.lengths), self.gate)
        after = after if segment.lengths is None else choose(used > 0, after, state)
        return out, InfiniteState(*(leaf.detach().contiguous() for leaf in after))

    def extent(self, state: InfiniteStates) -> Extent:
        first = state.layers[0]
        return Extent(first.hidden.shape[1], filled=(first.length,))

    def resize(self, state: InfiniteStates, length: int) -> InfiniteStates:
        def one(memory: InfiniteState) -> InfiniteState:
            return memory._replace(hidden=fit_slots(memory.hidden, length, 1), length=memory.length.clamp(max=length))

        return InfiniteStates(tuple(one(memory) for memory in state.layers))

    def open(self, state: InfiniteStates, segment: int) -> OpenInfinite:
        return OpenInfinite(self, state, segment)

    def work(self, rows: int, slots: int, cached: bool = False) -> float:
        gates = [self.gate or unit.long_term.gate for unit in self.parts()]
        filters = sum(self.config.block * matrix_work(gate) for gate in gates if gate is not None)
        fits = max(1.0, rows / self.config.block)  # every segment computes one
        return fits * filters + sum(unit.work(rows, slots, fits) for unit in self.parts())


class InfiniteContents(NamedTuple):
    hidden: tuple[Tensor, ...]
    """(B, T, D) of each layer: inputs of the open segment"""
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    """(B, H, T, d) of each layer"""
    masses: tuple[Tensor, ...]
    """(B, BINS) of each layer: its attention so far"""


class OpenInfinite(SharesSteps):
    """The committed states, the states with this segment's signals (`now`), and the inputs of the open segment."""

    def __init__(self, stage: InfiniteStage, state: InfiniteStates, segment: int) -> None:
        self.stage, self.segment = stage, segment
        self._begin(state)

    def _begin(self, state: InfiniteStates) -> None:
        self.memory = state
        units = self.stage.parts()
        pairs = list(zip(units, state.layers, strict=True))
        self.now = [unit.push(memory, self.stage.gate) for unit, memory in pairs]
        projected = [unit.layer.keys_values(F.pad(memory.hidden, (0, 0, 0, self.segment))) for unit, memory in pairs]
        self.keys, self.values = ([part.contiguous() for part in parts] for parts in zip(*projected, strict=True))
        self.hidden = [m.hidden.new_zeros(len(m.hidden), self.segment, m.hidden.shape[2]) for m in state.layers]
        self.masses = [torch.zeros_like(memory.masses) for memory in state.layers]

    @property
    def _num_slots(self) -> int:
        return self.stage.extent(self.memory).slots

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        begin = self._num_slots + count
        end = begin + x.shape[1]
        for i, unit in enumerate(self.stage.parts()):
            self.hidden[i][:, count : count + x.shape[1]] = x
            self.keys[i][:, :, begin:end], self.values[i][:, :, begin:end] = unit.layer.keys_values(x)
            keys, values = self.keys[i][:, :, :end], self.values[i][:, :, :end]
            x, attended = unit.attend(x, keys, values, self.now[i], count, segment)
            self.masses[i] = self.masses[i] + bin_masses(attended, None)
        return x

    def commit(self) -> None:
        used = torch.full_like(self.now[0].length, self.segment)
        gate, units = self.stage.gate, self.stage.parts()
        parts = zip(units, self.hidden, self.now, self.masses, strict=True)
        after = [unit.write(hidden, now, used, masses, gate) for unit, hidden, now, masses in parts]
        self._begin(InfiniteStates(tuple(after)))

    def state(self) -> InfiniteStates:
        return tree_map(torch.clone, self.memory)

    def contents(self, length: int) -> InfiniteContents:
        begin = self._num_slots

        def opened(parts: list[Tensor], dim: int, first: int) -> tuple[Tensor, ...]:
            return tuple(part.narrow(dim, first, length).contiguous().clone() for part in parts)

        return InfiniteContents(
            opened(self.hidden, 1, 0),
            opened(self.keys, 2, begin),
            opened(self.values, 2, begin),
            tuple(part.clone() for part in self.masses),
        )

    def restore(self, contents: InfiniteContents, count: int) -> None:
        begin = self._num_slots
        for i in range(len(self.hidden)):
            self.hidden[i][:, :count] = contents.hidden[i][:, :count]
            self.keys[i][:, :, begin : begin + count] = contents.keys[i][:, :, :count]
            self.values[i][:, :, begin : begin + count] = contents.values[i][:, :, :count]
        self.masses = [part.clone() for part in contents.masses]

    def row_tensors(self) -> Iterator[RowTensor]:
        yield from (RowTensor(part, 2, self._num_slots) for part in (*self.keys, *self.values))
        yield from (RowTensor(part, 1) for part in self.hidden)
        yield from plain_tensors(tuple(self.masses))
        for now, memory in zip(self.now, self.memory.layers, strict=True):
            yield RowTensor(now.length, counts_memory=True)
            # The other tensors of the committed memory are those of `now`.
            yield from plain_tensors((now.hidden, *now[2:]))
            yield from plain_tensors(memory[2:6])

    def window(self, begin: int) -> OpenInfinite:
        other = copy.copy(self)  # `masses` stays the same list
        other.hidden = [part[:, begin:] for part in self.hidden]
        other.keys, other.values = ([part[:, :, begin:] for part in parts] for parts in (self.keys, self.values))
        return other

    def select(self, rows: Tensor) -> OpenInfinite:
        other, rows = copy.copy(self), rows.to(self.hidden[0].device)
        other.memory = select(self.memory, rows)
        lists = (self.now, self.keys, self.values, self.hidden, self.masses)
        other.now, other.keys, other.values, other.hidden, other.masses = map(list, select(lists, rows))
        return other
