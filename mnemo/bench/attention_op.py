"""Measure relative attention, its published formulation, and as a limit attention without positions by the vendor.

Before timing, outputs and all gradients are compared with the reference equation in float64. On a GPU, CUDA graphs are
replayed, so there are no gaps between launches; single calls from Python are measured too ("eager").

Shapes: B batch, H heads, L queries, M memory, K = M + L keys, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mnemo.bench.published_xl import relative_shift
from mnemo.bench.results import Comparison, Measured
from mnemo.bench.timing import Timing, allocated, event_timing, graph_timing, peak_over, reset_peak, take_turns
from mnemo.errors import CheckFailed
from mnemo.ops import Causal, relative_attention, relative_attention_reference
from mnemo.progress import ShowProgress, silent

LIMITS = {torch.bfloat16: 5e-3, torch.float32: 1e-5}
"""Largest error |x - exact| / |exact| of the output and of each gradient."""
CHECKED_BATCH = 2


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: str
    batch: int
    heads: int
    size: int
    segment: int
    memory: int


GPU_SHAPES = (
    Shape(name="A", batch=22, heads=8, size=64, segment=512, memory=512),
    Shape(name="B", batch=16, heads=8, size=128, segment=384, memory=2304),
    Shape(name="C", batch=16, heads=8, size=128, segment=384, memory=128),
)
CPU_SHAPES = (Shape(name="small", batch=4, heads=8, size=32, segment=256, memory=256),)
ODD = Shape(name="odd", batch=2, heads=3, size=41, segment=70, memory=133)
"""Lengths and sizes that are no multiple of any tile size"""


def shapes(device: torch.device) -> tuple[Shape, ...]:
    return GPU_SHAPES if device.type == "cuda" else CPU_SHAPES


Inputs = dict[str, Tensor]


def inputs(shape: Shape, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Draw inputs from N(0, 1) in the given type; all require gradients."""
    generator = torch.Generator(device).manual_seed(0)
    keys, heads = shape.segment + shape.memory, (shape.heads, shape.size)
    rows = (shape.batch, shape.heads)
    sizes = {
        "q": (*rows, shape.segment, shape.size),
        "k": (*rows, keys, shape.size),
        "v": (*rows, keys, shape.size),
        "r": (shape.heads, keys, shape.size),
        "u": heads,
        "w": heads,
    }

    def draw(size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=generator, device=device).to(dtype).requires_grad_()

    return {name: draw(size) for name, size in sizes.items()}


Call = Callable[[], Tensor]
"""The forward pass; returns contexts in the formulation's order of dimensions"""


@dataclass(frozen=True)
class Operation:
    """One formulation of the operation, with inputs in its order of dimensions."""

    forward: Call
    leaves: tuple[Tensor, ...]

    def both(self) -> tuple[Tensor, ...]:
        """Forward and backward pass: the gradients."""
        out = self.forward()
        return torch.autograd.grad(out, self.leaves, torch.ones_like(out))


def mnemo(given: Inputs, memory: int) -> Operation:
    def forward() -> Tensor:
        return relative_attention(*given.values(), offset=memory, mask=Causal())[0]

    return Operation(forward, tuple(given.values()))


def published(given: Inputs, memory: int) -> Operation:
    """Time first, heads last, the position scores shifted by padding and reshaping."""
    q, k, v = (given[name].detach().permute(2, 0, 1, 3).contiguous().requires_grad_() for name in ("q", "k", "v"))
    r = given["r"].detach().transpose(0, 1).contiguous().requires_grad_()
    u, w = given["u"], given["w"]
    hidden = torch.triu(torch.ones(len(q), len(k), device=q.device), diagonal=1 + memory).bool()[:, :, None, None]

    def forward() -> Tensor:
        content = torch.einsum("ibnd,jbnd->ijbn", q + u, k)
        position = relative_shift(torch.einsum("ibnd,jnd->ijbn", q + w, r))
        scores = (content + position).mul_(q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
        half = scores.dtype == torch.bfloat16
        shares = F.softmax(scores, 1, dtype=torch.float32 if half else None).to(v.dtype)
        return torch.einsum("ijbn,jbnd->ibnd", shares, v)

    return Operation(forward, (q, k, v, r, u, w))


def limit(given: Inputs, memory: int) -> Operation:
    """Attention without positions, by torch's fused kernels."""
    from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler, which takes seconds

    q, k, v = (given[name] for name in ("q", "k", "v"))
    mask = causal_lower_right(q.shape[2], k.shape[2])
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH] if q.device.type == "cpu" else SDPBackend.FLASH_ATTENTION

    def forward() -> Tensor:
        with sdpa_kernel(backends):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # type: ignore[arg-type]

    return Operation(forward, (q, k, v))


