"""Attention by relative distance: mean attention, wide heads, score terms, maxima per interval of distances.

Distance 0 is the token itself. Distances count keys: a compressed slot of a compressive memory counts as one, and so do
cached rows of memory tokens. Attention to the memory tokens at the start of a segment is counted separately. Attention
of an infinite memory to its continuous signal is not included.

Shapes: N layers that attend, H heads, L tokens, K keys, D distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.analysis.inputs import Ids
from mnemo.analysis.observers import AttentionSource, TextAttention, attending_layers, observe
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.ops import Attended
from mnemo.progress import ShowProgress

WIDE_SHARE = 0.2
"""Share of all heads that count as wide: the paper marks the top fifth."""


def by_distance(scores: Tensor) -> Tensor:
    """Reorder the keys of (..., L, K) by distance: key j of query i moves to column K - L + i - j.

    The queries are the last L keys. Keys after a query are dropped; columns beyond the first key are zero.
    """
    num_queries, num_keys = scores.shape[-2:]
    wide = torch.nn.functional.pad(scores.flip(-2), (0, num_queries)).flatten(-2)
    skewed = wide[..., :-num_queries].unflatten(-1, (num_queries, num_keys + num_queries - 1))
    return skewed[..., :num_keys].flip(-1).flip(-2)


class _Sums:
    """Sums by distance for each layer and head, in float64; kept on their device to avoid synchronization."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def add(self, layer: int, part: Tensor) -> None:
        """Add the values (..., D) of one segment; D may differ between segments."""
        part = (part.cpu() if part.device.type == "mps" else part).double()  # mps has no float64
        have = self.layers.get(layer)
        if have is not None:
            size = max(have.shape[-1], part.shape[-1])
            part = _widen(have, size) + _widen(part, size)
        self.layers[layer] = part

    def stacked(self) -> Tensor:
        """Return (N, ..., D) on the CPU, layers in order."""
        size = max(part.shape[-1] for part in self.layers.values())
        return torch.stack([_widen(self.layers[layer], size) for layer in sorted(self.layers)]).cpu()


