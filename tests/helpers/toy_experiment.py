"""Experiments whose cells take no time, and tiny runs of training, for tests of the machinery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mnemo import papers as experiments
from mnemo.errors import MnemoError
from mnemo.memory import XL, Plan
from mnemo.model import ModelConfig
from mnemo.papers import Cell, Experiment, Results
from mnemo.papers.jobs import JOBS, Place
from mnemo.papers.store import RESULT
from mnemo.recipes.recipe import EvalConfig, Recipe, TrainConfig
from mnemo.report.findings import Table, Verdict
from mnemo.report.plots import Line, line_figure


def tiny(steps: int = 2, **changes: Any) -> Recipe:
    model = ModelConfig(num_layers=1, dim=16, num_heads=2, head_dim=8, inner_dim=16, memory=Plan(long=XL(length=4)))
    training = TrainConfig(steps=steps, batch=2, segment=8, log_every=1, eval_every=2, device="cpu")
    return replace(Recipe(model=model, train=training, evaluation=EvalConfig(batch=2, limit=200)), **changes)


def made(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    if settings.get("fails"):
        raise MnemoError("the sky is falling")
    for name in settings.get("reads", []):
        assert (place.of(name) / RESULT).exists()
    place.run.mkdir(exist_ok=True)
    with (place.grid / "made.txt").open("a") as file:
        file.write(f"{place.folder.name}\n")
    return {"accuracy": settings["number"] / 10}


def use_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, cells of `experiment` can run."""
    monkeypatch.setitem(JOBS, "number", made)


def cell(number: int, **settings: Any) -> Cell:
    after = tuple(settings.get("reads", ()))
    labels = {"model": "A" if number % 2 else "B", "seed": number}
    return Cell(name=f"n{number}", job="number", settings={"number": number, **settings}, labels=labels, after=after)


def experiment(*cells: Cell, name: str = "toy-numbers") -> Experiment:
    def verdicts(results: Results) -> list[Verdict]:
        values = results.values("accuracy", model="A")
        holds = max(values) > 0.2 if len(values) > 1 else None
        return [Verdict(claim="A reaches more than 0.2.", paper="0.5", ours=f"{values}", holds=holds)]

    def figures(results: Results) -> list[Any]:
        points = [(each.labels["seed"], float(each.values["accuracy"])) for each in results.cells]
        return [line_figure("numbers", "Numbers", "All.", [Line("A", points)], x_label="seed", y_label="accuracy")]

    def tables(results: Results) -> list[Table]:
        return [
            Table("All", ("cell", "accuracy"), [(each.cell.name, each.values["accuracy"]) for each in results.cells])
        ]

    return Experiment(
        name=name,
        title="Numbers <grow>",
        paper="A paper",
        covers=("Table 1",),
        claim="Numbers grow.",
        cells=lambda budget: list(cells),
        verdicts=verdicts,
        figures=figures,
        tables=tables,
        notes=("Ours are made up.",),
    )


def known(monkeypatch: pytest.MonkeyPatch, *those: Experiment) -> None:
    # Modules that copy the name are patched first: patching imports them, and they must copy the original.
    monkeypatch.setattr("mnemo.papers.pages.every_experiment", lambda: {each.name: each for each in those})
    monkeypatch.setattr("mnemo.cli.reproduction.every_experiment", lambda: {each.name: each for each in those})
    monkeypatch.setattr(experiments, "every_experiment", lambda: {each.name: each for each in those})
    monkeypatch.setattr(experiments, "NAMES", tuple(each.name for each in those))


def folders(path: Path) -> list[str]:
    return ["--out", str(path / "out"), "--site", str(path / "site")]


def toy_command(path: Path) -> list[str]:
    return ["reproduce", "toy-numbers", "--budget", "small", *folders(path), "--device", "cpu"]


def lines(grid: Path) -> list[str]:
    return (grid / "made.txt").read_text().split()
