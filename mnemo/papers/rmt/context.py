"""Perplexity against the context that training can see, and against memory size (Figure 5c, d)."""

from __future__ import annotations

from functools import partial

from mnemo.papers.experiment import Budget, Experiment, Figure, Results, Table
from mnemo.papers.figures import scores_over
from mnemo.papers.grid import Grid, Row
from mnemo.papers.judge import Claim, Exceeds, Gain, judge
from mnemo.papers.rmt.language import better, quoted
from mnemo.papers.rmt.language_grid import (
    CORPORA,
    ENWIK8,
    SEGMENT,
    Variant,
    bptt_depth,
    endings,
    language_grid,
    shown,
    variant_of,
)
from mnemo.papers.rmt.published import BASELINE, RMT, XL
from mnemo.papers.rmt.series import PAPER
from mnemo.papers.tables import Column, cell_labels, grid_table, num_seeds, score
from mnemo.papers.tables import published as published_value


def grid(budget: Budget) -> Grid:
    """Rows with the short segments, without those whose memory is only read."""
    return language_grid(budget, _is_shown)


def _is_shown(variant: Variant) -> bool:
    short = variant.corpus != ENWIK8 and variant.segment == SEGMENT[variant.corpus]
    return short and variant.model in (BASELINE, XL, RMT)


def claims(budget: Budget) -> list[Claim]:
    corpus = CORPORA[budget][0]
    model = partial(Variant, corpus, SEGMENT[corpus])
    memory, deepest = {"self-test": (2, 1), "small": (10, 2), "paper": (10, 4)}[budget]
    short, long = {"self-test": (4, 4), "small": (10, 100), "paper": (10, 200)}[budget]
    few, many = (model(RMT, num, 1) for num in {"self-test": (2, 2), "small": (5, 20), "paper": (5, 50)}[budget])
    less, more = (model(XL, slots) for slots in {"self-test": (4, 4), "small": (10, 40), "paper": (5, 50)}[budget])
    return [
        better(
            f"RMT with {memory} memory tokens gets better with more visible context (BPTT {deepest} against 0).",
            model(RMT, memory, deepest),
            model(RMT, memory, 0),
        ),
        better(
            f"Transformer-XL gets better with more visible context ({long} slots against {short}).",
            model(XL, long),
            model(XL, short),
        ),
        Exceeds(
            f"From {few.memory} to {many.memory} memory tokens RMT gains less than Transformer-XL does from "
            f"{less.memory} to {more.memory} slots.",
            quoted(few, many, less, more),
            Gain(more.key, less.key),
            Gain(many.key, few.key),
        ),
    ]


def figures(results: Results) -> list[Figure]:
    rows = shown(grid(results.budget), CORPORA[results.budget][0])
    unit = rows.measure.unit
    return [
        *scores_over(
            rows,
            results,
            line=lambda row: f"RMT {row.labels['memory']}" if row.labels["model"] == RMT else row.labels["model"],
            x=lambda row: variant_of(row).visible,
            slug="by-visible-context",
            title=f"{unit} against visible context",
            x_label="visible tokens in training",
        ),
        *scores_over(
            rows,
            results,
            line=lambda row: f"RMT, BPTT {row.labels['bptt']}" if row.labels["model"] == RMT else row.labels["model"],
            x=lambda row: row.labels["memory"],
            slug="by-memory-size",
            title=f"{unit} against memory size",
            x_label="slots a layer, or memory tokens",
        ),
    ]


def tables(results: Results) -> list[Table]:
    rows = shown(grid(results.budget), CORPORA[results.budget][0])
    return grid_table(
        rows,
        results,
        *cell_labels("model", "memory"),
        bptt_depth(),
        Column("visible tokens", _visible),
        num_seeds(),
        score(f"ours, {rows.measure.unit}"),
        endings(),
        published_value("paper"),
        title="Visible context and memory size",
        caption="Visible in training: cache and segment, or the segments that gradient reaches. The paper's values "
        "beside runs of the small budget are those of enwik8.",
    )


def _visible(grid: Grid, results: Results, row: Row) -> int:
    return variant_of(row).visible


EXPERIMENT = Experiment(
    name="rmt-context",
    title="Visible context and memory size",
    paper=PAPER,
    covers=("Figure 5c", "Figure 5d"),
    claim="More context that training can see makes both models better; RMT needs few memory tokens, and gains little "
    "from more of them.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, claims(results.budget)),
    figures=figures,
    tables=tables,
    notes=(
        "The runs are those of rmt-language-model with the short segments.",
        f"small: bytes of novels in segments of {SEGMENT['novels']}; the figure has words of WikiText-103 in segments "
        f"of {SEGMENT['wikitext-103']}.",
    ),
)
