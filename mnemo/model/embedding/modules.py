"""The modules of token embeddings and softmax; see the package for what they are.

Shapes: N tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.model.embedding import Bins, EmbeddingConfig
from mnemo.ops.cross_entropy import capped, cross_entropy_and_lse, linear_cross_entropy
from mnemo.ops.projection import compute_dtype
from mnemo.ops.table_rows import table_rows


class TokenEmbedding(nn.Module):
    """ids (B, L) -> (B, L, D), scaled by sqrt(D)."""

    def __init__(self, config: EmbeddingConfig, vocab_size: int, dim: int, word_dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.word_dropout = dim, word_dropout
        self.bins = bins = Bins.of(config, vocab_size, dim)
        self.split = config.div_val > 1  # one table for every bin, else one for all
        shapes = [(bins.edges[i + 1] - bins.edges[i], bins.widths[i]) for i in range(len(bins))]
        if not self.split:
            shapes = [(vocab_size, bins.widths[0])]
        self.tables = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.projections = nn.ParameterList(torch.empty(dim, w) for _, w in shapes if bins.projected)

    def table(self, index: int) -> Tensor:
        """Rows of bin `index`."""
        if self.split:
            return self.tables[index]
        return self.tables[0][self.bins.edges[index] : self.bins.edges[index + 1]]

    def projection(self, index: int) -> Tensor | None:
        if not self.bins.projected:
            return None
        return self.projections[index if self.split else 0]

    def forward(self, ids: Tensor) -> Tensor:
        keep = self._kept_words()
        if not self.split:
            x = table_rows(ids, self.tables[0])
            if self.bins.projected:
                x = F.linear(x, self.projections[0])
        else:
            x = self._by_bin(ids)
        if keep is not None:
            x = x * keep[ids, None]
        return x * self.dim**0.5

    def _by_bin(self, ids: Tensor) -> Tensor:
        if _shapes_must_be_fixed(ids):
            return self._from_every_bin(ids)
        flat = ids.reshape(-1)
        x = self.projections[0].new_zeros(flat.shape[0], self.dim)
        for i in range(len(self.bins)):
            where = ((flat >= self.bins.edges[i]) & (flat < self.bins.edges[i + 1])).nonzero().squeeze(1)
            if where.numel() == 0:  # without a gradient, Adam does not change an unused bin, as in the published code
                continue
            rows = F.linear(table_rows(flat[where] - self.bins.edges[i], self.tables[i]), self.projections[i])
            x = x.index_copy(0, where, rows.to(x.dtype))
        return x.view(*ids.shape, self.dim)

    def _from_every_bin(self, ids: Tensor) -> Tensor:
        """The same with shapes that do not depend on the ids: every bin embeds every token."""
        parts = []
        for table, projection, low, high in zip(
            self.tables, self.projections, self.bins.edges, self.bins.edges[1:], strict=False
        ):
            rows = F.linear(table_rows((ids - low).clamp(0, high - low - 1), table), projection)
            parts.append(rows * ((ids >= low) & (ids < high))[..., None])
        return torch.stack(parts).sum(0)

    def _kept_words(self) -> Tensor | None:
        if not self.training or self.word_dropout == 0:
            return None
        keep = self.tables[0].new_empty(self.bins.edges[-1]).bernoulli_(1 - self.word_dropout)
        return keep / (1 - self.word_dropout)


class Softmax(nn.Module):
    """Negative log-likelihoods and log-probabilities from hidden rows (N, D). `cap`: soft cap of the logits."""

    def __init__(self, config: EmbeddingConfig, embedding: TokenEmbedding, dim: int, cap: float | None = None) -> None:
        super().__init__()
        self.cap = cap
        bins, split = embedding.bins, embedding.split
        self.bins, self.split = bins, split
        self.fixed_sizes = False  # if set, shapes do not depend on the targets, for which `bins_fit` must hold
        self.tied = config.tie_weights
        self.ties = config.ties()
        shapes = [tuple(table.shape) for table in embedding.tables]
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes if not self.tied)
        self.biases = nn.ParameterList(torch.empty(shape[0]) for shape in shapes)
        own = [i for i in range(len(bins)) if bins.projected and not self.ties[i]]
        self.projections = nn.ParameterDict({str(i): torch.empty(dim, bins.widths[i]) for i in own})
        clusters = len(bins) - 1
        self.cluster_weight = nn.Parameter(torch.empty(clusters, bins.widths[0])) if clusters else None
        self.cluster_bias = nn.Parameter(torch.empty(clusters)) if clusters else None

    def _bin(self, index: int, embedding: TokenEmbedding) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weight (v, w), bias (v,) and projection (D, w) of a bin."""
        begin, end = self.bins.edges[index], self.bins.edges[index + 1]
        projection = embedding.projection(index)
        if self.bins.projected and not self.ties[index]:
            projection = self.projections[str(index)]
        if self.split:
            weight = embedding.tables[index] if self.tied else self.weights[index]
            return weight, self.biases[index], projection
        weight = embedding.tables[0] if self.tied else self.weights[0]
        return weight[begin:end], self.biases[0][begin:end], projection

    def _head(self, embedding: TokenEmbedding) -> tuple[Tensor, Tensor, Tensor | None]:
        """The first bin, followed by the clusters."""
        weight, bias, projection = self._bin(0, embedding)
        if self.cluster_weight is None or self.cluster_bias is None:
            return weight, bias, projection
        return torch.cat([weight, self.cluster_weight]), torch.cat([bias, self.cluster_bias]), projection

    def nll(self, hidden: Tensor, targets: Tensor, embedding: TokenEmbedding, temperature: float = 1.0) -> Tensor:
        """(N, D), (N,) -> (N,); 0 for a target of -1. The temperature divides the logits of every bin."""

        def loss_of_bin(rows: Tensor, weight: Tensor, bias: Tensor, projection: Tensor | None, goal: Tensor) -> Tensor:
            rows, cap = _projected(rows, projection), self.cap
            if temperature != 1:
                rows, bias = rows / temperature, bias / temperature
                cap = None if cap is None else cap / temperature
            return linear_cross_entropy(rows.to(compute_dtype(rows)), weight, bias, goal, cap)

        return self._over_bins(loss_of_bin, hidden, targets, embedding)

    def nll_and_squared_lse(self, hidden: Tensor, targets: Tensor, embedding: TokenEmbedding) -> tuple[Tensor, Tensor]:
        """As `nll`, with the squared log-sum-exp of each token's logits; with bins, those of its bins are added."""

        def both(rows: Tensor, weight: Tensor, bias: Tensor, projection: Tensor | None, goal: Tensor) -> Tensor:
            rows = _projected(rows, projection)
            loss, lse = cross_entropy_and_lse(rows.to(compute_dtype(rows)), weight, bias, goal, self.cap)
            return torch.stack([loss, lse.square()], 1)

        found = self._over_bins(both, hidden, targets, embedding)
        return found[:, 0], found[:, 1]

    def _over_bins(
        self, function: Callable[..., Tensor], hidden: Tensor, targets: Tensor, embedding: TokenEmbedding
    ) -> Tensor:
        """The sum of a function (rows, weight, bias, projection, targets) over the bins that each target needs."""
        head = self._head(embedding)
        if len(self.bins) == 1:
            return function(hidden, *head, targets)
        first = targets < self.bins.edges[1]
        which = torch.stack([targets >= edge for edge in self.bins.edges[1:-1]]).sum(0)
        cluster = self.bins.edges[1] + which - 1
        total = function(hidden, *head, torch.where(first, targets, cluster))
        sizes = self.bins.fixed_sizes(len(targets)) if self.fixed_sizes else [None] * (len(self.bins) - 1)
        for i, size in enumerate(sizes, 1):
            rows, inside = _members(which == i, targets - self.bins.edges[i], size)
            if size is not None or rows.numel():
                total = total.index_add(0, rows, function(hidden[rows], *self._bin(i, embedding), inside))
        return total

    def bins_fit(self, targets: Tensor) -> bool:
        """Whether every further bin has room for its targets (N,) in a program of fixed sizes."""
        sizes = self.bins.fixed_sizes(targets.numel())
        edges = zip(self.bins.edges[1:], self.bins.edges[2:], sizes, strict=False)
        return all(int(((targets >= low) & (targets < high)).sum()) <= size for low, high, size in edges)

    def log_probabilities(self, hidden: Tensor, embedding: TokenEmbedding) -> Tensor:
        """(..., D) -> (..., V)."""
        scores = F.log_softmax(self._logits(hidden, *self._head(embedding)), -1)
        parts = [scores[..., : self.bins.edges[1]]]
        for i in range(1, len(self.bins)):
            tail = F.log_softmax(self._logits(hidden, *self._bin(i, embedding)), -1)
            parts.append(scores[..., self.bins.edges[1] + i - 1, None] + tail)
        return torch.cat(parts, -1)

    def logits(self, hidden: Tensor, embedding: TokenEmbedding) -> Tensor:
        """Unnormalised scores; with bins, log-probabilities."""
        if len(self.bins) > 1:
            return self.log_probabilities(hidden, embedding)
        return self._logits(hidden, *self._head(embedding))

    def only_product(self, embedding: TokenEmbedding) -> tuple[Tensor, Tensor] | None:
        """Weight (V, D) and bias (V,), if logits are nothing but their product with hidden rows."""
        if len(self.bins) > 1 or self.bins.projected or self.cap is not None:
            return None
        weight, bias, _ = self._head(embedding)
        return weight, bias

    def _logits(self, hidden: Tensor, weight: Tensor, bias: Tensor, projection: Tensor | None) -> Tensor:
        return capped(F.linear(_projected(hidden, projection), weight, bias), self.cap)


def _shapes_must_be_fixed(ids: Tensor) -> bool:
    """Whether ids have no values to branch on: in a compiled or recorded program, and on the meta device."""
    recording = ids.is_cuda and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or ids.is_meta or recording


def _members(mask: Tensor, targets: Tensor, size: int | None) -> tuple[Tensor, Tensor]:
    """Indices of the rows of a bin, and their targets.

    With a size, exactly so many: unused ones are row 0 with a target of -1, whose loss and gradient are zero.
    """
    if size is None:
        rows = mask.nonzero().squeeze(1)
        return rows, targets[rows]
    places = mask.cumsum(0) - 1
    slots = torch.where(mask & (places < size), places, size)
    # All rows of other bins are written to one more slot, which is cut off.
    rows = torch.zeros(size + 1, dtype=torch.int64, device=mask.device)
    rows = rows.scatter(0, slots, torch.arange(len(mask), device=mask.device))[:size]
    used = torch.arange(size, device=mask.device) < mask.sum()
    return rows, torch.where(used, targets[rows], -1)


def _projected(hidden: Tensor, projection: Tensor | None) -> Tensor:
    """Rows in the width of a bin."""
    return hidden if projection is None else hidden @ projection
