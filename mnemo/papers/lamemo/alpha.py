"""The memorising coefficient by layer and slot (Figure 6)."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from mnemo.analysis import alpha
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table
from mnemo.papers.grid import Grid
from mnemo.papers.jobs import Place, job
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.lamemo.models import LAMEMO, PAPER
from mnemo.papers.lamemo.trained import TRAINED, measured, open_trained, trained_then_measured
from mnemo.report.plots import Line, line_figure

SEGMENTS = 100
NEAR_ONE = 0.9
"""Least coefficient that counts as about 1."""
APART = 0.01
"""Least difference of coefficients that decides: there is one seed."""
LINES = 8
"""Layers in the figure; the paper shows as many of 16."""


@job("lamemo-alpha")
def measure_alpha(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    opened = open_trained(settings, place)
    found = alpha(
        opened.run.model,
        opened.corpus.split("test").ids[: settings["tokens"]],
        segment=opened.segment,
        segments=settings["segments"],
        progress=place.progress,
    )
    return {"layers": list(found.layers), "alpha": found.mean.tolist(), "segments": found.segments}


def cells(budget: Budget) -> list[Cell]:
    segments, tokens = (3, 200) if budget == "self-test" else (SEGMENTS, 100_000)
    return trained_then_measured(budget, [LAMEMO], "lamemo-alpha", {"segments": segments, "tokens": tokens})


def _halves(rows: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    """Lower and upper layers; the middle one of an odd number belongs to the lower."""
    middle = (len(rows) + 1) // 2
    return rows[:middle], rows[middle:]


def _lowest(results: Results) -> Outcome | None:
    found = measured(results, LAMEMO).get(LAMEMO)
    if found is None:
        return None
    mean = fmean(found.values["alpha"][0])
    return Outcome(f"{mean:.3f}, mean over slots", mean >= NEAR_ONE, 1)


def upper_and_lower(results: Results) -> tuple[list[list[float]], list[list[float]]] | None:
    """Coefficients of the upper and of the lower layers."""
    found = measured(results, LAMEMO).get(LAMEMO)
    lower, upper = ([], []) if found is None else _halves(found.values["alpha"])
    return (upper, lower) if upper else None


def _falls(results: Results) -> Outcome | None:
    if (found := upper_and_lower(results)) is None:
        return None
    high, low = (fmean(map(fmean, rows)) for rows in found)
    return _below(f"{high:.3f} in the upper half of the layers, {low:.3f} in the lower", low - high)


def _old_slots(results: Results) -> Outcome | None:
    if (found := upper_and_lower(results)) is None:
        return None
    upper, quarter = found[0], max(1, len(found[0][0]) // 4)
    old, new = fmean(fmean(row[:quarter]) for row in upper), fmean(fmean(row[-quarter:]) for row in upper)
    return _below(f"{old:.3f} in the oldest quarter of slots, {new:.3f} in the newest", new - old)


def _below(ours: str, by: float) -> Outcome:
    """There is one seed: a difference below `APART` decides nothing."""
    return Outcome(ours, None if abs(by) < APART else by > 0, 1)


CLAIMS = (
    Observed(
        f"In the lowest layer the memory keeps to its past: alpha is {NEAR_ONE} or more.",
        "about 1.0 in lower layers (Figure 6)",
        _lowest,
    ),
    Observed(
        f"Upper layers look ahead more than lower ones: their mean alpha is lower, by {APART} or more.",
        "higher layers substantially use the future (Figure 6)",
        _falls,
    ),
    Observed(
        f"In upper layers old slots look ahead more than new ones: their alpha is lower, by {APART} or more.",
        "especially those with a small memory index (Figure 6)",
        _old_slots,
    ),
)


def figures(results: Results) -> list[Figure]:
    found = measured(results, LAMEMO).get(LAMEMO)
    if found is None:
        return []
    layers, rows = found.values["layers"], found.values["alpha"]
    every = max(1, -(-len(rows) // LINES))
    lines = [
        Line(f"layer {layer + 1}", [(float(slot), value) for slot, value in enumerate(row, 1)])
        for layer, row in list(zip(layers, rows, strict=True))[::every]
    ]
    caption = (
        f"The past's share of a memory row, averaged over heads and {found.values['segments']} segments; slot 1 is "
        "the oldest."
    )
    title = "Memorising coefficient (Figure 6)"
    return [line_figure("alpha", title, caption, lines, x_label="memory slot", y_label="alpha")]


def tables(results: Results) -> list[Table]:
    found = measured(results, LAMEMO).get(LAMEMO)
    if found is None:
        return []
    rows = []
    for layer, row in zip(found.values["layers"], found.values["alpha"], strict=True):
        quarter = max(1, len(row) // 4)
        parts = (row, row[:quarter], row[-quarter:])
        rows.append((layer + 1, *(f"{fmean(part):.3f}" for part in parts)))
    headers = ("layer", "all slots", "oldest quarter", "newest quarter")
    return [Table("Mean alpha", headers, rows, "The last layer is not refreshed: nothing reads its memory.")]


ALPHA = Experiment(
    name="lamemo-alpha",
    title="Where LaMemo's memory looks ahead",
    paper=PAPER,
    covers=("Figure 6",),
    claim="In low layers memory rows keep to their past; in high layers, and most of all in old slots, they take up "
    "the tokens to their right.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, CLAIMS),
    figures=figures,
    tables=tables,
    notes=(
        "A slot's attention window ends at the segment's first token: the newest slot sees one position and the oldest "
        "all. Part of the slope over slots has this cause.",
        TRAINED,
        "small: bytes of novels, 8 layers.",
    ),
)
