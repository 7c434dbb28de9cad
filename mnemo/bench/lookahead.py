"""What looking ahead costs: a training step of LaMemo beside Transformer-XL's, and its refresh beside a naive one.

The refresh lets every memory row look at what is new since the last segment, so its work grows with the memory; a
naive one that lets it look at everything on its right grows with the memory's square.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from mnemo.bench.cases import CASES, Case, training_step
from mnemo.bench.timing import take_turns
from mnemo.data.progress import ShowProgress, silent
from mnemo.memory import Lookahead, Plan
from mnemo.model import Model
from mnemo.ops import Causal, relative_attention

LENGTHS = (256, 512, 1024)


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


def measure_overhead(
    lengths: Sequence[int] = LENGTHS, *, repeats: int = 5, case: Case = CASES["train"], show: ShowProgress = silent
) -> list[Overhead]:
    rows = []
    with show("timing look-ahead", len(lengths) * (repeats + 1), unit="rounds") as bar:
        for memory in lengths:
            at_length = replace(case, memory=memory)
            steps = {"xl": _step(at_length, ahead=False), "lookahead": _step(at_length, ahead=True)}
            steps |= {"refresh": _refresh(at_length, case.segment), "naive": _refresh(at_length, memory)}
            timed = take_turns(steps, repeats=repeats, warmup=1, device=torch.device("cpu"), bar=bar)
            rows.append(Overhead(memory=memory, **{name: timing.median for name, timing in timed.items()}))
    return rows


def _step(case: Case, ahead: bool) -> Callable[[], object]:
    config = case.config()
    if ahead:
        config = replace(config, memory=Plan(long=Lookahead(length=case.memory)))
    model = Model(config)
    return training_step(case, model, model.zeros(case.batch))


def _refresh(case: Case, num_keys: int) -> Callable[[], object]:
    """Look-ahead attention of all memory rows, which is causal over reversed sequences, at their first keys."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    rows = (case.batch, case.num_heads)
    q = draw(*rows, case.memory, case.head_dim)
    k, v = (draw(*rows, min(num_keys, case.memory), case.head_dim) for _ in range(2))
    r, u, w = draw(case.num_heads, case.memory, case.head_dim), *(draw(case.num_heads, case.head_dim) for _ in range(2))

    def run() -> None:
        out, _ = relative_attention(q, k, v, r, u, w, offset=0, mask=Causal())
        out.sum().backward()

    return run
