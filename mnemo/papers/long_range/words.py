"""Few long memories in a word model (section 4: WikiText-103)."""

from __future__ import annotations

from mnemo.papers.experiment import Budget, Experiment
from mnemo.papers.figures import learning_curves
from mnemo.papers.grid import PPL, Grid
from mnemo.papers.judge import Better, Claim, judge
from mnemo.papers.long_range.arrangement import PAPER, as_good_as_all, layout_table
from mnemo.papers.long_range.grids import ALL, NONE, SIXTH, SIXTH_FIRST, SIXTH_LAST, words

PUBLISHED = {ALL: "18.3", SIXTH: "18.4", SIXTH_LAST: "18.6", SIXTH_FIRST: "20.1", NONE: "-"}
CLAIMS: tuple[Claim, ...] = (
    as_good_as_all(
        "Long memories in a sixth of the layers, interleaved, are as good as in all.",
        "3 of 18: 18.4 against 18.3",
        SIXTH,
    ),
    as_good_as_all("So are those in the last sixth.", "3 of 18: 18.6 against 18.3", SIXTH_LAST),
    Better(
        "Long memories in the first sixth are worse than interleaved ones.",
        "3 of 18: 20.1 against 18.4",
        SIXTH.key,
        SIXTH_FIRST.key,
    ),
)


def grid(budget: Budget) -> Grid:
    scale = words(budget)
    return Grid(rows=[scale.row(layout, paper) for layout, paper in PUBLISHED.items()], measure=PPL)


WORDS = Experiment(
    name="long-wikitext103",
    title="Few long memories in a word model",
    paper=PAPER,
    covers=("Section 4: WikiText-103",),
    claim="With 3 of 18 layers long range, interleaved or last, perplexity stays that of long memories everywhere; "
    "in the first three layers they are of little use.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, CLAIMS),
    figures=lambda results: learning_curves(
        grid(results.budget), results, slug="words", title="Learning curves by arrangement"
    ),
    tables=lambda results: layout_table(grid(results.budget), results, "Long-range layers in a word model"),
    notes=(
        "At `small`: WikiText-2 in place of WikiText-103, 12 layers of width 256 (2 long), memories of 512 and 32, 800 "
        "steps of 128 x 64 words, two seeds; tested with the memory of training.",
        "Besides the paper's plans there is one without long layers: the gain of long memories in all layers over it "
        "decides how much a plan may lose and still be as good.",
        "The paper's 257M parameters are 285M in the published configuration that it names.",
    ),
)
