"""RMT copies a sequence over more segments than Transformer-XL's cache reaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mnemo.config import to_json
from mnemo.data.tasks import Copy
from mnemo.papers.experiment import Budget, Experiment, Figure, Results, Table
from mnemo.papers.figures import learning_curves, score_bars
from mnemo.papers.grid import ACCURACY, BySeed, Grid, Row
from mnemo.papers.jobs import Place, job
from mnemo.papers.judge import Claim, far_below, judge, solves
from mnemo.papers.laptop.text import BUDGETS, SEEDS
from mnemo.papers.rmt.jobs import learn_in_stages
from mnemo.papers.rmt.published import COPY, RMT, XL, beside
from mnemo.papers.rmt.recipes import SELF_TEST, SMALL, Training, remembering, task_recipe
from mnemo.papers.rmt.series import CACHES, GRADIENT, NATS, PAPER, TINY, WRITTEN
from mnemo.papers.tables import grid_table, label, num_seeds, published, score
from mnemo.training.single_thread import single_threaded

JOB = "laptop-task"
SYMBOLS, SEGMENT = 9, 3
SPLITS = {"train": 20_000, "valid": 500, "test": 1000}
LAPTOP = replace(
    SMALL,
    model=replace(SMALL.model, dim=64, num_heads=2, head_dim=32, inner_dim=128),
    batch=32,
    steps=600,
    first_steps=300,
    lr=3e-3,
    warmup=50,
    eval_every=50,
    eval_samples=128,
)
MODELS = {RMT: (COPY[RMT][9], 0), XL: (COPY[XL][9], 1)}
"""The paper's accuracy for 24 symbols in 9 segments, and the colour."""


@job(JOB)
def learn_in_one_thread(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    with single_threaded():
        return learn_in_stages(settings, place)


def settings_of(model: str, budget: Budget) -> BySeed:
    """A run for each of three lengths, each continuing with the weights of the one before it."""
    training: Training = SELF_TEST if budget == "self-test" else LAPTOP
    splits = TINY if budget == "self-test" else SPLITS
    tasks = [Copy(symbols=size, **splits) for size in range(SEGMENT, SYMBOLS + 1, SEGMENT)]
    config = remembering(training.model, model, SEGMENT, training.std)

    def settings(seed: int) -> dict[str, Any]:
        recipes = [
            task_recipe(task, config, segment=SEGMENT, seed=seed, training=training, last=task is tasks[-1])
            for task in tasks
        ]
        on_cpu = [replace(each, train=replace(each.train, compile=False, device="cpu")) for each in recipes]
        return {"stages": [to_json(each) for each in on_cpu], "maps": False}

    return settings


def copy_grid(budget: Budget) -> Grid:
    rows = [
        Row(
            key=model,
            name=f"copy-{model.lower()}",
            label=model,
            seeds=SEEDS[:1] if budget == "self-test" else SEEDS,
            settings=settings_of(model, budget),
            job=JOB,
            labels={"model": model},
            paper=(quoted,),
            color=color,
        )
        for model, (quoted, color) in MODELS.items()
    ]
    return Grid(rows=rows, measure=ACCURACY)


CLAIMS: tuple[Claim, ...] = (
    solves("RMT copies the sequence (every run at 0.99 or better).", COPY[RMT][9], RMT),
    far_below("Transformer-XL is far below RMT (mean lower by 0.1 or more).", beside(COPY, 9, XL, RMT), XL, RMT),
)


def copy_figures(results: Results) -> list[Figure]:
    grid = copy_grid(results.budget)
    curves = learning_curves(replace(grid, measure=NATS), results, title="Learning to copy, last stage")
    return [*score_bars(grid, results), *curves]


def copy_table(results: Results) -> list[Table]:
    return grid_table(
        copy_grid(results.budget),
        results,
        label("model"),
        score("right symbols"),
        num_seeds(),
        published("paper's"),
        title=f"Copy {SYMBOLS} symbols twice, cut into segments of {SEGMENT}",
        caption="Share of right symbols on the test set. The paper copies 24 symbols in segments of 8.",
    )


EXPERIMENT = Experiment(
    name="laptop-rmt",
    title="On a laptop: copying over many segments",
    paper=PAPER,
    covers=("Figure 4, the main claim",),
    claim="A few memory tokens carry a sequence over many segments, where Transformer-XL with as many slots fails.",
    cells=lambda budget: copy_grid(budget).cells,
    verdicts=lambda results: judge(copy_grid(results.budget), results, CLAIMS),
    figures=copy_figures,
    tables=copy_table,
    budgets=BUDGETS,
    notes=(
        f"{SYMBOLS} symbols instead of 24, in the same 9 segments, with {SEGMENT} memory tokens or slots; 2 layers of "
        "width 64 instead of 4 of width 128.",
        "Sequences grow, in equal stages for both models: 3, 6, then 9 symbols. The paper trains on the whole "
        "sequence, for 900,000 steps.",
        f"{CACHES} Copying needs 3 segments, and the 2 layers reach 2.",
        f"{GRADIENT}, as in the released code.",
        WRITTEN,
    ),
)
