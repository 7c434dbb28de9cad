"""Table 7: evaluation with state reuse against a window that slides by one token."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from mnemo.config import from_json, to_json
from mnemo.data.corpus import Split
from mnemo.evaluation.perplexity import evaluate
from mnemo.evaluation.score import LOSSES_IN_FLIGHT, Score
from mnemo.inference.segment_scorer import with_dtype
from mnemo.memory.state import nbytes
from mnemo.model import Model, ModelConfig
from mnemo.model.memory_limits import memory_bytes
from mnemo.model.positions import Learned
from mnemo.papers.experiment import Budget, Cell, Experiment, Results, Table
from mnemo.papers.grid import Grid, Measure
from mnemo.papers.jobs import Place, job
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.xl.benchmark import PAPER
from mnemo.papers.xl.recipes import self_test
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import EvalConfig
from mnemo.recipes.transformer_xl import everywhere
from mnemo.training.precision import safe_kernels

SPEED = "xl-evaluation-speed"
PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""How many times as fast state reuse is, by attention length."""
ORDERS_OF_MAGNITUDE = 1000
"""Required at the longest attention."""
REUSE, SLIDING = "state reuse", "sliding window"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of weights and all that is computed."""
SPEED_OF = Measure(unit="tokens/s", digits=0, key="tokens_per_second", scale="tokens/s", higher_is_better=True)
"""At the fastest batch."""


class Scale(NamedTuple):
    attention: tuple[int, ...]
    segment: int
    reuse_batches: tuple[int, ...]
    windows: tuple[int, ...]
    """Batches of the sliding window."""
    rounds: dict[str, tuple[int, int]]
    """Segments, or batches of windows, in the shorter and the longer of two passes."""
    repeats: int
    precision: str


GPU_ROUNDS = {REUSE: (2 * LOSSES_IN_FLIGHT, 7 * LOSSES_IN_FLIGHT), SLIDING: (2, 10)}
"""Recording a CUDA graph takes the same time in both passes and cancels. Both end by fetching losses, so that no work
is left on the device when the clock stops."""
SCALES: dict[Budget, Scale] = {
    "self-test": Scale((8, 16), 4, (1, 2), (1, 4), {REUSE: (2, 6), SLIDING: (1, 4)}, 1, "fp32"),
    "small": Scale(tuple(PUBLISHED), 128, (16, 64, 256), (16, 64, 256), GPU_ROUNDS, 2, "bf16"),
    "paper": Scale(tuple(PUBLISHED), 128, (16, 64, 256), (16, 64, 256), GPU_ROUNDS, 3, "bf16"),
}
MODELS: dict[Budget, str] = {"small": "enwik8-base", "paper": "enwik8-large"}


def model_of(kind: str, attention: int, budget: Budget) -> ModelConfig:
    """Transformer-XL, or the same without memory and with a table of absolute positions as long as the window."""
    model = self_test().model if budget == "self-test" else preset(MODELS[budget]).model
    if kind == REUSE:
        return replace(model, memory=everywhere(attention))
    return replace(model, memory=everywhere(0), positions=Learned(length=attention))


def cells(budget: Budget) -> list[Cell]:
    scale = SCALES[budget]
    made = []
    for attention in scale.attention:
        for kind, batches in ((REUSE, scale.reuse_batches), (SLIDING, scale.windows)):
            settings = {
                "model": to_json(model_of(kind, attention, budget)),
                "kind": kind,
                "attention": attention,
                "segment": scale.segment,
                "batches": list(batches),
                "rounds": list(scale.rounds[kind]),
                "repeats": scale.repeats,
                "precision": scale.precision,
            }
            labels = {"kind": kind, "attention": attention}
            name = cell_name(kind, attention)
            made.append(Cell(name=name, job=SPEED, settings=settings, labels=labels, alone=True))
    return made


def cell_name(kind: str, attention: int) -> str:
    return f"{kind.replace(' ', '-')}-{attention}"


def least_bytes(settings: dict[str, Any]) -> float:
    """Needed at the smallest batch; larger ones are left out if the device cannot hold them."""
    return needed_bytes(settings, min(settings["batches"]))


def needed_bytes(settings: dict[str, Any], batch: int) -> float:
    """A lower bound: weights, memories, and the widest activations of a segment or a window."""
    dtype = DTYPES[settings["precision"]]
    with torch.device("meta"):
        model = Model(from_json(ModelConfig, settings["model"])).to(dtype)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    new = settings["segment"] if settings["kind"] == REUSE else settings["attention"]
    rows = batch * new * (model.config.dim + model.config.inner_dim) * dtype.itemsize
    return weights + batch * nbytes(model.init(1, cached=True)) + rows


@job(SPEED, needs=least_bytes)
def measure_speed(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Tokens per second at every batch, and the best; weights and text are random."""
    torch.manual_seed(0)
    config = from_json(ModelConfig, settings["model"])
    model = with_dtype(Model(config).eval(), DTYPES[settings["precision"]]).to(place.device)
    with safe_kernels(settings["precision"], place.device, place.monitor):
        tried = [{"batch": batch, "tokens_per_second": _speed(model, settings, batch)} for batch in settings["batches"]]
    best = max(tried, key=lambda one: one["tokens_per_second"] or 0.0)
    return best | {"tried": tried}


