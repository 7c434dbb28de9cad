"""Kernels on rows against plain PyTorch: in Triton's interpreter on a CPU, natively where there is a CUDA device.

Buffers that kernels fill are filled with NaN first, so that nothing unwritten can be read unseen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.marks import FURTHER, few
from torch import Tensor
from torch._subclasses import FakeTensorMode

from mnemo.model.layers import DropoutConfig
from mnemo.model.layers import rows as layer_rows
from mnemo.model.layers.modules import TransformerLayer
from mnemo.ops import using
from mnemo.ops.rows import row_obstacle

pytest.importorskip("triton")
from mnemo.ops.cuda import row_dispatch, row_operators
from mnemo.ops.cuda.dispatch import relative_error
from mnemo.ops.cuda.operator import draw_seed
from mnemo.ops.cuda.row_dispatch import PLAIN_ACTIVATIONS, plain_factors, plain_norm
from mnemo.ops.dropout import LEVELS, hashed_levels

pytestmark = pytest.mark.native
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
SEED, SITE, EPS = 123456789, 2, 1e-5
add_norm: Any = row_operators.add_norm


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def seed_tensor(seed: int = SEED) -> Tensor:
    return torch.tensor([seed], device=DEVICE)


def add_norm_inputs(
    shape: tuple[int, ...], dtype: torch.dtype, parts: str, table_dtype: torch.dtype = torch.float32
) -> dict[str, Tensor | None]:
    """`parts`: b the branch, c its bias, w the norm's weight, s its bias."""
    made: dict[str, Tensor | None] = {"x": draw(*shape, dtype=dtype, seed=1), "branch": None}
    if "b" in parts:
        made["branch"] = draw(*shape, dtype=dtype, seed=2)
    for place, (letter, name) in enumerate({"c": "branch_bias", "w": "weight", "s": "bias"}.items()):
        made[name] = draw(shape[-1], dtype=table_dtype, seed=3 + place) if letter in parts else None
    return made


def exact_add_norm(
    x: Tensor, branch: Any, branch_bias: Any, weight: Any, bias: Any, rate: float, norm: str
) -> tuple[Tensor, Tensor | None]:
    total = x
    if branch is not None:
        factors = plain_factors(SEED, SITE, rate, x) if rate else 1.0
        total = x + (branch if branch_bias is None else branch + branch_bias) * factors
    return total, None if norm == "none" else plain_norm(total, weight, bias, norm, EPS)


