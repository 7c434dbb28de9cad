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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import (
    Tensor,
    _foreach_add_,  # type: ignore[attr-defined]
    _foreach_lerp,  # type: ignore[attr-defined]
    _foreach_lerp_,  # type: ignore[attr-defined]
    _foreach_mul_,  # type: ignore[attr-defined]
    _foreach_norm,  # type: ignore[attr-defined]
    nn,
)
from torch.optim.adam import adam

from mnemo.ops import HAS_TRITON
from mnemo.ops.cuda.self_test import SelfTest

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of x -> ax + bx^3 + cx^5, which takes small singular values to about 1 fastest (Jordan et al., 2024)."""
ITERATIONS = 5
LEAST_SIZE = 1e-2
"""Weights count as at least this large on average where steps are limited to a share of them."""


GRADIENTS = (torch.float32, torch.bfloat16, torch.float16)
"""Types of gradients that the kernels read"""
Clip = tuple[Tensor, float] | None
"""The norm of all gradients, (), and its limit: they are multiplied by min(1, limit / (norm + 1e-6))"""
TOLERANCE = 5e-2
"""Of the test of kernels: bf16 is rounded at other places, and small singular values grow by the iteration"""


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
        self._step({}, None)

    @torch.no_grad()
    def clipped_step(self, halves: Mapping[Tensor, Tensor], limit: float | None) -> Tensor:
        """Clip all gradients and take a step; return their norm before. `halves`: gradients of some matrices in half
        precision, which have no other one. The kernels read and clip them, without a pass of its own for either."""
        by_muon = {p for group in self.param_groups if group["parts"] is not None for p in group["params"]}
        for parameter, half in halves.items():
            if parameter not in by_muon or not half.is_contiguous() or half.data_ptr() % 16:
                parameter.grad = wide(half, parameter)
        halves = {parameter: half for parameter, half in halves.items() if parameter.grad is None}
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = total_norm([*grads, *halves.values()])
        if limit is None:
            self._step(halves, None)
            return norm
        by_adam = [p for group in self.param_groups if group["parts"] is None for p in group["params"]]
        nn.utils.clip_grads_with_norm_(by_adam, limit, norm)
        self._step(halves, (norm, limit))
        return norm

    def _step(self, halves: Mapping[Tensor, Tensor], clip: Clip) -> None:
        for group in self.param_groups:
            if group["parts"] is None:
                self._adam(group)
            else:
                self._muon(group, halves, clip)

    def _muon(self, group: dict[str, Any], halves: Mapping[Tensor, Tensor], clip: Clip) -> None:
        found = [(p, halves.get(p, p.grad), parts) for p, parts in zip(group["params"], group["parts"], strict=True)]
        used = [(parameter, grad, parts) for parameter, grad, parts in found if grad is not None]
        if not used:
            return
        params, grads, parts = (list(column) for column in zip(*used, strict=True))
        momenta = [self._slot(parameter, "momentum") for parameter in params]
        if self.update_clip is None and kernels_fit([*params, *momenta], grads):
            numbers = {name: group[name] for name in ("lr", "momentum", "weight_decay")}
            step_in_kernels(params, grads, momenta, parts, **numbers, clip=clip)
            return
        grads = [wide(grad, parameter) for parameter, grad in zip(params, grads, strict=True)]
        if clip is not None:
            norm, limit = clip
            _foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0))
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


def total_norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all numbers of tensors, in single precision or better."""
    kinds: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        kinds[tensor.dtype].append(tensor)
    norms = []
    for dtype, members in kinds.items():
        norms += _foreach_norm(members, 2, torch.promote_types(dtype, torch.float32))
    return torch.linalg.vector_norm(torch.stack(norms))


def wide(gradient: Tensor, parameter: Tensor) -> Tensor:
    """A gradient in the type and with the strides of its parameter."""
    return gradient if gradient.dtype == parameter.dtype else torch.empty_like(parameter).copy_(gradient)


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
    return iterated(x.bfloat16() if x.is_cuda else x)


def iterated(x: Tensor) -> Tensor:
    """Newton and Schulz's iteration of matrices (N, R, C) with norms of at most 1."""
    step = squared_step if x.is_cuda else plain_step
    for _ in range(ITERATIONS):
        x = step(x)
    return x


