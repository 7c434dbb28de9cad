from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from helpers.marks import FURTHER
from helpers.mechanisms import MECHANISMS, few_first
from helpers.models import random_model
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.model import Model
from mnemo.recipes.recipe import OptimizerConfig
from mnemo.training import muon
from mnemo.training.half_gradients import takes_half_gradients
from mnemo.training.muon import ITERATIONS, Muon, orthogonal, orthogonal_updates
from mnemo.training.optimizers import build_optimizer, layer_matrices, set_learning_rate

MUON = OptimizerConfig(
    kind="muon", lr=0.05, adam_lr=0.01, momentum=0.9, weight_decay=0.3, betas=(0.8, 0.95), embedding_lr_factor=2.0
)
SHAPES = [(8, 8), (6, 10), (10, 6), (3, 24)]


def with_singular_values(rows: int, columns: int, values: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix with these singular values, and its singular vectors."""
    torch.manual_seed(seed)
    left, _ = torch.linalg.qr(torch.randn(rows, len(values), dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(columns, len(values), dtype=torch.float64))
    return left @ torch.diag(values) @ right.mT, left, right


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (6, 10), (3, 24)])
def test_singular_values_become_about_one_and_vectors_stay(rows: int, columns: int, scale: float) -> None:
    values = torch.linspace(0.05, 1.0, rows, dtype=torch.float64)
    matrix, left, right = with_singular_values(rows, columns, values)
    found = orthogonal(matrix[None] * scale)[0]
    inside = left.mT @ found @ right
    assert_close(inside - torch.diag(inside.diagonal()), torch.zeros_like(inside))
    assert inside.diagonal().min() > 0.65 and inside.diagonal().max() < 1.25


def plainly_orthogonal(matrix: Tensor) -> Tensor:
    """The iteration on one matrix, as its authors write it."""
    x = matrix / matrix.norm()
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def test_matrices_of_all_shapes_at_once_are_each_on_its_own() -> None:
    torch.manual_seed(0)
    matrices = [torch.randn(shape, dtype=torch.float64) for shape in [*SHAPES, *SHAPES]]
    found = orthogonal_updates(matrices, [1] * len(matrices))
    for matrix, update in zip(matrices, found, strict=True):
        rows, columns = matrix.shape
        alone = plainly_orthogonal(matrix.T).T if rows > columns else plainly_orthogonal(matrix)
        assert_close(update, alone * math.sqrt(max(1.0, rows / columns)))


def test_stacked_matrices_are_made_orthogonal_apart() -> None:
    torch.manual_seed(0)
    upper, lower = torch.randn(2, 6, 4, dtype=torch.float64)
    together = orthogonal_updates([torch.cat([upper, 1e-3 * lower])], [2])[0]
    apart = orthogonal_updates([upper, lower], [1, 1])
    assert_close(together, torch.cat(apart))


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 6, 20), (1, 3, 24)])
def test_the_step_without_copies_is_the_same_polynomial(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    x = x / x.flatten(1).norm(dim=1)[:, None, None]
    for _ in range(ITERATIONS):
        assert_close(muon.squared_step(x), muon.plain_step(x))
        x = muon.plain_step(x)
    assert torch.equal(muon.squared_step(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


@pytest.mark.parametrize("shape", [(2, 64, 64), (2, 64, 160)])
def test_the_step_without_copies_rounds_no_worse_than_a_gpu_may(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    x = (x / x.flatten(1).norm(dim=1)[:, None, None]).bfloat16()
    exact, found = x.double(), x
    for _ in range(ITERATIONS):
        exact, found = muon.plain_step(exact), muon.squared_step(found)
    assert float((found.double() - exact).norm() / exact.norm()) < muon.TOLERANCE


def test_nothing_comes_of_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


@pytest.mark.parametrize("mechanism", few_first())
def test_every_parameter_of_every_memory_is_in_one_group(mechanism: str) -> None:
    model = random_model(**MECHANISMS[mechanism])
    optimizer = build_optimizer(model, MUON)
    grouped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    give_gradients(model, 0)
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_matrices_of_layers_are_muons_and_the_rest_is_adams() -> None:
    model = random_model(qk_norm=True)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(parameter)]: parts for parameter, parts in layer_matrices(model).items()}
    layer = ("attention.query", "attention.key_value", "attention.output", "feed_forward.inner", "feed_forward.outer")
    expected = {f"stages.{i}.layer.{name}.weight": 1 + name.endswith("key_value") for i in range(3) for name in layer}
    assert found == expected | {f"positions.projections.{i}.weight": 1 for i in range(3)}


def give_gradients(model: Model, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype).to(parameter.device)


def plain_update(parameter: Tensor, momentum: Tensor, parts: int, lr: float) -> None:
    """Nesterov's momentum, matrix by matrix."""
    assert parameter.grad is not None
    momentum.copy_(0.9 * momentum + 0.1 * parameter.grad)
    direction = 0.1 * parameter.grad + 0.9 * momentum
    for weight, part in zip(parameter.data.chunk(parts), direction.chunk(parts), strict=True):
        tall = part.shape[0] > part.shape[1]
        update = plainly_orthogonal(part.T).T if tall else plainly_orthogonal(part)
        weight.mul_(1 - lr * 0.3).sub_(lr * math.sqrt(max(1.0, part.shape[0] / part.shape[1])) * update)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_updates_are_those_of_plain_muon_and_of_torchs_adam(as_tensor: bool) -> None:
    ours, plain = random_model(), random_model()
    optimizer = build_optimizer(ours, MUON)
    matrices = layer_matrices(plain)
    momenta = {parameter: torch.zeros_like(parameter) for parameter in matrices}
    tables = list(plain.embedding.tables)
    rest = [p for p in plain.parameters() if p not in matrices and all(p is not table for table in tables)]
    theirs = torch.optim.Adam([{"params": rest}, {"params": tables}], betas=(0.8, 0.95), foreach=False)
    for step in range(3):
        lr = 0.05 / (step + 1)
        set_learning_rate(optimizer, torch.tensor(lr, dtype=torch.float64) if as_tensor else lr)  # type: ignore[arg-type]
        theirs.param_groups[0]["lr"], theirs.param_groups[1]["lr"] = lr * 0.2, lr * 0.4
        give_gradients(ours, step)
        give_gradients(plain, step)
        optimizer.step()
        theirs.step()
        for parameter, parts in matrices.items():
            plain_update(parameter, momenta[parameter], parts, lr)
    for found, expected in zip(ours.parameters(), plain.parameters(), strict=True):
        assert_close(found, expected)


def test_what_has_no_gradient_stays() -> None:
    weights = [torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))]
    optimizer = Muon([{"params": weights[:1], "parts": [1]}, {"params": weights[1:]}], 0.1, weight_decay=0.5)
    optimizer.step()
    assert all(torch.equal(weight, torch.ones_like(weight)) for weight in weights) and not optimizer.state


