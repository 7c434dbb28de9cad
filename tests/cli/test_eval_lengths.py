"""`mnemo eval` tests at the memory length of training, unless another one is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.edited_files import edit_json
from helpers.toy_runs import toy

from mnemo import cli
from mnemo.storage.run_folder import load_header, open_run

TINY = [
    *("--data.corpus", "toy", "--train.steps", "2", "--train.batch", "2", "--train.segment", "4"),
    *("--evaluation.batch", "2", "--test.batch", "2", "--model.num-layers", "2", "--train.device", "cpu"),
    *("--model.dim", "8", "--model.num-heads", "1", "--model.head-dim", "4", "--model.inner-dim", "8"),
]
TRAINED, TESTED = 64, 256
"""Of the preset tiny-bytes."""


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy()
    monkeypatch.chdir(tmp_path)


def trained(*options: str) -> Path:
    assert cli.main(["train", *options, *TINY, "--name", "run", "--json"]) == 0
    return Path("runs/run")


def evaluated(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["eval", "runs/run", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert cli.main(["eval", "runs/run", *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("length", [0, 6])
def test_an_overridden_length_is_the_length_of_the_test(length: int, capsys: pytest.CaptureFixture[str]) -> None:
    trained("tiny-bytes", "--model.memory.long.length", str(length))
    found = evaluated(capsys)
    assert found["score"]["memory"] == found["trained_memory"] == length
    assert "trained at" not in printed(capsys)


def test_a_model_without_memory_stays_without_in_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run(trained("tiny-bytes", "--model.memory.long.length", "0"), device="cpu")
    assert run.recipe.test.memory is None
    assert run.model.memory_lengths(run.first_state(1)) == (0, 0)
    assert evaluated(capsys, "--split", "test")["score"]["memory"] == 0


def test_a_preset_that_tests_longer_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    trained("tiny-bytes")
    found = evaluated(capsys)
    assert (found["score"]["memory"], found["trained_memory"]) == (TESTED, TRAINED)
    assert f"evaluated at memory {TESTED}, trained at {TRAINED}\n" in printed(capsys)


def test_a_flag_asks_for_another_length(capsys: pytest.CaptureFixture[str]) -> None:
    trained("tiny-bytes", "--model.memory.long.length", "6")
    found = evaluated(capsys, "--memory", "20")
    assert (found["score"]["memory"], found["trained_memory"]) == (20, 6)
    assert "evaluated at memory 20, trained at 6\n" in printed(capsys, "--memory", "20")
    assert "trained at" not in printed(capsys, "--sweep-memory", "0,20")


@pytest.mark.parametrize("tested", ["20", str(TESTED), "0"])
def test_an_explicit_test_length_counts_whatever_the_training_length(
    tested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("tiny-bytes", "--model.memory.long.length", "6", "--test.memory", tested)
    assert evaluated(capsys)["score"]["memory"] == int(tested)


@pytest.mark.parametrize(
    "memory",
    [
        ["--model.memory.long", "compressive", "--model.memory.long.compressed", "2"],
        ["--model.memory.long", "lookahead"],
        ["--model.memory.long", "infinite", "--model.memory.long.basis", "4", "--model.memory.long.samples", "4"],
        ["--model.tokens", "memory-tokens", "--model.tokens.num", "2"],
    ],
    ids=["compressive", "lookahead", "infinite", "tokens"],
)
def test_another_memory_is_tested_at_its_training_length(memory: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    trained("tiny-bytes", *memory)
    assert evaluated(capsys)["score"]["memory"] == TRAINED


def test_validation_uses_an_overridden_length(capsys: pytest.CaptureFixture[str]) -> None:
    trained("enwik8-base", "--model.memory.long.length", "0")
    recipe = load_header(Path("runs/run")).recipe
    assert recipe.evaluation.memory is None and recipe.test.memory is None
    assert "memory as in training" in next(
        line for line in capsys.readouterr().err.splitlines() if "validation:" in line
    )


def test_a_run_from_another_has_its_lengths_until_its_memory_changes(capsys: pytest.CaptureFixture[str]) -> None:
    trained("tiny-bytes")
    for length, expected in (("64", TESTED), ("6", None)):
        name = f"from-{length}"
        more = ["--name", name, "--model.memory.long.length", length, "--train.steps", "1", "--json"]
        assert cli.main(["train", "--from", "runs/run", *more]) == 0
        assert load_header(Path("runs") / name).recipe.test.memory == expected


def test_a_run_of_the_first_release_is_tested_at_its_overridden_length(capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained("tiny-bytes", "--model.memory.long.length", "0")
    path = folder / "recipe.json"
    edit_json(path, lambda data: data.pop("settled_lengths"))
    edit_json(path, lambda data: data["recipe"]["test"].update(memory=TESTED))  # as that release stored it
    assert evaluated(capsys)["score"]["memory"] == 0
    edit_json(path, lambda data: data["recipe"]["test"].update(memory=20))  # given by the user
    assert evaluated(capsys)["score"]["memory"] == 20


def test_bits_per_symbol_have_their_usual_name(capsys: pytest.CaptureFixture[str]) -> None:
    trained("tiny-bytes")
    out = json.loads(capsys.readouterr().out)
    assert out["best"]["bpc"] == pytest.approx(out["best"]["loss"] / 0.6931471805599453)
    score = evaluated(capsys)["score"]
    assert score["bpc"] == score["bits_per_token"] == pytest.approx(score["loss"] / 0.6931471805599453)
