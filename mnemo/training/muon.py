"""Muon (Jordan et al., 2024): the momentum of each matrix is made orthogonal before it is added to the weights.

A matrix takes the step -lr * sqrt(max(1, rows / columns)) * orthogonal(momentum): all its singular values become about
1, so all directions of the matrix learn equally fast, and one learning rate fits all widths. All other weights
(embeddings, softmax, norms, biases) take Adam steps. torch.optim.Muon does the same one matrix at a time, hundreds of
small kernels an update; here all matrices of one shape go through Newton and Schulz's iteration together.

Nothing here waits for the device. A learning rate may be a number or a tensor on the parameters' device, so that an
update can be captured in a CUDA graph once a first update has made the state and groups are set to be `capturable`.

Shapes: N matrices, R rows, C >= R columns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import (
    Tensor,
    _foreach_add_,  # type: ignore[attr-defined]
    _foreach_lerp,  # type: ignore[attr-defined]
    _foreach_lerp_,  # type: ignore[attr-defined]
    _foreach_mul_,  # type: ignore[attr-defined]
    _foreach_norm,  # type: ignore[attr-defined]
)
from torch.optim.adam import adam

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of x -> ax + bx^3 + cx^5, which takes small singular values to about 1 fastest (Jordan et al., 2024)."""
ITERATIONS = 5
LEAST_SIZE = 1e-2
"""Weights count as at least this large on average where steps are limited to a share of them."""


class Muon(torch.optim.Optimizer):
    """One optimizer for a whole model.

    A group with a list `parts` takes Muon steps; the list has the number of stacked matrices in each parameter.
    A group whose `parts` is None takes Adam steps. Weight decay is decoupled and multiplied by the learning rate.
    `update_clip`: largest norm of a Muon step, as a share of the norm of its weights.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float | Tensor,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        update_clip: float | None = None,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        # `fused` makes load_state_dict keep Adam's step counts on the device.
        super().__init__(list(groups), defaults | {"parts": None, "fused": True, "capturable": False})
        self.update_clip = update_clip

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None, "the loss is computed outside"
        for group in self.param_groups:
            if group["parts"] is None:
                self._adam(group)
            else:
                self._muon(group)

    def _muon(self, group: dict[str, Any]) -> None:
        pairs = zip(group["params"], group["parts"], strict=True)
        used = [(parameter, parts) for parameter, parts in pairs if parameter.grad is not None]
        if not used:
            return
        params, parts = [parameter for parameter, _ in used], [count for _, count in used]
        grads = [parameter.grad for parameter in params]
        momenta = [self._slot(parameter, "momentum") for parameter in params]
        _foreach_lerp_(momenta, grads, 1 - group["momentum"])
        ahead = _foreach_lerp(grads, momenta, group["momentum"])  # Nesterov's
        updates = orthogonal_updates(ahead, parts)
        lr = group["lr"]
        if self.update_clip is not None:
            _foreach_mul_(updates, limits(params, updates, lr, self.update_clip))
        _foreach_mul_(params, 1 - lr * group["weight_decay"])
        _foreach_mul_(updates, -lr)
        _foreach_add_(params, updates)

    def _adam(self, group: dict[str, Any]) -> None:
        params = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not params:
            return
        beta1, beta2 = group["betas"]
        adam(
            params,
            [parameter.grad for parameter in params],
            [self._slot(parameter, "exp_avg") for parameter in params],
            [self._slot(parameter, "exp_avg_sq") for parameter in params],
            [],
            [self._count(parameter) for parameter in params],
            capturable=group["capturable"],
            fused=True,
            decoupled_weight_decay=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _slot(self, parameter: Tensor, name: str) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state[name]

    def _count(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return state["step"]


def limits(params: list[Tensor], updates: list[Tensor], lr: float | Tensor, share: float) -> list[Tensor]:
    """Factors that limit the norm of each step to a share of the norm of its weights; new weights may be zero."""
    pairs = zip(params, _foreach_norm(params), _foreach_norm(updates), strict=True)
    return [
        (share * size.clamp(min=LEAST_SIZE * math.sqrt(parameter.numel())) / (lr * change)).clamp(max=1.0)
        for parameter, size, change in pairs
    ]


def orthogonal_updates(directions: Sequence[Tensor], parts: Sequence[int]) -> list[Tensor]:
    """The nearest orthogonal matrices to the parts of each direction, scaled by sqrt(max(1, rows / columns)).

    Matrices of equal shape, and their transposes, are computed together.
    """
    wide = [_wide(direction, count) for direction, count in zip(directions, parts, strict=True)]
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, matrices in enumerate(wide):
        places[tuple(matrices.shape[1:])].append(index)
    found: dict[int, Tensor] = {}
    for indices in places.values():
        together = orthogonal(torch.cat([wide[index] for index in indices]))
        found |= dict(zip(indices, together.split([parts[index] for index in indices]), strict=True))
    return [_scaled_like(found[index], directions[index], parts[index]) for index in range(len(directions))]


def _wide(direction: Tensor, count: int) -> Tensor:
    """(N * rows, columns) -> (N, R, C)."""
    matrices = direction.view(count, -1, direction.shape[1])
    return matrices if matrices.shape[1] <= matrices.shape[2] else matrices.transpose(1, 2)


def _scaled_like(matrices: Tensor, direction: Tensor, count: int) -> Tensor:
    rows, columns = direction.shape[0] // count, direction.shape[1]
    upright = matrices.transpose(1, 2) if rows > columns else matrices
    scale = math.sqrt(max(1.0, rows / columns))
    return (upright.to(direction.dtype) * scale).reshape(direction.shape)


def orthogonal(matrices: Tensor) -> Tensor:
    """(N, R, C) -> about the same singular vectors, singular values between 0.7 and 1.2; zero stays zero.

    In bfloat16 on a GPU, which is exact enough here and many times faster.
    """
    norm = matrices.flatten(1).norm(dim=1).clamp(min=torch.finfo(matrices.dtype).tiny)
    x = matrices / norm[:, None, None]
    if x.is_cuda:
        x = x.bfloat16()
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x