def assert_add_norm(inputs: dict[str, Tensor | None], rate: float, norm: str, uses: str = "tn") -> None:
    """Outputs and all gradients; `uses`: which outputs the loss depends on, total (t) and normed (n)."""
    leaves: dict[str, Any] = {k: None if x is None else x.detach().requires_grad_() for k, x in inputs.items()}
    exact: dict[str, Any] = {k: None if x is None else x.detach().double().requires_grad_() for k, x in inputs.items()}
    seed = seed_tensor() if rate else None
    got = add_norm(*leaves.values(), seed, SITE, rate, norm, EPS, True)[:2]
    want = exact_add_norm(**exact, rate=rate, norm=norm)
    pairs = {name: (a, b) for name, a, b in zip("tn", got, want, strict=True) if b is not None and name in uses}
    draws = [draw(*b.shape, seed=9 + place) for place, (_, b) in enumerate(pairs.values())]
    names = [name for name, x in leaves.items() if x is not None]
    found = torch.autograd.grad(
        [a for a, _ in pairs.values()],
        [leaves[name] for name in names],
        [d.to(a.dtype) for d, (a, _) in zip(draws, pairs.values(), strict=True)],
        allow_unused=True,
    )
    wanted = torch.autograd.grad(
        [b for _, b in pairs.values()],
        [exact[name] for name in names],
        [d.to(a.dtype).double() for d, (a, _) in zip(draws, pairs.values(), strict=True)],
        allow_unused=True,
    )
    limit = TOLERANCE[leaves["x"].dtype]
    for name, (a, b) in pairs.items():
        assert (a.shape, a.dtype) == (b.shape, leaves["x"].dtype)
        assert relative_error(a, b) < limit, name
    for name, a, b in zip(names, found, wanted, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            assert (a.shape, a.dtype) == (leaves[name].shape, leaves[name].dtype)
            assert relative_error(a, b) < limit, name


WIDTHS = [32, 41, 300]


SUMS = list(itertools.product(WIDTHS, ("layer", "rms"), TOLERANCE))


@pytest.mark.parametrize(
    ("width", "norm", "dtype"),
    few(SUMS, lambda width, norm, dtype: width == 41 or (width, norm, dtype) == (300, "layer", torch.float32), FURTHER),
)
def test_sums_with_norm_and_dropout(width: int, norm: str, dtype: torch.dtype) -> None:
    parts = "bcws" if norm == "layer" else "bcw"
    assert_add_norm(add_norm_inputs((3, 7, width), dtype, parts), 0.3, norm)


PARTS: dict[str, tuple[str, str, float, str]] = {
    "after the norm only": ("bcws", "layer", 0.1, "n"),
    "the sum only": ("bcws", "layer", 0.1, "t"),
    "no bias of the branch": ("bws", "layer", 0.1, "tn"),
    "no dropout": ("bcws", "layer", 0.0, "tn"),
    "no dropout, no bias": ("bw", "rms", 0.0, "n"),
    "no weights": ("b", "layer", 0.1, "tn"),
    "norm alone": ("ws", "layer", 0.0, "n"),
    "unscaled norm alone": ("", "layer", 0.0, "n"),
    "rms norm alone": ("w", "rms", 0.0, "n"),
    "unscaled rms norm alone": ("", "rms", 0.0, "n"),
    "sum alone": ("b", "none", 0.0, "t"),
    "sum with bias and dropout": ("bc", "none", 0.2, "t"),
    "sum with dropout": ("b", "none", 0.2, "t"),
    "sum with bias": ("bc", "none", 0.0, "t"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_may_be_absent(name: str) -> None:
    parts, norm, rate, uses = PARTS[name]
    assert_add_norm(add_norm_inputs((5, 4, 40), torch.float32, parts), rate, norm, uses)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 64),
        (2, 1, 384),
        (130, 16),
        (2, 3, 5, 24),
        pytest.param((2, 600), marks=FURTHER),
        pytest.param((9, 1024), marks=FURTHER),
        pytest.param((3, 2050), marks=FURTHER),
    ],
)
def test_sizes_of_rows(shape: tuple[int, ...]) -> None:
    assert_add_norm(add_norm_inputs(shape, torch.float32, "bcws"), 0.2, "layer")


def test_no_row_depends_on_the_others() -> None:
    x, table = draw(37, 300), draw(300, seed=1)
    every = add_norm(x, x, table, table, table, None, 0, 0.0, "layer", EPS, True)[1]
    alone = [add_norm(row, row, table, table, table, None, 0, 0.0, "layer", EPS, True)[1] for row in x.split(1)]
    assert torch.equal(every, torch.cat(alone))


def test_half_precision_weights() -> None:
    assert_add_norm(add_norm_inputs((9, 48), torch.float16, "bcws", torch.float16), 0.2, "layer")


def test_more_rows_than_programs_take_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_operators, "BACKWARD", row_operators.Tiling(elements=64, warps=1, programs=3))
    monkeypatch.setattr(row_operators, "ACTIVATION_BACKWARD", row_operators.Tiling(elements=64, warps=1, programs=3))
    assert_add_norm(add_norm_inputs((67, 32), torch.float32, "bcws"), 0.2, "layer")
    assert_activation((67, 32), torch.float32, "gelu", 0.2)
    assert_activation((67, 32), torch.float32, "relu", 0.2)