def _widen(part: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(part, (0, size - part.shape[-1]))


class Head(NamedTuple):
    layer: int
    """From 0"""
    head: int
    """From 0"""
    reach: float
    """Mean distance of its attention"""


class Buckets(NamedTuple):
    labels: tuple[str, ...]
    """Distances of each bucket: `0`, `1`, `2-3`, ..."""
    shares: Tensor
    """(N, buckets): share of each layer's attention, averaged over heads"""


@dataclass(frozen=True, kw_only=True)
class AttentionByDistance:
    """Attention of all heads by the distance of the key, averaged over the tokens of a text."""

    layers: tuple[int, ...]
    """Indices (from 0) of the layers that attend."""
    mass: Tensor
    """(N, H, D): attention at each distance, averaged over queries."""
    reachable: Tensor
    """(N, D): share of queries that have a key at that distance."""
    memory_tokens: Tensor
    """(N, H): attention to the memory tokens at the start of the segment, averaged over queries."""
    queries: int
    """Number of queries in the averages."""

    def where_visible(self) -> Tensor:
        """Return attention (N, H, D) averaged over the queries that have a key at that distance; 0 if none has."""
        return self.mass / self.reachable.clamp(min=1 / max(1, self.queries))[:, None]

    def reach(self) -> Tensor:
        """Return the mean distance (N, H) of attention to text."""
        distance = torch.arange(self.mass.shape[-1], dtype=self.mass.dtype)
        return (self.mass * distance).sum(-1) / self.mass.sum(-1).clamp(min=1e-12)

    def wide_heads(self, share: float = WIDE_SHARE) -> list[Head]:
        """Return the given share of all heads with the largest reach, at least one, in descending order."""
        if not 0 < share <= 1:
            raise MnemoError(f"the share of heads must be in (0, 1], not {share}")
        reach = self.reach()
        count = max(1, round(share * reach.numel()))
        order = reach.flatten().argsort(descending=True, stable=True)[:count].tolist()
        heads = [divmod(index, reach.shape[1]) for index in order]
        return [Head(self.layers[layer], head, float(reach[layer, head])) for layer, head in heads]

    def rows(self) -> list[str]:
        """Return the names of the N x H heads in order: layer and head, counted from 1."""
        return [f"{layer + 1}.{head + 1}" for layer in self.layers for head in range(self.mass.shape[1])]

    def buckets(self, edges: Sequence[int] | None = None) -> Buckets:
        """Return shares of attention at distances from each edge to the next; default edges are 0, 1, 2, 4, 8 ..."""
        size = self.mass.shape[-1]
        edges = list(edges) if edges is not None else [0, *(2**i for i in range(size.bit_length()) if 2**i < size)]
        ends = [*edges[1:], max(size, edges[-1] + 1)]
        by_layer = self.mass.mean(1)
        shares = torch.stack([by_layer[:, begin:end].sum(-1) for begin, end in zip(edges, ends, strict=True)], -1)
        labels = tuple(
            str(begin) if end == begin + 1 else f"{begin}-{end - 1}" for begin, end in zip(edges, ends, strict=True)
        )
        return Buckets(labels, shares)


class DistanceObserver:
    """Accumulates attention by distance."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers, self.queries = layers, 0
        self.mass, self.reachable, self.to_memory = _Sums(), _Sums(), _Sums()

    def see(self, source: AttentionSource, seen: TextAttention, whole: Attended) -> None:
        if not source.warm:
            return
        layer, probabilities, visible = source.layer, seen.probabilities, seen.visible.to(seen.probabilities.dtype)
        self.to_memory.add(layer, probabilities[..., seen.read].sum((-1, -2))[:, None])
        self.mass.add(layer, by_distance(_without(probabilities, seen.read)).sum(-2))
        self.reachable.add(layer, by_distance(_without(visible, seen.read)).sum(-2))
        self.queries += probabilities.shape[1] if layer == 0 else 0

    def result(self) -> AttentionByDistance:
        count = max(1, self.queries)
        return AttentionByDistance(
            layers=self.layers,
            mass=self.mass.stacked() / count,
            reachable=self.reachable.stacked() / count,
            memory_tokens=self.to_memory.stacked()[..., 0] / count,
            queries=self.queries,
        )


def _without(scores: Tensor, keys: slice) -> Tensor:
    if keys.start == keys.stop:
        return scores
    scores = scores.clone()
    scores[..., keys] = 0
    return scores


def attention_by_distance(
    model: Model, ids: Ids, *, segment: int, memory: int | None = None, progress: ShowProgress | None = None
) -> AttentionByDistance:
    """Return the attention of every head on a text (T,), averaged over tokens (Transformer-XL's figure 5)."""
    observer = DistanceObserver(attending_layers(model))
    observe(model, ids, [observer], segment=segment, memory=memory, progress=progress)
    return observer.result()


@dataclass(frozen=True, kw_only=True)
class ScoreTerms:
    layers: tuple[int, ...]
    means: dict[str, Tensor]
    """(N, H, D) for each term `a` ... `d`: mean at each distance, over the queries that have such a key."""
    attention: dict[str, Tensor]
    """(N, H, D) for each term: softmax of that term alone, averaged over queries (Transformer-XL's figure 7)."""


class TermsObserver:
    """Accumulates the terms of the scores by distance."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers, self.queries, self.counts = layers, 0, _Sums()
        self.values: dict[str, _Sums] = {}
        self.attention: dict[str, _Sums] = {}

    def see(self, source: AttentionSource, seen: TextAttention, whole: Attended) -> None:
        if not source.warm:
            return
        layer, hidden = source.layer, ~seen.visible
        self.counts.add(layer, by_distance(_without(seen.visible.to(seen.probabilities.dtype), seen.read)).sum(-2))
        for name, term in seen.terms.items():
            shown = _without(term.masked_fill(hidden, 0.0), seen.read)
            self.values.setdefault(name, _Sums()).add(layer, by_distance(shown).sum(-2))
            alone = _without(term.masked_fill(hidden, float("-inf")).softmax(-1), seen.read)
            self.attention.setdefault(name, _Sums()).add(layer, by_distance(alone).sum(-2))
        self.queries += len(hidden) if layer == 0 else 0

    def result(self) -> ScoreTerms:
        counts = self.counts.stacked().clamp(min=1)[:, None]
        return ScoreTerms(
            layers=self.layers,
            means={name: sums.stacked() / counts for name, sums in sorted(self.values.items())},
            attention={name: sums.stacked() / max(1, self.queries) for name, sums in sorted(self.attention.items())},
        )


def score_terms(
    model: Model, ids: Ids, *, segment: int, memory: int | None = None, progress: ShowProgress | None = None
) -> ScoreTerms:
    """Return the score terms (a) q.k, (b) q.r, (c) u.k, (d) v.r by distance; without relative positions, (a) only."""
    observer = TermsObserver(attending_layers(model))
    observe(model, ids, [observer], segment=segment, memory=memory, progress=progress)
    return observer.result()


class Maxima(NamedTuple):
    begins: tuple[int, ...]
    """Smallest distance of each interval"""
    by_head: Tensor
    """(H, intervals): largest attention in the interval, averaged over the queries that see all of it"""

    @property
    def mean(self) -> Tensor:
        """(intervals,), averaged over heads."""
        return self.by_head.mean(0)


class MaximaObserver:
    """Accumulates the largest attention in every interval of distances in one layer."""

    def __init__(self, layer: int, interval: int) -> None:
        self.layer, self.interval = layer, interval
        self.maxima, self.counts = _Sums(), _Sums()

    def see(self, source: AttentionSource, seen: TextAttention, whole: Attended) -> None:
        if not source.warm or source.layer != self.layer:
            return
        probabilities = by_distance(_without(seen.probabilities, seen.read))
        visible = by_distance(_without(seen.visible.to(probabilities.dtype), seen.read))
        whole_intervals = self._intervals(visible).sum(-1) == self.interval
        largest = self._intervals(probabilities).amax(-1) * whole_intervals
        self.maxima.add(0, largest.sum(-2))
        self.counts.add(0, whole_intervals.to(largest.dtype).sum(-2))

    def _intervals(self, rows: Tensor) -> Tensor:
        size = rows.shape[-1] // self.interval * self.interval
        return rows[..., :size].unflatten(-1, (-1, self.interval))

    def result(self) -> Maxima:
        counts = self.counts.stacked()[0]
        seen = counts > 0
        begins = tuple((seen.nonzero()[:, 0] * self.interval).tolist())
        return Maxima(begins, self.maxima.stacked()[0][:, seen] / counts[seen])


def interval_maxima(
    model: Model,
    ids: Ids,
    *,
    segment: int,
    layer: int | None = None,
    interval: int = 5,
    memory: int | None = None,
    progress: ShowProgress | None = None,
) -> Maxima:
    """Return a layer's largest attention in each interval of distances (LaMemo's figure 1); default: the last layer."""
    if interval < 1:
        raise MnemoError(f"the interval must be positive, not {interval}")
    observer = MaximaObserver(attending_index(model, layer), interval)
    observe(model, ids, [observer], segment=segment, memory=memory, progress=progress)
    return observer.result()


def attending_index(model: Model, layer: int | None) -> int:
    """Return the index of a layer among the layers with attention; by default that of the last one."""
    attending = attending_layers(model)
    if layer is None:
        return len(attending) - 1
    if layer not in attending:
        raise MnemoError(
            f"layer {layer} has no attention; layers {', '.join(map(str, attending))} have (counted from 0)"
        )
    return attending.index(layer)
