"""The test of early starts before their first use on a device: a recorded chain of kernels must give the same numbers.

Shapes: B rows, H heads, R slots, d head size, D width of the rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mnemo.errors import one_line
from mnemo.ops.cuda import early_start
from mnemo.ops.cuda.decode_attention import Table
from mnemo.ops.cuda.decode_kernels import TOLERANCE, attend_parts, put_together, trusted
from mnemo.ops.cuda.decode_projection import Norm, project, project_normed, project_parts, sums_parts

HEADS, SIZE, SLOTS, LAYERS = 2, 64, 520, 4
WIDTH = HEADS * SIZE
_found: dict[tuple[torch.device, torch.dtype], bool] = {}


def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels of a decoded token may start early: one test, and one warning with the reason if it fails."""
    if not early_start.possible(device):
        return False
    return trusted(_found, device, dtype, _failure, "kernels of decoding start one by one, which is slower")


def _failure(device: torch.device, dtype: torch.dtype) -> str | None:
    try:
        worst = max(_error(layer_chain(device, dtype, batch)) for batch in (1, 16))
    except Exception as error:  # any error of a compiler or of CUDA: kernels start one by one
        return f"{type(error).__name__}: {one_line(error)}"
    return None if worst < TOLERANCE[dtype] else f"results differ by {worst:.1e}"


def _error(chain: Callable[[], Tensor]) -> float:
    want, got = chain().float(), recorded(chain).float()
    return float((got - want).norm() / want.norm())


def recorded(chain: Callable[[], Tensor]) -> Tensor:
    """The result of a chain of kernels with early starts, replayed from a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), early_start.early_starts(True):
        chain()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"), early_start.early_starts(True):
        out = chain()
    for _ in range(3):
        graph.replay()
    return out.clone()


def layer_chain(device: torch.device, dtype: torch.dtype, batch: int) -> Callable[[], Tensor]:
    """A function that computes some layers of a decoded token; its first kernel has a normal start."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    given, norm = draw(batch, WIDTH), Norm(1 + 0.1 * draw(WIDTH), draw(WIDTH), 1e-5)
    to_heads, output = 0.1 * draw(3 * WIDTH, WIDTH), 0.1 * draw(WIDTH, WIDTH)
    inner, outer = 0.1 * draw(4 * WIDTH, WIDTH), 0.1 * draw(WIDTH, 4 * WIDTH)
    ring, table = (
        draw(2, batch, HEADS, SLOTS, SIZE),
        Table(draw(HEADS, SLOTS, SIZE), draw(HEADS, SIZE), draw(HEADS, SIZE)),
    )
    slots, limits = torch.arange(batch, device=device), torch.full((batch,), SLOTS, device=device)

    def chain() -> Tensor:
        carry, branch = given.clone(), None
        for _ in range(LAYERS):
            carry, projected = project_normed(carry, branch, norm, to_heads, keep_sum=False)
            heads = projected.view(batch, 3, HEADS, SIZE).unbind(1)
            found = attend_parts(*heads, ring, table, slots, limits)
            if isinstance(found, Tensor) or not sums_parts(batch, SIZE):
                context = found if isinstance(found, Tensor) else put_together(found, batch, dtype)
                branch = project(context, output)
            else:
                branch = project_parts(found, batch, output)
            carry, hidden = project_normed(carry, branch, norm, inner, None, "relu", keep_sum=False)
            branch = project(hidden, outer)
        assert branch is not None
        return carry + branch

    return chain
