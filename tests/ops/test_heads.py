"""Queries and keys in one kernel against plain PyTorch: in Triton's interpreter on a CPU, natively on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from mnemo.memory import XL, Plan
from mnemo.model import Model, ModelConfig
from mnemo.model.positions import Rotary
from mnemo.ops import using
from mnemo.ops.heads import heads_obstacle, place_heads, place_heads_plain
from mnemo.ops.rotary import rotary_angles

pytest.importorskip("triton")
from mnemo.ops.cuda import place_heads as cuda
from mnemo.ops.cuda.dispatch import relative_error
from mnemo.ops.cuda.operator import aligned

pytestmark = pytest.mark.native
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
EPS = 1e-5


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Uninitialised memory is filled with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def operands(size: int, rows: int, heads: int, dtype: torch.dtype, norm: bool = True, rotary: bool = True) -> Any:
    """Rows as a view with larger strides, the weight, tables."""
    draw = torch.Generator().manual_seed(0)
    wide = torch.randn(2, rows, 2 * heads * size, generator=draw).to(DEVICE, dtype)
    weight = 1 + 0.3 * torch.randn(size, generator=draw).to(DEVICE) if norm else None
    tables = rotary_angles(rows + 7, size, 100.0, wide.float()) if rotary else None
    return wide, weight, tables


def outcome(function: Any, given: Any, heads: int, dtype: torch.dtype, offset: int) -> dict[str, Tensor]:
    wide, weight, tables = given
    wide = wide.to(dtype).detach().requires_grad_()
    leaves = {"rows": wide}
    if weight is not None:
        precise = torch.float64 if dtype == torch.float64 else torch.float32
        leaves["weight"] = weight = weight.to(precise).detach().requires_grad_()
    cos, sin = (None, None) if tables is None else (table.to(dtype) for table in tables)
    out = function(wide.chunk(2, -1)[1], heads, weight, EPS, cos, sin, offset)
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    gradients = torch.autograd.grad((out * slope).sum(), list(leaves.values()))
    return {"out": out, **dict(zip(leaves, gradients, strict=True))}


CASES: dict[str, dict[str, Any]] = {
    "norm and rotation": {},
    "half precision": {"dtype": torch.float16},
    "bf16": {"dtype": torch.bfloat16},
    "heads of 128 in half precision": {"size": 128, "dtype": torch.float16},
    "head size between powers of 2": {"size": 42, "dtype": torch.float16},
    "no rotation": {"rotary": False},
    "odd head size": {"size": 41, "rotary": False},
    "no norm": {"norm": False},
    "no norm in half precision": {"norm": False, "dtype": torch.float16},
    "one row": {"rows": 1},
    "one head": {"heads": 1},
    "rows from the middle of the tables": {"offset": 7},
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_equals_the_plain_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"size": 64, "rows": 19, "heads": 3, "dtype": torch.float32, "offset": 0, **CASES[name]}
    monkeypatch.setattr(cuda, "PROGRAMS", 3)  # several tiles each, the last one incomplete
    dtype, heads, offset = case["dtype"], case["heads"], case.pop("offset")
    given = operands(**case)
    got = outcome(cuda.place_heads, given, heads, dtype, offset)
    rounded = [None if part is None else tuple(t.to(dtype) for t in part) for part in given[2:]]
    want = outcome(place_heads_plain, (*given[:2], *rounded), heads, torch.float64, offset)
    assert got.keys() == want.keys()
    for part, expected in want.items():
        assert relative_error(got[part], expected) < TOLERANCE[dtype], part
    assert got["out"].dtype == got["rows"].dtype == dtype


@pytest.mark.parametrize("function", [cuda.place_heads, place_heads_plain])
def test_there_may_be_no_rows(function: Any) -> None:
    got = outcome(function, operands(16, 0, 2, torch.float32), 2, torch.float32, 0)
    assert got["out"].shape == (2, 2, 0, 16) and got["weight"].tolist() == [0] * 16


def test_attention_takes_the_result_without_a_copy() -> None:
    wide, weight, (cos, sin) = operands(64, 5, 2, torch.float16)
    out = cuda.place_heads(wide, 4, weight, EPS, cos, sin, 0)
    assert aligned(out) is out


def test_gradients_are_the_same_in_every_run() -> None:
    given = operands(64, 200, 4, torch.float32)
    first, second = (outcome(cuda.place_heads, given, 4, torch.float32, 0) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_operator_holds_what_torch_asks_of_it() -> None:
    wide, weight, (cos, sin) = operands(16, 5, 2, torch.float32)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    rows = wide.clone().requires_grad_()
    for given in ((weight.requires_grad_(), EPS, cos, sin), (None, 0.0, cos, sin), (weight, EPS, None, None)):
        torch.library.opcheck(cuda.place_heads, (rows, 4, *given, 2), test_utils=tests)


@pytest.mark.parametrize("norm", [True, False])
def test_compilers_are_told_how_outputs_are_stored(norm: bool) -> None:
    wide, weight, (cos, sin) = operands(16, 9, 2, torch.float32, norm)
    tensors = [wide, weight, cos, sin]

    def outputs(wide: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor) -> list[Tensor]:
        x = wide.chunk(2, -1)[0]
        out = cuda.place_heads(x, 2, weight, EPS, cos, sin, 1)
        return [out, *cuda.place_heads_backward(out, None if weight is None else x, weight, EPS, cos, sin, 1)]

    with FakeTensorMode() as mode:
        told = outputs(*(None if part is None else mode.from_tensor(part) for part in tensors))  # type: ignore[arg-type]
    for want, got in zip(outputs(*tensors), told, strict=True):
        assert (want.shape, want.stride(), want.dtype) == (got.shape, got.stride(), got.dtype)


def model_outcome(model: Model, tokens: Tensor, impl: Any) -> dict[str, Tensor]:
    """Losses of two segments, and the gradients of the second one's."""
    with using(impl):
        _, state = model(tokens)
        out, _ = model(tokens, state)
        loss = model.loss(out, tokens).sum()
        names, weights = zip(*model.named_parameters(), strict=True)
        return {"loss": loss, **dict(zip(names, torch.autograd.grad(loss, weights), strict=True))}


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_whole_model_gets_the_same_losses_and_gradients(norm: Any) -> None:
    config = ModelConfig(
        vocab_size=11, num_layers=2, dim=32, num_heads=2, head_dim=16, inner_dim=32, norm=norm, norm_kind="rms",
        qk_norm=True, positions=Rotary(), memory=Plan(long=XL(length=12)),
    )  # fmt: skip
    model = Model(config).to(DEVICE)
    tokens = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    got, want = (model_outcome(model, tokens, impl) for impl in ("fused", "eager"))
    for name, expected in want.items():
        torch.testing.assert_close(got[name], expected, rtol=1e-4, atol=1e-5, msg=name)


def test_a_compiled_graph_has_the_operator() -> None:
    wide, weight, tables = operands(16, 6, 2, torch.float32)
    rows, weight = wide.requires_grad_(), weight.requires_grad_()

    def loss(rows: Tensor, weight: Tensor) -> Tensor:
        with using("fused"):
            return place_heads(rows, 4, weight, EPS, tables, 3).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for got, want in zip(
        *(torch.autograd.grad(f(rows, weight), [rows, weight]) for f in (compiled, loss)), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_other_devices_and_types_use_the_plain_path() -> None:
    assert "CUDA" in (heads_obstacle(torch.device("cpu"), torch.float32, 64) or "")
    assert cuda.obstacle(torch.float64, 64) and cuda.obstacle(torch.float32, 256)
    assert cuda.obstacle(torch.bfloat16, 64) is None


def test_the_test_before_the_first_use_passes() -> None:
    for dtype in (torch.float32, torch.float16):
        assert cuda._failure(DEVICE, dtype, 64) is None
    assert cuda._failure(DEVICE, torch.float32, 41) is None
