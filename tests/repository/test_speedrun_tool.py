"""The record of a speedrun has the numbers of its run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mnemo.config import to_json
from mnemo.files.json_file import write_json
from mnemo.model.shapes import num_parameters
from mnemo.recipes.presets import preset
from mnemo.report.runs import read_run
from tools import speedrun

FACTS = {
    "what": "novels, one seed",
    "hardware": "a GPU",
    "versions": {},
    "date": "2026-11-18",
    "reference": ["goal", 1.3],
}
RECIPE = preset("tiny-bytes")
SYMBOLS = RECIPE.train.batch * RECIPE.train.segment


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three intervals of 100 steps, of which the first also compiles."""
    write_json(tmp_path / "recipe.json", {"format_version": 1, "recipe": to_json(RECIPE)})
    train = [
        {"step": step, "split": "train", "loss": loss * math.log(2), "grad_norm": norm, "tokens": step * SYMBOLS}
        for step, loss, norm in ((100, 3.0, 9.0), (200, 2.0, 8.0), (300, 1.5, 0.5))
    ]
    write_lines(tmp_path / "metrics.jsonl", [*train, {"step": 300, "split": "valid", "loss": 1.25 * math.log(2)}])
    speeds = [{"step": step, "seconds": 60.0 + step, "tokens_per_second": 100.0 * SYMBOLS} for step in (100, 200, 300)]
    write_lines(tmp_path / "timing.jsonl", speeds)
    (tmp_path / "results").mkdir()
    for split, batch, bits in (("test", 1, 1.5), ("test", 32, 1.75), ("valid", 32, 1.25)):
        score = {"split": split, "memory": 1024, "batch": batch, "tokens": 1000, "loss": bits * math.log(2)}
        write_json(tmp_path / "results" / f"score-{split}-{batch}.json", {"format_version": 1, "score": score})
    return tmp_path


def test_the_record_has_the_numbers_of_the_run(folder: Path) -> None:
    found = speedrun.record(read_run(folder, "novels"), FACTS)
    assert found["training_seconds"] == 3.0 and found["seconds_in_all"] == 360.0
    assert found["symbols"] == 300 * SYMBOLS and found["symbols_per_second"] == 100 * SYMBOLS
    assert found["parameters"] == num_parameters(RECIPE.model)
    assert found["largest_grad_norm_after_200"] == 0.5
    assert found["valid"] == {"300": 1.25} and found["train"] == {"100": 3.0, "200": 2.0, "300": 1.5}
    assert [(each["split"], each["batch"], each["bpc"]) for each in found["scores"]] == [
        ("test", 1, 1.5),
        ("test", 32, 1.75),
        ("valid", 32, 1.25),
    ]


def test_the_picture_shows_both_curves_and_the_reference(folder: Path) -> None:
    svg = speedrun.picture(read_run(folder, "novels"), "novels", FACTS)
    assert all(words in svg for words in ("training, with dropout", "valid", "goal", "to 1.500 at 300"))


def test_the_stored_record_is_that_of_the_preset() -> None:
    stored = json.loads((speedrun.DOCS / "measurements" / "h200-novels.json").read_text())
    assert stored["recipe"] == json.loads(json.dumps(to_json(preset("speedrun-novels"))))
    (counts,) = [each for each in stored["scores"] if each["split"] == "test" and each["batch"] == 1]
    assert stored["training_seconds"] < 450 and counts["bpc"] <= 1.34
    page = (speedrun.DOCS / "speedrun.md").read_text()
    assert (
        f"**{counts['bpc']:.4f}**" in page and f"**{counts['bpc']:.3f}** | {stored['training_seconds']:.0f} |" in page
    )
