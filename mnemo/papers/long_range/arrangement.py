"""How many layers need a long memory, and which (Figures 1-3)."""

from __future__ import annotations

from mnemo.memory import Plan
from mnemo.papers.experiment import Budget, Cell, Experiment, Results, Table, Verdict
from mnemo.papers.long_range.comparing import (
    BITS,
    PLACE_COLORS,
    equal,
    find,
    layout_table,
    learning_curves,
    scored,
    worse,
    worst,
)
from mnemo.papers.long_range.grids import (
    ALL,
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
    layout_cells,
)
from mnemo.report.plots import Figure, arrangement_figure, scatter_figure

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
PUBLISHED = {ALL: "0.9846", SIXTH: "0.9916", SIXTH_MIDDLE: "1.01"}
NOTES = (
    "The paper trains 277M parameters in 24 layers on enwik8. At `small` the model has 12 layers of width 256 (10M "
    "parameters), a short memory of 64 and a long one of 1,024, and learns for 900 steps of 128 x 128 bytes of "
    "novels: 24, 12, 4 and 1 long layers become 12, 6, 2 and 1.",
    "Its norms come before the branches, queries and keys are normed, and Muon trains its matrices, because so few "
    "steps of the published recipe teach little. Attention is Transformer-XL's.",
    "The paper has one seed and tests with a longer memory (6,000, trained with 2,304); at `small` there are two seeds "
    "with the same first weights and text for every plan, tested with the memory of training.",
    "What is called worse is so by 0.005 bpc or more with every seed; where there is one seed, by 0.01.",
    "The paper does not say how many steps it trained; at `paper` the preset's 400,000 are the limit.",
)


def number_cells(budget: Budget) -> list[Cell]:
    return layout_cells(characters(budget), NUMBERS)


def arrangement_cells(budget: Budget) -> list[Cell]:
    return layout_cells(characters(budget), ARRANGEMENTS)


def number_verdicts(results: Results) -> list[Verdict]:
    return [
        _memory_matters(results),
        equal(
            results,
            HALF,
            BITS,
            claim="Long memories in half of the layers are as good as in all (within 0.01 bpc).",
            paper="12 of 24: slightly better than 0.9846 bpc",
        ),
        _sixth_is_enough(results),
        worse(
            results,
            ONE_LAST,
            ALL,
            BITS,
            claim="A single long memory is worse than one in every layer.",
            paper='"a real performance drop"',
        ),
        worse(
            results,
            NONE,
            ONE_LAST,
            BITS,
            claim="No long memory at all is worse than a single one in the last layer.",
            paper="Figure 3",
        ),
    ]


def arrangement_verdicts(results: Results) -> list[Verdict]:
    return [
        _memory_matters(results),
        worse(
            results,
            HALF_FIRST,
            ONE_LAST,
            BITS,
            claim="Long memories in the lower half of the layers are worse than one in the last layer alone.",
            paper="12 lowest worse than 1 last (Figure 2)",
        ),
        equal(
            results,
            HALF,
            BITS,
            claim="Half of the layers, interleaved, are as good as all (within 0.01 bpc).",
            paper="12 of 24: equal curves, slightly better than 0.9846 bpc",
        ),
        equal(
            results,
            HALF_LAST,
            BITS,
            claim="The last half of the layers is as good as all (within 0.01 bpc).",
            paper="12 of 24: equal curves",
        ),
        _sixth_is_enough(results),
        worse(
            results,
            SIXTH_FIRST,
            SIXTH,
            BITS,
            claim="A sixth of the layers, the first ones, is worse than the same number interleaved.",
            paper="4 of 24: significantly worse (Figure 3)",
        ),
        worse(
            results,
            SIXTH_MIDDLE,
            SIXTH,
            BITS,
            claim="A sixth of the layers in the middle is worse than the same number interleaved.",
            paper="1.01 against 0.9916 bpc",
        ),
        worst(
            results,
            ONE_FIRST,
            [layout for layout in HALF_OR_ONE if layout != ONE_FIRST],
            BITS,
            claim="The worst place is the lowest layer: a single long memory there is worse than every plan with half "
            "of the layers, or the last one, long range.",
            paper="worst: a single one at the lowest layer (Figure 2)",
        ),
    ]


