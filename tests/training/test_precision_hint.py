"""The hint that bf16 is faster on a CPU: only for processors and sizes where it is, and only where the flag works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.monitors import Notes
from helpers.tiny_runs import sample_text
from helpers.toy_runs import recipe as toy_recipe
from helpers.toy_runs import run, toy

from mnemo import cli
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import DataConfig, Recipe, TrainConfig
from mnemo.training import precision_hint as hints
from mnemo.training.precision_hint import precision_hint

CPU = torch.device("cpu")
MODEL = ModelConfig(vocab_size=16, num_layers=2, dim=128, num_heads=4, head_dim=32, inner_dim=256)
RECIPE = Recipe(model=MODEL, data=DataConfig(corpus="any"), train=TrainConfig(batch=8, segment=32))


@pytest.fixture(autouse=True)
def bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "obstacle", lambda weights, device: None)


def with_training(**changes: object) -> Recipe:
    return replace(RECIPE, train=replace(RECIPE.train, **changes))  # type: ignore[arg-type]


def test_a_run_in_fp32_is_told_that_bf16_is_faster() -> None:
    assert "--train.precision bf16" in str(precision_hint(RECIPE, CPU))


@pytest.mark.parametrize(
    "recipe",
    [
        with_training(precision="bf16"),
        with_training(batch=4),
        with_training(accumulate=2),
        replace(RECIPE, model=replace(MODEL, dim=64)),
    ],
    ids=["already", "few rows", "small parts", "narrow"],
)
def test_nothing_is_said_where_bf16_gains_little(recipe: Recipe) -> None:
    assert precision_hint(recipe, CPU) is None


def test_nothing_is_said_on_other_devices_and_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert precision_hint(RECIPE, torch.device("cuda")) is None
    monkeypatch.setattr(hints, "obstacle", lambda weights, device: "too old")
    assert precision_hint(RECIPE, CPU) is None


TINY = [
    *("--model.num-layers", "1", "--model.dim", "8", "--model.num-heads", "1", "--model.head-dim", "4"),
    *("--model.inner-dim", "8", "--train.steps", "2", "--train.batch", "2", "--train.segment", "4"),
    *("--train.device", "cpu", "--evaluation.batch", "2", "--evaluation.limit", "20", "--test.batch", "2"),
]


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is given for small models, too."""
    monkeypatch.setattr(hints, "LEAST_WIDTH", 1)
    monkeypatch.setattr(hints, "LEAST_ROWS", 1)


def hints_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    assert cli.main(argv) == 0
    return capsys.readouterr().err.count("hint: this processor has products in bf16: --train.precision bf16")


@pytest.mark.usefixtures("any_size")
def test_a_new_run_is_told_once_and_a_resumed_one_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy()
    monkeypatch.chdir(tmp_path)
    new = ["train", "tiny-bytes", "--data.corpus", "toy", *TINY]
    assert hints_of([*new, "--name", "new"], capsys) == 1
    assert hints_of(["train", "--resume", "new"], capsys) == 0
    assert hints_of(["train", "--resume", "new", "--train.steps", "4"], capsys) == 0
    assert hints_of([*new, "--name", "half", "--train.precision", "bf16"], capsys) == 0


@pytest.mark.usefixtures("any_size")
def test_a_sweep_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(sample_text(), encoding="utf-8")
    sweep = ["sweep", "book.txt", "--memory", "none,xl", *TINY, "--seeds"]
    assert hints_of([*sweep, "1"], capsys) == 1
    assert hints_of([*sweep, "2"], capsys) == 0, "a sweep that goes on keeps its precision"


@pytest.mark.usefixtures("any_size")
def test_nothing_is_said_by_what_has_no_such_flag(tmp_path: Path) -> None:
    """As in `mnemo demo` and in cells of experiments, which train without the command."""
    notes = Notes()
    run(tmp_path / "run", of=toy_recipe(device="cpu"), monitor=notes)
    assert notes.lines and not any("bf16" in line for line in notes.lines)
