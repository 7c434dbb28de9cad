"""Attention maps of writing, reading and rewriting memory, and of reading a cache (Figures 6 and 8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table
from mnemo.papers.grid import ACCURACY, Grid
from mnemo.papers.judge import SOLVED, Observed, Outcome, judge
from mnemo.papers.rmt import published
from mnemo.papers.rmt.accuracy import COPY, REVERSE
from mnemo.papers.rmt.half_memory import HALF_REVERSE
from mnemo.papers.rmt.published import RMT, XL, beside
from mnemo.papers.rmt.series import OURS, PAPER, Series
from mnemo.report.plots import heat_figure

CLEAR = 0.3
"""Attention of a row to a single key, mean over rows, that makes a pattern clear; evenly over 24 keys it is 0.04."""
ORDERED = 0.8
"""Correlation of slots with the tokens they are written from."""


@dataclass(frozen=True)
class Shown:
    """A model whose attention maps are shown."""

    name: str
    series: Series
    model: str
    count: int
    operations: tuple[str, ...]
    figure: str


SHOWN = [
    Shown("copy-straight", COPY, RMT, 3, ("write", "read"), "Figure 6a, b"),
    Shown("reverse-backwards", REVERSE, RMT, 2, ("write", "read"), "Figure 6a"),
    Shown("rewriting", COPY, RMT, 9, ("rewrite",), "Figure 6c"),
    Shown("cache", COPY, XL, 3, ("cache",), "Figure 6d"),
    Shown("twelve-in-six-rmt", HALF_REVERSE, RMT, 4, ("write", "read"), "Figure 8a"),
    Shown("twelve-in-six-xl", HALF_REVERSE, XL, 4, ("cache",), "Figure 8b"),
]
TITLES = {
    "write": "write rows look at the segment's tokens",
    "read": "tokens look at the memory they read",
    "rewrite": "write rows look at the memory that was read",
    "cache": "tokens look at cached states",
}
HEAD = ("segment", "layer", "head", "focus", "mass", "order")
PARTS_OF_A_MAP = (*HEAD, "memory", "tokens", "cached", "map")


def grid(budget: Budget) -> Grid:
    shown = [each for each in SHOWN if budget != "self-test" or each.name.startswith("twelve")]
    return Grid(last=[_cell(budget, each) for each in shown])


def _cell(budget: Budget, shown: Shown) -> Cell:
    cell = shown.series.row(budget, shown.model, shown.count).cell(1)
    labels = {**cell.labels, "shown": shown.name}
    return replace(cell, name=shown.name, settings={**cell.settings, "maps": True}, labels=labels)


def found_map(results: Results, name: str, operation: str) -> dict[str, Any] | None:
    result = results.one(name)
    maps = None if result is None else result.values.get("maps")
    found = maps.get(operation) if isinstance(maps, dict) else None
    return found if isinstance(found, dict) and found.keys() >= set(PARTS_OF_A_MAP) else None


def _clear(name: str, operation: str, text: str, direction: int = 0) -> Observed:
    def observe(results: Results) -> Outcome | None:
        found = found_map(results, name, operation)
        if found is None:
            return None
        ours = f"layer {found['layer']}, head {found['head']}: {found['focus']:.2f}, order {found['order']:+.2f}"
        ordered = direction * found["order"] >= (ORDERED if direction else 0)
        return Outcome(ours, found["focus"] >= CLEAR and ordered, 1)

    needs = f"one head looks at a single key with {CLEAR} or more"
    ordered = f", in order ({direction * ORDERED:+} or beyond)" if direction else ""
    return Observed(f"{text} ({needs}{ordered}).", "shown for selected heads", observe)


def _packs(results: Results) -> Outcome | None:
    xl, rmt = (ACCURACY.of(results.one(f"twelve-in-six-{model}")) for model in ("xl", "rmt"))
    if xl is None or rmt is None:
        return None
    return Outcome(f"Transformer-XL {xl:.3f}, RMT {rmt:.3f}", rmt >= SOLVED, 1)


CLAIMS = (
    _clear("copy-straight", "write", "Copying, RMT writes the sequence to memory in straight order", 1),
    _clear("reverse-backwards", "write", "Reversing, RMT writes the sequence in reversed order", -1),
    _clear("copy-straight", "read", "RMT reads its answer from memory"),
    _clear("rewriting", "rewrite", "In 9 segments RMT rewrites read memory to write memory"),
    _clear("cache", "cache", "Transformer-XL reads its answer from cached states"),
    Observed(
        f"RMT packs 12 tokens into 6 memory tokens without loss ({SOLVED} or better).",
        beside(published.HALF_REVERSE, 4, XL, RMT),
        _packs,
    ),
)


def figures(results: Results) -> list[Figure]:
    return [
        _figure(shown, _task(results, shown), operation, found)
        for shown in SHOWN
        for operation in shown.operations
        if (found := found_map(results, shown.name, operation)) is not None
    ]


def _task(results: Results, shown: Shown) -> str:
    """With the number of segments that this budget has cut it into."""
    result = results.one(shown.name)
    count = shown.count if result is None else result.labels["segments"]
    return f"{shown.series.task} in {count} segments"


def _figure(shown: Shown, task: str, operation: str, found: dict[str, Any]) -> Figure:
    caption = (
        f"{shown.figure}: {shown.model}, segment {found['segment']}, layer {found['layer']}, head {found['head']}; "
        f"mean over 64 samples. Rows and columns: r read memory, t tokens, w write memory, c cache."
    )
    rows = _names(found, cache=False)
    return heat_figure(
        f"{shown.name}-{operation}",
        f"{task}: {TITLES[operation]}",
        caption,
        found["map"],
        x_label="looked at",
        y_label="looking",
        row_labels=rows,
        column_labels=_names(found, cache=True),
    )


def _names(found: dict[str, Any], *, cache: bool) -> list[str]:
    memory, tokens = found["memory"], found["tokens"]
    cached = [f"c{i + 1}" for i in range(found["cached"])] if cache else []
    read, write = ([f"{kind}{i + 1}" for i in range(memory)] for kind in "rw")
    return [*cached, *read, *(f"t{i + 1}" for i in range(tokens)), *write]


def tables(results: Results) -> list[Table]:
    rows = [
        (shown.model, _task(results, shown), operation, *(found[name] for name in HEAD))
        + (ACCURACY.of(results.one(shown.name)),)
        for shown in SHOWN
        for operation in shown.operations
        if (found := found_map(results, shown.name, operation)) is not None
    ]
    caption = (
        "The clearest head of each operation. Focus: largest attention of a row within the block, mean over rows. "
        "Mass: all attention that rows give to the block. Order: correlation of rows with the keys they look at most."
    )
    headers = ("model", "task", "operation", *HEAD, "accuracy")
    return [Table("Heads that write, read and rewrite", headers, rows, caption)] if rows else []


EXPERIMENT = Experiment(
    name="rmt-attention",
    title="Attention maps of memory",
    paper=PAPER,
    covers=("Figure 6", "Figure 8"),
    claim="RMT writes sequences to memory, reads its answers from there, and rewrites what it must keep; it packs 12 "
    "tokens into 6 memory tokens where Transformer-XL has to mix cached states.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, CLAIMS),
    figures=figures,
    tables=tables,
    notes=(
        *OURS,
        "Maps are means over 64 samples, of the head that shows an operation most clearly; the paper shows selected "
        "heads. rmt-half-memory compares the accuracies of several seeds.",
    ),
)
