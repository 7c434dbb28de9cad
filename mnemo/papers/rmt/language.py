"""Language modelling over memory size and depth of backpropagation (Tables 2 to 4)."""

from __future__ import annotations

from collections import Counter
from functools import partial

from mnemo.papers.experiment import Budget, CellResult, Experiment, Figure, Results, Table
from mnemo.papers.figures import score_bars
from mnemo.papers.judge import AsGood, Better, Claim, Gain, Observed, Outcome, judge
from mnemo.papers.rmt.jobs import FINISHED
from mnemo.papers.rmt.language_grid import (
    CORPORA,
    ENWIK8,
    MEASURES,
    NOVELS,
    PYTHON,
    SEGMENT,
    VARIANTS,
    WIKITEXT,
    Variant,
    bptt_depth,
    endings,
    language_grid,
    outcome_of,
    shown,
)
from mnemo.papers.rmt.published import BASELINE, LITERATURE, MT, RMT, XL
from mnemo.papers.rmt.series import PAPER
from mnemo.papers.tables import cell_labels, grid_table, num_seeds, score
from mnemo.papers.tables import published as published_value


def quoted(*variants: Variant) -> str:
    values = ", ".join(f"{variant.label} {variant.quoted}" for variant in variants)
    return f"{values} {MEASURES[variants[0].corpus].unit}"


def better(text: str, one: Variant, other: Variant) -> Better:
    """With the paper's values of both."""
    return Better(text, quoted(one, other), one.key, other.key, MEASURES[one.corpus])


def as_good(text: str, row: Variant, like: Variant, gain: tuple[Variant, Variant]) -> AsGood:
    measured = Gain(gain[0].key, gain[1].key, MEASURES[row.corpus])
    return AsGood(text, quoted(*dict.fromkeys((row, like, *gain))), row.key, like.key, measured)


def claims(budget: Budget) -> list[Claim]:
    return [*(claim for corpus in CORPORA[budget] for claim in _corpus_claims(corpus)), TROUBLE]


def _corpus_claims(corpus: str) -> list[Claim]:
    few, more = (2, 2) if corpus == PYTHON else (5, 10)
    many = {WIKITEXT: 50, PYTHON: 4}.get(corpus, 40)
    model = partial(Variant, corpus, SEGMENT[corpus])
    none, rmt, slots = model(BASELINE), model(RMT, more, 1), model(XL, many)
    return [
        better(f"{corpus}: RMT with {more} memory tokens is better than no memory.", rmt, none),
        better(
            f"{corpus}: Gradient over one earlier segment makes RMT with {more} memory tokens better.",
            rmt,
            model(RMT, more, 0),
        ),
        as_good(
            f"{corpus}: RMT with {few} memory tokens is as good as Transformer-XL with {many} slots.",
            model(RMT, few, 1),
            slots,
            (slots, none),
        ),
        *([] if corpus == ENWIK8 else [_only_read(corpus)]),
    ]


def _only_read(corpus: str) -> Claim:
    """No memory is as good as memory that is only read: at most half of the gain of written memory is missing."""
    model = partial(Variant, corpus, 150 if corpus == WIKITEXT else 128)
    none, prefix, rmt = model(BASELINE), model(MT, 10), model(RMT, 10, 1)
    text = f"{corpus}: Memory that is only read (MT) is worth little: less than half of RMT's gain over no memory."
    return as_good(text, none, prefix, (rmt, none))


