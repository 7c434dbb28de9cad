"""Penn Treebank: the self-test, and verdicts about made-up results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mnemo.config import from_json
from mnemo.papers.experiment import PAPER_BUDGETS, CellResult, Results
from mnemo.papers.jobs import Place, find_job
from mnemo.papers.xl.penn_treebank import PENN_TREEBANK, protocols
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.training import Unwatched


def score(loss: float, **more: Any) -> dict[str, Any]:
    return {"loss": loss, "segment": 10, "context": 130, "memory": 0, **more}


def result(valid: float, test: float, fitted: float, parameters: int = 23_900_000) -> CellResult:
    (cell,) = PENN_TREEBANK.cells("small")
    at = {split: {"plain": score(math.log(ppl))} for split, ppl in (("valid", valid), ("test", test))}
    at["valid"]["fitted"], at["test"]["fitted"] = score(math.log(valid) - 0.01), score(math.log(fitted))
    values = {"parameters": parameters, "temperature": 1.08, "protocols": [score(math.log(valid))], **at}
    values["curve"] = [[10, 5.0], [20, 4.2]]
    return CellResult(cell=cell, values=values, seconds=1.0, hardware="none", versions={})


def holds(*found: CellResult, budget: Any = "small") -> list[bool | None]:
    return [verdict.holds for verdict in PENN_TREEBANK.verdicts(Results(budget=budget, cells=found))]


def test_the_score_at_the_fitted_temperature_decides() -> None:
    assert holds(result(59.0, 55.0, 54.4)) == [True, True, True]
    assert holds(result(59.0, 55.9, 55.5)) == [False, True, True]
    assert holds(result(61.0, 57.5, 56.4)) == [False, False, True]
    assert holds(result(64.0, 60.0, 59.0)) == [False, False, False]


def test_a_model_that_is_too_large_holds_nothing() -> None:
    assert holds(result(55.0, 52.0, 51.0, parameters=25_000_000)) == [False, False, False]


def test_claims_without_results_are_open() -> None:
    results = Results(budget="small", cells=[])
    assert holds() == [None, None, None]
    assert PENN_TREEBANK.figures(results) == [] and PENN_TREEBANK.tables(results) == []
    assert holds(result(59.0, 55.0, 54.4), budget="self-test") == [None, None, None]


def test_the_table_has_both_temperatures() -> None:
    results = Results(budget="small", cells=[result(59.0, 55.0, 54.4)])
    main, tried = PENN_TREEBANK.tables(results)
    assert all(len(row) == len(main.headers) for row in main.rows)
    assert list(main.rows[-1])[2:] == ["59.00", "55.00", "1.08", "58.41", "54.40"]
    assert list(tried.rows[0])[1:] == [10, 130, 0, "59.00"]
    assert len(PENN_TREEBANK.figures(results)) == 1
    ours = PENN_TREEBANK.verdicts(results)[0].ours
    assert "55.00" in ours and "54.40 at temperature 1.08" in ours and "23,900,000" in ours


@pytest.mark.parametrize("budget", PAPER_BUDGETS)
def test_cells_are_plain_data(budget: Any) -> None:
    found = PENN_TREEBANK.cells(budget)
    assert len({cell.name for cell in found}) == len(found) > 0
    for cell in found:
        settings = json.loads(json.dumps(cell.settings))
        recipe = from_json(Recipe, settings["recipe"])
        assert [from_json(EvalConfig, each) for each in settings["protocols"]] == protocols(recipe)


def test_the_recipes_own_test_is_among_the_protocols() -> None:
    assert EvalConfig(batch=10, segment=10, context=130) in protocols(preset("ptb"))
    assert EvalConfig(batch=10, segment=16, memory=240) in protocols(preset("ptb-fast"))


@pytest.mark.parametrize("index", [0, 1])
def test_the_self_test_trains_chooses_and_tests(index: int, tmp_path: Path) -> None:
    cell = PENN_TREEBANK.cells("self-test")[index]
    place = Place(tmp_path / cell.name, tmp_path, torch.device("cpu"), Unwatched())
    values = json.loads(json.dumps(find_job(cell.job)(cell.settings, place)))
    assert values["steps"] == 3 and len(values["protocols"]) == 3
    best = min(values["protocols"], key=lambda each: each["loss"])
    assert values["valid"]["plain"] == best and values["valid"]["fitted"]["loss"] <= best["loss"]
    lengths = ("memory", "context", "segment")
    assert [values["test"]["plain"][name] for name in lengths] == [best[name] for name in lengths]
    assert values["test"]["plain"]["split"] == "test" and values["test"]["plain"]["batch"] == 1
    assert values["test"]["fitted"]["temperature"] == values["temperature"]
    found = CellResult(cell=cell, values=values, seconds=1.0, hardware="cpu", versions={})
    assert [each.holds for each in PENN_TREEBANK.verdicts(Results(budget="self-test", cells=[found]))] == [None] * 3
    assert len(PENN_TREEBANK.tables(Results(budget="self-test", cells=[found]))[0].rows) == 15