FORMULATIONS = {"mnemo": mnemo, "published": published, "limit": limit}


def check_operation(shape: Shape, device: torch.device, dtype: torch.dtype) -> float:
    """Return the largest relative error of output and gradients against float64; raises CheckFailed above the limit."""
    given = inputs(replace(shape, batch=min(shape.batch, CHECKED_BATCH)), device, dtype)
    exact = {name: value.detach().double().requires_grad_() for name, value in given.items()}
    weight = torch.randn(given["q"].shape, generator=torch.Generator(device).manual_seed(1), device=device).to(dtype)
    out, _ = relative_attention(*given.values(), offset=shape.memory, mask=Causal())
    wanted = relative_attention_reference(*exact.values(), offset=shape.memory, mask=Causal()).out
    pairs = {"output": (out.detach(), wanted.detach())}
    got = torch.autograd.grad(out, list(given.values()), weight)
    reference = torch.autograd.grad(wanted, list(exact.values()), weight.double())
    pairs |= {f"gradient of {name}": pair for name, *pair in zip(given, got, reference, strict=True)}  # type: ignore[misc]
    errors = {name: float((a.double() - b).norm() / b.norm()) for name, (a, b) in pairs.items()}
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else float("inf"))
    if not errors[worst] <= LIMITS[dtype]:
        text = f"{worst} is off by {errors[worst]:.1e} at shape {shape.name} in {str(dtype)[6:]}"
        raise CheckFailed(f"relative attention is wrong: {text}, so no speed is reported")
    return errors[worst]


def check_operations(device: torch.device, show: ShowProgress = silent) -> float:
    """Check every measured shape in its measured type, and an odd shape in float32."""
    wanted = [(shape, _dtype(device)) for shape in shapes(device)] + [(ODD, torch.float32)]
    with show("checking relative attention", len(wanted), unit="shapes") as bar:
        errors = []
        for shape, dtype in wanted:
            errors.append(check_operation(shape, device, dtype))
            bar.advance()
    return max(errors)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def measure_operations(
    device: torch.device, *, error: float, repeats: int, show: ShowProgress = silent
) -> Iterator[Comparison]:
    """Measure the forward pass, and forward with backward, for every shape."""
    for shape in shapes(device):
        for backward in (False, True):
            name = f"op {shape.name} {'forward+backward' if backward else 'forward'}"
            with show(f"timing {name}", unit="rounds") as bar:
                if device.type == "cuda":
                    found = _on_gpu(shape, device, backward, repeats)
                else:
                    calls = {key: _call(make, shape, device, backward) for key, make in FORMULATIONS.items()}
                    timed = take_turns(calls, repeats=repeats, warmup=1, device=device, bar=bar)
                    found = {key: Measured(timing=timing) for key, timing in timed.items()}
            yield Comparison(
                section="op",
                name=name,
                summary="relative attention",
                setting=asdict(shape) | {"dtype": str(_dtype(device))[6:]},
                error=error,
                contenders=found,
            )


Make = Callable[[Inputs, int], Operation]


def _call(make: Make, shape: Shape, device: torch.device, backward: bool) -> Callable[[], object]:
    operation = make(inputs(shape, device, _dtype(device)), shape.memory)
    return operation.both if backward else _without_gradient(operation.forward)


def _without_gradient(forward: Call) -> Call:
    @torch.no_grad()
    def call() -> Tensor:
        return forward()

    return call


def _on_gpu(shape: Shape, device: torch.device, backward: bool, repeats: int) -> dict[str, Measured]:
    found = {}
    for name, make in FORMULATIONS.items():
        call = _call(make, shape, device, backward)
        call()
        peak = _peak(call, device, shape)
        recorded: Timing | None = graph_timing(call)
        if recorded is not None:
            found[name] = Measured(timing=recorded, peak=peak)
        found[f"{name}, eager"] = Measured(timing=event_timing(call, repeats=repeats), peak=peak)
        del call
    return found


def _peak(call: Callable[[], object], device: torch.device, shape: Shape) -> int | None:
    """Return the peak memory without inputs and contexts, including gradients."""
    before = allocated(device)
    reset_peak(device)
    call()
    peak = peak_over(before, device)
    contexts = shape.batch * shape.heads * shape.segment * shape.size * _dtype(device).itemsize
    return None if peak is None else peak - contexts
