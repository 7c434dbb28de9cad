"""Language modelling over memory size and depth of backpropagation (Tables 2 to 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from mnemo.papers.claims import Claim
from mnemo.papers.experiment import CellResult, Experiment, Figure, Results, Table, Verdict, has_labels
from mnemo.papers.rmt.language_grid import (
    ENWIK8,
    LITERATURE,
    NOISE,
    NOVELS,
    PYTHON,
    ROWS,
    UNITS,
    UNKNOWN,
    WIKITEXT,
    Row,
    outcome,
    quality,
    row_cells,
)
from mnemo.papers.rmt.published import BASELINE, MT, RMT, XL
from mnemo.papers.rmt.series import PAPER
from mnemo.papers.rmt.telling import FEW_STEPS, judged, said, spread
from mnemo.report.plots import bar_figure

CORPORA = {"smoke": (PYTHON,), "small": (NOVELS,), "paper": (WIKITEXT, ENWIK8)}
SEGMENT = {PYTHON: 8, NOVELS: 128, WIKITEXT: 50, ENWIK8: 128}
"""The segments that claims are tested at: short ones, where memory counts most."""
FINISHED = "finished"


def qualities(results: Results, **labels: object) -> list[float]:
    return [value for each in results.select(**labels) if (value := quality(each)) is not None]


def seeds_of(results: Results, **labels: object) -> int:
    """Runs that this budget wants of one row."""
    found = (row.seeds for row in ROWS[results.budget] if all(row.labels[name] == at for name, at in labels.items()))
    return max(found, default=1)


def verdicts(results: Results) -> list[Verdict]:
    found = [verdict for corpus in CORPORA[results.budget] for verdict in _of_corpus(results, corpus)]
    return [*found, _trouble(results)]


def _of_corpus(results: Results, corpus: str) -> list[Verdict]:
    place = {"corpus": corpus, "segment": SEGMENT[corpus]}
    few, more = (2, 2) if corpus == PYTHON else (5, 10)
    return [
        _beats_baseline(results, place, more),
        _unrolling(results, place, more),
        _few_for_many(results, place, few, {WIKITEXT: 50, PYTHON: 4}.get(corpus, 40)),
        *([] if corpus == ENWIK8 else [_prefix(results, {**place, "segment": 150 if corpus == WIKITEXT else 128})]),
    ]


def _judged(results: Results, claim: str, rows: dict[str, Row], holds, decides=None, undecided: str = "") -> Verdict:
    """`rows` by what they are called; each with the paper's number."""
    unit = UNITS[next(iter(rows.values())).corpus]
    runs = {name: qualities(results, **row.labels) for name, row in rows.items()}
    paper = ", ".join(f"{name} {said(row.quoted)}" for name, row in rows.items())
    wanted = min(row.seeds for row in rows.values())
    claim = f"{next(iter(rows.values())).corpus}: {claim}"
    return judged(results, claim, f"{paper} {unit}", runs, holds, wanted=wanted, decides=decides, undecided=undecided)


def row_at(results: Results, **labels: object) -> Row:
    """The row of this budget's table, or one that nobody runs."""
    found = [row for row in ROWS[results.budget] if all(row.labels[name] == at for name, at in labels.items())]
    return found[0] if found else Row(**labels, seeds=0)  # type: ignore[arg-type]


def _beats_baseline(results: Results, place: dict, memory: int) -> Verdict:
    rows = {BASELINE: row_at(results, **place, model=BASELINE)}
    rows[f"RMT {memory}, BPTT 1"] = row_at(results, **place, model=RMT, memory=memory, bptt=1)
    noise = NOISE[UNITS[place["corpus"]]]
    claim = f"RMT with {memory} memory tokens is better than no memory."
    return _judged(results, claim, rows, lambda none, rmt: fmean(rmt) < fmean(none) - noise)


