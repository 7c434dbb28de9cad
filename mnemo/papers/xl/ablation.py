"""Table 5: models without recurrence, with other encodings, and with half of the loss."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple

from mnemo.model.positions import AnyPositions, Learned, Relative, Shaw, Sinusoidal
from mnemo.papers.experiment import Budget, Experiment, Figure, Results, Table
from mnemo.papers.figures import BANDS
from mnemo.papers.grid import Grid, Row, training
from mnemo.papers.judge import Better, Claim, Observed, Outcome, judge
from mnemo.papers.tables import grid_table, label, published
from mnemo.papers.xl.attention_length import (
    SCORED,
    SEARCHED,
    SHORTEST,
    losses_by_length,
    perplexity_at,
    scores_at,
    search_columns,
    searches,
    trained_attention,
)
from mnemo.papers.xl.benchmark import NOT_RUN, PAPER
from mnemo.papers.xl.recipes import on_gpu, seeds, self_test, small_bytes
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.transformer_xl_ablation import row as changed
from mnemo.report.plots import line_figure, lines_over_seeds
from mnemo.units import perplexity

Encoding = Literal["ours", "Shaw", "Vaswani", "Al-Rfou"]


class Variant(NamedTuple):
    """A model of the table, with the paper's numbers."""

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

    @property
    def numbers(self) -> tuple[str, str, str]:
        return f"{self.initial:.2f}", f"{self.best:.2f}", str(self.length)


VARIANTS = (
    Variant("xl", "wikitext103-ablation", True, "ours", "full", 27.02, 26.77, 500),
    Variant("shaw", "wikitext103-ablation-shaw", True, "Shaw", "full", 27.94, 27.94, 256),
    Variant("half", "wikitext103-ablation-half", True, "ours", "half", 28.69, 28.33, 460),
    Variant("no-memory", "wikitext103-ablation-no-memory", False, "ours", "full", 29.59, 29.02, 260),
    Variant("no-memory-half", "wikitext103-ablation-no-memory-half", False, "ours", "half", 30.10, 30.10, 120),
    Variant("no-memory-shaw", "wikitext103-ablation-no-memory-shaw", False, "Shaw", "full", 29.75, 29.75, 120),
    Variant("no-memory-shaw-half", "wikitext103-ablation-no-memory-shaw-half", False, "Shaw", "half", 30.5, 30.5, 120),
    Variant("vaswani-half", "wikitext103-ablation-sinusoidal-half", False, "Vaswani", "half", 30.97, 30.97, 120),
    Variant("al-rfou-half", "wikitext103-ablation-vanilla-half", False, "Al-Rfou", "half", 31.16, 31.16, 120),
)
STANDARD = Variant("xl-151m", "wikitext103-base", True, "ours", "full", 23.43, 23.09, 640)
"""The standard model, which only `paper` trains."""
BY_NAME = {variant.name: variant for variant in (*VARIANTS, STANDARD)}
LENGTHENED: dict[Budget, Variant] = {"self-test": BY_NAME["xl"], "small": BY_NAME["xl"], "paper": STANDARD}
"""The model of the last block, which is scored with longer and longer attention."""
LONGER = {300: 23.35, 450: 23.16, 640: 23.09}
"""The last block: perplexity of 151M parameters by attention length; training had the first."""
MULTIPLES = [length / min(LONGER) for length in LONGER]
FAR: dict[Budget, float] = {"self-test": 0.01, "small": 0.01, "paper": 0.05}
"""Share of the perplexity that counts as far: 1% of a byte's is about 5% of a word's."""
NOTICEABLE = 1e-3
"""Share of the perplexity that counts as a gain of longer attention; the shortest length has the same limit."""
ABOVE = 1.2
"""The figure ends at this multiple of the worst perplexity with the attention length of training."""


def positions(variant: Variant, segment: int) -> AnyPositions:
    """Tables of learned positions are as long as the attention in training."""
    if variant.encoding == "Shaw":
        return Shaw(distances=2 * segment if variant.recurrence else segment)
    return {"ours": Relative(), "Vaswani": Sinusoidal(), "Al-Rfou": Learned(length=segment)}[variant.encoding]


def recipe_of(variant: Variant, budget: Budget) -> Recipe:
    if budget == "paper":
        return on_gpu(preset(variant.preset))
    base = self_test() if budget == "self-test" else small_bytes()
    segment = base.train.segment
    memory = segment if variant.recurrence else 0
    return changed(base, positions=positions(variant, segment), loss=variant.loss, memory=memory, segment=segment)