def _speed(model: Model, settings: dict[str, Any], batch: int) -> float | None:
    """None if the device cannot hold this batch."""
    available = memory_bytes(model.device)
    if available is not None and needed_bytes(settings, batch) > available:
        return None
    read: Callable[[Model, dict[str, Any], int, int], Score]
    read = read_reusing if settings["kind"] == REUSE else read_sliding
    few, many = settings["rounds"]
    try:
        read(model, settings, batch, few)
        seconds = [
            seconds_per_token(lambda rounds: read(model, settings, batch, rounds), few, many)
            for _ in range(settings["repeats"])
        ]
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return 1 / statistics.median(seconds)


def seconds_per_token(read: Callable[[int], Score], few: int, many: int) -> float:
    """From two passes of different lengths, so that the time of the set-up cancels.

    If the longer pass took less time, because the machine is busy, only that pass counts.
    """
    short, long = read(few), read(many)
    if long.seconds <= short.seconds:
        return long.seconds / long.tokens
    return (long.seconds - short.seconds) / (long.tokens - short.tokens)


def read_reusing(model: Model, settings: dict[str, Any], batch: int, rounds: int) -> Score:
    """Segments with a memory of the attention's length, which is full from the start."""
    segment = settings["segment"]
    text = random_text(batch * (rounds * segment + 1), model.config.vocab_size)
    config = EvalConfig(batch=batch, segment=segment, memory=settings["attention"])
    return evaluate(model, text, config, segment=segment, start="zeros")


def read_sliding(model: Model, settings: dict[str, Any], batch: int, rounds: int) -> Score:
    """A window for every token, read from scratch; `batch` windows at a time."""
    attention = settings["attention"]
    text = random_text(attention + 1 + batch * rounds, model.config.vocab_size)
    return evaluate(model, text, EvalConfig(segment=attention), segment=attention, sliding=True, windows=batch)


def random_text(length: int, vocab_size: int) -> Split:
    ids = np.random.default_rng(0).integers(vocab_size, size=length, dtype=np.int64)
    return Split("random text", ids, None, length, 0, 0)


def speeds(results: Results, attention: int) -> list[float]:
    """Tokens per second of state reuse and of the sliding window; empty unless both are measured."""
    found = [SPEED_OF.of(results.one(cell_name(kind, attention))) for kind in (REUSE, SLIDING)]
    known = [speed for speed in found if speed]
    return known if len(known) == len(found) else []


def ratios(results: Results) -> dict[int, float]:
    """How many times as fast state reuse is, by attention length, each side at its best batch."""
    found = {attention: speeds(results, attention) for attention in SCALES[results.budget].attention}
    return {attention: both[0] / both[1] for attention, both in found.items() if both}


def _fast(results: Results) -> Outcome | None:
    longest = max(SCALES[results.budget].attention)
    ratio, cell = ratios(results).get(longest), results.one(cell_name(REUSE, longest))
    if ratio is None or cell is None:
        return None
    return Outcome(f"{ratio:,.0f} times at {longest:,} on {cell.hardware}", ratio >= ORDERS_OF_MAGNITUDE)


def _grows(results: Results) -> Outcome | None:
    found = ratios(results)
    if len(found) < len(SCALES[results.budget].attention):
        return None
    values = list(found.values())
    return Outcome(times_at(found), values == sorted(values) and values[0] < values[-1])


def times_at(found: Mapping[int, float]) -> str:
    listed, lengths = (", ".join(f"{number:,.0f}" for number in part) for part in (found.values(), found))
    return f"{listed} times at {lengths}"


CLAIMS = (
    Observed(
        f"At an attention length of {max(PUBLISHED):,}, state reuse is three orders of magnitude faster.",
        f"{PUBLISHED[max(PUBLISHED)]:,} times",
        _fast,
    ),
    Observed("The longer the attention, the larger the gap.", times_at(PUBLISHED), _grows),
)


def tables(results: Results) -> list[Table]:
    rows = [
        (f"{attention:,}", *map(_number, (*speeds(results, attention), ratio)), PUBLISHED.get(attention, "-"))
        for attention, ratio in ratios(results).items()
    ]
    headers = ("attention", *(f"{kind}, tokens/s" for kind in (REUSE, SLIDING)), "ratio", "paper: ratio")
    caption = "Each at the fastest of the batches that were tried; the same kernels and the same precision for both."
    tried = [
        (f"{cell.labels['attention']:,}", cell.labels["kind"], one["batch"], _number(one["tokens_per_second"]))
        for cell in results.cells
        for one in cell.values.get("tried", [])
    ]
    compared = Table("Table 7: evaluation speed", headers, rows, caption)
    every_batch = Table("All batches", ("attention", "kind", "batch", "tokens/s"), tried)
    return [table for table in (compared, every_batch) if table.rows]


def _number(value: float | None) -> str:
    return "out of memory" if value is None else f"{value:,.0f}"


EVALUATION_SPEED = Experiment(
    name="xl-evaluation-speed",
    title="Evaluation speed against a sliding window",
    paper=PAPER,
    covers=("Table 7",),
    claim="Evaluation with state reuse is up to 1,874 times as fast as that of the vanilla transformer.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, CLAIMS),
    tables=tables,
    notes=(
        "Speed depends on shapes alone: weights and text are random, and nothing is trained. small takes the base "
        "model for enwik8 (12 layers), paper the large one (24 layers); the paper does not say which it took.",
        "State reuse keeps projected keys and values and reads 128 new tokens at a time with a full memory of the "
        "attention's length, so that its tokens see up to 128 tokens more. The window is a transformer with learned "
        "absolute positions and no memory, and predicts one token.",
        "A token's time is the difference of two passes of different lengths, without the time of the set-up. Other "
        "work on the device slows it down: measure with --jobs 1.",
    ),
)
