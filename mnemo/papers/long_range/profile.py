"""Memory and time per token by number of long-range layers (Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mnemo.bench.cases import DEEP, Case
from mnemo.config import to_json
from mnemo.papers.experiment import Budget, Cell, Experiment, Results, Table, Verdict
from mnemo.papers.long_range import measuring
from mnemo.papers.long_range.arrangement import PAPER
from mnemo.papers.long_range.comparing import judged, missing
from mnemo.recipes.long_range import LONG, SHORT, WINDOW
from mnemo.report.plots import Figure, Line, line_figure

NUMBERS = (24, 12, 4, 1, 0)
PUBLISHED = {24: (3.4, 405), 12: (2.8, 273), 4: (1.1, 191), 1: (0.50, 155), 0: (0.20, 143)}
"""GB and microseconds per token, on a TPUv3 chip."""
NAMES: dict[measuring.Formulation, str] = {"mnemo": "Mnemo", "published": "published formulation"}
"""Of what is measured."""
PAPER_SAVES = {"seconds_per_token": "405 / 191 us: 2.1x", "working_bytes": "3.4 / 1.1 GB: 3.1x"}
TOY = "; a toy model decides nothing"
HALF = 2.0
"""The introduction: "trains with 2X less time and memory"."""


def case(budget: Budget) -> Case:
    """The 24-layer model itself, but for `smoke`."""
    deep = Case(
        name="long-profile",
        summary="training step of the enwik8 model",
        section="training",
        segment=WINDOW,
        memory=LONG,
        batch=16,
        required=1.0,
        short=SHORT,
        dropout=0.15,
        attention_dropout=0.15,
        compile=budget == "paper",
        **DEEP,
    )
    if budget != "smoke":
        return deep
    small = {"num_layers": 6, "dim": 16, "num_heads": 2, "head_dim": 8, "inner_dim": 32}
    return replace(deep, **small, segment=8, memory=64, short=8, batch=2, precision="fp32")


def cells(budget: Budget) -> list[Cell]:
    """Both formulations in turn, so that neither disturbs the other."""
    numbers = NUMBERS if budget != "smoke" else (6, 3, 1, 0)
    repeats = {"smoke": 1, "small": 4, "paper": 20}[budget]
    found: list[Cell] = []
    for formulation in NAMES:
        settings = {"case": to_json(case(budget)), "formulation": formulation, "long": list(numbers)}
        after = tuple(cell.name for cell in found)
        settings["repeats"] = repeats
        labels = {"formulation": formulation}
        found.append(
            Cell(name=formulation, job="long-profile", settings=settings, labels=labels, after=after, alone=True)
        )
    return found


def measured(results: Results, formulation: str, key: str) -> list[tuple[int, float]]:
    """By number of long-range layers, from all to none."""
    plans = [plan for result in results.select(formulation=formulation) for plan in result.values.get("plans", [])]
    return sorted(((int(plan["long"]), float(plan[key])) for plan in plans), reverse=True)


def verdicts(results: Results) -> list[Verdict]:
    found = []
    for formulation, name in NAMES.items():
        found += [
            _falls(results, formulation, "working_bytes", f"Activation memory ({name})"),
            _falls(results, formulation, "seconds_per_token", f"Time per token ({name})"),
        ]
    found.append(_halved(results, "working_bytes", "memory"))
    found.append(_halved(results, "seconds_per_token", "time per token"))
    return found


def _falls(results: Results, formulation: str, key: str, what: str) -> Verdict:
    claim = f"{what} falls with every step from all layers long range to none."
    paper = {"working_bytes": "3.4, 2.8, 1.1, 0.50, 0.20 GB", "seconds_per_token": "405, 273, 191, 155, 143 us"}[key]
    values = measured(results, formulation, key)
    if len(values) < 2:
        return missing(claim, paper)
    falling = all(more > less for (_, more), (_, less) in zip(values, values[1:], strict=False))
    ours = ", ".join(f"{_shown(key, value)}" for _, value in values) + f" {_unit(key)}"
    return judged(results, claim, paper, ours, falling, smoke=TOY)


def _halved(results: Results, key: str, what: str) -> Verdict:
    """Of the published formulation; what is left with Mnemo's kernels is said beside it."""
    claim = f"A sixth of the layers long range takes half the {what} or less, in the published formulation."
    plain, ours = (_saved(results, formulation, key) for formulation in ("published", "mnemo"))
    if plain is None:
        return missing(claim, PAPER_SAVES[key])
    text = f"{plain:.2f}x" + (f"; {ours:.2f}x with Mnemo's kernels" if ours is not None else "")
    return judged(results, claim, PAPER_SAVES[key], text, plain >= HALF, smoke=TOY)


