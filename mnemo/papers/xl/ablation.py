"""Table 5: recurrence, encoding and loss, each taken away."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from mnemo.model.positions import AnyPositions, Learned, Relative, Shaw, Sinusoidal
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table, Verdict, has_labels
from mnemo.papers.jobs import training_cell
from mnemo.papers.xl.attention_length import found_columns, gains, lengths, ppl, search_cell, searches
from mnemo.papers.xl.comparing import NOTICEABLE, Measured, judged, lower, perplexity, shown, undecided
from mnemo.papers.xl.longer_attention import falls_with_attention, longer_cell, longer_table
from mnemo.papers.xl.recipes import on_gpu, seeded, seeds, small_bytes, smoke
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.recipes.transformer_xl_ablation import row as changed
from mnemo.report.plots import line_figure, lines_over_seeds

Encoding = Literal["ours", "Shaw", "Vaswani", "Al-Rfou"]


class Row(NamedTuple):
    """One of the table's, with the paper's numbers."""

    name: str
    preset: str
    recurrence: bool
    encoding: Encoding
    loss: Literal["full", "half"]
    initial: float
    best: float
    length: int

    @property
    def label(self) -> str:
        size = ", 151M" if self.name == "xl-151m" else ""
        return f"{'recurrence' if self.recurrence else 'no recurrence'}, {self.encoding}, {self.loss} loss{size}"


ROWS = (
    Row("xl", "wikitext103-ablation", True, "ours", "full", 27.02, 26.77, 500),
    Row("shaw", "wikitext103-ablation-shaw", True, "Shaw", "full", 27.94, 27.94, 256),
    Row("half", "wikitext103-ablation-half", True, "ours", "half", 28.69, 28.33, 460),
    Row("no-memory", "wikitext103-ablation-no-memory", False, "ours", "full", 29.59, 29.02, 260),
    Row("no-memory-half", "wikitext103-ablation-no-memory-half", False, "ours", "half", 30.10, 30.10, 120),
    Row("no-memory-shaw", "wikitext103-ablation-no-memory-shaw", False, "Shaw", "full", 29.75, 29.75, 120),
    Row("no-memory-shaw-half", "wikitext103-ablation-no-memory-shaw-half", False, "Shaw", "half", 30.50, 30.50, 120),
    Row("vaswani-half", "wikitext103-ablation-sinusoidal-half", False, "Vaswani", "half", 30.97, 30.97, 120),
    Row("al-rfou-half", "wikitext103-ablation-vanilla-half", False, "Al-Rfou", "half", 31.16, 31.16, 120),
)
STANDARD = Row("xl-151m", "wikitext103-base", True, "ours", "full", 23.43, 23.09, 640)
"""The standard model, which only `paper` trains."""
LENGTHENED: dict[Budget, Row] = {"smoke": ROWS[0], "small": ROWS[0], "paper": STANDARD}
"""The model of the last block, whose attention is made longer."""
FAR: dict[Budget, float] = {"smoke": 0.01, "small": 0.01, "paper": 0.05}
"""Share of the perplexity that is far: 1% of a byte's is some 5% of a word's."""
BY_NAME = {row.name: row for row in (*ROWS, STANDARD)}


def positions(row: Row, segment: int) -> AnyPositions:
    """Tables of learned positions reach as far as training does."""
    if row.encoding == "Shaw":
        return Shaw(distances=2 * segment if row.recurrence else segment)
    return {"ours": Relative(), "Vaswani": Sinusoidal(), "Al-Rfou": Learned(length=segment)}[row.encoding]


def recipe_of(row: Row, budget: Budget) -> Recipe:
    if budget == "paper":
        return on_gpu(preset(row.preset))
    base = smoke() if budget == "smoke" else small_bytes()
    segment = base.train.segment
    memory = segment if row.recurrence else 0
    return changed(base, positions=positions(row, segment), loss=row.loss, memory=memory, segment=segment)


SEARCHED: dict[Budget, tuple[EvalConfig, int]] = {
    "smoke": (EvalConfig(batch=2, segment=4, limit=60), 20),
    "small": (EvalConfig(batch=20, segment=16, limit=100_000), 1024),
    "paper": (EvalConfig(batch=10, segment=16), 1000),
}
"""How lengths are searched, and the longest that is tried. Few new tokens at a time: each then sees nearly as much."""


def pair(name: str, recipe: Recipe, budget: Budget, labels: dict[str, Any]) -> list[Cell]:
    """A model that is trained, and the search for the length that serves it best."""
    training = training_cell(name, recipe, labels | {"part": "training"})
    return [training, search_cell(training, *SEARCHED[budget])]


def cells(budget: Budget) -> list[Cell]:
    made = []
    for row in (*ROWS, STANDARD) if budget == "paper" else ROWS:
        for seed in seeds(budget):
            labels = {"row": row.name, "seed": seed}
            made += pair(f"{row.name}-seed{seed}", seeded(recipe_of(row, budget), seed), budget, labels)
    return [*made, *_longer_cells(made, budget)]


def _longer_cells(made: list[Cell], budget: Budget) -> list[Cell]:
    """At `small`, what the search for the best length tried is enough: training's length and twice that."""
    lengthened = {"row": LENGTHENED[budget].name, "part": "training"}
    trained = [cell for cell in made if budget != "small" and has_labels(cell.labels, lengthened)]
    return [longer_cell(cell, SEARCHED[budget][0]) for cell in trained]


ABOVE = 1.2
"""Perplexities beyond so many times the worst at its training length would hide all others."""


def best(results: Results, name: str) -> Measured:
    return ppl(BY_NAME[name].label, searches(results, row=name))


