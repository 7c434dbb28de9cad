"""The equations of an associative memory, one number at a time: slow, and the meaning of `modules.AssociativeMemory`.

Everything is for one row of a batch and one head. Shapes: T rows, m memory tokens, w width of a key, K features, V
values.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-5


def features(key: Tensor, nu: int, unit: bool) -> Tensor:
    """phi: (w,) -> (2 * nu * w,); `unit`: scaled to length one."""
    parts = [max(value, value * 0) for value in (*key, *-key)]
    found = [parts[i] * parts[(i - shift) % len(parts)] for shift in range(1, nu + 1) for i in range(len(parts))]
    length = sum(value**2 for value in found) ** 0.5
    return torch.stack([value / length for value in found] if unit else found)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([x * y for x, y in zip(a, b, strict=True)]).sum()


def lookup(phi: Tensor, matrix: Tensor, normaliser: Tensor | None) -> Tensor:
    """(V,): A^T phi, divided by z . phi."""
    found = torch.stack([dot(phi, matrix[:, value]) for value in range(matrix.shape[1])])
    return found if normaliser is None else found / (dot(phi, normaliser) + EPSILON)


def new_share(phi: Tensor, normaliser: Tensor, unit: bool) -> Tensor:
    """gamma: the share of a key that the normaliser does not contain."""
    if not normaliser.any():
        return torch.ones((), dtype=phi.dtype)
    squares = dot(phi, phi) + (0 if unit else EPSILON)
    return (1 - (dot(phi, normaliser) + EPSILON) / squares).clamp(0, 1).detach()


def write(
    keys: Tensor,
    values: Tensor,
    strengths: Tensor,
    matrix: Tensor,
    normaliser: Tensor | None,
    *,
    correct: bool,
    unit: bool,
    bounded: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Matrix (K, V) and normaliser (K,) after the features (m, K), values and strengths (m, V) of all tokens."""
    added_matrix, added_sum = matrix, normaliser
    for phi in keys:
        if normaliser is not None and added_sum is not None:
            added_sum = added_sum + (new_share(phi, normaliser, unit) * phi if correct else phi)
    for phi, value, strength in zip(keys, values, strengths, strict=True):
        if bounded:
            strength = strength.minimum(most_strength(phi, keys, added_sum))
        change = strength * (value - lookup(phi, matrix, normaliser))
        added_matrix = added_matrix + torch.stack([feature * change for feature in phi])
    return added_matrix, added_sum


def most_strength(phi: Tensor, keys: Tensor, normaliser: Tensor | None) -> Tensor:
    """The limit of `bounded`, from all keys of the segment and the normaliser after them."""
    overlap = torch.stack([dot(phi, key) for key in keys]).sum()
    return ((1 if normaliser is None else dot(phi, normaliser) + EPSILON) / overlap).detach()
