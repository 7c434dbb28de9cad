"""What looking ahead costs: a training step of LaMemo beside Transformer-XL's, and its refresh beside a naive one.

The refresh lets every memory row look at what is new since the last segment, so its work grows with the memory; a
naive one that lets it look at everything on its right grows with the memory's square.
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
    """Seconds of one layer's look-ahead attention, forward and backward: over what is new, over everything"""

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
    # Compiled, eight models would take minutes before anything is timed.
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
        # One layer's kernels are shorter than the calls that launch them.
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
    """Look-ahead attention of all memory rows, which is causal over reversed sequences, at their first keys.

    As the memory itself asks for it: on a CPU other keys are left out, on a GPU a limit hides them.
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