def verdicts(results: Results) -> list[Verdict]:
    whole = best(results, "xl")
    compared = [
        ("no-memory", "Recurrence lowers perplexity, each model at its best attention length."),
        ("shaw", "With recurrence, the paper's encoding is better than Shaw's."),
        ("half", "With recurrence, the loss of all positions is better than that of the last half."),
    ]
    simple = [
        lower(results, claim, f"{shown(26.77)} against {shown(BY_NAME[name].best)}", whole, best(results, name))
        for name, claim in compared
    ]
    longer = falls_with_attention(results, LENGTHENED[results.budget])
    return [*simple, _far_better(results, whole), _only_ours_extends(results), _attends_further(results), longer]


def _far_better(results: Results, whole: Measured) -> Verdict:
    share, vanilla = FAR[results.budget], BY_NAME["al-rfou-half"]
    claim = f"Both ideas together are far better than the vanilla transformer: {share:.0%} of the perplexity or more."
    paper = f"{shown(26.77)} against {shown(vanilla.best)}: {1 - 26.77 / vanilla.best:.0%}"
    return lower(results, claim, paper, whole, best(results, vanilla.name), margin=share)


def _only_ours_extends(results: Results) -> Verdict:
    claim = "Attention longer than in training helps where the paper's encoding is used, and only there."
    paper = "27.02 to 26.77 (0.9%); Shaw's, Vaswani's and Al-Rfou's: nothing"
    measured = {row.name: gains(row.label, searches(results, row=row.name)) for row in ROWS}
    wanted = ("xl", "shaw", "vaswani-half", "al-rfou-half")
    missing = [BY_NAME[name].label for name in wanted if not measured[name].values]
    if missing:
        return undecided(claim, paper, missing)
    ours = "; ".join(f"{BY_NAME[name].label}: {measured[name].mean:.2%}" for name in wanted)
    others = max(measured[name].mean for name in wanted[1:])
    return judged(results, claim, paper, ours, measured["xl"].mean >= NOTICEABLE > others)


def _attends_further(results: Results) -> Verdict:
    claim = "Transformer-XL makes use of a longer attention than its training had, and than any other row."
    paper = "500 (460 with the half loss), trained with 256; the others at most 260"
    found = {row.name: lengths(row.label, searches(results, row=row.name)) for row in ROWS}
    missing = [BY_NAME[name].label for name, one in found.items() if not one.values]
    if missing:
        return undecided(claim, paper, missing)
    others = max((one for name, one in found.items() if name not in ("xl", "half")), key=lambda one: one.mean)
    initial = searches(results, row="xl")[0].values["initial"]["attention"]
    ours = f"{found['xl']}, trained with {initial}; the most of the others: {others}"
    return judged(results, claim, paper, ours, found["xl"].mean > max(initial, others.mean))


def tables(results: Results) -> list[Table]:
    rows = [
        [row.label, *_columns(results, row), shown(row.initial), shown(row.best), str(row.length)]
        for row in (*ROWS, STANDARD)
    ]
    headers = ["model", "ppl init", "ppl best", "attention", "paper: init", "paper: best", "paper: attention"]
    caption = (
        "Perplexity per token of the validation set at the attention length of training, at the best of that and "
        "longer ones, and the shortest length within 0.1% of that. The paper's are of words of WikiText-103; "
        + ("so are ours." if results.budget == "paper" else "ours are of bytes.")
    )
    whole = Table(title="Table 5: ablation", headers=headers, rows=rows, caption=caption)
    return [whole, longer_table(results, LENGTHENED[results.budget])]


def _columns(results: Results, row: Row) -> list[str]:
    if row is STANDARD and results.budget != "paper":
        return ["quoted, not run"] * 3
    return found_columns(searches(results, row=row.name))


def figures(results: Results) -> list[Figure]:
    found = {row.label: searches(results, row=row.name) for row in ROWS}
    points = [
        (label, attention, perplexity(loss))
        for label, cells in found.items()
        for cell in cells
        for attention, loss in cell.values["tried"]
        if all(attention in dict(other.values["tried"]) for other in cells)
    ]
    if not points:
        return []
    top = ABOVE * max(perplexity(cell.values["initial"]["loss"]) for cells in found.values() for cell in cells)
    return [
        line_figure(
            "perplexity-by-attention",
            "Perplexity by attention length",
            "Validation perplexity per token at the attention lengths that the search tried with every seed; mean over "
            f"seeds. Cut off above {shown(top)}.",
            lines_over_seeds(points),
            x_label="attention length",
            y_label="perplexity per token",
            x_kind="doubling",
            y_max=top,
        )
    ]


ABLATION = Experiment(
    name="xl-ablation",
    title="Recurrence, encoding and loss, each taken away",
    paper="Transformer-XL",
    covers=("Table 5",),
    claim=(
        "Recurrence and the relative encoding are both needed: for the lowest perplexity, and for attention that "
        "goes on helping beyond the length of training."
    ),
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "small: bytes of novels, 6 layers of 256, segments and memory of 128, two seeds, instead of 128M parameters on "
        "WikiText-103.",
        "Lengths are searched with 16 new tokens at a time: a model without memory reads its context again for them, "
        "so that nearly all of its attention length is used. The paper does not say how many it took.",
        "The last block is the standard model's at 300, 450 and 640. Where that model is not trained, the best row "
        "stands in for it, at the lengths that its search tried between that of training and twice that.",
        "Al-Rfou's rows have no auxiliary losses, as in the paper. Absolute encodings cannot take a memory.",
        "The published code's Shaw encoding has the biases (c) and (d) too, and so has ours.",
    ),
)
