"""Cost of a prediction (Table 1's FLOPS): LaMemo's extra work grows linearly with the memory."""

from __future__ import annotations

from typing import Any

from mnemo.config import from_json, to_json
from mnemo.cost.model_cost import describe
from mnemo.model import ModelConfig
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table
from mnemo.papers.grid import Grid
from mnemo.papers.jobs import Place, job
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.lamemo.models import (
    COMPRESSIVE,
    INFINITE,
    LAMEMO,
    MODELS,
    PAPER,
    SELF_TEST,
    TRANSFORMER,
    TRANSFORMER_XL,
    memory_of,
    published,
)
from mnemo.recipes.lamemo import WORDS
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.report.plots import Line, line_figure
from mnemo.report.svg import slugify

FLOPS = {TRANSFORMER: 148, TRANSFORMER_XL: 157, COMPRESSIVE: 169, INFINITE: 235, LAMEMO: 191}
"""Table 1, in millions; a multiply-add counts as one."""
PARAMETERS = {TRANSFORMER: 151, TRANSFORMER_XL: 151, COMPRESSIVE: 161, INFINITE: 160, LAMEMO: 151}
CLOSE = 0.02
MULTIPLES = (1, 2, 4, 8)
"""Of the memory, at the same segment."""
STRAIGHT = 0.01
"""Share by which the extra work may leave a straight line."""
WIDE, NARROW = "table", "growth"


@job("lamemo-flops")
def count(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    model = from_json(ModelConfig, settings["model"], "model")
    recipe = Recipe(model=model, train=TrainConfig(batch=settings["batch"], segment=settings["segment"]))
    info = describe("counted", recipe, memory=settings["memory"])
    return {
        "parameters": info.parameters.total,
        "multiply_adds": info.training.multiply_adds,
        "cached_multiply_adds": info.inference.multiply_adds,
        "training_flops": info.training_step,
        "state_bytes": info.total_bytes(info.state_bytes),
    }


def cells(budget: Budget) -> list[Cell]:
    table = [_cell(budget, model, None, WIDE) for model in MODELS]
    return table + [_cell(budget, model, times, NARROW) for times in MULTIPLES for model in (LAMEMO, TRANSFORMER_XL)]


def _cell(budget: Budget, model: str, times: int | None, kind: str) -> Cell:
    length = SELF_TEST.length if budget == "self-test" else WORDS
    memory = memory_of(model, length)
    recipe = SELF_TEST.recipe(memory) if budget == "self-test" else published("lamemo-wikitext103", memory)
    slots = None if times is None else times * length
    return Cell(
        name=slugify(model) if times is None else f"{slugify(model)}-memory-{slots}",
        job="lamemo-flops",
        settings={
            "model": to_json(recipe.model),
            "batch": recipe.train.batch,
            "segment": recipe.train.segment,
            "memory": slots,
        },
        labels={"model": model, "kind": kind, "memory": slots},
    )


def _as_published(model: str) -> Observed:
    def observe(results: Results) -> Outcome | None:
        found = results.values("multiply_adds", model=model, kind=WIDE)
        if not found:
            return None
        millions = found[0] / 1e6
        return Outcome(f"{millions:.1f}M", abs(millions / FLOPS[model] - 1) <= CLOSE)

    claim = f"{model} takes the published multiply-adds for a prediction, give or take {CLOSE:.0%}."
    return Observed(claim, f"{FLOPS[model]}M", observe)


def extra(results: Results) -> dict[int, float]:
    """Millions of multiply-adds that LaMemo takes more than Transformer-XL, by memory length."""
    found = {}
    for result in results.select(model=LAMEMO, kind=NARROW):
        memory = result.labels["memory"]
        own, other = (
            results.values("multiply_adds", model=model, kind=NARROW, memory=memory)
            for model in (LAMEMO, TRANSFORMER_XL)
        )
        if own and other:
            found[memory] = (own[0] - other[0]) / 1e6
    return found


def _linear(results: Results) -> Outcome | None:
    found = extra(results)
    if len(found) < 3:
        return None
    (first, low), *between, (last, high) = sorted(found.items())
    slope = (high - low) / (last - first)
    bend = max(abs(value / (low + slope * (at - first)) - 1) for at, value in between)
    ours = f"{low:.1f}M at {first}, {high:.1f}M at {last}; at most {bend:.1%} off a straight line"
    return Outcome(ours, bend <= STRAIGHT)


CLAIMS = (
    *(_as_published(model) for model in MODELS),
    Observed(
        "LaMemo's extra work over Transformer-XL grows linearly with the memory.",
        "overhead only linearly proportional to the memory length (abstract)",
        _linear,
    ),
)


def figures(results: Results) -> list[Figure]:
    lines = [
        Line(model, sorted((float(each.labels["memory"]), each.values["multiply_adds"] / 1e6) for each in chosen))
        for model in (LAMEMO, TRANSFORMER_XL)
        if (chosen := [each for each in results.select(model=model, kind=NARROW) if each.values])
    ]
    if not lines:
        return []
    caption = "Forward pass in training, per token, with a full memory; the segment stays the same."
    x_label, y_label = "memory", "million multiply-adds"
    return [line_figure("growth", "Work by memory length", caption, lines, x_label=x_label, y_label=y_label)]


def tables(results: Results) -> list[Table]:
    rows = [
        (
            model,
            f"{result.values['parameters'] / 1e6:.1f}M",
            f"{PARAMETERS[model]}M",
            f"{result.values['multiply_adds'] / 1e6:.1f}M",
            f"{FLOPS[model]}M",
            f"{result.values['training_flops'] / 1e6:.0f}M",
            f"{result.values['state_bytes'] / 2**20:.2f} MiB",
        )
        for model in MODELS
        for result in results.select(model=model, kind=WIDE)
        if result.values
    ]
    headers = (
        "model",
        "parameters",
        "published",
        "multiply-adds of a prediction",
        "published",
        "FLOPs of training a token",
        "state of a row",
    )
    caption = "Counted from the configuration, not timed; a multiply-add is two FLOPs in the last but one column."
    return [Table("Cost", headers, rows, caption)] if rows else []


COST = Experiment(
    name="lamemo-flops",
    title="What a prediction costs",
    paper=PAPER,
    covers=("Table 1, FLOPS and parameters",),
    claim="LaMemo takes a fifth more work for a prediction than Transformer-XL with as many parameters; the extra "
    "work is linear in the memory.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, CLAIMS),
    figures=figures,
    tables=tables,
    notes=(
        "small and paper count the published 16-layer models; nothing is trained or timed.",
        "infinity-former's 235M would take some 4,100 samples of its signal, a number that is not published; with "
        "the 512 of its released code it is 187.5M.",
    ),
)
