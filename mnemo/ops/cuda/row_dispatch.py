"""Which rows the kernels support, and their first test on a device."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.errors import one_line
from mnemo.ops.cuda import row_operators as operators
from mnemo.ops.cuda.dispatch import DTYPES, TOLERANCE, relative_error
from mnemo.ops.cuda.self_test import note_passed, passed_before
from mnemo.ops.dropout import hashed_levels

PLAIN_ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "squared_relu": lambda x: F.relu(x).square(),
    "identity": lambda x: x,
}
RATE, SEED, NUM_ROWS, EPS = 0.25, 12345, 37, 1e-5


def rows_obstacle(dtype: torch.dtype, width: int) -> str | None:
    """Why no kernel exists for rows of a width and type; None if one does."""
    if dtype not in DTYPES:
        return f"no kernel computes in {str(dtype).removeprefix('torch.')}"
    if width > operators.LARGEST_WIDTH:
        return f"rows of {width} are wider than the kernels' {operators.LARGEST_WIDTH}"
    return None


OFF: str | None = None
"""Why the kernels are not used on this machine; None if they are"""
_tested: set[tuple[int, torch.dtype, int, str | None, str | None]] = set()


def device_obstacle(
    device: torch.device, dtype: torch.dtype, width: int, norm: str | None, activation: str | None
) -> str | None:
    """Why the kernels do not run on a device; None if they do. The first call compares them with the plain path."""
    global OFF
    if torch.compiler.is_compiling():
        return OFF  # no test can run while compiling: it has run before
    key = (device.index or 0, dtype, width, norm, activation)
    if key in _tested:
        return OFF
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) < (8, 0):
        return "this GPU has no bf16"
    if OFF is None and not torch.cuda.is_current_stream_capturing():
        _tested.add(key)
        test = (f"kernels of rows, {norm}, {activation}", device, dtype, width)
        problem = None if passed_before(*test) else failure(device, dtype, width, norm, activation)
        if problem is None:
            note_passed(*test)
        else:
            OFF = f"the kernels fail their test on {device}, {dtype}: {problem}"
            warnings.warn(f"norms, dropout and activations run in plain PyTorch, which is slower: {OFF}", stacklevel=2)
    return OFF


def failure(
    device: torch.device, dtype: torch.dtype, width: int, norm: str | None, activation: str | None
) -> str | None:
    """The failure of a comparison with the plain path, outputs and all gradients; None if they agree."""
    try:
        errors = {} if norm is None else _add_norm_errors(device, dtype, width, norm)
        if activation is not None:
            errors |= _activation_errors(device, dtype, width, activation)
    except Exception as error:  # any compiler error: the plain path is used instead
        return f"{type(error).__name__}: {one_line(error)}"
    worst = max(errors, key=lambda name: errors[name])
    return None if errors[worst] <= TOLERANCE[dtype] else f"error {errors[worst]:.1e} of {worst}"


def plain_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: str, eps: float) -> Tensor:
    if norm == "layer":
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def plain_factors(seed: int, site: int, rate: float, like: Tensor) -> Tensor:
    """The factors of dropout that kernels compute for rows of the shape of `like`."""
    dropped, factor = operators.dropping(rate)
    levels = hashed_levels(seed, site, like.numel() // like.shape[-1], like.shape[-1])
    return ((levels >= dropped) * factor).view(like.shape).to(like)


def _add_norm_errors(device: torch.device, dtype: torch.dtype, width: int, norm: str) -> dict[str, float]:
    rows, tables = _draw(2, (NUM_ROWS, width), device, dtype), _draw(3, (width,), device, torch.float32)
    exact = [x.detach().float().requires_grad_() for x in (*rows, *tables)]
    given, seed = [*rows, *tables], torch.tensor([SEED], device=device)
    with torch.enable_grad():
        x, branch, branch_bias, weight, bias = given
        bias = bias if norm == "layer" else None
        got = operators.add_norm(x, branch, branch_bias, weight, bias, seed, 1, RATE, norm, EPS, True)[:2]
        x, branch, branch_bias, weight, bias = exact
        total = x + (branch + branch_bias) * plain_factors(SEED, 1, RATE, x)
        want = total, plain_norm(total, weight, bias if norm == "layer" else None, norm, EPS)
        used = 5 if norm == "layer" else 4
        return _errors(got, want, given[:used], exact[:used], "norm")


def _activation_errors(device: torch.device, dtype: torch.dtype, width: int, activation: str) -> dict[str, float]:
    given = [*_draw(1, (NUM_ROWS, width), device, dtype), *_draw(1, (width,), device, torch.float32)]
    exact = [x.detach().float().requires_grad_() for x in given]
    with torch.enable_grad():
        got = operators.activation(*given, torch.tensor([SEED], device=device), 2, RATE, activation)
        want = PLAIN_ACTIVATIONS[activation](exact[0] + exact[1]) * plain_factors(SEED, 2, RATE, exact[0])
        return _errors((got,), (want,), given, exact, "activation")


def _draw(count: int, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for _ in range(count)]


def _errors(
    got: tuple[Tensor, ...], want: tuple[Tensor, ...], given: list[Tensor], exact: list[Tensor], name: str
) -> dict[str, float]:
    """Errors of outputs and gradients."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in got]
    found = torch.autograd.grad(got, given, weights)
    wanted = torch.autograd.grad(want, exact, [weight.to(x) for weight, x in zip(weights, want, strict=True)])
    pairs = zip((*got, *found), (*want, *wanted), strict=True)
    return {f"{name} {place}": relative_error(*pair) for place, pair in enumerate(pairs)}
