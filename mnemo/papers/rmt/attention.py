"""What attention shows of writing, reading and rewriting memory, and of reading a cache (Figures 6 and 8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mnemo.papers.claims import Claim
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.rmt.accuracy import COPY, REVERSE
from mnemo.papers.rmt.half_memory import HALF_REVERSE
from mnemo.papers.rmt.published import HALF_REVERSE as QUOTED
from mnemo.papers.rmt.published import RMT, XL
from mnemo.papers.rmt.series import ACCURACY, OURS, PAPER, Series
from mnemo.papers.rmt.telling import FAR, FEW_STEPS, NOT_RUN, SOLVED, is_far_below, one_seed
from mnemo.report.plots import heat_figure

CLEAR = 0.3
"""Attention that a row gives to one key, mean over rows, from which on a pattern is clear; spread evenly over 24 keys
it would be 0.04."""
ORDERED = 0.8
"""Correlation of slots with the tokens they are written from."""


@dataclass(frozen=True)
class Shown:
    """A model whose attention is looked at."""

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


def _shown(budget: Budget) -> list[Shown]:
    return [each for each in SHOWN if budget != "smoke" or each.name.startswith("twelve")]


def cells(budget: Budget) -> list[Cell]:
    return [_cell(budget, each) for each in _shown(budget)]


def _cell(budget: Budget, shown: Shown) -> Cell:
    cell = shown.series.cell(budget, shown.model, shown.count, 1)
    labels = {**cell.labels, "shown": shown.name}
    return replace(cell, name=shown.name, settings={**cell.settings, "maps": True}, labels=labels)


def found_map(results: Results, name: str, operation: str) -> dict[str, Any] | None:
    result = results.one(name)
    maps = None if result is None else result.values.get("maps")
    found = maps.get(operation) if isinstance(maps, dict) else None
    return found if isinstance(found, dict) and found.keys() >= set(PARTS_OF_A_MAP) else None


def verdicts(results: Results) -> list[Verdict]:
    return [
        _clear(results, "copy-straight", "write", "Copying, RMT writes the sequence to memory in straight order", 1),
        _clear(results, "reverse-backwards", "write", "Reversing, RMT writes the sequence in reversed order", -1),
        _clear(results, "copy-straight", "read", "RMT reads its answer from memory"),
        _clear(results, "rewriting", "rewrite", "In 9 segments RMT rewrites read memory to write memory"),
        _clear(results, "cache", "cache", "Transformer-XL reads its answer from cached states"),
        _compresses(results),
    ]


def _clear(results: Results, name: str, operation: str, text: str, direction: int = 0) -> Verdict:
    needs = f"one head looks at a single key with {CLEAR} or more"
    ordered = f", in order ({direction * ORDERED:+} or beyond)" if direction else ""
    claim = Claim(f"{text} ({needs}{ordered}).", "shown for selected heads")
    found = found_map(results, name, operation)
    if found is None:
        run = any(each.name == name for each in _shown(results.budget))
        return claim.open("no map" if run else NOT_RUN)
    ours = f"layer {found['layer']}, head {found['head']}: {found['focus']:.2f}, order {found['order']:+.2f}"
    holds = found["focus"] >= CLEAR and direction * found["order"] >= (ORDERED if direction else 0)
    return claim.judged(results, ours, holds, smoke=FEW_STEPS)


def _compresses(results: Results) -> Verdict:
    text = f"RMT packs 12 tokens into 6 memory tokens without loss ({SOLVED}), Transformer-XL is {FAR} or more below."
    claim = Claim(text, f"Transformer-XL {QUOTED[XL, 4]}, RMT {QUOTED[RMT, 4]}")
    rmt = results.values(ACCURACY, shown="twelve-in-six-rmt")
    xl = results.values(ACCURACY, shown="twelve-in-six-xl")
    if not rmt or not xl:
        return claim.open("runs are missing")
    ours = f"Transformer-XL {xl[0]:.3f}, RMT {rmt[0]:.3f} (1 run each)"
    if rmt[0] >= SOLVED > xl[0] and not is_far_below(xl, rmt):
        return claim.open(f"{ours}; {one_seed(FAR)}")
    holds = rmt[0] >= SOLVED and is_far_below(xl, rmt)
    return claim.judged(results, ours, holds, smoke=FEW_STEPS)


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
    rows = []
    for shown in SHOWN:
        accuracy = results.values(ACCURACY, shown=shown.name)
        for operation in shown.operations:
            found = found_map(results, shown.name, operation)
            if found is not None:
                place = (shown.model, _task(results, shown), operation)
                rows.append((*place, *(found[name] for name in HEAD), accuracy[0] if accuracy else None))
    headers = ("model", "task", "operation", "segment", "layer", "head", "focus", "mass", "order", "accuracy")
    caption = (
        "The clearest head of each operation. Focus: largest attention of a row within the block, mean over rows. "
        "Mass: all attention that rows give to the block. Order: correlation of rows with the keys they look at most."
    )
    return [Table("Heads that write, read and rewrite", headers, rows, caption)]


EXPERIMENT = Experiment(
    name="rmt-attention",
    title="Attention maps of memory",
    paper=PAPER,
    covers=("Figure 6", "Figure 8"),
    claim="RMT writes sequences to memory, reads its answers from there, and rewrites what it must keep; it packs 12 "
    "tokens into 6 memory tokens where Transformer-XL has to mix cached states.",
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        *OURS,
        "Maps are means over 64 samples of the head that shows an operation most clearly; the paper shows selected "
        "heads.",
    ),
)