def test_rows_with_gaps_between_them() -> None:
    wide: dict[str, Tensor | None] = add_norm_inputs((4, 6, 48), torch.float32, "bcws")
    apart = {name: x.transpose(0, 1) if x is not None and x.dim() == 3 else x for name, x in wide.items()}
    assert_add_norm(apart, 0.2, "layer")
    every_second = {name: None if x is None else x[..., ::2] for name, x in wide.items()}
    assert_add_norm(every_second, 0.2, "layer")


@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
def test_no_rows(norm: str) -> None:
    parts = "bc" if norm == "none" else "bcws"
    leaves: dict[str, Any] = {
        name: None if x is None else x.requires_grad_()
        for name, x in add_norm_inputs((0, 16), torch.float32, parts).items()
    }
    total, normed, _, _ = add_norm(*leaves.values(), seed_tensor(), SITE, 0.1, norm, EPS, True)
    loss = total.sum() + normed.sum()
    tables = [leaves[name] for name in ("branch_bias", "weight", "bias") if leaves[name] is not None]
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, tables, retain_graph=True))
    z, bias = draw(0, 8).requires_grad_(), draw(8).requires_grad_()
    out = row_operators.activation(z, bias, None, 0, 0.0, "relu")
    assert not torch.autograd.grad(out.sum(), bias)[0].any()


def assert_activation(shape: tuple[int, ...], dtype: torch.dtype, kind: str, rate: float, biased: bool = True) -> None:
    z, bias = draw(*shape, dtype=dtype, seed=1), draw(shape[-1], seed=2) if biased else None
    leaves = [x.requires_grad_() for x in (z, bias) if x is not None]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    out = row_operators.activation(z, bias, seed_tensor() if rate else None, SITE, rate, kind)
    want = PLAIN_ACTIVATIONS[kind](exact[0] + exact[1] if biased else exact[0])
    want = want * plain_factors(SEED, SITE, rate, want) if rate else want
    weight = draw(*shape, dtype=dtype, seed=3)
    assert relative_error(out, want) < TOLERANCE[dtype]
    found = torch.autograd.grad(out, leaves, weight)
    for a, b in zip(found, torch.autograd.grad(want, exact, weight.double()), strict=True):
        assert relative_error(a, b) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("kind", PLAIN_ACTIVATIONS)
def test_activations(kind: str, rate: float, dtype: torch.dtype) -> None:
    assert_activation((3, 5, 41), dtype, kind, rate)


SIZES_OF_ACTIVATIONS = [(kind, shape) for kind in PLAIN_ACTIVATIONS for shape in ((1, 1), (33, 700), (2, 1024))]


@pytest.mark.parametrize(
    ("kind", "shape"),
    few(SIZES_OF_ACTIVATIONS, lambda kind, shape: (kind, shape) == ("gelu", (33, 700)) or shape == (1, 1), FURTHER),
)
def test_sizes_of_activations(kind: str, shape: tuple[int, ...]) -> None:
    assert_activation(shape, torch.float32, kind, 0.2)
    assert_activation(shape, torch.float32, kind, 0.0, biased=False)


def test_what_is_not_a_number_stays_visible() -> None:
    z = draw(4, 16)
    z[1, 3] = float("nan")
    for kind in PLAIN_ACTIVATIONS:
        out = row_operators.activation(z, None, None, 0, 0.0, kind)
        assert bool(out[1, 3].isnan()) and int(out.isnan().sum()) == 1
    total, normed, _, _ = add_norm(z, z, None, None, None, None, 0, 0.0, "layer", EPS, True)
    assert bool(total[1, 3].isnan()) and bool(normed[1].isnan().all()) and int(normed.isnan().sum()) == 16


