"""Perplexity against the context that training can see, and against memory size (Figure 5c, d)."""

from __future__ import annotations

from statistics import fmean

from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.rmt.language import CORPORA, SEGMENT, endings, in_order, qualities, row_at
from mnemo.papers.rmt.language_grid import ENWIK8, NOISE, ROWS, UNITS, Row, quality, row_cells
from mnemo.papers.rmt.published import BASELINE, RMT, XL
from mnemo.papers.rmt.series import PAPER
from mnemo.papers.rmt.telling import judged, said, spread
from mnemo.report.plots import Line, line_figure, lines_over_seeds, scatter_figure


def rows_of(budget: Budget) -> list[Row]:
    """Runs with the short segments, without those that only read."""
    return [
        row
        for row in ROWS[budget]
        if row.corpus != ENWIK8 and row.segment == SEGMENT[row.corpus] and row.model in (BASELINE, XL, RMT)
    ]


def visible(labels: dict) -> int:
    """Tokens that reach a loss in training, through a cache or through gradient over earlier segments."""
    if labels["model"] == RMT:
        return (labels["bptt"] + 1) * labels["segment"]
    return labels["memory"] + labels["segment"]


def verdicts(results: Results) -> list[Verdict]:
    corpus = CORPORA[results.budget][0]
    place = {"corpus": corpus, "segment": SEGMENT[corpus]}
    return [_deeper(results, place), _wider(results, place), _size_matters_little(results, place)]


def _memories(budget: Budget) -> tuple[int, int]:
    """A small and a large number of memory tokens, both run with one unrolled segment."""
    return {"smoke": (2, 2), "small": (5, 20), "paper": (5, 50)}[budget]


def _deeper(results: Results, place: dict) -> Verdict:
    memory, deepest = {"smoke": (2, 1), "small": (10, 2), "paper": (10, 4)}[results.budget]
    depths = dict.fromkeys((0, 1, deepest))
    rows = {f"BPTT {depth}": row_at(results, **place, model=RMT, memory=memory, bptt=depth) for depth in depths}
    noise = NOISE[UNITS[place["corpus"]]]
    return _judged(
        results,
        f"RMT with {memory} memory tokens gets better with more visible context (BPTT {deepest} against 0).",
        rows,
        lambda short, *longer: fmean(longer[-1]) < fmean(short) - noise,
    )


def _wider(results: Results, place: dict) -> Verdict:
    short, long = {"smoke": (4, 4), "small": (10, 100), "paper": (10, 200)}[results.budget]
    rows = {f"{slots} slots": row_at(results, **place, model=XL, memory=slots) for slots in (short, long)}
    noise = NOISE[UNITS[place["corpus"]]]
    return _judged(
        results,
        f"Transformer-XL gets better with more visible context ({long} slots against {short}).",
        rows,
        lambda few, many: fmean(many) < fmean(few) - noise,
    )


def _size_matters_little(results: Results, place: dict) -> Verdict:
    few, many = _memories(results.budget)
    rows = {f"RMT {num}": row_at(results, **place, model=RMT, memory=num, bptt=1) for num in (few, many)}
    rows |= {
        f"Transformer-XL {slots}": row_at(results, **place, model=XL, memory=slots)
        for slots in {"smoke": (4, 4), "small": (10, 40), "paper": (5, 50)}[results.budget]
    }
    return _judged(
        results,
        f"From {few} to {many} memory tokens RMT gains less than Transformer-XL does from more slots.",
        rows,
        lambda few, many, short, long: fmean(few) - fmean(many) < fmean(short) - fmean(long),
        lambda few, many, short, long: fmean(short) - fmean(long) > NOISE[UNITS[place["corpus"]]],
        "more slots gain nothing that could be told from noise",
    )


def _judged(results: Results, claim: str, rows: dict[str, Row], holds, decides=None, undecided: str = "") -> Verdict:
    runs = {name: qualities(results, **row.labels) for name, row in rows.items()}
    paper = ", ".join(f"{name} {said(row.quoted)}" for name, row in rows.items())
    wanted = min(row.seeds for row in rows.values())
    return judged(results, claim, paper, runs, holds, wanted=wanted, decides=decides, undecided=undecided)


def figures(results: Results) -> list[Figure]:
    found = [(each, value) for each in results.cells if (value := quality(each)) is not None]
    if all(each.labels["model"] == BASELINE for each, _ in found):
        return []
    unit = UNITS[found[0][0].labels["corpus"]]
    groups: dict[str, list[tuple[float, float]]] = {}
    for each, value in sorted(found, key=lambda one: (one[0].labels["model"], one[0].labels["memory"])):
        groups.setdefault(_group(each), []).append((float(visible(each.labels)), value))
    return [
        scatter_figure(
            "by-visible-context",
            f"{unit} against visible context",
            "Every point is a run. Visible in training: cache and segment, or the segments that gradient reaches.",
            groups,
            x_label="visible tokens in training",
            y_label=f"test {unit}",
        ),
        line_figure(
            "by-memory-size",
            f"{unit} against memory size",
            "Slots a layer of Transformer-XL, memory tokens of RMT; 0 is the model without memory.",
            _by_memory(found),
            x_label="memory size",
            y_label=f"test {unit}",
        ),
    ]


def _group(result: CellResult) -> str:
    labels = result.labels
    if labels["model"] != RMT:
        return labels["model"]
    return f"RMT, {labels['memory']} memory token{'s' if labels['memory'] > 1 else ''}"


def _by_memory(found: list[tuple[CellResult, float]]) -> list[Line]:
    points = [(_line(each), float(each.labels["memory"]), value) for each, value in found]
    names = {name for name, _, _ in points} - {BASELINE}
    points += [(name, 0.0, value) for line, _, value in points if line == BASELINE for name in names]
    return lines_over_seeds(sorted(point for point in points if point[0] != BASELINE))


def _line(result: CellResult) -> str:
    labels = result.labels
    return f"RMT, BPTT {labels['bptt']}" if labels["model"] == RMT else labels["model"]


def tables(results: Results) -> list[Table]:
    rows = [
        (
            row.model,
            row.memory,
            row.bptt if row.model == RMT else None,
            visible(row.labels),
            spread(qualities(results, **row.labels), 2 if UNITS[row.corpus] == "ppl" else 4),
            endings(results.select(**row.labels)),
            said(row.quoted),
        )
        for row in sorted(rows_of(results.budget), key=in_order)
    ]
    unit = UNITS[CORPORA[results.budget][0]]
    headers = ("model", "memory", "BPTT", "visible tokens", f"ours, {unit}", "how runs ended", "paper")
    caption = "The paper's column is quoted; beside runs of the small budget it is that of enwik8."
    return [Table("Visible context and memory size", headers, rows, caption)]


def cells(budget: Budget) -> list[Cell]:
    return row_cells(rows_of(budget), budget)


EXPERIMENT = Experiment(
    name="rmt-context",
    title="Visible context and memory size",
    paper=PAPER,
    covers=("Figure 5c", "Figure 5d"),
    claim="More context that training can see makes both models better; RMT needs few memory tokens, and gains little "
    "from more of them.",
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "The runs are those of rmt-language-model with the short segments.",
        f"The small budget reads bytes of novels in segments of {SEGMENT['novels']}, the figure words of "
        f"WikiText-103 in segments of {SEGMENT['wikitext-103']}.",
    ),
)