def _saved(results: Results, formulation: str, key: str) -> float | None:
    """Times as much with all layers long range as with a sixth of them."""
    values = dict(measured(results, formulation, key))
    every = max(values, default=0)
    few = values.get(every // 6)
    return values[every] / few if every and few else None


def _unit(key: str) -> str:
    return "GB" if key == "working_bytes" else "us"


def _scaled(key: str, value: float) -> float:
    return value / 1e9 if key == "working_bytes" else value * 1e6


def _shown(key: str, value: float) -> str:
    return f"{_scaled(key, value):.3g}"


def figures(results: Results) -> list[Figure]:
    about = {
        "working_bytes": ("memory", "Activation memory by number of long-range layers", "GB of activations and state"),
        "seconds_per_token": ("time", "Time per token by number of long-range layers", "microseconds per token"),
    }
    found = []
    for key, (slug, title, label) in about.items():
        lines = [
            Line(name, [(float(long), _scaled(key, value)) for long, value in sorted(values)])
            for formulation, name in NAMES.items()
            if (values := measured(results, formulation, key))
        ]
        if lines:
            caption = "One training step, every memory full."
            found.append(line_figure(slug, title, caption, lines, x_label="long-range layers", y_label=label))
    return found


def tables(results: Results) -> list[Table]:
    keys = ("working_bytes", "seconds_per_token")
    columns = [dict(measured(results, formulation, key)) for formulation in NAMES for key in keys]
    numbers = sorted({number for column in columns for number in column}, reverse=True)
    if not numbers:
        return []
    headers = ["long-range layers", *(f"{name}, {unit}" for name in NAMES.values() for unit in ("GB", "us/token"))]
    paper = PUBLISHED if numbers[0] == max(PUBLISHED) else {}
    rows = [_row(number, columns, keys, paper.get(number, ("", ""))) for number in numbers]
    caption = (
        "GB: activations and state of a training step at its peak, without weights and moments. "
        "The paper's columns are its Table 1, on TPUv3 with two rows a chip."
    )
    title = "Memory and time per token"
    return [Table(title=title, headers=[*headers, "paper, GB", "paper, us/token"], rows=rows, caption=caption)]


def _row(number: int, columns: Sequence[dict[int, float]], keys: Sequence[str], paper: tuple[Any, Any]) -> list[Any]:
    shown = [
        _shown(key, column[number]) if number in column else ""
        for column, key in zip(columns, [*keys, *keys], strict=True)
    ]
    return [number, *shown, *map(str, paper)]


PROFILE = Experiment(
    name="long-profile",
    title="What long memories cost in training",
    paper=PAPER,
    covers=("Table 1",),
    claim="Activation memory and time per token fall with the number of long-range layers; 4 of 24 need 2.1x less time "
    "and 3.1x less memory than all.",
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "`small` and `paper` measure the published 24-layer model itself (277M parameters, segment 384, memories of "
        "2,304 and 128, full) in bf16 on one GPU with 16 rows; the paper's chips have two rows each. Mnemo's step is "
        "compiled at `paper` only.",
        "The published formulation keeps scores of every pair of query and key for the backward pass, as the paper's "
        "code does; Mnemo's kernels do not, so that there is less for a plan to save.",
        "Timings want the GPU to themselves: the two cells run one after the other, and nothing else should run beside "
        "them.",
    ),
)