def dropped(seed: int, site: int, rate: float, shape: tuple[int, int] = (200, 96)) -> Tensor:
    ones = torch.ones(shape, device=DEVICE)
    return row_operators.activation(ones, None, seed_tensor(seed), site, rate, "relu") == 0


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.5])
def test_the_share_that_is_dropped(rate: float) -> None:
    mask = dropped(77, 1, rate)
    spread = (rate * (1 - rate) / mask.numel()) ** 0.5
    assert abs(float(mask.float().mean()) - rate) < 5 * spread
    by_row, by_column = mask.float().mean(1), mask.float().mean(0)
    assert float(by_row.std()) < 1.5 * (rate * (1 - rate) / mask.shape[1]) ** 0.5
    assert float(by_column.std()) < 1.5 * (rate * (1 - rate) / mask.shape[0]) ** 0.5
    ones = torch.ones(200, 96, device=DEVICE)
    kept = row_operators.activation(ones, None, seed_tensor(77), 1, rate, "relu")
    assert abs(float(kept.mean()) - 1) < 5 * spread / (1 - rate)


def test_masks_are_independent() -> None:
    """Across seeds, sites, rows and columns, also the two columns that share a random number."""
    first = dropped(5, 1, 0.5).float() * 2 - 1
    pairs = {
        "seeds": first * (dropped(6, 1, 0.5).float() * 2 - 1),
        "sites": first * (dropped(5, 2, 0.5).float() * 2 - 1),
        "rows": first[1:] * first[:-1],
        "columns": first[:, 1:] * first[:, :-1],
        "columns of one number": first[:, ::2] * first[:, 1::2],
    }
    for name, products in pairs.items():
        assert abs(float(products.mean())) < 5 * products.numel() ** -0.5, name