def _observe_trouble(results: Results) -> Outcome:
    """Where the runs stand that ended badly; that there are some is not enough."""
    runs = [each for each in results.select(model=RMT) if outcome_of(each)]
    if not runs:
        return Outcome("no RMT run is measured yet", None)
    bad = [each for each in runs if outcome_of(each) != FINISHED]
    counted = Counter(outcome_of(each) for each in bad)
    listed = ", ".join(f"{count} {name}" for name, count in counted.items()) or "none diverged or ran out of memory"
    ours = f"of {len(runs)} RMT runs: {listed}"
    expected = sum(seeds for variant, seeds in VARIANTS[results.budget].items() if variant.model == RMT)
    if len(runs) < expected:
        return Outcome(f"{ours}; {expected - len(runs)} not run", None)
    if any(map(is_modest, bad)):
        ours += ", some of them with few unrolled segments and few memory tokens"
    if results.budget == "small" and not bad:
        deepest = max(each.labels["bptt"] for each in runs)
        return Outcome(f"{ours}, in short runs with at most {deepest} unrolled", None)
    return Outcome(ours, any(map(is_extreme, bad)) and not any(map(is_modest, bad)))


TROUBLE = Observed(
    "RMT runs with more unrolled segments and more memory tokens become unstable or run out of memory.",
    "observed, not counted",
    _observe_trouble,
)


def _limits(run: CellResult) -> tuple[int, int]:
    """The deepest BPTT and the largest memory of RMT on the same text."""
    text = (run.labels["corpus"], run.labels["segment"], RMT)
    variants = [variant for known in VARIANTS.values() for variant in known if variant[:3] == text]
    return max(variant.bptt for variant in variants), max(variant.memory for variant in variants)


def is_extreme(run: CellResult) -> bool:
    deepest, largest = _limits(run)
    return run.labels["bptt"] == deepest or run.labels["memory"] == largest


def is_modest(run: CellResult) -> bool:
    """At most half of the deepest BPTT and half of the largest memory."""
    deepest, largest = _limits(run)
    return 2 * run.labels["bptt"] <= deepest and 2 * run.labels["memory"] <= largest


def tables(results: Results) -> list[Table]:
    return [table for corpus in CORPORA[results.budget] for table in _corpus_table(results, corpus)]


def _corpus_table(results: Results, corpus: str) -> list[Table]:
    grid, unit = shown(language_grid(results.budget), corpus), MEASURES[corpus].unit
    caption = "Mean and standard deviation over seeds on the test set."
    if corpus == NOVELS:
        caption += " The paper's numbers are for enwik8, with a larger model: compare differences, not values."
    quoted_rows = []
    if corpus in LITERATURE:
        name, memory, segment, value = LITERATURE[corpus]
        quoted_rows = [(f"{name} (quoted)", memory, segment, None, "", "", "", value)]
    return grid_table(
        grid,
        results,
        *cell_labels("model", "memory", "segment"),
        bptt_depth(),
        num_seeds(),
        score(f"ours, {unit}"),
        endings(),
        published_value(f"paper, {unit}"),
        title=f"{corpus}: memory size and depth",
        caption=caption,
        quoted=quoted_rows,
    )


def figures(results: Results) -> list[Figure]:
    grid = language_grid(results.budget)
    return [
        figure
        for corpus in CORPORA[results.budget]
        for figure in score_bars(shown(grid, corpus), results, slug=f"language-{corpus}")
    ]


EXPERIMENT = Experiment(
    name="rmt-language-model",
    title="Language modelling with memory tokens",
    paper=PAPER,
    covers=("Table 2", "Table 3", "Table 4"),
    claim="A few memory tokens, trained with gradient over an earlier segment, are worth a much longer Transformer-XL "
    "cache.",
    cells=lambda budget: language_grid(budget).cells,
    verdicts=lambda results: judge(language_grid(results.budget), results, claims(results.budget)),
    figures=figures,
    tables=tables,
    notes=(
        "small: 5M parameters, bytes of novels, 1,200 steps of 64 segments of 128; Table 3 trains 41M on enwik8 for "
        "400,000 steps of the same 64 segments of 128. Tables 2 and 4 are run at the paper budget only.",
        "Sliding windows start from the memory before their first segment. In the released loop they start from the "
        "newest memory, which has read these segments already (presets that end in @published do so).",
        "A run that diverges or runs out of memory is kept as a result: it is in no mean, and the table names it.",
        "One published number does not belong with the others: 25 memory tokens, segments of 150, BPTT 0 (29.73) was "
        "measured before the code was rewritten.",
    ),
)
