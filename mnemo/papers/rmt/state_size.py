"""What a state holds: m vectors of memory tokens against m in every layer, and GPU memory at equal quality."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from mnemo.papers.claims import Claim
from mnemo.papers.experiment import Budget, CellResult, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.rmt.language import CORPORA, SEGMENT, qualities
from mnemo.papers.rmt.language_grid import ROWS, UNITS, Row, row_cells
from mnemo.papers.rmt.published import RMT, XL
from mnemo.papers.rmt.series import PAPER
from mnemo.papers.rmt.telling import FEW_STEPS
from mnemo.report.plots import scatter_figure

MB = 1e6
NEAR = {"ppl": 0.6, "bpc": 0.015}
"""Difference up to which two models count as equally good."""
NO_PAIR = "no pair of runs is equally good"
NO_GAIN = "more slots gain too little for equal to mean anything"


def rows_of(budget: Budget) -> list[Row]:
    """Caches, and memory tokens with at most one unrolled segment: the deeper ones cost more to train, not to run."""
    corpus = CORPORA[budget][0]
    return [
        row
        for row in ROWS[budget]
        if (row.corpus, row.segment) == (corpus, SEGMENT[corpus])
        and row.memory
        and (row.model == XL or (row.model == RMT and row.bptt == 1))
    ]


@dataclass(frozen=True)
class Measured:
    row: Row
    quality: float
    vectors: float
    state_bytes: float
    training: float | None
    """Peak bytes of GPU memory in training; None on a CPU."""
    reading: float | None
    """The same while it reads the test set."""


def measured(results: Results, row: Row) -> Measured | None:
    values = qualities(results, **row.labels)
    runs = results.select(**row.labels)
    sizes = [_numbers(runs, key) for key in ("state_vectors", "state_bytes", "peak_bytes", "reading_bytes")]
    if not values or not sizes[0] or not sizes[1]:
        return None
    vectors, state, training, reading = (fmean(found) if found else None for found in sizes)
    return Measured(row, fmean(values), vectors or 0.0, state or 0.0, training, reading)


def _numbers(runs: list[CellResult], key: str) -> list[float]:
    return [value for each in runs if isinstance(value := each.values.get(key), (int, float))]


def all_measured(results: Results, model: str) -> list[Measured]:
    found = (measured(results, row) for row in rows_of(results.budget) if row.model == model)
    return [each for each in found if each is not None]


def equally_good(results: Results) -> tuple[Measured, Measured] | str:
    """The smallest RMT state that some cache is as good as, and the smallest of these caches; or why there is none."""
    unit, every, tokens = UNITS[CORPORA[results.budget][0]], all_measured(results, XL), all_measured(results, RMT)
    near, qualities = NEAR[unit], [each.quality for each in every]
    if not every or not tokens:
        return "no runs"
    for rmt in sorted(tokens, key=lambda each: each.vectors):
        caches = [each for each in every if abs(each.quality - rmt.quality) <= near]
        if caches and results.budget != "smoke" and max(qualities) - min(qualities) <= 2 * near:
            return NO_GAIN
        if caches:
            return rmt, min(caches, key=lambda each: each.vectors)
    best, worst = min(each.quality for each in tokens), max(qualities)
    return f"{NO_PAIR}: the best RMT has {best:.3f} {unit}, the worst cache {worst:.3f}" if best > worst else NO_PAIR


def verdicts(results: Results) -> list[Verdict]:
    return [_vectors(results), _smaller(results), _less_memory(results)]


def _vectors(results: Results) -> Verdict:
    claim = Claim(
        "RMT's state is m vectors for every text, Transformer-XL's m in each of its N layers.", "10 against 10 x 16"
    )
    found = [one for model in (RMT, XL) for one in sorted(all_measured(results, model), key=lambda each: each.vectors)]
    ours = ", ".join(f"{each.row.model} {each.row.memory}: {each.vectors:,.0f}" for each in found) or "no runs"
    if not all_measured(results, RMT) or not all_measured(results, XL):
        return claim.open(ours)
    layers = {each.vectors / each.row.memory for each in found if each.row.model == XL}
    tokens = {each.vectors / each.row.memory for each in found if each.row.model == RMT}
    holds = tokens == {1.0} and min(layers) > 1.0
    return claim.judged(results, ours, holds, smoke="; a model of one layer cannot tell")


def _smaller(results: Results) -> Verdict:
    text = "At equal quality RMT carries fewer vectors than Transformer-XL."
    paper = "WikiText-103, segments of 50: RMT 5 (26.75 to 27.05) near Transformer-XL 50 (26.54), that is 5 against 800"
    claim, pair = Claim(text, paper), equally_good(results)
    if isinstance(pair, str):
        return claim.open(pair)
    return claim.judged(results, _pair(*pair, results), pair[0].vectors < pair[1].vectors, smoke=FEW_STEPS)


def _pair(rmt: Measured, xl: Measured, results: Results) -> str:
    unit = UNITS[CORPORA[results.budget][0]]
    return ", ".join(
        f"{each.row.model} {each.row.memory}: {each.quality:.3f} {unit}, {each.vectors:,.0f} vectors"
        for each in (rmt, xl)
    )


def _less_memory(results: Results) -> Verdict:
    claim = Claim("At equal quality RMT needs less GPU memory to run.", "said, no numbers")
    pair = equally_good(results)
    if isinstance(pair, str):
        return claim.open(pair)
    rmt, xl = pair
    less, more = rmt.reading, xl.reading
    if less is None or more is None:
        return claim.open("not measured: no GPU")
    ours = f"RMT {rmt.row.memory}: {less / MB:,.1f} MB, Transformer-XL {xl.row.memory}: {more / MB:,.1f} MB"
    return claim.judged(results, ours, less < more, smoke=FEW_STEPS)


def figures(results: Results) -> list[Figure]:
    groups = {model: [(each.vectors, each.quality) for each in all_measured(results, model)] for model in (XL, RMT)}
    if not any(groups.values()):
        return []
    unit = UNITS[CORPORA[results.budget][0]]
    caption = "Every point is one configuration, mean over seeds: lower is better, further left is smaller."
    title, x_label = f"{unit} against the size of the state", "vectors in a text's state"
    return [scatter_figure("state-size", title, caption, groups, x_label=x_label, y_label=f"test {unit}")]


def tables(results: Results) -> list[Table]:
    rows = [
        (
            each.row.model,
            each.row.memory,
            round(each.vectors),
            round(each.state_bytes / 1000, 2),
            round(each.quality, 4),
            None if each.training is None else round(each.training / MB, 1),
            None if each.reading is None else round(each.reading / MB, 1),
        )
        for model in (XL, RMT)
        for each in sorted(all_measured(results, model), key=lambda one: one.vectors)
    ]
    unit = UNITS[CORPORA[results.budget][0]]
    headers = ("model", "memory", "vectors", "state, kB a text", f"test {unit}", "training, MB", "reading, MB")
    caption = "State of one text. Megabytes are peaks of GPU memory, in training and while the test set is read."
    return [Table("State and GPU memory", headers, rows, caption)]


EXPERIMENT = Experiment(
    name="rmt-state-size",
    title="State and GPU memory at equal quality",
    paper=PAPER,
    covers=("Section 3.2", "Section 5"),
    claim="RMT carries m vectors where Transformer-XL carries m for every layer, and needs less GPU memory at equal "
    "perplexity.",
    cells=lambda budget: row_cells(rows_of(budget), budget),
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "The runs are those of rmt-language-model with caches, or with memory tokens and one unrolled segment.",
        f"Equal quality: at most {NEAR['ppl']} ppl or {NEAR['bpc']} bpc apart.",
        "The paper says that less GPU memory is needed, and gives no numbers. It is compared while reading; the table "
        "has that of training too, with gradient through one earlier segment.",
    ),
)
