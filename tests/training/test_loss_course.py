"""The course of losses and gradient norms: what counts as a divergence, and that healthy curves never do."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from helpers.monitors import Notes

from mnemo.recipes.recipe import HealthConfig, TrainConfig
from mnemo.training.divergence import Diverged, Watch
from mnemo.training.loss_course import Course

STORED = sorted((Path(__file__).parents[2] / "results").glob("*/*/results.json"))
CONFIG = TrainConfig()
VOCAB = 256
CURSOR: dict[str, Any] = {"epoch": 0, "step": 0}


def watched(losses: Iterable[float], norms: Iterable[float] | None = None, config: TrainConfig = CONFIG) -> Course:
    """The course after all losses; `Diverged` if they diverge."""
    watch, course = Watch(config, VOCAB, Notes()), Course()
    losses = list(losses)
    for step, (loss, norm) in enumerate(zip(losses, norms or [1.0] * len(losses), strict=True), 1):
        course = watch.examine(course, step, CURSOR, loss, norm)
    return course


def bad_step(losses: Iterable[float], norms: Iterable[float] | None = None) -> int:
    with pytest.raises(Diverged) as error:
        watched(losses, norms)
    return error.value.step


def falling(count: int, begin: float = 5.5, end: float = 1.2, noise: float = 0.05) -> list[float]:
    draw = random.Random(count)
    return [end + (begin - end) * math.exp(-step / 100) + draw.gauss(0, noise) for step in range(count)]


def vocab_size(value: Any) -> int | None:
    """The vocabulary in the settings of a stored cell."""
    if isinstance(value, dict):
        own = [value["vocab_size"]] if "vocab_size" in value else []
        return next((size for size in [*own, *map(vocab_size, value.values())] if size), None)
    return None


def test_no_stored_training_curve_ever_looks_like_a_divergence() -> None:
    """Of all experiments: warm-up, tasks learned abruptly, word and byte models."""
    count = 0
    for path in STORED:
        for cell in json.loads(path.read_text())["cells"]:
            course = Course()
            for _, loss in cell["values"].get("train_curve") or []:
                course = course.after(loss, 1.0, CONFIG, vocab_size(cell["settings"]) or VOCAB)
                assert not course.is_suspect, (path, cell["cell"])
            count += course.steps > 0
    assert count > 300


def test_a_sustained_rise_is_found_and_a_short_one_is_not() -> None:
    healthy = falling(600)
    watched([*healthy, *[6.0] * 20, *falling(300, 1.2)])
    found = bad_step([*healthy, *[6.0] * 80])
    assert 650 <= found <= 670


@pytest.mark.parametrize("growth", [5.0, 40.0])
def test_a_loss_that_grows_from_the_first_steps_on_is_found(growth: float) -> None:
    """A much too high learning rate: large deviations from the beginning are no noise."""
    draw = random.Random(3)
    found = bad_step([5.5 + growth * step * draw.uniform(0.5, 1.5) for step in range(200)])
    assert found <= 90


def test_a_slow_drift_is_suspect_long_before_it_is_a_divergence() -> None:
    drift = [1.2 + 0.005 * step for step in range(800)]
    config = TrainConfig(health=HealthConfig(patience=50))
    found = bad_step([*falling(600), *drift])
    assert 800 < found < 1000
    course = watched([*falling(600), *drift[: found - 600 - 100]], config=config)
    assert course.is_suspect and course.high == 0


def test_an_abrupt_fall_with_large_gradients_is_healthy() -> None:
    losses = [*[3.0] * 400, *[3.0 - 0.03 * step for step in range(98)], *[0.05] * 300]
    norms = [*[0.01] * 400, *[5.0] * 98, *[0.001] * 300]
    assert watched(losses, norms).steep == 0


def test_noise_of_a_small_loss_is_healthy() -> None:
    draw = random.Random(5)
    watched([*falling(500, end=0.0, noise=0.0), *(abs(draw.gauss(0, 0.02)) + 0.001 for _ in range(2000))])


def test_a_sustained_gradient_norm_while_the_loss_rises() -> None:
    losses = [*falling(600), *(1.2 + 0.002 * step for step in range(100))]
    found = bad_step(losses, [*[0.5] * 600, *[50.0] * 100])
    assert 650 <= found <= 700
    watched(losses, [*[0.5] * 600, *[4.0] * 100])


def test_numbers_that_are_not_finite_are_found_at_once() -> None:
    assert bad_step([2.0, math.nan]) == 2
    assert bad_step([2.0, 2.0, 2.0], [1.0, 1.0, math.inf]) == 3
    watched([2.0, 2.0], [1.0, math.inf], TrainConfig(precision="fp16"))


def test_thresholds_can_be_switched_off() -> None:
    off = HealthConfig(loss_rise=None, norm_rise=None)
    watched([*falling(600), *[6.0] * 200], [*[0.5] * 600, *[50.0] * 200], TrainConfig(health=off))
    watched([*falling(600), *[6.0] * 200], config=TrainConfig(on_nan="stop"))


def test_each_warning_is_given_once() -> None:
    notes, course = Notes(), Course()
    watch = Watch(TrainConfig(on_nan="stop"), VOCAB, notes)
    losses = [*falling(600), *(1.2 + 0.01 * step for step in range(300))]
    for step, loss in enumerate(losses, 1):
        norm = 0.5 if step <= 600 else 0.5 * 1.02 ** (step - 600)
        course = watch.examine(course, step, CURSOR, loss, norm)
    assert [line.partition(": ")[2].split(":")[0] for line in notes.lines] == [
        "the loss rises",
        "the gradient norm grows",
    ]
    assert all("docs/divergence.md" in line for line in notes.lines)


def test_the_course_does_not_depend_on_when_numbers_are_fetched_or_saved() -> None:
    course = Course()
    for loss in falling(50):
        course = Course(**json.loads(json.dumps(course.__dict__))).after(loss, 0.7, CONFIG, VOCAB)
    assert course == watched(falling(50), [0.7] * 50) and Course.is_valid(course.__dict__)
    assert not Course.is_valid({**course.__dict__, "high": -1}) and not Course.is_valid({"unknown": 1})


def test_steps_without_targets_are_no_part_of_the_course() -> None:
    """The first segment of a recall task has a loss of zero, which no later loss can be compared with."""
    watch, course = Watch(CONFIG, 18, Notes()), Course()
    course = watch.examine(course, 1, CURSOR, 0.0, 0.0, is_scored=False)
    assert course == Course()
    for step in range(2, 300):
        course = watch.examine(course, step, CURSOR, 2.78, 1.0)
    assert not course.is_suspect and course.lowest == pytest.approx(2.78)
    with pytest.raises(Diverged, match="loss is nan"):
        watch.examine(course, 300, CURSOR, math.nan, 0.0, is_scored=False)