def _unrolling(results: Results, place: dict, memory: int) -> Verdict:
    names = {f"BPTT {depth}": row_at(results, **place, model=RMT, memory=memory, bptt=depth) for depth in (0, 1)}
    noise = NOISE[UNITS[place["corpus"]]]
    claim = f"Gradient over one earlier segment makes RMT with {memory} memory tokens better."
    return _judged(results, claim, names, lambda none, one: fmean(one) < fmean(none) - noise)


def _few_for_many(results: Results, place: dict, few: int, many: int) -> Verdict:
    rows = {
        BASELINE: row_at(results, **place, model=BASELINE),
        f"Transformer-XL {many}": row_at(results, **place, model=XL, memory=many),
        f"RMT {few}, BPTT 1": row_at(results, **place, model=RMT, memory=few, bptt=1),
    }
    near = 0.6 if UNITS[place["corpus"]] == "ppl" else 0.015
    claim = f"RMT with {few} memory tokens is as good as Transformer-XL with {many} slots (at most {near} worse)."
    return _judged(
        results,
        claim,
        rows,
        lambda none, xl, rmt: fmean(rmt) <= fmean(xl) + near,
        lambda none, xl, rmt: fmean(none) - fmean(xl) > 2 * near,
        "memory itself gains too little for equal to mean anything",
    )


def _prefix(results: Results, place: dict) -> Verdict:
    rows = {BASELINE: row_at(results, **place, model=BASELINE), "MT 10": row_at(results, **place, model=MT, memory=10)}
    rows["RMT 10, BPTT 1"] = row_at(results, **place, model=RMT, memory=10, bptt=1)
    near = 0.5 if UNITS[place["corpus"]] == "ppl" else 0.02
    claim = f"Memory that is only read (MT) is worth little: within {near} of no memory."
    return _judged(
        results,
        claim,
        rows,
        lambda none, mt, rmt: abs(fmean(mt) - fmean(none)) <= near,
        lambda none, mt, rmt: fmean(none) - fmean(rmt) > 2 * near,
        "memory that is written too gains too little to compare with",
    )


def _trouble(results: Results) -> Verdict:
    """Runs that ended badly are results; the claim is about where they stand, not that there are some."""
    text = "RMT runs with more unrolled segments and more memory tokens become unstable or run out of memory."
    claim = Claim(text, "observed, not counted")
    runs = [each for each in results.select(model=RMT) if outcome(each) != UNKNOWN]
    bad = [each for each in runs if outcome(each) != FINISHED]
    counted = Counter(outcome(each) for each in bad)
    listed = ", ".join(f"{count} {name}" for name, count in counted.items()) or "none diverged or ran out of memory"
    ours = f"of {len(runs)} RMT runs: {listed}"
    expected = sum(row.seeds for row in ROWS[results.budget] if row.model == RMT)
    if len(runs) < expected:
        return claim.open(f"{ours}; {expected - len(runs)} not run")
    if any(map(is_modest, bad)):
        ours += ", some of them with few unrolled segments and few memory tokens"
    if results.budget == "small" and not bad:
        return claim.open(f"{ours}, in short runs with at most {max(each.labels['bptt'] for each in runs)} unrolled")
    holds = any(map(is_extreme, bad)) and not any(map(is_modest, bad))
    return claim.judged(results, ours, holds, smoke=FEW_STEPS)


def _limits(run: CellResult) -> tuple[int, int]:
    """The deepest BPTT and the largest memory of RMT on the same text."""
    place = {name: run.labels[name] for name in ("corpus", "segment", "model")}
    rows = [row for rows in ROWS.values() for row in rows if has_labels(row.labels, place)]
    return max(row.bptt for row in rows), max(row.memory for row in rows)


def is_extreme(run: CellResult) -> bool:
    deepest, largest = _limits(run)
    return run.labels["bptt"] == deepest or run.labels["memory"] == largest