def test_levels_are_uniform() -> None:
    levels = hashed_levels(99, 3, 300, 201)
    assert levels.shape == (300, 201) and int(levels.min()) >= 0 and int(levels.max()) < LEVELS
    counts = torch.bincount((levels // (LEVELS // 64)).flatten(), minlength=64).double()
    expected = levels.numel() / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 120  # chi squared of 63 degrees: 1e-5


def test_results_are_the_same_bits_in_every_run() -> None:
    inputs: dict[str, Any] = add_norm_inputs((67, 40), torch.float32, "bcws")
    leaves = [x.requires_grad_() for x in inputs.values()]

    def gradients() -> tuple[Tensor, ...]:
        total, normed, _, _ = add_norm(*leaves, seed_tensor(), SITE, 0.2, "layer", EPS, True)
        return torch.autograd.grad((total * normed).sum(), leaves)

    assert all(torch.equal(a, b) for a, b in zip(gradients(), gradients(), strict=True))


def test_operators_hold_what_torch_asks_of_them() -> None:
    """Schemas, fake kernels and autograd registration."""
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    inputs: dict[str, Any] = add_norm_inputs((3, 5, 24), torch.float32, "bcws")
    leaves = [x.requires_grad_() for x in inputs.values()]
    for norm in ("layer", "rms", "none"):
        arguments = (*leaves, seed_tensor(), SITE, 0.2, norm, EPS, True)
        torch.library.opcheck(row_operators.add_norm, arguments, test_utils=tests)
    z, bias = draw(4, 24).requires_grad_(), draw(24).requires_grad_()
    for kind in PLAIN_ACTIVATIONS:
        torch.library.opcheck(row_operators.activation, (z, bias, seed_tensor(), SITE, 0.2, kind), test_utils=tests)


def test_compilers_are_told_how_all_outputs_are_stored() -> None:
    inputs: dict[str, Any] = add_norm_inputs((3, 5, 24), torch.float16, "bcws")
    inputs["x"] = inputs["x"].transpose(0, 1).contiguous().transpose(0, 1)

    def outputs(given: dict[str, Any], seed: Tensor) -> list[Tensor]:
        x, branch, branch_bias, weight, bias = given.values()
        total, normed, mean, scale = add_norm(*given.values(), seed, SITE, 0.2, "layer", EPS, True)
        back = row_operators.add_norm_backward(
            total, normed, total, mean, scale, branch_bias, weight, bias, seed, SITE, 0.2, "layer"
        )
        out = row_operators.activation(x, bias, seed, SITE, 0.2, "relu")
        last = row_operators.activation_backward(x, out, bias, seed, SITE, 0.2, "relu")
        return [total, normed, mean, scale, *back, out, *last]

    with FakeTensorMode() as mode:
        told = outputs({name: mode.from_tensor(x) for name, x in inputs.items()}, mode.from_tensor(seed_tensor()))
    for want, got in zip(outputs(inputs, seed_tensor()), told, strict=True):
        assert (want.shape, want.stride(), want.dtype) == (got.shape, got.stride(), got.dtype)


def layer(
    norm: str, kind: str, activation: str, rate: float = 0.0, locked: bool = False, qk_norm: bool = False
) -> TransformerLayer:
    torch.manual_seed(0)
    dropout = DropoutConfig(projection=rate, inner=rate, feed_forward=rate, locked=locked)
    options: Any = {"norm": norm, "norm_kind": kind, "norm_eps": EPS, "activation": activation, "dropout": dropout}
    sizes = {"dim": 24, "num_heads": 2, "head_dim": 8, "inner_dim": 56}
    made = TransformerLayer(0, **sizes, **options, qk_norm=qk_norm, head_gate=norm == "pre")
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.to(DEVICE)


def outcome(made: TransformerLayer, impl: str, memory: int = 4, shared: bool = False) -> dict[str, Tensor]:
    """Keys, values, queries, the output and all gradients of a layer; `shared`: with one norm for all of them."""
    x, context = draw(2, 5, 24, seed=1).requires_grad_(), draw(2, 5, 16, seed=2).requires_grad_()
    past = draw(2, memory, 24, seed=3)
    with using(impl):  # type: ignore[arg-type]
        normed = made._shared_norm(x) if shared else None
        keys, values = made.keys_values(x, past, normed=normed)
        queries, out = made.attention.queries(made._inner(x, normed)), made.finish(x, context, normed=normed)
    outputs = {"keys": keys, "values": values, "queries": queries, "out": out}
    weights = [draw(*y.shape, seed=4) for y in outputs.values()]
    used = dict(made.named_parameters())
    gradients = torch.autograd.grad(list(outputs.values()), [x, context, *used.values()], weights)
    return {**outputs, **dict(zip(("x", "context", *used), gradients, strict=True))}


LAYERS = list(itertools.product(("post", "pre"), ("layer", "rms"), ("relu", "squared_relu", "gelu")))
PAIRS = {("post", "layer", "relu"), ("post", "rms", "squared_relu"), ("post", "layer", "gelu")}
PAIRS |= {("pre", "rms", "relu"), ("pre", "layer", "squared_relu"), ("pre", "rms", "gelu")}
"""Layers that have any two of these choices"""


@pytest.mark.parametrize(("norm", "kind", "activation"), few(LAYERS, lambda *layer: layer in PAIRS, FURTHER))
def test_a_layer_with_kernels_equals_the_plain_one(norm: str, kind: str, activation: str) -> None:
    made = layer(norm, kind, activation)
    want = outcome(made, "eager")
    for name, got in outcome(made, "fused").items():
        assert relative_error(got, want[name]) < 2e-6, name


@pytest.mark.parametrize("memory", [0, 4])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_one_norm_serves_queries_keys_and_gate(kind: str, memory: int) -> None:
    made = layer("pre", kind, "relu")
    want = outcome(made, "eager", memory)
    with using("eager"):
        assert made._shared_norm(draw(2, 5, 24)) is None
    for name, got in outcome(made, "fused", memory, shared=True).items():
        assert relative_error(got, want[name]) < 2e-6, name


def test_norms_of_heads() -> None:
    made = layer("pre", "rms", "relu", qk_norm=True)
    want = outcome(made, "eager")
    for name, got in outcome(made, "fused").items():
        assert relative_error(got, want[name]) < 2e-6, name


def test_outside_of_training_a_layer_computes_the_same() -> None:
    made = layer("post", "layer", "relu", rate=0.5).eval()
    x, context = draw(2, 5, 24), draw(2, 5, 16)
    with torch.no_grad(), using("eager"):
        want = made.finish(x, context)
    with torch.no_grad(), using("fused"):
        assert relative_error(made.finish(x, context), want) < 2e-6


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_dropout_of_a_layer_comes_from_torchs_generator(norm: str) -> None:
    made, x, context = layer(norm, "layer", "relu", rate=0.5), draw(2, 5, 24), draw(2, 5, 16)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        with using("fused"):
            return made.finish(x, context)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_the_sites_of_a_layer_have_masks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = layer("post", "layer", "relu", rate=0.5), []
    with using("fused"):
        made.finish(draw(2, 5, 24), draw(2, 5, 16))  # tests the kernels, if nothing has before

    def observe(real: Any, place: int) -> Any:
        def call(*values: Any) -> Any:
            seen.append(values[place])
            return real(*values)

        return call

    monkeypatch.setattr(row_operators, "add_norm", observe(row_operators.add_norm, 6))
    monkeypatch.setattr(row_operators, "activation", observe(row_operators.activation, 3))
    with using("fused"):
        made.finish(draw(2, 5, 24), draw(2, 5, 16))
    assert seen == [1, 2, 3]


def test_locked_dropout_runs_in_plain_pytorch() -> None:
    made, x, context = layer("post", "layer", "relu", rate=0.5, locked=True), draw(2, 5, 24), draw(2, 5, 16)
    found = []
    for impl in ("eager", "fused"):
        torch.manual_seed(1)
        with using(impl):  # type: ignore[arg-type]
            found.append(made.finish(x, context))
    assert torch.equal(*found)
    with using("fused"):
        assert isinstance(made.eval()._dropping_rows(x, context), layer_rows.FusedRows)


def test_dropout_alone_and_the_last_norm() -> None:
    x, drop = torch.ones(4, 50, 64, device=DEVICE, requires_grad=True), layer_rows.Dropout(0.25)
    with using("fused"):
        out, other = drop(x), drop(x)
        assert drop.eval()(x) is x
    assert not torch.equal(out, other)
    kept = out != 0
    assert abs(float(kept.float().mean()) - 0.75) < 0.02
    assert torch.equal(out, kept / 0.75)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], kept / 0.75)
    norm = layer_rows.RMSNorm(64, EPS).to(DEVICE)
    with using("fused"):
        assert relative_error(layer_rows.normed(x, norm), norm(x)) < 1e-6
        assert layer_rows.normed(x, torch.nn.Identity()) is x