def plain_step(x: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    square = x @ x.mT
    polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
    return torch.baddbmm(x, polynomial, x, beta=a)


def squared_step(x: Tensor) -> Tensor:
    """The same as a + bs + cs^2 = (cs + b/2)^2 / c + a - b^2 / 4c, for s = x x^T.

    A product that adds another matrix first copies that matrix; here numbers are added to diagonals only.
    """
    a, b, c = COEFFICIENTS
    shape = (len(x), x.shape[1], x.shape[1])
    root = x.new_empty(shape).baddbmm_(x, x.mT, beta=0, alpha=c)
    root.diagonal(dim1=1, dim2=2).add_(b / 2)
    polynomial = x.new_empty(shape).baddbmm_(root, root, beta=0, alpha=1 / c)
    polynomial.diagonal(dim1=1, dim2=2).add_(a - b * b / (4 * c))
    return polynomial @ x


def kernels_fit(tensors: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
    """Whether the kernels for a GPU take these weights and momenta, and gradients in single or half precision."""
    if not (HAS_TRITON and tensors[0].is_cuda):
        return False
    from mnemo.ops.cuda.muon_kernels import takes

    fit = all(map(takes, tensors)) and all(takes(gradient, GRADIENTS) for gradient in gradients)
    return fit and kernels_work(tensors[0].device)


def kernels_work(device: torch.device) -> bool:
    """Whether there are kernels for a device, which pass their test."""
    return HAS_TRITON and device.type == "cuda" and TEST.obstacle(device, torch.float32, 0) is None


def step_in_kernels(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor],
    parts: Sequence[int],
    *,
    lr: float | Tensor,
    momentum: float,
    weight_decay: float,
    clip: Clip = None,
) -> None:
    """The step of `Muon` without limits, in two passes besides the products: hundreds of launches fewer."""
    from mnemo.ops.cuda import muon_kernels

    equal: dict[tuple[torch.Size, int, torch.dtype], list[int]] = defaultdict(list)
    for index, (parameter, count) in enumerate(zip(params, parts, strict=True)):
        equal[parameter.shape, count, grads[index].dtype].append(index)
    together: dict[tuple[int, int], list[Equal]] = defaultdict(list)
    for (shape, count, _), indices in equal.items():
        rows, columns = shape[0] // count, shape[1]
        together[min(rows, columns), max(rows, columns)].append(Equal(indices, count, rows, columns))
    for shape, members in together.items():
        sizes = [len(each.indices) * each.parts for each in members]
        x = torch.empty(sum(sizes), *shape, dtype=torch.bfloat16, device=params[0].device)
        sums = torch.empty(len(x), muon_kernels.num_tiles(*shape), dtype=torch.float32, device=x.device)
        for each, out, squares in zip(members, x.split(sizes), sums.split(sizes), strict=True):
            own = [grads[index] for index in each.indices], [momenta[index] for index in each.indices]
            muon_kernels.write_directions(*own, each.parts, momentum, out, squares, clip)
        muon_kernels.normalise(x, sums)
        for each, updates in zip(members, iterated(x).split(sizes), strict=True):
            own = [params[index] for index in each.indices]
            scale = math.sqrt(max(1.0, each.rows / each.columns))
            muon_kernels.take_steps(own, updates, each.parts, lr, scale, weight_decay)


class Equal(NamedTuple):
    """Parameters of equal shape, by their places in a list."""

    indices: list[int]
    parts: int
    """Matrices in each"""
    rows: int
    columns: int
    """Of a part"""


def _failure(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    """What is wrong with the kernels: their step is compared with the plain one, for wide and tall stacked matrices,
    of which some have gradients in half precision, with and without clipping."""
    norm = torch.tensor(2.0, device=device)
    worst = max(_error(device, clip) for clip in (None, (norm, 1.0)))
    return None if worst <= TOLERANCE else f"error {worst:.1e}"


def _error(device: torch.device, clip: Clip) -> float:
    generator = torch.Generator().manual_seed(0)
    parts = [1, 1, 2, 1]
    shapes = [(72, 136), (136, 72), (144, 136), (72, 136)]
    drawn = [[torch.randn(shape, generator=generator).to(device) for shape in shapes] for _ in range(3)]
    params, grads, momenta = ([tensor.clone() for tensor in tensors] for tensors in drawn)
    grads[2:] = [grad.bfloat16() for grad in grads[2:]]
    rates: dict[str, Any] = {"lr": torch.tensor(0.1, device=device), "momentum": 0.9, "weight_decay": 0.1}
    step_in_kernels(params, grads, momenta, parts, **rates, clip=clip)
    clipped = [grad.float() * (1.0 if clip is None else 0.5) for grad in grads]
    _foreach_lerp_(drawn[2], clipped, 1 - rates["momentum"])
    updates = orthogonal_updates(_foreach_lerp(clipped, drawn[2], rates["momentum"]), parts)
    pairs = list(zip(momenta, drawn[2], strict=True))
    for found, weight, update in zip(params, drawn[0], updates, strict=True):
        pairs.append((weight * (1 - 0.01) - found, 0.1 * update))
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


TEST = SelfTest("kernels for Muon", _failure)
