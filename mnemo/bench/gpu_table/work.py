"""The measurements of the rows. A work is prepared (built, compiled, recorded), and then measured.

`miniature`: the same code with tiny models, to try the command without a GPU; its numbers mean nothing.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from mnemo.bench import attention_op
from mnemo.bench.attention_op import Shape, check_operation, inputs
from mnemo.bench.cases import CASES, SMALL, Case
from mnemo.bench.gpu_table.first_step import measure_start
from mnemo.bench.gpu_table.profile import profile_tokens, profile_updates
from mnemo.bench.timed_steps import builders, train_config
from mnemo.bench.timing import event_timing, graph_timing, take_turns
from mnemo.errors import MnemoError
from mnemo.model import ModelConfig
from mnemo.progress import silent
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.training_speed import DrawTokens, RandomUpdates, uniform_tokens, zipf_tokens

GIB = 2**30
UPDATES, ROUNDS = 10, 7
TINY_SHAPE = Shape(name="tiny", batch=2, heads=2, size=8, segment=5, memory=7)
BATCHES = (1, 16, 256)
"""Texts that are generated at the same time."""


@dataclass(frozen=True)
class Found:
    values: dict[str, float]
    """By the names of the row's goals, in their units."""
    details: dict[str, Any]


class Work(Protocol):
    def prepare(self) -> None:
        """Build, compile and record, so that measuring takes seconds."""
        ...

    def measure(self) -> Found: ...

    def profile(self) -> dict[str, Any] | None:
        """Time by kernel after `measure`; None if the row has no profile."""
        ...


@dataclass
class Operations:
    """Relative attention, forward and backward, as a CUDA graph."""

    device: torch.device
    miniature: bool

    def prepare(self) -> None:
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        tiny = {shape.name: replace(TINY_SHAPE, name=shape.name) for shape in attention_op.GPU_SHAPES}
        self.shapes = [tiny[shape.name] if self.miniature else shape for shape in attention_op.GPU_SHAPES]
        self.errors = {shape.name: check_operation(shape, self.device, self.dtype) for shape in self.shapes}

    def measure(self) -> Found:
        return Found({shape.name: 1e3 * self._seconds(shape) for shape in self.shapes}, {"errors": self.errors})

    def _seconds(self, shape: Shape) -> float:
        call = attention_op.mnemo(inputs(shape, self.device, self.dtype), shape.memory).both
        if self.device.type != "cuda":
            with silent("") as bar:
                return take_turns({"": call}, repeats=1, warmup=1, device=self.device, bar=bar)[""].median
        return (graph_timing(call) or event_timing(call, repeats=7)).median

    def profile(self) -> dict[str, Any] | None:
        return None


@dataclass
class Training:
    """Updates of a model as users run them, on random tokens."""

    model: ModelConfig
    config: TrainConfig
    draw: DrawTokens = uniform_tokens

    def prepare(self) -> None:
        self.updates = RandomUpdates(self.model, self.config, self.draw)
        lengths = self.model.memory.lengths(self.model.num_layers)
        # Until all memories are full, attention has less to do.
        self.updates.run(3 + self.config.bptt + math.ceil(max(lengths) / self.config.segment))

    def measure(self) -> Found:
        timed = self.updates.time(UPDATES, ROUNDS)
        values = {"rate": timed.tokens_per_second}
        if timed.peak_bytes is not None:
            values["memory"] = timed.peak_bytes / GIB
        return Found(values, {"step": timed.step, "seconds": list(timed.seconds), "tokens": timed.tokens})

    def profile(self) -> dict[str, Any] | None:
        return profile_updates(self.updates, self.model).to_json()


@dataclass
class Generation:
    """Greedy generation by the base model with a full memory, for several numbers of texts."""

    device: torch.device
    miniature: bool

    def prepare(self) -> None:
        self._build(BATCHES[0]).step()

    def _case(self, batch: int) -> Case:
        case = CASES["generate-long"]
        return replace(small(case) if self.miniature else case, batch=batch)

    def _build(self, batch: int) -> Any:
        return builders(self._case(batch), self.device)["mnemo"]()

    def measure(self) -> Found:
        values, seconds = {}, {}
        for batch in BATCHES:
            contender = self._build(batch)
            with silent("") as bar:
                timed = take_turns({"": contender.step}, repeats=ROUNDS, warmup=2, device=self.device, bar=bar)[""]
            values[str(batch)], seconds[str(batch)] = contender.tokens / timed.median, list(timed.seconds)
            del contender
            gc.collect()
        return Found(values, {"seconds": seconds})

    def profile(self) -> dict[str, Any] | None:
        found = {}
        for batch in BATCHES:
            contender, case = self._build(batch), self._case(batch)
            contender.step()
            sizes = case.ring_bytes, contender.weights
            found[str(batch)] = profile_tokens(contender.step, case.new_tokens, *sizes, self.device).to_json()
            del contender
            gc.collect()
        return {"by_texts": found}


@dataclass
class Start:
    """Time from the start of a process to the end of its first update, with empty and with filled compile caches."""

    device: torch.device
    miniature: bool

    def prepare(self) -> None:
        pass

    def measure(self) -> Found:
        cold, warm = measure_start(str(self.device), self.miniature)
        return Found({"cold": cold["first_step"], "warm": warm["first_step"]}, {"cold": cold, "warm": warm})

    def profile(self) -> dict[str, Any] | None:
        return None


def small(case: Case) -> Case:
    """The case in miniature, on a CPU."""
    tiny = replace(case, **SMALL, num_long=None if case.num_long is None else 1)
    return replace(tiny, memory=min(tiny.memory, case.memory), segment=1 if case.section == "generation" else 8)


def case_training(name: str, device: torch.device, miniature: bool) -> Training:
    case = small(CASES[name]) if miniature else CASES[name]
    return Training(case.config(), replace(train_config(case), device=str(device)))


def preset_training(name: str, device: torch.device, miniature: bool, draw: DrawTokens = uniform_tokens) -> Training:
    """Training of a preset in bf16."""
    recipe = preset(name)
    model, config = recipe.model, replace(recipe.train, precision="bf16", compile=None, device=str(device))
    if miniature:
        embedding = replace(model.embedding, cutoffs=(10, 20, 40) if model.embedding.cutoffs else ())
        model = replace(model, num_layers=4, dim=32, num_heads=2, head_dim=8, inner_dim=48, embedding=embedding)
        model = replace(model, vocab_size=60, memory=replace(model.memory, num_long=model.memory.num_long and 1))
        config = replace(config, batch=2, segment=8, precision="fp32", compile=None)
    return Training(model, config, draw)


CASE_ROWS = {"base": "xl-base", "24x1024": "xl-24", "long4": "xl-24-plan", "lamemo": "lamemo", "rmt": "rmt"}
OTHER_ROWS: dict[str, Callable[[torch.device, bool], Work]] = {
    "start": Start,
    "op": Operations,
    "generation": Generation,
    "speedrun": lambda device, miniature: preset_training("speedrun-novels", device, miniature),
    "wikitext": lambda device, miniature: preset_training("wikitext103-base", device, miniature, zipf_tokens),
}


def work_of(row: str, device: torch.device, miniature: bool) -> Work:
    if row in CASE_ROWS:
        return case_training(CASE_ROWS[row], device, miniature)
    if row not in OTHER_ROWS:
        raise MnemoError(f"row '{row}' has no measurement")
    return OTHER_ROWS[row](device, miniature)