def row_of(variant: Variant, budget: Budget) -> Row:
    return Row(
        key=variant.name,
        name=variant.name,
        label=variant.label,
        seeds=seeds(budget),
        settings=training(recipe_of(variant, budget)),
        labels={"row": variant.name, "part": "training"},
        paper=variant.numbers,
    )


def grid(budget: Budget) -> Grid:
    rows = [row_of(variant, budget) for variant in ((*VARIANTS, STANDARD) if budget == "paper" else VARIANTS)]
    lengthened = [row for row in rows if row.key == LENGTHENED[budget].name]
    # At `small` the search has tried enough: the attention of training and twice as much.
    longer = [] if budget == "small" else scores_at(lengthened, budget, _longer_lengths(budget))
    return Grid(rows=rows, measure=perplexity_at("best", budget), last=[*searches(rows, budget), *longer])


def _longer_lengths(budget: Budget) -> list[int]:
    attention = trained_attention(recipe_of(LENGTHENED[budget], budget))
    return [round(attention * multiple) for multiple in MULTIPLES]


def claims(budget: Budget) -> list[Claim]:
    best = BY_NAME["xl"].best
    compared = {
        "no-memory": "Recurrence lowers perplexity, each model at its best attention length.",
        "shaw": "With recurrence, the paper's encoding is better than Shaw's.",
        "half": "With recurrence, the loss of all positions is better than that of the last half.",
    }
    vanilla, share = BY_NAME["al-rfou-half"], FAR[budget]
    return [
        *(Better(text, f"{best} against {BY_NAME[name].best}", "xl", name) for name, text in compared.items()),
        Better(
            f"Both ideas together are far better than the vanilla transformer: {share:.0%} of the perplexity or more.",
            f"{best} against {vanilla.best}: {1 - best / vanilla.best:.0%}",
            "xl",
            vanilla.name,
            needed=-math.log1p(-share),
        ),
        Observed(
            "Attention longer than in training helps with the paper's encoding, and with no other.",
            "27.02 to 26.77 (0.9%); Shaw's, Vaswani's and Al-Rfou's: nothing",
            _only_ours_extends,
        ),
        Observed(
            "Transformer-XL uses a longer attention than in its training, and than any other model.",
            "500 (460 with the half loss), trained with 256; the others at most 260",
            _attends_further,
        ),
        Observed(
            "The longer the attention, up to twice that of training, the lower the perplexity of Transformer-XL.",
            f"{', '.join(map(str, LONGER.values()))} at {', '.join(map(str, LONGER))}, trained with {min(LONGER)}",
            _falls_with_attention,
        ),
    ]


def _only_ours_extends(results: Results) -> Outcome | None:
    names = ("xl", "shaw", "vaswani-half", "al-rfou-half")
    gains = {name: _gains_of_length(results, name) for name in names}
    if not all(gains.values()):
        return None
    means = {name: fmean(values) for name, values in gains.items()}
    text = "; ".join(f"{BY_NAME[name].label}: {mean:.2%}" for name, mean in means.items())
    others = max(mean for name, mean in means.items() if name != "xl")
    return Outcome(text, means["xl"] >= NOTICEABLE > others, min(map(len, gains.values())))


def _gains_of_length(results: Results, name: str) -> list[float]:
    """Share of the perplexity that the best attention length saves, by seed."""
    initial, best = (
        grid(results.budget).by_seed(results, name, perplexity_at(which, results.budget))
        for which in ("initial", "best")
    )
    return [1 - perplexity(best[seed] - initial[seed]) for seed in initial.keys() & best.keys()]


def _attends_further(results: Results) -> Outcome | None:
    found = {each.name: list(grid(results.budget).by_seed(results, each.name, SHORTEST).values()) for each in VARIANTS}
    if not all(found.values()):
        return None
    means = {name: fmean(values) for name, values in found.items()}
    other = max((name for name in means if name not in ("xl", "half")), key=means.__getitem__)
    trained = trained_attention(recipe_of(BY_NAME["xl"], results.budget))
    ours = (
        f"{SHORTEST.text(found['xl'])} tokens, trained with {trained}; "
        f"the most of the others: {BY_NAME[other].label} {SHORTEST.text(found[other])}"
    )
    return Outcome(ours, means["xl"] > max(trained, means[other]), min(map(len, found.values())))


