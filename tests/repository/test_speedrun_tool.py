"""The record of a speedrun has the numbers of its run."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from mnemo.config import to_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import write_json
from mnemo.model.layers import DropoutConfig
from mnemo.model.shapes import num_parameters
from mnemo.recipes.presets import preset
from mnemo.report.runs import read_run
from tools import speedrun

FACTS = {
    "what": "novels, one seed",
    "unit": "byte",
    "hardware": "a GPU",
    "versions": {},
    "date": "2026-11-18",
    "reference": ["goal", 1.3],
}
DOCS = Path(__file__).parents[2] / "docs"
RECIPE = preset("tiny-bytes")
SYMBOLS = RECIPE.train.batch * RECIPE.train.segment
STEPS = [*range(100, 8001, 100)]
WARMUP = RECIPE.train.schedule.warmup


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """80 intervals of 100 steps in a second each, of which the first also compiles."""
    write_json(tmp_path / "recipe.json", {"format_version": 1, "recipe": to_json(RECIPE)})
    train = [
        {"step": step, "split": "train", "loss": math.log(2) * (1 + 100 / step), "grad_norm": 100 / step, "tokens": 1}
        for step in STEPS
    ]
    train[50]["grad_norm"] = None
    valid = {"step": STEPS[-1], "split": "valid", "loss": 1.25 * math.log(2)}
    write_lines(tmp_path / "metrics.jsonl", [*train, valid])
    speeds = [{"step": step, "seconds": 60 + step / 100, "tokens_per_second": 100.0 * SYMBOLS} for step in STEPS]
    write_lines(tmp_path / "timing.jsonl", speeds)
    (tmp_path / "results").mkdir()
    for number, (split, batch, memory, nats) in enumerate(
        [("valid", 32, 1024, 1.25), ("test", 32, 1024, 1.75), ("test", 1, 1024, 1.5), ("test", 32, 512, 2.0)]
    ):
        score = dict(split=split, memory=memory, batch=batch, segment=512, context=0, clamp=None, tokens=1000)
        score |= {"loss": nats * math.log(2)}
        write_json(tmp_path / "results" / f"score-{number}.json", {"format_version": 1, "score": score})
    return tmp_path


def test_the_record_has_the_numbers_of_the_run(folder: Path) -> None:
    found = speedrun.record(read_run(folder, "novels"), FACTS)
    assert found["training_seconds"] == 80.0 and found["seconds_in_all"] == 140.0
    assert found["symbols"] == 8000 * SYMBOLS and found["symbols_per_second"] == 100 * SYMBOLS
    assert found["parameters"] == num_parameters(RECIPE.model)
    assert found["largest_grad_norm_after_warmup"] == round(100 / min(step for step in STEPS if step > WARMUP), 3)
    assert found["valid"] == {"8000": 1.25}
    curve = [int(step) for step in found["train"]]
    assert curve[-1] == 8000 and {after - before for before, after in pairwise(curve)} == {200}
    assert found["train"]["8000"] == 1.0125
    scores = [(each["split"], each["batch"], each["memory"], each["bpc"]) for each in found["scores"]]
    assert scores == [
        ("test", 1, 1024, 1.5),
        ("test", 32, 512, 2.0),
        ("test", 32, 1024, 1.75),
        ("valid", 32, 1024, 1.25),
    ]


def test_files_are_written_and_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, numbers, drawing = (tmp_path / name for name in ("facts.json", "numbers.json", "curves.svg"))
    facts.write_text(json.dumps(FACTS))
    speedrun.write(str(folder), str(facts), str(numbers), str(drawing))
    assert capsys.readouterr().out.split() == [str(numbers), str(drawing)]
    assert json.loads(numbers.read_text())["steps"] == 8000 and drawing.read_text().startswith("<svg")
    facts.write_text(json.dumps({name: value for name, value in FACTS.items() if name != "date"}))
    with pytest.raises(MnemoError, match=r"facts.json lacks date$"):
        speedrun.write(str(folder), str(facts), str(numbers), str(drawing))


def test_a_run_without_the_score_that_counts_is_refused(folder: Path) -> None:
    (folder / "results" / "score-2.json").unlink()
    with pytest.raises(MnemoError, match="no test score in one row"):
        speedrun.record(read_run(folder, "novels"), FACTS)


def test_a_run_that_went_back_is_refused(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"split": "event", "event": "rollback", "bad_step": 7, "back_to": 5}) + "\n")
    with pytest.raises(MnemoError, match="went back after a divergence"):
        speedrun.record(read_run(folder, "novels"), FACTS)


def test_the_picture_shows_both_curves_and_the_reference(folder: Path) -> None:
    svg = speedrun.picture(read_run(folder, "novels"), "novels", FACTS)
    assert all(words in svg for words in ("bits per byte", "training", "goal", "to 1.012 at 8,000"))
    assert ("with dropout" in svg) == (RECIPE.model.dropout != DropoutConfig())


def test_the_stored_record_is_that_of_the_preset() -> None:
    stored = json.loads((DOCS / "measurements" / "h200-novels.json").read_text())
    assert stored["recipe"] == json.loads(json.dumps(to_json(preset("speedrun-novels"))))
    assert "speedrun-novels" in stored["what"] and "H200" in stored["hardware"]
    assert stored["what"] in (DOCS / "pictures" / "speedrun-novels.svg").read_text()
    (counts,) = [each for each in stored["scores"] if each["split"] == "test" and each["batch"] == 1]
    assert stored["training_seconds"] < 450 and counts["bpc"] <= 1.34
    page = (DOCS / "speedrun.md").read_text()
    assert (
        f"**{counts['bpc']:.4f}**" in page and f"**{counts['bpc']:.3f}** | {stored['training_seconds']:.0f} |" in page
    )
