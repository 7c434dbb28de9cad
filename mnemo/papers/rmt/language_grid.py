"""Runs of language modelling over memory size and depth of backpropagation, shared by three experiments.

`paper` are the presets of Tables 2 to 4. `small` has the shape of Table 3, bytes in segments of 128, with a smaller
model and novels instead of Wikipedia. A run that diverges or does not fit into memory has that as its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from mnemo.config import to_json
from mnemo.model import ModelConfig
from mnemo.papers.experiment import Budget, Cell, CellResult, look_up
from mnemo.papers.rmt.published import BASELINE, MT, RMT, XL, Quoted
from mnemo.papers.rmt.recipes import remembering
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig

WIKITEXT, ENWIK8, NOVELS, PYTHON = "wikitext-103", "enwik8", "novels", "python"
UNITS = {WIKITEXT: "ppl", ENWIK8: "bpc", NOVELS: "bpc", PYTHON: "bpc"}
SCORES = {"ppl": "scores.test.perplexity", "bpc": "scores.test.bits_per_token"}
UNKNOWN = "no result"
NOISE = {"ppl": 0.1, "bpc": 0.01}
"""Differences between two seeds that mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table."""

    corpus: str
    segment: int
    model: str
    memory: int = 0
    bptt: int = 0
    quoted: Quoted | None = None
    seeds: int = 1

    @property
    def labels(self) -> dict[str, Any]:
        names = ("corpus", "segment", "model", "memory", "bptt")
        return {name: getattr(self, name) for name in names}

    @property
    def name(self) -> str:
        depth = f"-bptt{self.bptt}" if self.model == RMT else ""
        return f"{self.corpus}-{self.segment}-{self.model.lower()}-{self.memory}{depth}"

    @property
    def preset(self) -> str:
        kind = {BASELINE: "", MT: f"-mt{self.memory}", XL: f"-xl{self.memory}", RMT: f"-m{self.memory}-bptt{self.bptt}"}
        return f"rmt-{self.corpus.replace('-', '')}-seg{self.segment}{kind[self.model]}"


def _rows(corpus: str, segment: int, model: str, results: dict[Any, Quoted], seeds: int = 3) -> list[Row]:
    """`results` by memory, or by memory and depth."""
    places = [(place if isinstance(place, tuple) else (place, 0), quoted) for place, quoted in results.items()]
    return [
        Row(corpus=corpus, segment=segment, model=model, memory=memory, bptt=bptt, quoted=quoted, seeds=seeds)
        for (memory, bptt), quoted in places
    ]


Q = Quoted
PAPER_ROWS = [
    *_rows(WIKITEXT, 150, BASELINE, {0: Q(29.95, 0.15)}),
    *_rows(WIKITEXT, 150, MT, {10: Q(29.63, 0.06), 25: Q(29.67, 0.03), 75: Q(29.69, 0.02), 150: Q(29.82, 0.35)}),
    *_rows(WIKITEXT, 150, XL, {150: Q(24.12, 0.05), 75: Q(24.68, 0.01), 25: Q(25.57, 0.02)}),
    *_rows(
        WIKITEXT,
        150,
        RMT,
        {
            (10, 0): Q(26.85, 0.02),
            (10, 1): Q(25.92, 1.07),
            (10, 2): Q(25.32, 0.61),
            (10, 3): Q(25.04, 0.07),
            (25, 0): Q(29.73),
            (25, 1): Q(24.91),
            (25, 2): Q(24.85, 0.31),
        },
    ),
    *_rows(WIKITEXT, 50, BASELINE, {0: Q(39.05, 0.01)}),
    *_rows(
        WIKITEXT,
        50,
        XL,
        {
            200: Q(25.14),
            100: Q(25.66, 0.01),
            50: Q(26.54, 0.01),
            25: Q(27.57, 0.09),
            10: Q(28.98, 0.11),
            5: Q(30.06, 0.07),
            1: Q(32.35, 0.03),
        },
    ),
    *_rows(
        WIKITEXT,
        50,
        RMT,
        {
            (1, 0): Q(31.33, 1.26),
            (1, 1): Q(28.71, 0.03),
            (1, 2): Q(28.44),
            (1, 3): Q(28.40, 0.03),
            (5, 0): Q(30.32, 0.18),
            (5, 1): Q(27.05, 0.20),
            (5, 2): Q(26.83, 0.18),
            (5, 3): Q(26.75, 0.26),
            (5, 4): Q(26.67, 0.03),
            (10, 0): Q(30.69, 0.01),
            (10, 1): Q(27.95, 1.32),
            (10, 2): Q(26.62, 0.34),
            (10, 3): Q(26.37, 0.01),
            (10, 4): Q(26.25, 0.19),
            (25, 0): Q(29.75),
            (25, 1): Q(26.32),
            (25, 2): Q(27.31),
            (50, 0): Q(29.75),
            (50, 1): Q(26.03),
        },
    ),
    *_rows(ENWIK8, 512, XL, {512: Q(1.071)}),
    *_rows(ENWIK8, 128, BASELINE, {0: Q(1.402, source="result files")}),
    *_rows(
        ENWIK8,
        128,
        XL,
        {200: Q(1.140), 100: Q(1.178), 75: Q(1.196), 40: Q(1.230, 0.001), 20: Q(1.261), 10: Q(1.283, 0.001)},
    ),
    *_rows(
        ENWIK8,
        128,
        RMT,
        {
            (5, 1): Q(1.241, 0.002),
            (5, 2): Q(1.231, 0.002),
            (10, 1): Q(1.240, 0.006),
            (10, 2): Q(1.228, 0.003),
            (20, 0): Q(1.301),
            (20, 1): Q(1.229),
            (20, 2): Q(1.222),
        },
    ),
]
LITERATURE = [
    (WIKITEXT, "Transformer-XL (Dai et al., 2019)", 150, 150, "24.0"),
    (ENWIK8, "Transformer-XL (Dai et al., 2019)", 512, 512, "1.06"),
]
"""Rows that the paper itself quotes: corpus, model, memory, segment, result."""


def _small(model: str, memory: int = 0, bptt: int = 0, seeds: int = 1) -> Row:
    quoted = {(row.model, row.memory, row.bptt): row.quoted for row in PAPER_ROWS if row.labels["corpus"] == ENWIK8}
    place = (model, memory, bptt)
    return Row(corpus=NOVELS, segment=128, model=model, memory=memory, bptt=bptt, quoted=quoted.get(place), seeds=seeds)


SMALL_ROWS = [
    _small(BASELINE, seeds=2),
    _small(RMT, 10, 1, seeds=2),
    _small(XL, 40, seeds=2),
    _small(RMT, 10, 0, seeds=2),
    _small(RMT, 5, 1, seeds=2),
    _small(XL, 10, seeds=2),
    _small(MT, 10, seeds=2),
    _small(RMT, 10, 2),
    _small(XL, 20),
    _small(XL, 100),
    _small(RMT, 5, 0),
    _small(RMT, 20, 1),
    _small(RMT, 5, 2),
    _small(RMT, 1, 1),
]
SMOKE_ROWS = [
    Row(corpus=PYTHON, segment=8, model=BASELINE),
    Row(corpus=PYTHON, segment=8, model=XL, memory=4),
    Row(corpus=PYTHON, segment=8, model=RMT, memory=2, bptt=0),
    Row(corpus=PYTHON, segment=8, model=RMT, memory=2, bptt=1),
]
ROWS = {"smoke": SMOKE_ROWS, "small": SMALL_ROWS, "paper": PAPER_ROWS}
MODELS = {
    NOVELS: ModelConfig(num_layers=6, dim=256, num_heads=8, head_dim=32, inner_dim=1024, norm="pre", final_norm=True),
    PYTHON: ModelConfig(num_layers=1, dim=16, num_heads=2, head_dim=8, inner_dim=16, norm="pre", final_norm=True),
}
TRAINS = {
    NOVELS: TrainConfig(
        steps=1200,
        batch=64,
        optimizer=OptimizerConfig(lr=1e-3, betas=(0.9, 0.98)),
        schedule=ScheduleConfig(warmup=100),
        precision="bf16",
        compile="layers",
        log_every=50,
        eval_every=300,
        checkpoint_every=1200,
        keep=1,
    ),
    PYTHON: TrainConfig(steps=2, batch=4, log_every=1, eval_every=2, checkpoint_every=2, keep=1),
}
EVALUATIONS = {NOVELS: EvalConfig(batch=64, limit=200_000), PYTHON: EvalConfig(batch=4, limit=256)}


def recipe(row: Row, seed: int) -> Recipe:
    if row.corpus not in MODELS:
        published = preset(row.preset)
        return replace(published, train=replace(published.train, seed=seed))
    evaluation, tumbling = EVALUATIONS[row.corpus], replace(TRAINS[row.corpus], segment=row.segment, seed=seed)
    return Recipe(
        model=remembering(MODELS[row.corpus], row.model, row.memory, std=0.3),
        data=DataConfig(corpus=row.corpus, drop_last=True),
        train=replace(tumbling, bptt=row.bptt if row.model == RMT else 0),
        evaluation=evaluation,
        test=replace(evaluation, limit=None),
    )


def row_cells(rows: Iterable[Row], budget: Budget) -> list[Cell]:
    """Every row's first seed before the second ones."""
    rows, limit = list(rows), 256 if budget == "smoke" else None
    return [
        Cell(
            name=f"{row.name}-seed{seed}",
            job="rmt-language",
            settings={"recipe": to_json(recipe(row, seed)), "limit": limit},
            labels={**row.labels, "seed": seed},
        )
        for seed in range(1, max((row.seeds for row in rows), default=0) + 1)
        for row in rows
        if seed <= row.seeds
    ]


def quality(result: CellResult) -> float | None:
    """Perplexity or bits per character on the test set; None where a run did not end well."""
    value = look_up(result.values, SCORES[UNITS[result.labels["corpus"]]])
    return float(value) if isinstance(value, (int, float)) else None


def outcome(result: CellResult) -> str:
    """`finished`, `diverged`, `out of memory`, or that nobody knows."""
    return str(result.values.get("outcome", UNKNOWN))
