"""Memory and time per token by number of long-range layers (Table 1)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from mnemo.bench.cases import DEEP, Case
from mnemo.config import to_json
from mnemo.papers.experiment import Budget, Cell, Experiment, Results, Table
from mnemo.papers.grid import Grid
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.long_range import measuring
from mnemo.papers.long_range.arrangement import PAPER
from mnemo.recipes.long_range import LONG, SEGMENT, SHORT
from mnemo.report.plots import Figure, Line, line_figure

NUMBERS = (24, 12, 4, 1, 0)
NAMES: dict[measuring.Formulation, str] = {"mnemo": "Mnemo", "published": "published formulation"}
HALVED = 2.0
"""The introduction: "trains with 2X less time and memory"."""


class Cost(NamedTuple):
    """A cost of a training step, with the paper's Table 1 (a TPUv3 chip)."""

    key: str
    name: str
    unit: str
    factor: float
    """From the stored number to `unit`."""
    slug: str
    axis: str
    paper: dict[int, float]
    """By number of long-range layers."""

    def text(self, value: float) -> str:
        return f"{self.factor * value:.3g}"

    @property
    def paper_saves(self) -> str:
        every, few = self.paper[24], self.paper[4]
        return f"{every:g} {self.unit} with 24 long-range layers, {few:g} with 4: {every / few:.1f}x"


MEMORY = Cost(
    "working_bytes",
    "Activation memory",
    "GB",
    1e-9,
    "memory",
    "GB of activations and state",
    {24: 3.4, 12: 2.8, 4: 1.1, 1: 0.50, 0: 0.20},
)
TIME = Cost(
    "seconds_per_token",
    "Time per token",
    "us",
    1e6,
    "time",
    "microseconds per token",
    {24: 405, 12: 273, 4: 191, 1: 155, 0: 143},
)
COSTS = (MEMORY, TIME)


def _settings(case: Case) -> dict[str, Any]:
    """Without the format of weights, which only generation uses: stored results are older than that field."""
    return {name: value for name, value in to_json(case).items() if name != "weights"}


def case(budget: Budget) -> Case:
    """The published 24-layer model; a small one at `self-test`."""
    deep = Case(
        name="long-profile",
        summary="training step of the enwik8 model",
        section="training",
        segment=SEGMENT,
        memory=LONG,
        batch=16,
        required=1.0,
        short=SHORT,
        dropout=0.15,
        attention_dropout=0.15,
        compile=budget == "paper",
        **DEEP,
    )
    if budget != "self-test":
        return deep
    small = {"num_layers": 6, "dim": 16, "num_heads": 2, "head_dim": 8, "inner_dim": 32}
    return replace(deep, **small, segment=8, memory=64, short=8, batch=2, precision="fp32")


def cells(budget: Budget) -> list[Cell]:
    """Both formulations, one after the other: they must not share the device."""
    numbers = NUMBERS if budget != "self-test" else (6, 3, 1, 0)
    repeats = {"self-test": 1, "small": 4, "paper": 20}[budget]
    found: list[Cell] = []
    for formulation in NAMES:
        settings = {"case": _settings(case(budget)), "formulation": formulation, "long": list(numbers)}
        after = tuple(cell.name for cell in found)
        settings["repeats"] = repeats
        labels = {"formulation": formulation}
        found.append(
            Cell(name=formulation, job="long-profile", settings=settings, labels=labels, after=after, alone=True)
        )
    return found


def measured(results: Results, formulation: str, cost: Cost) -> dict[int, float]:
    """By number of long-range layers, from all to none."""
    plans = [plan for result in results.select(formulation=formulation) for plan in result.values.get("plans", [])]
    return dict(sorted(((int(plan["long"]), float(plan[cost.key])) for plan in plans), reverse=True))


def claims() -> list[Observed]:
    falls = [_falls(formulation, cost) for formulation in NAMES for cost in COSTS]
    return [*falls, *(_halves(cost) for cost in COSTS)]


