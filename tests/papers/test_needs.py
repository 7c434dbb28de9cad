"""What a budget needs: corpora, a device that holds its models, and the time of its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.toy_experiment import cell, experiment, tiny, use_numbers

from mnemo import cli
from mnemo import papers as experiments
from mnemo.errors import MnemoError
from mnemo.model import memory_limits
from mnemo.papers import needs
from mnemo.papers.experiment import Budget
from mnemo.papers.jobs import training_cell
from mnemo.papers.needs import require_needs
from mnemo.recipes.recipe import DataConfig

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def number_job(monkeypatch: pytest.MonkeyPatch) -> None:
    use_numbers(monkeypatch)


def test_missing_corpora_and_machines_that_are_too_small_are_refused_before_training() -> None:
    no_corpus = experiment(training_cell("one", tiny(data=DataConfig(corpus="novels-nobody-has")), {}))
    with pytest.raises(MnemoError, match="not prepared.*mnemo prepare novels-nobody-has --from"):
        require_needs(no_corpus, "small", CPU)
    huge = replace(tiny().train, batch=2**20, segment=2**10)
    too_large = experiment(training_cell("one", tiny(train=huge), {}))
    with pytest.raises(MnemoError, match=r"toy-numbers at budget small needs [\d,.]+ GiB .* has [\d,.]+ GiB"):
        require_needs(too_large, "small", CPU)
    require_needs(experiment(training_cell("one", tiny(), {})), "small", CPU)


@pytest.mark.parametrize("name", ["xl-evaluation-speed", pytest.param("long-profile", marks=pytest.mark.thorough)])
def test_a_budget_that_the_machine_cannot_hold_is_refused_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models that are only measured too."""
    monkeypatch.setattr(memory_limits, "memory_bytes", lambda device: 2**30)
    assert cli.main(["reproduce", name, "--budget", "paper", "--device", "cpu", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert f"{name} at budget paper needs " in said.err and "this one has 1.0 GiB" in said.err and not said.out
    assert list(tmp_path.iterdir()) == []


def test_the_training_of_all_cells_is_counted() -> None:
    three, five, two = (training_cell(f"of-{steps}", tiny(steps=steps), {}) for steps in (3, 5, 2))
    assert needs.training_flops([three, five, cell(1)]) == 4 * needs.training_flops([two]) > 0


def test_recipes_that_a_job_does_not_train_are_not_counted() -> None:
    asked: tuple[tuple[str, Budget], ...] = (
        ("gpu-xl", "gpu"),
        ("xl-equal-memory", "self-test"),
        ("gpu-quadratic", "gpu"),
    )
    by_job = {each.job: each for name, budget in asked for each in experiments.find_experiment(name).cells(budget)}
    assert needs.training_flops([by_job["long-pace"], by_job["xl-fit-length"]]) == 0
    decided = by_job["rmt-task-after-pilot"]
    ways = [replace(decided, job="rmt-task", settings=decided.settings[way]) for way in ("at once", "in stages")]
    assert needs.training_flops([decided]) == needs.training_flops(ways[:1]) == needs.training_flops(ways[1:]) > 0
