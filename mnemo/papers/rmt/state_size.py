"""Size of a state, m vectors of memory tokens against m in every layer, and GPU memory at equal quality."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean

from mnemo.papers.experiment import Budget, Experiment, Figure, Results, Table
from mnemo.papers.figures import BANDS, scores_over
from mnemo.papers.grid import Grid, Measure, Row
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.rmt.language_grid import CORPORA, SEGMENT, Variant, language_grid, shown
from mnemo.papers.rmt.published import RMT, XL
from mnemo.papers.rmt.series import PAPER
from mnemo.papers.tables import cell_labels, grid_table, num_seeds, score, size

VECTORS = Measure(unit="vectors", digits=0, key="state_vectors", scale="vectors")
STATE = Measure(unit="kB", digits=2, key="state_bytes", scale="bytes", shown=lambda value: value / 1e3)
TRAINING = Measure(unit="MB", digits=1, key="peak_bytes", scale="bytes", shown=lambda value: value / 1e6)
READING = Measure(unit="MB", digits=1, key="reading_bytes", scale="bytes", shown=lambda value: value / 1e6)
NEAR = {"ppl": 0.6, "bpc": 0.015}
"""Difference up to which two models count as equally good."""
NO_GAIN = "more slots gain too little for a meaningful comparison"


def grid(budget: Budget) -> Grid:
    """Caches, and memory tokens with one unrolled segment: deeper ones cost more to train, but not to run."""
    corpus = CORPORA[budget][0]

    def belongs(variant: Variant) -> bool:
        here = variant[:2] == (corpus, SEGMENT[corpus]) and variant.memory > 0
        return here and (variant.model == XL or (variant.model == RMT and variant.bptt == 1))

    return language_grid(budget, belongs)


def mean_of(results: Results, row: Row, measure: Measure | None = None) -> float:
    """In the unit of the measure; not a number if it is not measured."""
    found, measure = grid(results.budget), measure or grid(results.budget).measure
    values = found.by_seed(results, row.key, measure).values()
    return fmean(map(measure.shown, values)) if values else math.nan


def measured(results: Results, *models: str) -> list[Row]:
    """Rows of these models with a score and the size of their state, the smallest state first."""
    found = grid(results.budget)
    rows = [row for row in found.rows if row.labels["model"] in models]
    known = [row for row in rows if not found.missing(results, (row.key,))]
    known = [row for row in known if not found.missing(results, (row.key,), VECTORS)]
    return sorted(known, key=lambda row: mean_of(results, row, VECTORS))


def equally_good(results: Results) -> tuple[Row, Row] | str:
    """The smallest RMT state that some cache is as good as, and the smallest of these caches; or why there is none."""
    unit, tokens, caches = grid(results.budget).measure.unit, measured(results, RMT), measured(results, XL)
    if not tokens or not caches:
        return "not measured yet"
    quality = {row.key: mean_of(results, row) for row in (*tokens, *caches)}
    scores = [quality[row.key] for row in caches]
    for rmt in tokens:
        for cache in caches:
            if abs(quality[cache.key] - quality[rmt.key]) <= NEAR[unit]:
                return (rmt, cache) if max(scores) - min(scores) > 2 * NEAR[unit] else NO_GAIN
    best = min(quality[row.key] for row in tokens)
    return f"no pair of runs is equally good: the best RMT has {best:.3f} {unit}, the worst cache {max(scores):.3f}"


def _carries_fewer(results: Results) -> Outcome:
    rows = [*measured(results, RMT), *measured(results, XL)]
    sizes = {row.key: mean_of(results, row, VECTORS) for row in rows}
    ours = ", ".join(f"{row.labels['model']} {row.labels['memory']}: {sizes[row.key]:,.0f}" for row in rows)
    by_model = {
        model: {sizes[row.key] / row.labels["memory"] for row in rows if row.labels["model"] == model}
        for model in (RMT, XL)
    }
    if not all(by_model.values()):
        return Outcome(ours or "not measured yet", None)
    return Outcome(ours, by_model[RMT] == {1.0} and min(by_model[XL]) > 1.0)


def _smaller_by(measure: Measure) -> Callable[[Results], Outcome]:
    """Whether RMT has the smaller number, in the pair that is equally good."""

    def observe(results: Results) -> Outcome:
        pair, found = equally_good(results), grid(results.budget)
        if isinstance(pair, str):
            return Outcome(pair, None)
        sizes = [mean_of(results, row, measure) for row in pair]
        ours = ", ".join(
            f"{row.labels['model']} {row.labels['memory']}: {mean_of(results, row):.3f} {found.measure.unit}, "
            f"{amount:,.{measure.digits}f} {measure.unit}"
            for row, amount in zip(pair, sizes, strict=True)
        )
        if any(map(math.isnan, sizes)):
            return Outcome("not measured: no GPU", None)
        seeds = min(len(found.by_seed(results, row.key)) for row in pair)
        return Outcome(ours, sizes[0] < sizes[1], seeds)

    return observe


CLAIMS = (
    Observed(
        "RMT's state is m vectors for every text, Transformer-XL's m in each of its N layers.",
        "10 against 10 x 16",
        _carries_fewer,
    ),
    Observed(
        "At equal quality RMT carries fewer vectors than Transformer-XL.",
        "WikiText-103, segments of 50: RMT 5 (26.75 to 27.05) near Transformer-XL 50 (26.54), that is 5 against 800",
        _smaller_by(VECTORS),
    ),
    Observed("At equal quality RMT needs less GPU memory to run.", "said, no numbers", _smaller_by(READING)),
)


def figures(results: Results) -> list[Figure]:
    found = grid(results.budget)
    unit = found.measure.unit
    return scores_over(
        Grid(rows=measured(results, XL, RMT), measure=found.measure),
        results,
        line=lambda row: row.labels["model"],
        x=lambda row: mean_of(results, row, VECTORS),
        slug="state-size",
        title=f"{unit} against the size of the state",
        x_label="vectors in a text's state",
        caption=f"Test set; lower is better, further left is smaller. {BANDS}",
    )


def tables(results: Results) -> list[Table]:
    rows = shown(grid(results.budget), CORPORA[results.budget][0])
    return grid_table(
        rows,
        results,
        *cell_labels("model", "memory"),
        num_seeds(),
        size("vectors", VECTORS),
        size("state, kB a text", STATE),
        score(f"test {rows.measure.unit}"),
        size("training, MB", TRAINING),
        size("reading, MB", READING),
        title="State and GPU memory",
        caption="State of one text. Megabytes are peaks of GPU memory, in training and while the model reads the test "
        "set.",
    )


EXPERIMENT = Experiment(
    name="rmt-state-size",
    title="State and GPU memory at equal quality",
    paper=PAPER,
    covers=("Section 3.2", "Section 5"),
    claim="RMT carries m vectors where Transformer-XL carries m for every layer, and needs less GPU memory at equal "
    "perplexity.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, CLAIMS),
    figures=figures,
    tables=tables,
    notes=(
        "The runs are those of rmt-language-model with caches, or with memory tokens and one unrolled segment.",
        f"Equal quality: at most {NEAR['ppl']} ppl or {NEAR['bpc']} bpc apart.",
        "The paper says that less GPU memory is needed, and gives no numbers. It is compared while the models read; "
        "the table also has that of training, with gradient through one earlier segment.",
    ),
)