def test_a_restored_optimizer_goes_on_alike() -> None:
    first, second = random_model(dtype=torch.float32), random_model(dtype=torch.float32)
    before, after = build_optimizer(first, MUON), build_optimizer(second, MUON)
    give_gradients(first, 0)
    before.step()
    second.load_state_dict(first.state_dict())
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for model, optimizer in ((first, before), (second, after)):
        give_gradients(model, 1)
        optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(lr=0.0), "muon's learning rates"),
        (dict(adam_lr=-1.0), "muon's learning rates"),
        (dict(momentum=1.0), "1.0"),
    ],
)
def test_rates_and_momentum_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(kind="muon", **change)


@pytest.mark.native
@pytest.mark.parametrize("rate_on_device", [False, pytest.param(True, marks=FURTHER)])
def test_the_step_in_kernels_is_the_plain_step(rate_on_device: bool) -> None:
    pytest.importorskip("triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shapes, parts = (
        [(8, 20), (70, 12), (8, 20), (40, 30), (12, 70), (20, 8)] + [(6, 30)] * 17,
        [1, 1, 1, 2, 1, 1] + [1] * 17,
    )
    generator = torch.Generator().manual_seed(0)
    params, grads, momenta = (
        [torch.randn(shape, generator=generator).to(device) for shape in shapes] for _ in range(3)
    )
    expected = [tensor.clone() for tensor in params], [tensor.clone() for tensor in momenta]
    lr = torch.tensor(0.1, device=device) if rate_on_device else 0.1
    muon.step_in_kernels(params, grads, momenta, parts, lr=lr, momentum=0.8, weight_decay=0.5)
    for index, (parameter, momentum) in enumerate(zip(*expected, strict=True)):
        momentum.lerp_(grads[index], 0.2)
        update = orthogonal_updates([torch.lerp(grads[index], momentum, 0.8)], [parts[index]])[0]
        torch.testing.assert_close(momenta[index], momentum)
        want = parameter * 0.95 - 0.1 * update
        # The kernels' updates are rounded to bf16 before and in the iteration.
        assert float((params[index] - want).norm() / (0.1 * update).norm()) < muon.TOLERANCE
    assert muon._failure(device, torch.float32, 0) is None


