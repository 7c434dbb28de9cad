"""Table 7: evaluation with state reuse against a window that slides by one token."""

from __future__ import annotations

import statistics
from collections.abc import Callable
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
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.jobs import Place, job
from mnemo.papers.xl.comparing import judged, shown, undecided
from mnemo.papers.xl.recipes import smoke
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import EvalConfig
from mnemo.recipes.transformer_xl import everywhere
from mnemo.report.plots import Line, line_figure
from mnemo.training.precision import safe_kernels

SPEED = "xl-evaluation-speed"
PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""By attention length: how many times slower the sliding window is."""
ORDERS_OF_MAGNITUDE = 1000
"""What is expected at the longest attention."""
REUSE, SLIDING = "state reuse", "sliding window"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of weights and all that is computed."""


class Scale(NamedTuple):
    attention: tuple[int, ...]
    segment: int
    reuse_batches: tuple[int, ...]
    windows: tuple[int, ...]
    """Read at a time"""
    rounds: dict[str, tuple[int, int]]
    """Segments, or times that windows are read, in the shorter and the longer of two passes"""
    repeats: int
    precision: str


GPU_ROUNDS = {REUSE: (2 * LOSSES_IN_FLIGHT, 7 * LOSSES_IN_FLIGHT), SLIDING: (2, 10)}
"""Reading begins by recording itself: both passes contain that, and it cancels. Both end when losses are fetched, so
that nothing is left on the device when the clock stops."""
SCALES: dict[Budget, Scale] = {
    "smoke": Scale((8, 16), 4, (1, 2), (1, 4), {REUSE: (2, 6), SLIDING: (1, 4)}, 1, "fp32"),
    "small": Scale(tuple(PAPER), 128, (16, 64, 256), (16, 64, 256), GPU_ROUNDS, 2, "bf16"),
    "paper": Scale(tuple(PAPER), 128, (16, 64, 256), (16, 64, 256), GPU_ROUNDS, 3, "bf16"),
}
MODELS: dict[Budget, str] = {"small": "enwik8-base", "paper": "enwik8-large"}


def model_of(kind: str, attention: int, budget: Budget) -> ModelConfig:
    """Transformer-XL, and the same without memory and with a table of absolute positions as long as the window."""
    model = smoke().model if budget == "smoke" else preset(MODELS[budget]).model
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
            name = f"{kind.replace(' ', '-')}-{attention}"
            labels = {"kind": kind, "attention": attention}
            made.append(Cell(name=name, job=SPEED, settings=settings, labels=labels, alone=True))
    return made


def least_bytes(settings: dict[str, Any]) -> float:
    """At the smallest batch: those that a device cannot hold are left out."""
    return needed_bytes(settings, min(settings["batches"]))


def needed_bytes(settings: dict[str, Any], batch: int) -> float:
    """Weights, memories, and the widest rows of a segment or a window: at least so much."""
    dtype = DTYPES[settings["precision"]]
    with torch.device("meta"):
        model = Model(from_json(ModelConfig, settings["model"])).to(dtype)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    new = settings["segment"] if settings["kind"] == REUSE else settings["attention"]
    rows = batch * new * (model.config.dim + model.config.inner_dim) * dtype.itemsize
    return weights + batch * nbytes(model.init(1, cached=True)) + rows