def _falls(formulation: measuring.Formulation, cost: Cost) -> Observed:
    def observe(results: Results) -> Outcome | None:
        values = list(measured(results, formulation, cost).values())
        if len(values) < 2:
            return None
        return Outcome(f"{', '.join(map(cost.text, values))} {cost.unit}", all(a > b for a, b in pairwise(values)))

    claim = f"{cost.name} ({NAMES[formulation]}) falls with every step from all layers long range to none."
    return Observed(claim, f"{', '.join(f'{value:g}' for value in cost.paper.values())} {cost.unit}", observe)


def _halves(cost: Cost) -> Observed:
    """Of the published formulation, with Mnemo's ratio for comparison."""

    def observe(results: Results) -> Outcome | None:
        plain, ours = (saved(results, formulation, cost) for formulation in ("published", "mnemo"))
        if plain is None:
            return None
        return Outcome(f"{plain:.2f}x" + (f"; {ours:.2f}x with Mnemo's kernels" if ours else ""), plain >= HALVED)

    what = cost.name.lower()
    claim = f"A sixth of the layers long range takes half the {what} or less, in the published formulation."
    return Observed(claim, cost.paper_saves, observe)


def saved(results: Results, formulation: str, cost: Cost) -> float | None:
    """The cost with all layers long range divided by that with a sixth of them."""
    values = measured(results, formulation, cost)
    every = max(values, default=0)
    few = values.get(every // 6)
    return values[every] / few if every and few else None


def figures(results: Results) -> list[Figure]:
    return [figure for cost in COSTS for figure in _figure(results, cost)]


def _figure(results: Results, cost: Cost) -> list[Figure]:
    found = {name: measured(results, formulation, cost) for formulation, name in NAMES.items()}
    lines = [
        Line(name, [(float(number), cost.factor * value) for number, value in sorted(values.items())])
        for name, values in found.items()
        if values
    ]
    if not lines:
        return []
    title, caption = f"{cost.name} by number of long-range layers", "One training step, every memory full."
    return [line_figure(cost.slug, title, caption, lines, x_label="long-range layers", y_label=cost.axis)]


def tables(results: Results) -> list[Table]:
    columns = [(cost, measured(results, formulation, cost)) for formulation in NAMES for cost in COSTS]
    numbers = sorted({number for _, column in columns for number in column}, reverse=True)
    if not numbers:
        return []
    ours = [f"{name}, {cost.unit}" for name in NAMES.values() for cost in COSTS]
    headers = ["long-range layers", *ours, *(f"paper, {cost.unit}" for cost in COSTS)]
    rows = [
        [number, *(cost.text(column[number]) if number in column else "" for cost, column in columns)]
        + [f"{cost.paper[number]:g}" if number in cost.paper and numbers[0] == NUMBERS[0] else "" for cost in COSTS]
        for number in numbers
    ]
    caption = (
        "GB: activations and state of a training step at its peak, without weights and moments. us: per token. "
        "The paper's columns are its Table 1, on TPUv3 with two rows a chip."
    )
    return [Table(title="Memory and time per token", headers=headers, rows=rows, caption=caption)]


PROFILE = Experiment(
    name="long-profile",
    title="What long memories cost in training",
    paper=PAPER,
    covers=("Table 1",),
    claim="Activation memory and time per token fall with the number of long-range layers; 4 of 24 need 2.1x less time "
    "and 3.1x less memory than all.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, claims()),
    figures=figures,
    tables=tables,
    notes=(
        "`small` and `paper` measure the published 24-layer model itself (277M parameters, segment 384, memories of "
        "2,304 and 128, full) in bf16 on one GPU with 16 rows; the paper's chips have two rows each. Mnemo's step is "
        "compiled at `paper` only.",
        "The published formulation keeps scores of every pair of query and key for the backward pass, as the paper's "
        "code does; Mnemo's kernels do not, so a plan saves less.",
        "The two cells run one after the other; timings are valid only if no other process uses the GPU.",
    ),
)