def lengthened(results: Results) -> dict[int, list[float]]:
    """Losses of the model of the last block, from the attention of training to the paper's largest multiple of it."""
    found, variant = grid(results.budget), LENGTHENED[results.budget]
    row, part = found.row(variant.name), SEARCHED if results.budget == "small" else SCORED
    first, *_, last = _longer_lengths(results.budget)
    losses = losses_by_length(found, results, row, part) if row else {}
    return {length: values for length, values in losses.items() if first <= length <= last}


def _falls_with_attention(results: Results) -> Outcome | None:
    found = lengthened(results)
    if len(found) < 2:
        return None
    measure = grid(results.budget).measure
    means = [fmean(map(perplexity, losses)) for losses in found.values()]
    falls = all(longer <= shorter for shorter, longer in pairwise(means))
    ours = f"{', '.join(map(measure.text, found.values()))} at {', '.join(map(str, found))}"
    return Outcome(ours, falls and 1 - means[-1] / means[0] >= NOTICEABLE, min(map(len, found.values())))


def tables(results: Results) -> list[Table]:
    caption = (
        "Perplexity per token of the validation set at the attention length of training and at the best length, and "
        "the shortest length within 0.1% of the best. The paper's models read words of WikiText-103; "
        + ("so do ours." if results.budget == "paper" else "ours read bytes.")
    )
    numbers = [published(f"paper: {name}", index) for index, name in enumerate(("init", "best", "attention"))]
    columns = [label("model"), *search_columns(results.budget), *numbers]
    quoted = [] if results.budget == "paper" else [(STANDARD.label, *[NOT_RUN] * 3, *STANDARD.numbers)]
    title = "Table 5: ablation"
    whole = grid_table(grid(results.budget), results, *columns, title=title, caption=caption, quoted=quoted)
    return [*whole, *longer_table(results)]


def longer_table(results: Results) -> list[Table]:
    found, measure = lengthened(results), grid(results.budget).measure
    if not found:
        return []
    quoted = [("151M parameters, quoted", length, f"{length / min(LONGER):.2f}", ppl) for length, ppl in LONGER.items()]
    name = LENGTHENED[results.budget].label
    ours = [(name, length, f"{length / min(found):.2f}", measure.text(losses)) for length, losses in found.items()]
    title, headers = "Table 5, last block: longer attention", ("model", "attention", "multiple of training's", "ppl")
    caption = "Validation set, at multiples of the attention length of training; the paper's 'PPL init' is 23.43."
    return [Table(title, headers, [*quoted, *ours], caption)]


def figures(results: Results) -> list[Figure]:
    found = grid(results.budget)
    points = [
        (row.label, length, perplexity(loss))
        for row in found.rows
        for length, losses in losses_by_length(found, results, row).items()
        for loss in losses
    ]
    initial = perplexity_at("initial", results.budget)
    worst = [loss for row in found.rows for loss in found.by_seed(results, row.key, initial).values()]
    if not points or not worst:
        return []
    top = ABOVE * perplexity(max(worst))
    return [
        line_figure(
            "perplexity-by-attention",
            "Perplexity by attention length",
            f"Validation set, at the lengths that the search tried with every seed. {BANDS} Cut off above {top:.4g}.",
            lines_over_seeds(points),
            x_label="attention length",
            y_label="perplexity per token",
            x_kind="doubling",
            y_max=top,
        )
    ]


ABLATION = Experiment(
    name="xl-ablation",
    title="Models without recurrence, with other encodings, with half of the loss",
    paper=PAPER,
    covers=("Table 5",),
    claim="Recurrence and the relative encoding are both needed: for the lowest perplexity, and for attention that "
    "helps beyond the length of training.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, claims(results.budget)),
    figures=figures,
    tables=tables,
    notes=(
        "small: bytes of novels, 6 layers of 256, segments and memory of 128, two seeds, instead of 128M parameters on "
        "WikiText-103.",
        "Lengths are searched with 16 new tokens at a time, for which a model without memory reads its context again. "
        "The paper does not say how many it took.",
        "The last block is the standard model's at 300, 450 and 640. If that model is not trained, the first row takes "
        "its place, at the lengths between that of training and 2.13 times that.",
        "Al-Rfou's rows have no auxiliary losses, as in the paper. Absolute encodings cannot have a memory.",
        "The published code's Shaw encoding has the biases (c) and (d) too, and so has ours.",
    ),
)
