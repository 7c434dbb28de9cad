"""Where heads look: attention by relative distance, wide heads, score terms, maxima per interval, whole maps.

Distance 0 is the token itself. Distances count keys: in a compressive memory a compressed slot is one, and cached rows
of memory tokens are too. What tokens give to the memory tokens that they read is counted apart. What an infinite memory
reads of its signal is no attention to keys, and not shown.

Shapes: N layers that attend, H heads, L tokens, K keys, D distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.analysis.inputs import Ids
from mnemo.analysis.observers import OfText, Place, attending_layers, observe
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.ops import Attended
from mnemo.progress import ShowProgress

WIDE_SHARE = 0.2
"""The paper marks the top fifth."""


def by_distance(scores: Tensor) -> Tensor:
    """(..., L, K) of queries that stand on the last L keys -> (..., L, K), key j of query i in column K - L + i - j.

    Keys ahead of a query are dropped; columns beyond a query's first key are zero.
    """
    num_queries, num_keys = scores.shape[-2:]
    wide = torch.nn.functional.pad(scores.flip(-2), (0, num_queries)).flatten(-2)
    skewed = wide[..., :-num_queries].unflatten(-1, (num_queries, num_keys + num_queries - 1))
    return skewed[..., :num_keys].flip(-1).flip(-2)


class _Sums:
    """Sums by distance of layers and heads, in float64; on their device, which need not be waited for then."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def add(self, layer: int, part: Tensor) -> None:
        """(..., D) of one segment; segments may differ in D."""
        part = (part.cpu() if part.device.type == "mps" else part).double()  # mps has no float64
        have = self.layers.get(layer)
        if have is not None:
            size = max(have.shape[-1], part.shape[-1])
            part = _widen(have, size) + _widen(part, size)
        self.layers[layer] = part

    def stacked(self) -> Tensor:
        """(N, ..., D) on the CPU, the layers in order."""
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
    """Mean distance of what it attends to"""


class Buckets(NamedTuple):
    labels: tuple[str, ...]
    """`0`, `1`, `2-3`, ... tokens back"""
    shares: Tensor
    """(N, buckets): of each layer's attention, its heads averaged"""


@dataclass(frozen=True, kw_only=True)
class AttentionByDistance:
    layers: tuple[int, ...]
    """Indices (from 0) of the layers that attend."""
    mass: Tensor
    """(N, H, D): a query's attention at each distance, averaged over queries."""
    reachable: Tensor
    """(N, D): share of the queries that could see that far."""
    memory_tokens: Tensor
    """(N, H): what a query gives to the memory tokens it reads, on average."""
    queries: int
    """How many tokens were averaged over."""

    def where_visible(self) -> Tensor:
        """(N, H, D): averaged only over the queries that could see that far; 0 where none could."""
        return self.mass / self.reachable.clamp(min=1 / max(1, self.queries))[:, None]

    def reach(self) -> Tensor:
        """(N, H): mean distance of the attention that goes to text."""
        distance = torch.arange(self.mass.shape[-1], dtype=self.mass.dtype)
        return (self.mass * distance).sum(-1) / self.mass.sum(-1).clamp(min=1e-12)

    def wide_heads(self, share: float = WIDE_SHARE) -> list[Head]:
        """The share of all heads that reaches farthest, at least one of them, the widest first."""
        if not 0 < share <= 1:
            raise MnemoError(f"a share of {share} of the heads is not in (0, 1]")
        reach = self.reach()
        count = max(1, round(share * reach.numel()))
        order = reach.flatten().argsort(descending=True, stable=True)[:count].tolist()
        places = [divmod(index, reach.shape[1]) for index in order]
        return [Head(self.layers[layer], head, float(reach[layer, head])) for layer, head in places]

    def rows(self) -> list[str]:
        """Names of the N x H heads in order: layer and head, counted from 1."""
        return [f"{layer + 1}.{head + 1}" for layer in self.layers for head in range(self.mass.shape[1])]

    def buckets(self, edges: Sequence[int] | None = None) -> Buckets:
        """Shares of attention at distances from each edge to the next; edges 0, 1, 2, 4, 8 ... when left out."""
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
    """Gathers attention by distance."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers, self.queries = layers, 0
        self.mass, self.reachable, self.to_memory = _Sums(), _Sums(), _Sums()

    def see(self, place: Place, seen: OfText, whole: Attended) -> None:
        if not place.warm:
            return
        layer, probabilities, visible = place.place, seen.probabilities, seen.visible.to(seen.probabilities.dtype)
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
    """Every head's attention over a text (T,), averaged over tokens (Transformer-XL's figure 5)."""
    observer = DistanceObserver(attending_layers(model))
    observe(model, ids, [observer], segment=segment, memory=memory, progress=progress)
    return observer.result()


@dataclass(frozen=True, kw_only=True)
class ScoreTerms:
    layers: tuple[int, ...]
    means: dict[str, Tensor]
    """(N, H, D) of each term `a` ... `d`: its mean at each distance, over the queries that see it."""
    attention: dict[str, Tensor]
    """(N, H, D) of each term: the softmax of that term alone, averaged over queries (Transformer-XL's figure 7)."""


class TermsObserver:
    """Gathers the terms of the scores by distance."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers, self.queries, self.counts = layers, 0, _Sums()
        self.values: dict[str, _Sums] = {}
        self.attention: dict[str, _Sums] = {}

    def see(self, place: Place, seen: OfText, whole: Attended) -> None:
        if not place.warm:
            return
        layer, hidden = place.place, ~seen.visible
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
    """The terms (a) q.k, (b) q.r, (c) u.k and (d) v.r by distance; absolute and rotary positions have (a) alone."""
    observer = TermsObserver(attending_layers(model))
    observe(model, ids, [observer], segment=segment, memory=memory, progress=progress)
    return observer.result()


class Maxima(NamedTuple):
    begins: tuple[int, ...]
    """The nearest distance of each interval"""
    by_head: Tensor
    """(H, intervals): the largest attention inside an interval, averaged over the queries that see all of it"""

    @property
    def mean(self) -> Tensor:
        """(intervals,), the heads averaged."""
        return self.by_head.mean(0)


class MaximaObserver:
    """Gathers the largest attention of every interval of distances in one layer."""

    def __init__(self, place: int, interval: int) -> None:
        self.place, self.interval = place, interval
        self.maxima, self.counts = _Sums(), _Sums()

    def see(self, place: Place, seen: OfText, whole: Attended) -> None:
        if not place.warm or place.place != self.place:
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
    """A layer's largest attention per interval of distances (LaMemo's figure 1): the final layer when left out."""
    if interval < 1:
        raise MnemoError(f"an interval of {interval} tokens must be positive")
    observer = MaximaObserver(place_of(model, layer), interval)
    observe(model, ids, [observer], segment=segment, memory=memory, progress=progress)
    return observer.result()


def place_of(model: Model, layer: int | None) -> int:
    """A layer's place among those that attend; the last one's when left out."""
    attending = attending_layers(model)
    if layer is None:
        return len(attending) - 1
    if layer not in attending:
        raise MnemoError(f"layer {layer} does not attend: {', '.join(map(str, attending))} do (counted from 0)")
    return attending.index(layer)
