"""How many layers need a long memory, and which (Figures 1-3)."""

from __future__ import annotations

from collections.abc import Sequence

from mnemo.papers.experiment import Budget, Experiment, Results, Table
from mnemo.papers.figures import learning_curves, scores_over
from mnemo.papers.grid import BPC, Grid
from mnemo.papers.judge import AsGood, Better, Claim, Every, judge
from mnemo.papers.long_range.grids import (
    ALL,
    GAIN,
    HALF,
    HALF_FIRST,
    HALF_LAST,
    NONE,
    ONE_FIRST,
    ONE_LAST,
    SIXTH,
    SIXTH_FIRST,
    SIXTH_LAST,
    SIXTH_MIDDLE,
    Layout,
    characters,
)
from mnemo.papers.tables import against, grid_table, label, num_seeds, published, score
from mnemo.report.plots import Figure, arrangement_figure

PAPER = "Do Transformers Need Deep Long-Range Memory?"
NUMBERS = (ALL, HALF, SIXTH, ONE_LAST, NONE)
ARRANGEMENTS = (
    ALL,
    HALF,
    HALF_LAST,
    HALF_FIRST,
    SIXTH,
    SIXTH_LAST,
    SIXTH_MIDDLE,
    SIXTH_FIRST,
    ONE_LAST,
    ONE_FIRST,
    NONE,
)
HALF_OR_ONE = (ALL, HALF, HALF_LAST, HALF_FIRST, ONE_LAST, ONE_FIRST)
"""Those of Figure 2."""
SIXTHS = (ALL, SIXTH, SIXTH_LAST, SIXTH_MIDDLE, SIXTH_FIRST, NONE)
PUBLISHED = {ALL: "0.9846", SIXTH: "0.9916", SIXTH_MIDDLE: "1.01"}
CAPTION = (
    "Test set. The third column is the mean loss above that of long memories in all layers, in nats. "
    "The paper's numbers are for its own corpus and size; '-' if it has a curve only."
)
NOTES = (
    "The paper trains 277M parameters in 24 layers on enwik8. At `small` the model has 12 layers of width 256 (10M "
    "parameters), a short memory of 64 and a long one of 1,024, and learns for 900 steps of 128 x 128 bytes of "
    "novels: 24, 12, 4 and 1 long layers become 12, 6, 2 and 1.",
    "Norms come before the branches, queries and keys are normalised, and Muon trains the matrices, because the "
    "published recipe learns little in 900 steps. Attention is Transformer-XL's.",
    "The paper has one seed and tests with a longer memory (6,000, trained with 2,304); at `small` there are two seeds "
    "with the same first weights and text for every plan, tested with the memory of training.",
    "The paper does not state the number of training steps; at `paper` the preset's 400,000 are the limit.",
)


def layout_grid(budget: Budget, layouts: Sequence[Layout]) -> Grid:
    scale = characters(budget)
    return Grid(rows=[scale.row(layout, PUBLISHED.get(layout, "-")) for layout in layouts], measure=BPC)


def as_good_as_all(text: str, paper: str, layout: Layout) -> AsGood:
    return AsGood(text, paper, layout.key, ALL.key, GAIN)


MEMORY_HELPS = Better(
    "Long memories in all layers are better than in none.",
    "Figure 3: long-range dependency is not superfluous",
    ALL.key,
    NONE.key,
)
SIXTH_IS_ENOUGH = as_good_as_all(
    "Long memories in a sixth of the layers, interleaved, are as good as in all.", "0.9916 against 0.9846 bpc", SIXTH
)
NUMBER_CLAIMS: tuple[Claim, ...] = (
    MEMORY_HELPS,
    as_good_as_all(
        "Long memories in half of the layers are as good as in all.", "12 of 24: slightly better than 0.9846 bpc", HALF
    ),
    SIXTH_IS_ENOUGH,
    Better(
        "A single long memory is worse than one in every layer.", '"a real performance drop"', ALL.key, ONE_LAST.key
    ),
    Better("No long memory at all is worse than a single one in the last layer.", "Figure 3", ONE_LAST.key, NONE.key),
)
ARRANGEMENT_CLAIMS: tuple[Claim, ...] = (
    MEMORY_HELPS,
    Better(
        "Long memories in the lower half of the layers are worse than one in the last layer alone.",
        "12 lowest worse than 1 last (Figure 2)",
        ONE_LAST.key,
        HALF_FIRST.key,
    ),
    as_good_as_all(
        "Half of the layers, interleaved, are as good as all.",
        "12 of 24: equal curves, slightly better than 0.9846 bpc",
        HALF,
    ),
    as_good_as_all("The last half of the layers is as good as all.", "12 of 24: equal curves", HALF_LAST),
    SIXTH_IS_ENOUGH,
    Better(
        "A sixth of the layers, the first ones, is worse than the same number interleaved.",
        "4 of 24: significantly worse (Figure 3)",
        SIXTH.key,
        SIXTH_FIRST.key,
    ),
    Better(
        "A sixth of the layers in the middle is worse than the same number interleaved.",
        "1.01 against 0.9916 bpc",
        SIXTH.key,
        SIXTH_MIDDLE.key,
    ),
    Every(
        "The worst place is the lowest layer: a single long memory there is worse than every plan with half of the "
        "layers, or the last one, long range.",
        "worst: a single one at the lowest layer (Figure 2)",
        tuple(Better("", "", other.key, ONE_FIRST.key) for other in HALF_OR_ONE if other != ONE_FIRST),
    ),
)


