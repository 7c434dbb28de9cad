"""Few long memories in a word model (section 4: WikiText-103)."""

from __future__ import annotations

from mnemo.papers.experiment import Budget, Cell, Experiment, Results, Table, Verdict
from mnemo.papers.long_range.arrangement import PAPER
from mnemo.papers.long_range.comparing import PERPLEXITY, equal, layout_table, learning_curves, worse
from mnemo.papers.long_range.grids import ALL, NONE, SIXTH, SIXTH_FIRST, SIXTH_LAST, layout_cells, words
from mnemo.report.plots import Figure

LAYOUTS = (ALL, SIXTH, SIXTH_LAST, SIXTH_FIRST, NONE)
"""The last shows whether long memories gain anything that could be lost; the paper has no such row."""
PUBLISHED = {ALL: "18.3", SIXTH: "18.4", SIXTH_LAST: "18.6", SIXTH_FIRST: "20.1"}


def cells(budget: Budget) -> list[Cell]:
    return layout_cells(words(budget), LAYOUTS)


def verdicts(results: Results) -> list[Verdict]:
    return [
        equal(
            results,
            SIXTH,
            PERPLEXITY,
            claim="Long memories in a sixth of the layers, interleaved, are within 2% of the perplexity of all.",
            paper="3 of 18: 18.4 against 18.3",
        ),
        equal(
            results,
            SIXTH_LAST,
            PERPLEXITY,
            claim="So are those in the last sixth.",
            paper="3 of 18: 18.6 against 18.3",
        ),
        worse(
            results,
            SIXTH_FIRST,
            SIXTH,
            PERPLEXITY,
            claim="Long memories in the first sixth are worse than interleaved ones.",
            paper="3 of 18: 20.1 against 18.4",
        ),
    ]


def figures(results: Results) -> list[Figure]:
    return learning_curves(results, LAYOUTS, PERPLEXITY, slug="words", title="Learning curves by arrangement")


def tables(results: Results) -> list[Table]:
    return layout_table(results, LAYOUTS, PERPLEXITY, PUBLISHED, title="Long-range layers in a word model")


WORDS = Experiment(
    name="long-wikitext103",
    title="Few long memories in a word model",
    paper=PAPER,
    covers=("Section 4: WikiText-103",),
    claim="With 3 of 18 layers long range, interleaved or last, perplexity stays that of long memories everywhere; "
    "in the first three layers they are of little use.",
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "At `small`: WikiText-2 in place of WikiText-103, 12 layers of width 256 (2 long), memories of 512 and 32, 800 "
        "steps of 128 x 64 words, two seeds; tested with the memory of training.",
        "Beside the paper's plans there is one without long layers: where those of all layers gain less than twice "
        "what counts as equal, no plan is called as good.",
        "The paper's 257M parameters are 285M in the published configuration that it names.",
    ),
)
