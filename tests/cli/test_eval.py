"""`mnemo eval` from the command line to the files in the run's folder."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from helpers.edited_files import edit_checkpoint
from helpers.tiny_runs import MODEL, SEGMENT, tiny_run
from helpers.tolerances import TOLERANCES
from torch import Tensor

from mnemo.cli import eval_output, eval_text, main, opened_run
from mnemo.cli.eval_output import save_chart
from mnemo.data.corpus import Corpus
from mnemo.evaluation.perplexity import Score, evaluate, score_split
from mnemo.memory import XL, MemoryTokens, Plan
from mnemo.recipes.recipe import EvalConfig
from mnemo.report.charts import TICK_DISTANCE, LineChart, Series, draw_lines
from mnemo.storage.run_folder import open_run


@pytest.fixture
def results() -> Iterator[Path]:
    """The tiny run's folder of results, empty."""
    folder = tiny_run() / "results"
    yield folder
    for path in folder.glob("*"):
        path.unlink()


def run_eval(*options: str) -> int:
    return main(["eval", str(tiny_run()), "--device", "cpu", *options])


def scored(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert run_eval(*options, "--json") == 0
    return json.loads(capsys.readouterr().out)


def expected(split: str = "valid", config: EvalConfig = EvalConfig(batch=2), **options: Any) -> Score:
    run = open_run(tiny_run(), device="cpu")
    return evaluate(run.model, Corpus.open("tiny-bytes").split(split), config, segment=SEGMENT, **options)


def test_a_score_is_printed_and_saved(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval() == 0
    out, err = capsys.readouterr()
    score = expected()
    header, _, row, saved = out.splitlines()
    assert header.split() == ["split", "memory", "segment", "tokens", "bpc", "ppl", "tok/s"]
    assert row.split()[:6] == [
        "valid",
        str(SEGMENT),
        str(SEGMENT),
        f"{score.tokens:,}",
        f"{score.bits_per_token:.4f}",
        f"{score.perplexity:.3f}",
    ]
    assert "scoring valid" in err
    path = Path(saved.removeprefix("saved "))
    assert list(results.iterdir()) == [path]
    record = json.loads(path.read_text())
    assert record["format_version"] == 1 and record["kind"] == "score" and record["step"] == 2
    assert record["score"]["loss"] == score.loss


@pytest.mark.parametrize(
    ("options", "config", "arguments"),
    [
        (["--split", "test", "--batch", "1"], EvalConfig(batch=1), {"split": "test"}),
        (["--memory", "20", "--segment", "4"], EvalConfig(batch=2, memory=20, segment=4), {}),
        (["--clamp", "5", "--same-length"], EvalConfig(batch=2, clamp=5, same_length=True), {}),
        (["--context", "3"], EvalConfig(batch=2, context=3), {}),
        (["--no-memory"], EvalConfig(batch=2), {"no_memory": True}),
        (["--sliding-window", "--limit", "60"], EvalConfig(batch=2, limit=60), {"sliding": True}),
        (["--documents", "reset"], EvalConfig(batch=2), {"documents": "reset"}),
    ],
)
def test_options_reach_the_evaluation(
    options: list[str],
    config: EvalConfig,
    arguments: dict[str, Any],
    results: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    score = expected(config=config, **arguments).to_json()
    score["bpc"] = score["bits_per_token"]
    result = scored(capsys, *options)
    found = result["score"]
    del score["seconds"], found["seconds"]
    assert found == score and result["no_memory"] == arguments.get("no_memory", False)


def test_a_sweep_leaves_a_table_a_record_and_two_plots(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval("--sweep-memory", "8,0,4") == 0
    rows = capsys.readouterr().out.splitlines()[2:5]
    assert [row.split()[1] for row in rows] == ["0", "4", "8"]
    (record,) = (json.loads(path.read_text()) for path in results.glob("*.json"))
    assert record["kind"] == "sweep"
    assert [score["loss"] for score in record["scores"]] == [
        expected(config=EvalConfig(batch=2, memory=m)).loss for m in (0, 4, 8)
    ]
    check_pictures(results)


@pytest.mark.parametrize(("bits", "columns"), [(8.0, 0), (2.0, 1)])
def test_a_perplexity_by_word_is_shown_for_models_that_spell(
    bits: float, columns: int, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored_as(*arguments: Any) -> list[Score]:
        return [replace(score, loss=bits * math.log(2)) for score in score_split(*arguments)]

    monkeypatch.setattr(eval_text, "score_split", scored_as)
    assert run_eval() == 0
    assert capsys.readouterr().out.splitlines()[0].count("word ppl") == columns
    assert scored(capsys)["score"]["word_perplexity"] > 1, "JSON has the number of every model"


def check_pictures(results: Path) -> None:
    (png,), (svg,) = list(results.glob("*.png")), list(results.glob("*.svg"))
    assert png.read_bytes().startswith(b"\x89PNG") and png.stem == svg.stem
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_find_length_reports_three_numbers(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scored(capsys, "--find-length", "--limit", "150")
    assert found["kind"] == "find-length"
    assert found["initial"]["attention"] == 2 * SEGMENT
    assert found["best"]["perplexity"] <= found["initial"]["perplexity"]
    assert found["shortest"]["perplexity"] <= found["best"]["perplexity"] * 1.001
    assert [score["attention"] for score in found["tried"]] == sorted(score["attention"] for score in found["tried"])
    check_pictures(results)
    assert run_eval("--find-length", "--limit", "150") == 0
    assert f"within 0.1% of it: {found['shortest']['attention']}" in capsys.readouterr().out


SHORT = ("--limit", "60", "--segment", "32", "--batch", "4")
"""Rows of 14 predicted tokens."""
ONE_SEGMENT = "rows of 14 tokens end in their first segment of 32, so memory has no effect: "


def test_scores_are_kept_without_matplotlib(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On machines for training, which may bring torch alone."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run_eval("--sweep-memory", "8,0") == 0
    assert [path.suffix for path in results.iterdir()] == [".json"]
    assert "no picture: matplotlib is not installed\nsaved " in capsys.readouterr().out


@pytest.mark.parametrize("mode", [("--sweep-memory", "0,4,8"), ("--find-length",)])
def test_a_comparison_of_lengths_needs_a_second_segment(
    mode: tuple[str, ...], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_eval(*mode, *SHORT) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ONE_SEGMENT + "--batch 1, a larger --limit or a smaller --segment" in line
    assert run_eval(*mode, *SHORT, "--batch", "1") == 0


def test_the_first_row_that_reaches_a_second_segment(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def losses(limit: int) -> set[float]:
        return {score["loss"] for score in scored(capsys, "--sweep-memory", "0,8", "--limit", str(limit))["scores"]}

    assert run_eval("--sweep-memory", "0,8", "--limit", str(2 * (SEGMENT + 1) + 1)) == 2
    capsys.readouterr()
    assert len(losses(2 * (SEGMENT + 2))) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), True),
        (("--fit-temperature", "valid"), True),
        (("--batch", "1"), False),
        (("--no-memory",), False),
        (("--sliding-window",), False),
        (("--memory", "0"), False),
        (("--sweep-memory", "0"), False),
        (("--start", "zeros"), False),
    ],
)
def test_a_score_without_effect_of_memory_is_told(
    options: tuple[str, ...], told: bool, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_eval(*SHORT, *options) == 0
    assert ("mnemo: warning: " + ONE_SEGMENT in capsys.readouterr().err) == told


def test_zeros_are_attended_to_in_the_first_segment(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, zeros = scored(capsys, "--sweep-memory", "0,8", *SHORT, "--start", "zeros")["scores"]
    assert empty["loss"] != zeros["loss"]


def test_memory_tokens_have_no_effect_in_one_segment_either(capsys: pytest.CaptureFixture[str]) -> None:
    for model, told in (
        (replace(MODEL, tokens=MemoryTokens(num=2), memory=Plan(long=XL(length=0))), True),
        (replace(MODEL, memory=Plan(long=XL(length=0))), False),
    ):
        assert main(["eval", str(tiny_run(model=model)), "--device", "cpu", *SHORT]) == 0
        assert (ONE_SEGMENT in capsys.readouterr().err) == told


def test_documents_that_are_reset_count_one_by_one(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sweep-memory", "0,8", "--segment", "200", "--batch", "1")
    assert run_eval(*options) == 0
    capsys.readouterr()
    assert run_eval(*options, "--documents", "reset") == 2
    err = capsys.readouterr().err
    assert re.search(r"documents of at most 1\d\d tokens end in their first segment of 200", err)
    assert "no effect: --documents ignore or a smaller --segment" in err


def test_loss_by_position(results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found, losses = scored(capsys, "--by-position"), expected().by_position
    assert found["kind"] == "positions"
    assert found["score"]["by_position"] == list(losses)
    check_pictures(results)
    charts: list[LineChart] = []
    monkeypatch.setattr(eval_output, "draw_lines", lambda chart: charts.append(chart) or draw_lines(chart))
    assert run_eval("--by-position") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[6:10]]
    assert rows == [[str(at), f"{losses[at - 1] / math.log(2):.4f}"] for at in (1, 2, 4, 8)]
    (drawn,) = charts[0].series
    assert drawn.points[:, 0].tolist() == list(range(1, SEGMENT + 1))
    assert drawn.points[:, 1].tolist() == pytest.approx([loss / math.log(2) for loss in losses])


def test_a_cpu_scores_in_bf16_if_it_has_such_products(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_run, "obstacle", lambda weights, device: None)
    wide, narrow = (scored(capsys, "--precision", kind)["score"] for kind in ("fp32", "bf16"))
    assert narrow["loss"] != wide["loss"]
    assert narrow["loss"] == pytest.approx(wide["loss"], rel=TOLERANCES[torch.bfloat16].rtol)
    monkeypatch.setattr(opened_run, "obstacle", lambda weights, device: "too old")
    assert run_eval("--precision", "bf16") == 2
    assert "--precision bf16: too old" in capsys.readouterr().err


def test_word_models_are_told_in_perplexity(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tiny_run("words")), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.split()[:7] == ["split", "memory", "segment", "tokens", "bits", "ppl", "tok/s"]


def test_a_folder_that_cannot_be_written_costs_the_file_only(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "touch", refuse)
    assert run_eval() == 0
    out, err = capsys.readouterr()
    assert "valid" in out and "saved" not in out
    assert "not saved: Permission denied" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "3", "--no-memory"], "cannot be combined"),
        (["--start", "zeros", "--no-memory"], "--start zeros and --no-memory cannot be combined"),
        (["--by-position", "--sliding-window"], "--by-position"),
        (["--sweep-memory", "1,x"], "--sweep-memory takes lengths"),
        (["--sweep-memory", "-4,1"], "negative"),
        (["--batch", "999999"], "too few"),
        (["--segment", "0"], "segment length 0"),
        (["--device", "nonsense"], "device 'nonsense'"),
        (["--temperature", "0"], "temperature 0.0 must be positive"),
        (["--temperature", "1.1", "--fit-temperature", "valid"], "--temperature and --fit-temperature cannot"),
        (["--sweep-memory", "1,2", "--fit-temperature", "valid"], "--fit-temperature and --sweep-memory cannot"),
    ],
)
def test_bad_input_is_one_clear_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval(*options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    "options", [[], ["--sweep-memory", "0,2"], ["--find-length"], ["--fit-temperature", "valid"], ["--sliding-window"]]
)
def test_weights_with_a_nan_are_one_line(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(tiny_run(), tmp_path / "run")
    edit_checkpoint(run / "checkpoints/step-00000002/weights.safetensors", fill_with_nan)
    assert main(["eval", str(run), "--limit", "64", *options]) == 2
    line = "mnemo: error: the model's output is not finite: its weights are damaged or its training diverged"
    assert capsys.readouterr().err.splitlines()[-1] == line


def fill_with_nan(tensors: dict[str, Tensor]) -> None:
    for tensor in tensors.values():
        tensor.view(-1)[0] = math.nan


def test_a_corpus_of_another_vocabulary_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_run("words")
    monkeypatch.setattr("mnemo.cli.opened_run.load", lambda *_, **__: Corpus.open("tiny-words"))
    assert run_eval() == 2
    assert "another vocabulary" in capsys.readouterr().err


def test_a_changed_corpus_is_told(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Corpus, "fingerprint", lambda self: "other")
    assert run_eval() == 0
    assert "has changed since" in capsys.readouterr().err


@pytest.mark.parametrize("lengths", [[0, 8, 16], [0, 16, 1024], [64, 96, 112, 120, 128, 256, 512, 1024], [0]])
def test_curves_have_ticks_at_measured_lengths_that_do_not_touch(tmp_path: Path, lengths: list[int]) -> None:
    points = np.array([(i, i) for i in lengths], dtype=float)
    chart = LineChart([Series("t", points, 0)], "x", "y", x_kind="doubling", mark=("m", 8.0))
    axes = draw_lines(chart).canvas.axes[0]
    ticks = [int(label.get_text().replace(",", "")) for label in axes.get_xticklabels()]
    places = [(axes.transScale + axes.transLimits).transform((tick, 1.0))[0] for tick in ticks]
    assert set(ticks) <= set(lengths) and ticks[-1] == lengths[-1]
    assert all(b - a > 0.99 * TICK_DISTANCE for a, b in zip(places, places[1:], strict=False))
    png, svg = save_chart(chart, tmp_path / "a.b")
    assert (png.name, svg.name) == ("a.b.png", "a.b.svg")
    assert (matplotlib.image.imread(png)[..., 3] == 1).all(), "the picture is readable on any background"
    assert "var(" not in svg.read_text(encoding="utf-8") and ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_a_temperature_divides_the_logits(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm = scored(capsys, "--temperature", "1.5")["score"]
    assert warm["temperature"] == 1.5 and warm["loss"] == pytest.approx(expected(temperature=1.5).loss)
    assert warm["loss"] != expected().loss
    assert (results / f"score-valid-temperature1.5-m{SEGMENT}-s{SEGMENT}.json").is_file()


def test_a_fitted_temperature_is_the_best_of_its_split(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scored(capsys, "--split", "test", "--fit-temperature", "valid")
    losses = {temperature: loss for temperature, loss in found["tried"]}
    assert found["temperature"] == min(losses, key=lambda temperature: losses[temperature])
    assert losses[1.0] == pytest.approx(expected("valid").loss) and losses[0.9] == pytest.approx(
        expected("valid", temperature=0.9).loss
    )
    plain, fitted = found["scores"]
    assert plain["split"] == fitted["split"] == "test"
    assert (plain["temperature"], fitted["temperature"]) == (1.0, found["temperature"])
    assert plain["loss"] == pytest.approx(expected("test").loss)
    assert fitted["loss"] == pytest.approx(expected("test", temperature=found["temperature"]).loss)


def test_a_fitted_temperature_is_told(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval("--split", "test", "--fit-temperature", "valid") == 0
    header, _, plain, fitted, remark, saved = capsys.readouterr().out.splitlines()
    assert "temperature" in header.split() and plain.split()[0] == fitted.split()[0] == "test"
    assert "fitted on valid" in remark and "temperature-test" in saved
