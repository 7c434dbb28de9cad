"""State and weights of an associative memory; see the package for what it is.

Shapes: B batch, T rows, m memory tokens, D width, h heads, K features of a head, V = D / h values of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.memory.associative import Associative
from mnemo.memory.protocol import DrawsOwnWeights, full_precision, widened

EPSILON = 1e-5
"""Added to the normaliser where it divides, as in the published code."""


class Associations(NamedTuple):
    matrix: Tensor
    """(B, h, K, V)"""
    normaliser: Tensor
    """(B, h, K): the sum of the keys that were written; K = 0 without a normaliser"""


class Projection(nn.Linear, DrawsOwnWeights):
    """Draws its weights like a linear layer of PyTorch, as in the published code."""


class ZeroProjection(Projection):
    """Its weights are zero at first."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


def features(keys: Tensor, nu: int) -> Tensor:
    """DPFP features (Schlag et al., 2021) of keys (..., w): 2 * nu * w numbers that are not negative.

    Products of r = [relu(k), relu(-k)] with itself, shifted by 1 ... nu places.
    """
    parts = torch.cat([keys, -keys], -1).relu()
    width = parts.shape[-1]
    # All shifts are windows of one tensor: one product instead of one for each shift, which matters on a GPU.
    repeated = torch.cat([parts] * (1 - -nu // width), -1)[..., -(nu + width) :]
    shifted = torch.stack([repeated[..., nu - shift : nu - shift + width] for shift in range(1, nu + 1)], -2)
    return (parts[..., None, :] * shifted).flatten(-2)


class AssociativeMemory(nn.Module):
    """The weights that read and write the matrix of one layer."""

    def __init__(self, config: Associative, dim: int) -> None:
        super().__init__()
        config.check_width(dim)
        self.config = config
        self.query = Projection(dim, config.key_dim, bias=False)
        self.key = Projection(dim, config.key_dim, bias=False)
        self.value = ZeroProjection(dim, dim, bias=False)
        self.strength = Projection(dim, config.heads if config.gate == "head" else dim)

    def init(self, batch: int, like: Tensor) -> Associations:
        """An empty memory, in single precision or better: it is a sum over the whole text."""
        heads, count = self.config.heads, self.config.num_features // self.config.heads
        matrix = widened(like).new_zeros(batch, heads, count, self.value.out_features // heads)
        return Associations(matrix, matrix.new_zeros(batch, heads, count if self.config.normaliser else 0))

    def read(self, x: Tensor, memory: Associations) -> Tensor:
        """What rows x (B, T, D) find in the memory, (B, T, D); zeros if it is empty.

        The product with the matrix is computed in the type of x: it is the largest of all.
        """
        queries = self._features(self.query(x))  # (B, h, T, K)
        found = queries.to(x.dtype) @ memory.matrix.to(x.dtype)
        if self.config.normaliser:
            with full_precision(x.device):
                sums = self._sums(queries, memory.normaliser)
            found = found / sums.to(found.dtype)
        return found.transpose(1, 2).flatten(2)

    def add_read(self, x: Tensor, memory: Associations) -> Tensor:
        """Rows x (B, T, D) plus what they find in the memory."""
        return x + self.read(x, memory)

    def write(self, rows: Tensor, memory: Associations) -> Associations:
        """The memory after the output rows (B, m, D) of the memory tokens."""
        with full_precision(rows.device):
            return self._write(*self._to_write(rows), memory)

    def write_first(self, rows: Tensor) -> Associations:
        """As `write` to an empty memory, without the products with its zeros."""
        with full_precision(rows.device):
            keys, values, strength = self._to_write(rows)
            normaliser = keys.new_zeros(*keys.shape[:2], 0)
            if self.config.normaliser:
                normaliser = (keys.new_ones(*keys.shape[:2], 1, keys.shape[2]) @ keys).squeeze(2)
            if self.config.bounded:
                strength = torch.minimum(strength, self._most_strength(keys, normaliser))
            return Associations(keys.transpose(2, 3) @ (strength * values), normaliser)

    def _to_write(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features of the keys (B, h, m, K), values (B, h, m, V) and strengths (B, h, m, 1 or V) of memory tokens."""
        rows = rows.to(self.key.weight.dtype)
        if self.config.bounded:
            # Rows contain what they read: it would be written ever larger.
            rows = self.config.row_size * F.rms_norm(rows, rows.shape[-1:])
        keys = self._features(self.key(rows))
        values = self._heads(self.value(rows)).to(keys.dtype)
        return keys, values, self._heads(self.strength(rows).to(keys.dtype).sigmoid())

    def _write(self, keys: Tensor, values: Tensor, strength: Tensor, memory: Associations) -> Associations:
        old = keys @ memory.matrix
        normaliser = memory.normaliser
        if self.config.normaliser:
            sums = self._sums(keys, normaliser)
            normaliser = normaliser + (self._new_part(keys, sums, normaliser).transpose(2, 3) @ keys).squeeze(2)
            change = torch.addcdiv(values, old, sums, value=-1)
        else:
            change = values - old
        if self.config.bounded:
            strength = torch.minimum(strength, self._most_strength(keys, normaliser))
        return Associations(memory.matrix + keys.transpose(2, 3) @ (strength * change), normaliser)

    def _sums(self, keys: Tensor, normaliser: Tensor) -> Tensor:
        """(B, h, T, 1): z . phi(k), by which what is read is divided."""
        if torch.compiler.is_compiling():  # a sum is computed together with the features, which then need no storage
            return (keys * normaliser[:, :, None]).sum(-1, keepdim=True) + EPSILON
        return keys @ normaliser[..., None] + EPSILON

    @torch.no_grad()
    def _new_part(self, keys: Tensor, sums: Tensor, normaliser: Tensor) -> Tensor:
        """(B, h, m, 1): gamma, the share of each key that the normaliser does not contain; 1 for an empty memory."""
        if not self.config.correction:
            return torch.ones_like(sums)
        parts = sums if self.config.unit_keys else sums / (keys.square().sum(-1, keepdim=True) + EPSILON)
        return torch.where(normaliser.any(-1)[..., None, None], (1 - parts).clamp(0, 1), 1.0)

    @torch.no_grad()
    def _most_strength(self, keys: Tensor, normaliser: Tensor) -> Tensor:
        """(B, h, m, 1): the largest strength with which all memory tokens together replace a value at most once.

        Writing multiplies the matrix by 1 - M, where M is the sum of b phi phi^T / (z . phi) over the memory tokens.
        With b <= z . phi_i / sum_j phi_i . phi_j its eigenvalues are at most 1: the matrix is not amplified.
        """
        overlaps = keys @ keys.sum(2)[..., None]
        return (self._sums(keys, normaliser) if self.config.normaliser else 1.0) / overlaps

    def _features(self, keys: Tensor) -> Tensor:
        """(B, T, h * w) -> (B, h, T, K), in single precision or better."""
        found = features(self._heads(widened(keys)), self.config.nu)
        return F.normalize(found, dim=-1) if self.config.unit_keys else found

    def _heads(self, rows: Tensor) -> Tensor:
        """(B, T, h * w) -> (B, h, T, w)."""
        return rows.unflatten(-1, (self.config.heads, -1)).transpose(1, 2)

    def read_work(self) -> float:
        """Multiply-adds of a row that reads."""
        config, dim = self.config, self.value.out_features
        products = config.num_features / config.heads * dim + config.normaliser * config.num_features
        return dim * config.key_dim + products

    def write_work(self) -> float:
        """Multiply-adds of a memory token that writes: those of reading, its value, its strength, and its products."""
        config, dim = self.config, self.value.out_features
        new = config.num_features / config.heads * dim + config.normaliser * config.num_features
        return self.read_work() + dim * dim + dim * self.strength.out_features + new


def written_rows(rows: Tensor, num: int, lengths: Tensor | None) -> Tensor:
    """Of rows (B, T, D), the last `num` valid ones; `lengths` (B,): valid rows, all for None."""
    if lengths is None:
        return rows[:, rows.shape[1] - num :]
    index = (lengths - num).clamp(min=0)[:, None] + torch.arange(num, device=rows.device)
    return rows.gather(1, index[:, :, None].expand(-1, -1, rows.shape[2]))


def keep_unread(after: Associations, before: Associations | None, lengths: Tensor | None) -> Associations:
    """The memory `after` a segment; that from `before` it for rows of the batch that had no tokens in it.

    None before the first segment: these rows then have an empty memory.
    """
    if lengths is None:
        return after
    had_tokens = lengths > 0
    if before is None:
        before = Associations(torch.zeros_like(after.matrix), torch.zeros_like(after.normaliser))
    matrix = torch.where(had_tokens[:, None, None, None], after.matrix, before.matrix)
    return Associations(matrix, torch.where(had_tokens[:, None, None], after.normaliser, before.normaliser))
