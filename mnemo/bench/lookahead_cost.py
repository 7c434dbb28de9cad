"""Measure the cost of look-ahead: training steps of LaMemo and Transformer-XL, and the refresh against a naive one.

In the refresh, a memory row attends only to the rows added since the last segment, so the cost is linear in the memory
length. In a naive refresh it attends to all later rows, so the cost is quadratic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from mnemo.bench.cases import CASES, Case
from mnemo.bench.timed_steps import build_model, training_step
from mnemo.bench.timing import allocated, event_timing, graph_timing, take_turns
from mnemo.ops import Causal, KeyLimit, relative_attention
from mnemo.progress import Advance, ShowProgress, silent

CPU_LENGTHS = (256, 512, 1024)
GPU_LENGTHS = (512, 1024, 2048, 4096)


@dataclass(frozen=True, kw_only=True)
class Overhead:
    memory: int
    xl: float
    lookahead: float
    """Seconds of a training step"""
    refresh: float
    naive: float
    """Seconds of one layer's look-ahead attention, forward and backward, to new rows only and to all later rows"""

    @property
    def ratio(self) -> float:
        return self.lookahead / self.xl

    @property
    def per_slot(self) -> float:
        """Seconds that a memory slot adds to a step."""
        return (self.lookahead - self.xl) / self.memory

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "per_slot": self.per_slot}


def default_case(device: torch.device) -> tuple[Case, Sequence[int]]:
    if device.type != "cuda":
        return CASES["train"], CPU_LENGTHS
    # Not compiled: compiling eight models would take minutes.
    return replace(CASES["lamemo"], mechanism="xl", batch=8, compile=False), GPU_LENGTHS


def measure_overhead(
    device: torch.device,
    lengths: Sequence[int] | None = None,
    *,
    repeats: int = 5,
    case: Case | None = None,
    show: ShowProgress = silent,
) -> list[Overhead]:
    usual, usual_lengths = default_case(device)
    case, lengths = case or usual, lengths or usual_lengths
    with show("timing look-ahead", len(lengths) * (repeats + 2), unit="rounds") as bar:
        return [_at_length(replace(case, memory=memory), device, repeats, bar) for memory in lengths]


def _at_length(case: Case, device: torch.device, repeats: int, bar: Advance) -> Overhead:
    steps = {"xl": _step(case, device), "lookahead": _step(replace(case, mechanism="lookahead"), device)}
    attentions = {
        "refresh": _refresh(case, case.segment, device),
        "naive": _refresh(case, case.memory, device),
    }
    if device.type == "cuda":
        timed = take_turns(steps, repeats=repeats, warmup=2, device=device, bar=bar)
        # CUDA graphs, because launching one layer's kernels takes longer than running them.
        timed |= {name: graph_timing(call) or event_timing(call, repeats=repeats) for name, call in attentions.items()}
    else:
        timed = take_turns(steps | attentions, repeats=repeats, warmup=2, device=device, bar=bar)
    del steps, attentions
    allocated(device)
    return Overhead(memory=case.memory, **{name: timing.median for name, timing in timed.items()})


def _step(case: Case, device: torch.device) -> Callable[[], object]:
    model = build_model(case, device)
    return training_step(case, model, model.zeros(case.batch))


def _refresh(case: Case, num_keys: int, device: torch.device) -> Callable[[], object]:
    """Return look-ahead attention of all memory rows to their first `num_keys` keys, as causal attention in reverse.

    As in the memory itself, other keys are omitted on a CPU and hidden by a limit on a GPU.
    """
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype).requires_grad_()

    rows, seen = (case.batch, case.num_heads), min(num_keys, case.memory)
    hides = device.type == "cuda" and seen < case.memory
    mask = KeyLimit(torch.full((case.batch,), seen, device=device)) if hides else Causal()
    q = draw(*rows, case.memory, case.head_dim)
    k, v = (draw(*rows, case.memory if hides else seen, case.head_dim) for _ in range(2))
    r, u, w = draw(case.num_heads, case.memory, case.head_dim), *(draw(case.num_heads, case.head_dim) for _ in range(2))

    def run() -> object:
        out, _ = relative_attention(q, k, v, r, u, w, offset=0, mask=mask)
        return torch.autograd.grad(out, (q, k, v, r, u, w), torch.ones_like(out))

    return run