@pytest.mark.native
def test_directions_are_divided_by_their_norms() -> None:
    kernels = pytest.importorskip("mnemo.ops.cuda.muon_kernels")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(3, 70, 130).to(device)
    x[1] = 0
    x[2] *= 1e-15
    sums = torch.zeros(3, kernels.num_tiles(70, 130), device=device)
    sums[:, 0], sums[:, -1] = x[:, :30].square().sum((1, 2)), x[:, 30:].square().sum((1, 2))
    found = x.clone()
    kernels.normalise(found, sums)
    assert_close(found[[0, 2]], x[[0, 2]] / x[[0, 2]].flatten(1).norm(dim=1)[:, None, None])
    assert torch.equal(found[1], x[1])


def half_gradients(model: Model, seed: int) -> dict[Tensor, Tensor]:
    """Gradients of all matrices but a few in half precision; all other gradients are single."""
    give_gradients(model, seed)
    matrices = [weight for weight in layer_matrices(model) if weight.shape[0] != weight.shape[1]]
    halves = {}
    for weight in matrices:
        assert weight.grad is not None
        halves[weight], weight.grad = weight.grad.bfloat16(), None
    first = matrices[0]
    halves[first] = halves[first].t().contiguous().t()  # no kernel takes it
    return halves


@pytest.mark.native
@pytest.mark.parametrize("limit", [None, 3.0])
@pytest.mark.parametrize("in_kernels", [False, True])
def test_steps_from_half_gradients_are_plain_steps(
    limit: float | None, in_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = [random_model(dtype=torch.float32).to(device) for _ in range(2)]
    optimizers = [build_optimizer(model, MUON) for model in models]
    for seed in range(2):
        plain, halves = half_gradients(models[0], seed), half_gradients(models[1], seed)
        for weight, gradient in plain.items():
            weight.grad = gradient.float()
        wanted = torch.nn.utils.clip_grad_norm_(models[0].parameters(), float("inf") if limit is None else limit)
        monkeypatch.setattr(muon, "kernels_fit", lambda *_: False)
        optimizers[0].step()
        monkeypatch.setattr(muon, "kernels_fit", lambda *_: in_kernels)
        found = optimizers[1].clipped_step(halves, limit)  # type: ignore[attr-defined]
        assert_close(found, wanted)
    for found, expected in zip(*(model.state_dict().values() for model in models), strict=True):
        if in_kernels or device.type == "cuda":  # rounded to bf16 before and in the iteration
            assert float((found - expected).norm() / expected.norm().clamp(min=1e-6)) < muon.TOLERANCE
        else:
            assert_close(found, expected)
    for found, expected in zip(*(optimizer.state.values() for optimizer in optimizers), strict=True):
        assert_close(found.get("momentum", torch.zeros(1)), expected.get("momentum", torch.zeros(1)))


def test_a_half_gradient_of_a_weight_that_adam_moves() -> None:
    results = []
    for half in (True, False):
        weight = torch.nn.Parameter(torch.ones(3, 1))
        optimizer = Muon([{"params": [weight], "parts": None}], 0.1)
        gradient = torch.tensor([[1.0], [-2.0], [0.5]])
        if half:
            optimizer.clipped_step({weight: gradient.bfloat16()}, None)
        else:
            weight.grad = gradient
            optimizer.step()
        results.append(weight.detach())
    assert torch.equal(*results) and not torch.equal(results[0], torch.ones(3, 1))


def test_the_recorded_update_asks_for_half_steps_where_kernels_work(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    groups = [{"params": [weight], "parts": [1]}]
    free, limited = Muon(groups, 0.1), Muon(groups, 0.1, update_clip=0.1)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert not takes_half_gradients(free, cpu)
    monkeypatch.setattr(muon.TEST, "obstacle", lambda *_: None)
    assert takes_half_gradients(free, cuda) == muon.HAS_TRITON
    assert not takes_half_gradients(limited, cuda) and not takes_half_gradients(free, cpu)


def test_kernels_take_plain_single_precision_on_a_gpu_only() -> None:
    takes = pytest.importorskip("mnemo.ops.cuda.muon_kernels").takes
    matrix = torch.zeros(8, 8)
    assert takes(matrix) and takes(torch.nn.Parameter(matrix)) and not muon.kernels_fit([matrix], [matrix])
    assert takes(matrix.bfloat16(), muon.GRADIENTS) and not takes(matrix.bfloat16())
    for other in (matrix.double(), matrix.t()[1:], matrix.flatten()[1:50].view(7, 7), matrix[0]):
        assert not takes(other)
