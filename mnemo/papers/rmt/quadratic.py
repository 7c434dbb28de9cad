"""Quadratic equations, solved step by step (Table 1)."""

from __future__ import annotations

from dataclasses import replace

from mnemo.data.tasks import Quadratic
from mnemo.papers.experiment import Budget, Experiment
from mnemo.papers.figures import score_bars
from mnemo.papers.grid import ACCURACY, Grid, Row
from mnemo.papers.judge import Better, Claim, at_most_worse, judge, solves
from mnemo.papers.rmt import published
from mnemo.papers.rmt.published import BASELINE, MODELS, RMT, XL
from mnemo.papers.rmt.recipes import QUADRATIC_AS_PUBLISHED, SELF_TEST, SMALL, in_stages
from mnemo.papers.rmt.series import ONE_SEED, PAPER, TINY
from mnemo.papers.tables import cell_labels, grid_table, num_seeds, score
from mnemo.papers.tables import published as published_value

EQUATIONS = replace(ACCURACY, key="answer_accuracy", unit="of the equations")
PARTS, PART = 6, 30
SPLITS: dict[Budget, dict[str, int]] = {"self-test": TINY, "small": {"test": 5_000}, "paper": {}}
TRAINING = {
    "self-test": SELF_TEST,
    "small": replace(SMALL, steps=3000, lr=1e-3, eval_samples=512),
    "paper": QUADRATIC_AS_PUBLISHED,
}
QUOTED = published.QUADRATIC
SOLVED = solves("RMT solves quadratic equations in 6 segments (0.99 or better).", QUOTED[RMT], RMT, measure=EQUATIONS)
MORE_THAN_CACHE = Better(
    "RMT solves more equations than Transformer-XL with as many slots.",
    f"Transformer-XL {QUOTED[XL]}, RMT {QUOTED[RMT]}",
    RMT,
    XL,
    needed=0.0,
)
CLAIMS: tuple[Claim, ...] = (
    SOLVED,
    MORE_THAN_CACHE,
    at_most_worse(
        "RMT in 6 segments is as good as a transformer that sees the whole equation (at most 0.01 lower).",
        f"Baseline {QUOTED[BASELINE]}, RMT {QUOTED[RMT]}",
        RMT,
        BASELINE,
        0.01,
        EQUATIONS,
    ),
)


def grid(budget: Budget) -> Grid:
    models = (RMT, XL) if budget == "self-test" else (RMT, XL, BASELINE)
    return Grid(rows=[_row(budget, model) for model in models], measure=EQUATIONS)


def _row(budget: Budget, model: str) -> Row:
    count, memory = (1, 0) if model == BASELINE else (PARTS, PART)
    return Row(
        key=model,
        name=f"quadratic-{count}-{model.lower()}",
        label=model,
        seeds=range(1, ONE_SEED[budget] + 1),
        settings=in_stages(
            [Quadratic(**SPLITS[budget])],
            model,
            segment=PARTS * PART // count,
            memory=memory,
            training=TRAINING[budget],
        ),
        job="rmt-task",
        labels={"model": model, "segments": count, "memory": memory},
        paper=(QUOTED[model],),
        color=MODELS.index(model),
    )


EXPERIMENT = Experiment(
    name="rmt-quadratic",
    title="Quadratic equations",
    paper=PAPER,
    covers=("Table 1",),
    claim="RMT solves quadratic equations in 6 segments as well as a transformer that sees them whole; Transformer-XL "
    "solves fewer.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, CLAIMS),
    figures=lambda results: score_bars(grid(results.budget), results, (BASELINE, XL, RMT), slug="quadratic"),
    tables=lambda results: grid_table(
        grid(results.budget),
        results,
        *cell_labels("model", "memory", "segments"),
        num_seeds(),
        score("ours, solved"),
        score("ours, per character", ACCURACY),
        published_value("paper, solved"),
        title="Quadratic equations",
        caption="Solved: the whole answer is right; the model writes the steps before it, too.",
    ),
    notes=(
        "The whole answer is checked. The released evaluation shows the model its first character (often a sign).",
        "The loss is on the steps of the solution with their padding, as in the released code.",
        "Table 1 says 0.99 ± 0.002 for RMT; the authors' result files have 0.98, 0.999 and 0.998.",
        "small: 3,000 steps of 256 equations, 4% of the published 600,000 steps of 32. A model learns the form of a "
        "solution before its arithmetic.",
        "small: one seed, tested on 5,000 equations; the paper budget on 20,000.",
        "small: the stored scores are of equations that also write terms with a coefficient of 0 or 1 (x^2+0*x-9=0); "
        "the task now leaves them out, as the authors' notebook does.",
    ),
)