def layout_table(grid: Grid, results: Results, title: str) -> list[Table]:
    unit = grid.measure.unit
    columns = (score(unit), against("against all", ALL.key), num_seeds(), published(f"paper's {unit}"))
    return grid_table(grid, results, label("long-range layers"), *columns, title=title, caption=CAPTION)


def diagram(grid: Grid, results: Results) -> list[Figure]:
    """The memory of every layer, for the plans that were run (Figure 1)."""
    scale = characters(results.budget)
    done = {row.key for row in grid.rows if grid.by_seed(results, row.key)}
    plans = {
        layout.label(scale.num_layers): list(scale.plan(layout).lengths(scale.num_layers))
        for layout in ARRANGEMENTS
        if layout.key in done
    }
    if not plans:
        return []
    segment = scale.recipe.train.segment
    caption = f"Memory of every layer, to the left of the segment of {segment}."
    return [arrangement_figure("arrangements", "Where the long memories are", caption, plans, segment)]


def by_number(grid: Grid, results: Results) -> list[Figure]:
    """Figure 3."""
    return scores_over(
        grid,
        results,
        line=lambda row: row.labels["arrangement"],
        x=lambda row: float(row.labels["long"]),
        slug="by-number",
        title="Quality by number and place of long-range layers",
        x_label="long-range layers",
    )


def keys(layouts: Sequence[Layout]) -> list[str]:
    return [layout.key for layout in layouts]


def number_grid(budget: Budget) -> Grid:
    return layout_grid(budget, NUMBERS)


def number_figures(results: Results) -> list[Figure]:
    grid, title = number_grid(results.budget), "Learning curves by number of long layers"
    curves = learning_curves(grid, results, slug="number", title=title)
    return [*diagram(grid, results), *curves, *by_number(grid, results)]


def arrangement_grid(budget: Budget) -> Grid:
    return layout_grid(budget, ARRANGEMENTS)


def arrangement_figures(results: Results) -> list[Figure]:
    grid, title = arrangement_grid(results.budget), "Learning curves: {} of the layers long range"
    return [
        *diagram(grid, results),
        *learning_curves(grid, results, keys(HALF_OR_ONE), slug="half", title=title.format("half, or one,")),
        *learning_curves(grid, results, keys(SIXTHS), slug="sixth", title=title.format("a sixth")),
        *by_number(grid, results),
    ]


NUMBER = Experiment(
    name="long-number",
    title="How many layers need a long memory",
    paper=PAPER,
    covers=("Figure 2", "Figure 3"),
    claim="Few long-range layers among short-range ones (a half, a sixth) predict as well as long memories everywhere; "
    "a single one, or none, does not.",
    cells=lambda budget: number_grid(budget).cells,
    verdicts=lambda results: judge(number_grid(results.budget), results, NUMBER_CLAIMS),
    figures=number_figures,
    tables=lambda results: layout_table(number_grid(results.budget), results, "Number of long-range layers"),
    notes=(*NOTES, "Its cells are also cells of long-arrangement, under the same names."),
)
ARRANGEMENT = Experiment(
    name="long-arrangement",
    title="Which layers need a long memory",
    paper=PAPER,
    covers=("Figure 1", "Figure 2", "Figure 3"),
    claim="Long memories help in interleaved or late layers, not in the first: half of them or a sixth, well placed, "
    "are as good as long memories everywhere.",
    cells=lambda budget: arrangement_grid(budget).cells,
    verdicts=lambda results: judge(arrangement_grid(results.budget), results, ARRANGEMENT_CLAIMS),
    figures=arrangement_figures,
    tables=lambda results: layout_table(arrangement_grid(results.budget), results, "Arrangement of long-range layers"),
    notes=NOTES,
)