def is_modest(run: CellResult) -> bool:
    """At most half of the deepest BPTT and half of the largest memory."""
    deepest, largest = _limits(run)
    return 2 * run.labels["bptt"] <= deepest and 2 * run.labels["memory"] <= largest


def tables(results: Results) -> list[Table]:
    return [table for corpus in CORPORA[results.budget] for table in _corpus_tables(results, corpus)]


def _corpus_tables(results: Results, corpus: str) -> list[Table]:
    unit = UNITS[corpus]
    headers = ("model", "memory", "segment", "BPTT", f"ours, {unit}", "how runs ended", f"paper, {unit}")
    digits = 2 if unit == "ppl" else 4
    rows = [
        (
            row.model,
            row.memory,
            row.segment,
            row.bptt if row.model == RMT else None,
            spread(qualities(results, **row.labels), digits),
            endings(results.select(**row.labels)),
            said(row.quoted),
        )
        for row in sorted(ROWS[results.budget], key=in_order)
        if row.corpus == corpus
    ]
    quoted = [
        (name, memory, segment, None, "quoted", "", result)
        for of, name, memory, segment, result in LITERATURE
        if of == corpus
    ]
    caption = "Mean and deviation over runs on the test set. The paper's column is quoted."
    if corpus == NOVELS:
        caption += " Its numbers are for enwik8, with a larger model: compare differences, not values."
    return [Table(f"{corpus}: memory size and depth", headers, [*rows, *quoted], caption)]


def endings(runs: Sequence[CellResult]) -> str:
    counted = Counter(_ending(each) for each in runs)
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "not run"


def _ending(result: CellResult) -> str:
    step = result.values.get("failed_at")
    return f"{outcome(result)} at step {step:,}" if isinstance(step, int) else outcome(result)


def figures(results: Results) -> list[Figure]:
    drawn = []
    for corpus in CORPORA[results.budget]:
        rows = sorted((row for row in ROWS[results.budget] if row.corpus == corpus), key=in_order)
        found = [(bar_name(row), qualities(results, **row.labels)) for row in rows]
        bars = [(name, fmean(values)) for name, values in found if values]
        if bars:
            caption = f"Test {UNITS[corpus]}, mean over seeds; shorter is better."
            drawn.append(
                bar_figure(f"language-{corpus}", f"{corpus}: {UNITS[corpus]}", caption, bars, unit=UNITS[corpus])
            )
    return drawn


def in_order(row: Row) -> tuple[int, int, int, int]:
    """In which rows are shown; they are run in the order in which they matter."""
    return -row.segment, (BASELINE, MT, XL, RMT).index(row.model), row.memory, row.bptt


def bar_name(row: Row) -> str:
    depth = f", BPTT {row.bptt}" if row.model == RMT else ""
    return f"{row.model} {row.memory}{depth}, segment {row.segment}" if row.memory else f"{row.model}, {row.segment}"


EXPERIMENT = Experiment(
    name="rmt-language-model",
    title="Language modelling with memory tokens",
    paper=PAPER,
    covers=("Table 2", "Table 3", "Table 4"),
    claim="A few memory tokens, trained with gradient over an earlier segment, are worth a much longer Transformer-XL "
    "cache.",
    cells=lambda budget: row_cells(ROWS[budget], budget),
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "The small budget trains 5M parameters on bytes of novels for 1,200 steps of 64 segments of 128; Table 3 "
        "trains 41M on enwik8 for 400,000 steps of the same 64 segments of 128. Tables 2 and 4 are run at the paper "
        "budget only.",
        "Sliding windows start from the memory before their first segment. In the released loop they start from the "
        "newest memory, which has read these segments already (presets that end in @published do so).",
        "A run that diverges or runs out of memory is kept as such: it counts in no mean, and the table names it.",
        "One published number does not belong with the others: 25 memory tokens, segments of 150, BPTT 0 (29.73) was "
        "measured before the code was rewritten.",
    ),
)