def test_gradients_accumulate() -> None:
    made = layer("post", "layer", "relu")
    x, context = draw(2, 5, 24), draw(2, 5, 16)
    with using("fused"):
        made.finish(x, context).sum().backward()
        once = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
        made.finish(x, context).sum().backward()
    for name, parameter in made.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, 2 * once[name])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_one_graph_without_breaks(norm: str) -> None:
    made = layer(norm, "rms" if norm == "pre" else "layer", "squared_relu")
    x, context = draw(2, 5, 24).requires_grad_(), draw(2, 5, 16).requires_grad_()
    leaves = [x, context, *made.feed_forward.parameters(), *made.norm_feed_forward.parameters()]

    def loss(x: Tensor, context: Tensor) -> Tensor:
        return made.finish(x, context).square().sum()

    with using("fused"):
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        wanted, found = (torch.autograd.grad(function(x, context), leaves) for function in (loss, compiled))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_dropout_is_drawn_anew_and_repeats_with_the_generator() -> None:
    made, x, context = layer("post", "layer", "relu", rate=0.5), draw(2, 5, 24).requires_grad_(), draw(2, 5, 16)
    with using("fused"):
        compiled = torch.compile(made.finish, backend="aot_eager", fullgraph=True)
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            out = compiled(x, context)
            runs.append((out, *torch.autograd.grad(out.sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0], runs[2][0])


def test_a_recomputed_layer_draws_the_same_masks() -> None:
    from torch.utils.checkpoint import checkpoint

    made, x, context = layer("post", "layer", "relu", rate=0.5), draw(2, 5, 24).requires_grad_(), draw(2, 5, 16)

    def gradient(recompute: bool) -> Tensor:
        torch.manual_seed(7)
        with using("fused"):
            out = checkpoint(made.finish, x, context, use_reentrant=False) if recompute else made.finish(x, context)
            return torch.autograd.grad(out.square().sum(), x)[0]  # type: ignore[union-attr]

    assert torch.equal(gradient(False), gradient(True))


def test_the_seed_differs_from_call_to_call() -> None:
    x, y = draw(2, 3), draw(2, 3)
    assert int(draw_seed(x, y)) != int(draw_seed(x, y))


FIRST = [("layer", "relu"), ("rms", "squared_relu"), ("layer", "gelu")]
ONCE = [(*parts, dtype) for parts, dtype in zip(FIRST, TOLERANCE, strict=True)]
FIRST_TESTS = [(*parts, dtype) for parts in FIRST for dtype in TOLERANCE]


@pytest.mark.parametrize(("norm", "activation", "dtype"), few(FIRST_TESTS, lambda *case: case in ONCE, FURTHER))
def test_the_first_test_of_a_device(norm: str, activation: str, dtype: torch.dtype) -> None:
    assert row_dispatch.failure(DEVICE, dtype, 48, norm, activation) is None


@pytest.mark.parametrize("error", [float("inf"), RuntimeError("no such instruction")])
def test_kernels_that_err_are_not_trusted(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def errors(*_: Any) -> dict[str, float]:
        if isinstance(error, Exception):
            raise error
        return {"out": error}

    monkeypatch.setattr(row_dispatch, "_add_norm_errors", errors)
    monkeypatch.setattr(row_dispatch, "OFF", None)
    monkeypatch.setattr(row_dispatch, "_tested", set())
    monkeypatch.setenv("MNEMO_TEST_KERNELS", "1")  # whatever passed on this GPU before
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    call = (DEVICE, torch.float32, 16, "layer", "relu")
    with pytest.warns(UserWarning, match="plain PyTorch, which is slower"):
        assert row_dispatch.device_obstacle(*call)
    assert str(error) in (row_dispatch.device_obstacle(*call) or "")  # said once


def test_who_does_not_get_kernels_hears_why(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, arguments = torch.device("cpu"), (64, "layer", "relu")
    assert "CUDA" in (row_obstacle(cpu, torch.float32, *arguments) or "")
    with using("eager"):
        assert "eager" in (row_obstacle(DEVICE, torch.float32, *arguments) or "")
    with using("fused"):
        assert "float64" in (row_obstacle(DEVICE, torch.float64, *arguments) or "")
        assert "wider" in (row_obstacle(DEVICE, torch.float32, 10**5, "layer", "relu") or "")
        monkeypatch.setattr("mnemo.ops.HAS_TRITON", False)
        assert "Triton" in (row_obstacle(DEVICE, torch.float32, *arguments) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert "bf16" in (row_dispatch.device_obstacle(torch.device("cuda"), torch.bfloat16, *arguments) or "")


def test_the_plain_definition_takes_a_bias_apart() -> None:
    x, branch, bias = draw(3, 8), draw(3, 8, seed=1), draw(8, seed=2)
    drop = layer_rows.Dropout(0.0)
    assert torch.equal(layer_rows.PLAIN.add(x, layer_rows.Branch(branch, bias, drop)), x + (branch + bias))
    assert torch.equal(layer_rows.PLAIN.activate(x.clone(), bias, "relu", drop, (3,)), F.relu(x + bias))