def _memory_matters(results: Results) -> Verdict:
    return worse(
        results,
        NONE,
        ALL,
        BITS,
        claim="Long memories in all layers are better than in none.",
        paper="Figure 3: long-range dependency is not superfluous",
    )


def _sixth_is_enough(results: Results) -> Verdict:
    return equal(
        results,
        SIXTH,
        BITS,
        claim="Long memories in a sixth of the layers, interleaved, are within 0.01 bpc of those in all.",
        paper="0.9916 against 0.9846 bpc",
    )


def diagram(results: Results, layouts: tuple[Layout, ...]) -> list[Figure]:
    """Which layer remembers how much, of the plans that were run (Figure 1)."""
    scale = characters(results.budget)
    done = [layout for layout in layouts if find(results, layout)]
    plans = {layout.label(scale.num_layers): _lengths(scale.plan(layout), scale.num_layers) for layout in done}
    if not plans:
        return []
    caption = f"Memory of every layer beside the segment of {scale.recipe.train.segment}."
    title = "Where the long memories are"
    return [arrangement_figure("arrangements", title, caption, plans, scale.recipe.train.segment)]


def _lengths(plan: Plan, num_layers: int) -> list[int]:
    return list(plan.lengths(num_layers))


def by_number(results: Results) -> list[Figure]:
    """Figure 3."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for result in scored(results):
        point = (float(result.labels["long"]), BITS.of(result))
        groups.setdefault(result.labels["arrangement"], []).append(point)
    if not groups:
        return []
    caption = "Test set, a point for every seed. Lower is better."
    title = "Quality by number and place of long-range layers"
    axes = {"x_label": "long-range layers", "y_label": BITS.unit}
    return [scatter_figure("by-number", title, caption, groups, colors=PLACE_COLORS, **axes)]


def number_figures(results: Results) -> list[Figure]:
    curves = learning_curves(results, NUMBERS, BITS, slug="number", title="Learning curves by number of long layers")
    return [*diagram(results, NUMBERS), *curves, *by_number(results)]


def arrangement_figures(results: Results) -> list[Figure]:
    sixth = (ALL, SIXTH, SIXTH_LAST, SIXTH_MIDDLE, SIXTH_FIRST, NONE)
    title = "Learning curves: {} of the layers long range"
    return [
        *diagram(results, ARRANGEMENTS),
        *learning_curves(results, HALF_OR_ONE, BITS, slug="half", title=title.format("half, or one,")),
        *learning_curves(results, sixth, BITS, slug="sixth", title=title.format("a sixth")),
        *by_number(results),
    ]


def number_tables(results: Results) -> list[Table]:
    return layout_table(results, NUMBERS, BITS, PUBLISHED, title="Number of long-range layers")


def arrangement_tables(results: Results) -> list[Table]:
    return layout_table(results, ARRANGEMENTS, BITS, PUBLISHED, title="Arrangement of long-range layers")


NUMBER = Experiment(
    name="long-number",
    title="How many layers need a long memory",
    paper=PAPER,
    covers=("Figure 2", "Figure 3"),
    claim="Few long-range layers among short-range ones (a half, a sixth) predict as well as long memories everywhere; "
    "a single one, or none, does not.",
    cells=number_cells,
    verdicts=number_verdicts,
    figures=number_figures,
    tables=number_tables,
    notes=(*NOTES, "Its cells are cells of long-arrangement too, under the same names."),
)
ARRANGEMENT = Experiment(
    name="long-arrangement",
    title="Which layers need a long memory",
    paper=PAPER,
    covers=("Figure 1", "Figure 2", "Figure 3"),
    claim="Long memories help in interleaved or late layers, not in the first: half of them or a sixth, well placed, "
    "are as good as long memories everywhere.",
    cells=arrangement_cells,
    verdicts=arrangement_verdicts,
    figures=arrangement_figures,
    tables=arrangement_tables,
    notes=NOTES,
)