@job(SPEED, needs=least_bytes)
def measure_speed(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Tokens a second at every batch, and the best; weights and text are random."""
    torch.manual_seed(0)
    config = from_json(ModelConfig, settings["model"])
    model = with_dtype(Model(config).eval(), DTYPES[settings["precision"]]).to(place.device)
    with safe_kernels(settings["precision"], place.device, place.monitor):
        tried = [{"batch": batch, "tokens_per_second": _speed(model, settings, batch)} for batch in settings["batches"]]
    best = max(tried, key=lambda one: one["tokens_per_second"] or 0.0)
    return best | {"tried": tried}


def _speed(model: Model, settings: dict[str, Any], batch: int) -> float | None:
    """None where the device's memory is too small for this batch."""
    available = memory_bytes(next(model.parameters()).device)
    if available is not None and needed_bytes(settings, batch) > available:
        return None
    read: Callable[[Model, dict[str, Any], int, int], Score]
    read = read_reusing if settings["kind"] == REUSE else read_sliding
    few, many = settings["rounds"]
    try:
        read(model, settings, batch, few)
        seconds = [
            seconds_a_token(lambda rounds: read(model, settings, batch, rounds), few, many)
            for _ in range(settings["repeats"])
        ]
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return 1 / statistics.median(seconds)


def seconds_a_token(read: Callable[[int], Score], few: int, many: int) -> float:
    """Seconds a token, from two passes of different lengths: what both begin with cancels.

    On a machine so busy that the longer pass took less time, that pass alone counts.
    """
    short, long = read(few), read(many)
    if long.seconds <= short.seconds:
        return long.seconds / long.tokens
    return (long.seconds - short.seconds) / (long.tokens - short.tokens)


def read_reusing(model: Model, settings: dict[str, Any], batch: int, rounds: int) -> Score:
    """Segments behind a memory of the attention's length, which is full from the start."""
    segment = settings["segment"]
    text = random_text(batch * (rounds * segment + 1), model.config.vocab_size)
    config = EvalConfig(batch=batch, segment=segment, memory=settings["attention"])
    return evaluate(model, text, config, segment=segment, start="zeros")


def read_sliding(model: Model, settings: dict[str, Any], batch: int, rounds: int) -> Score:
    """Every token behind a window of its own, which is read from scratch; so many windows at a time."""
    attention = settings["attention"]
    text = random_text(attention + 1 + batch * rounds, model.config.vocab_size)
    return evaluate(model, text, EvalConfig(segment=attention), segment=attention, sliding=True, windows=batch)


def random_text(length: int, vocab_size: int) -> Split:
    ids = np.random.default_rng(0).integers(vocab_size, size=length, dtype=np.int64)
    return Split("random text", ids, None, length, 0, 0)


def at(results: Results, kind: str, attention: int) -> CellResult | None:
    return next(iter(results.select(kind=kind, attention=attention)), None)


def ratio(results: Results, attention: int) -> float | None:
    """How many times as fast state reuse is, each at its best batch."""
    speeds = [at(results, kind, attention) for kind in (REUSE, SLIDING)]
    values = [cell.values.get("tokens_per_second") if cell else None for cell in speeds]
    return values[0] / values[1] if values[0] and values[1] else None


def verdicts(results: Results) -> list[Verdict]:
    lengths = SCALES[results.budget].attention
    ratios = {attention: ratio(results, attention) for attention in lengths}
    return [_fast(results, ratios), _grows(results, ratios)]


def _fast(results: Results, ratios: dict[int, float | None]) -> Verdict:
    longest = max(ratios)
    claim = f"At an attention length of {max(PAPER):,}, state reuse is three orders of magnitude faster."
    paper, value = f"{PAPER[max(PAPER)]:,} times", ratios[longest]
    if value is None:
        return undecided(claim, paper, [f"attention length {longest:,}"])
    found = at(results, REUSE, longest)
    where = f" on {found.hardware}" if found and found.hardware else ""
    return judged(results, claim, paper, f"{shown(value)} times at {longest:,}{where}", value >= ORDERS_OF_MAGNITUDE)


def _grows(results: Results, ratios: dict[int, float | None]) -> Verdict:
    claim = "The longer the attention, the larger the gap."
    paper = ", ".join(f"{slower:,}" for slower in PAPER.values()) + f" times at {', '.join(f'{n:,}' for n in PAPER)}"
    missing = [f"attention length {attention:,}" for attention, value in ratios.items() if value is None]
    if missing:
        return undecided(claim, paper, missing)
    values = [value for value in ratios.values() if value is not None]
    ours = f"{', '.join(map(shown, values))} times at {', '.join(f'{n:,}' for n in ratios)}"
    return judged(results, claim, paper, ours, values == sorted(values) and values[0] < values[-1])


def tables(results: Results) -> list[Table]:
    rows = []
    for attention in SCALES[results.budget].attention:
        value = ratio(results, attention)
        speeds = [_speed_text(at(results, kind, attention)) for kind in (REUSE, SLIDING)]
        quoted = f"{PAPER[attention]:,}" if attention in PAPER else ""
        rows.append([f"{attention:,}", *speeds, "not measured" if value is None else shown(value), quoted])
    headers = ["attention", "state reuse, tokens/s", "sliding window, tokens/s", "ratio", "paper: ratio"]
    caption = "Each at the fastest of the batches that were tried; the same kernels and the same precision for both."
    return [Table(title="Table 7: evaluation speed", headers=headers, rows=rows, caption=caption), _tried(results)]


def _speed_text(cell: CellResult | None) -> str:
    if cell is None or not cell.values.get("tokens_per_second"):
        return "not measured"
    return f"{shown(cell.values['tokens_per_second'])} (batch {cell.values['batch']})"


def _tried(results: Results) -> Table:
    rows = [
        [f"{cell.labels['attention']:,}", cell.labels["kind"], str(one["batch"]), _or_memory(one["tokens_per_second"])]
        for cell in results.cells
        for one in cell.values.get("tried", [])
    ]
    return Table(title="All batches", headers=["attention", "kind", "batch", "tokens/s"], rows=rows)


def _or_memory(speed: float | None) -> str:
    return "out of memory" if speed is None else shown(speed)


def figures(results: Results) -> list[Figure]:
    found = [(attention, ratio(results, attention)) for attention in SCALES[results.budget].attention]
    points = [(float(attention), value) for attention, value in found if value is not None]
    if not points:
        return []
    quoted = [(float(attention), float(slower)) for attention, slower in PAPER.items()]
    lines = [Line("ours", points), *([Line("paper", quoted)] if results.budget != "smoke" else [])]
    return [
        line_figure(
            "speed-ratio",
            "How many times as fast as a sliding window",
            "Tokens a second with state reuse over tokens a second with a window that slides by one token.",
            lines,
            x_label="attention length",
            y_label="ratio",
            y_logarithmic=True,
        )
    ]


EVALUATION_SPEED = Experiment(
    name="xl-evaluation-speed",
    title="Evaluation speed against a sliding window",
    paper="Transformer-XL",
    covers=("Table 7",),
    claim="Evaluation with state reuse is up to 1,874 times as fast as that of the vanilla transformer.",
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "Speed depends on shapes alone: weights and text are random, and nothing is trained. small takes the base "
        "model for enwik8 (12 layers), paper the large one (24 layers); the paper does not say which it took.",
        "Both sides run the same family of kernels in the same precision, each at the best batch of those tried. State "
        "reuse keeps projected keys and values and reads 128 new tokens at a time behind a full memory of the "
        "attention's length, so that its tokens see up to 128 tokens more. The window is a transformer with learned "
        "absolute positions and no memory, and predicts one token.",
        "A token's time is the difference of two passes of different lengths, so that setting up counts for neither. "
        "Whatever else runs on the device at the same time slows it down: measure with --jobs 1.",
    ),
)
