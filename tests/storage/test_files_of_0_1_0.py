"""Files that release 0.1.0 wrote load for ever, and give the results that were recorded with that release.

Results are equal bit for bit with the torch build and the processor that made the files. Elsewhere they are equal up to
the tolerance of the run's dtype. Training in float32 amplifies differences in rounding, so that only its first step
after a checkpoint is compared there; most runs are in float64 for this reason.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from files_of_0_1_0 import observe
from helpers import ranks
from helpers.marks import few
from helpers.tolerances import TOLERANCES

from mnemo import Corpus
from mnemo.cli import main

HERE = Path(observe.__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
SAME_MACHINE = observe.machine() == EXPECTED["made_with"]
ALONE = sorted(EXPECTED["scores"].keys() - EXPECTED["resumed_alone"].keys())
SHARDED = sorted(EXPECTED["resumed_alone"])
FLOAT32 = ("ddp", "modern")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    with tarfile.open(HERE / "files.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(autouse=True)
def inside(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test runs in the unpacked folder, with an empty `work` folder."""
    monkeypatch.chdir(unpacked)
    monkeypatch.setenv("MNEMO_DATA", str(unpacked / "data"))
    observe.WORK.mkdir()
    yield
    shutil.rmtree(unpacked / observe.WORK)


def assert_recorded(found: Any, expected: Any, run: str = "") -> None:
    """Every recorded value is there again; fields that later releases add are ignored."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_recorded(found[name], value, run)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for item, value in zip(found, expected, strict=True):
            assert_recorded(item, value, run)
    elif isinstance(expected, float) and not SAME_MACHINE:
        tolerance = TOLERANCES[torch.float32 if run in FLOAT32 else torch.float64]
        assert found == pytest.approx(expected, rel=tolerance.rtol, abs=tolerance.atol)
    else:
        assert found == expected


def assert_metrics(found: list[Any], expected: list[Any], run: str, start: int) -> None:
    """Training that started at a step gives the recorded metrics."""
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    last = start + 1 if run in FLOAT32 and not SAME_MACHINE else expected[-1]["step"]
    for lines in zip(found, expected, strict=True):
        if lines[1]["step"] <= last:
            assert_recorded(*lines, run)


def step(run: Path, number: int) -> int:
    """Step of a run's checkpoint of this number, 0 for the oldest."""
    return int(observe.steps(run)[number].name.removeprefix("step-"))


def assert_same_end(resumed: Path, whole: Path, number: int = 1) -> None:
    """The run that resumed from its checkpoint `number` has the stored metrics, and on the same machine the weights."""
    assert_metrics(observe.metrics(resumed), observe.metrics(whole), whole.name, step(whole, number - 1))
    if SAME_MACHINE:
        found, expected = observe.last_weights(resumed), observe.last_weights(whole)
        assert found.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("name", ["bpe", "bytes", "letters", "words"])
def test_corpora_open_and_are_whole(name: str) -> None:
    corpus = Corpus.open(name)
    corpus.verify()
    text = corpus.tokenizer.decode(corpus.split("valid").ids[:20])
    assert corpus.tokenizer.encode(text).tolist() == corpus.split("valid").ids[:20].tolist()


@pytest.mark.parametrize("name", EXPECTED["scores"])
def test_runs_score_as_recorded(name: str) -> None:
    assert_recorded(observe.scores(observe.RUNS / name), EXPECTED["scores"][name], name)


@pytest.mark.parametrize("name", EXPECTED["greedy"])
def test_runs_write_the_recorded_text(name: str) -> None:
    assert observe.greedy(observe.RUNS / name) == EXPECTED["greedy"][name]


RESUMED = [*((name, 1) for name in ALONE), ("xl", 2), ("modern", 2)]
QUICK = [("tokens", 1), ("task", 1), ("compressive", 1), ("recurrent", 1), ("modern", 2)]


@pytest.mark.parametrize(("name", "number"), few(RESUMED, lambda *case: case in QUICK))
def test_runs_resume_from_older_checkpoints_as_if_never_stopped(name: str, number: int) -> None:
    run = observe.RUNS / name
    resumed = observe.cut_back(run, number, name)
    observe.resume(resumed)
    assert len(observe.steps(resumed)) == len(observe.steps(run))
    assert_same_end(resumed, run, number)


@pytest.mark.parametrize("name", SHARDED)
def test_one_process_resumes_a_run_of_two(name: str) -> None:
    start = step(observe.RUNS / name, 0)
    assert_metrics(observe.sharded_resumed_alone(name), EXPECTED["resumed_alone"][name], name, start)


def resume_there(folder: str) -> int:
    return main(["train", "--resume", folder, "--json"])


@pytest.mark.parametrize("name", few(SHARDED, lambda name: name == SHARDED[0]))
def test_two_processes_resume_a_run_of_two(name: str) -> None:
    resumed = observe.cut_back(observe.RUNS / name, 1, name)
    assert ranks.run(2, resume_there, str(resumed.absolute())) == [0, 0]
    assert_same_end(resumed, observe.RUNS / name)


@pytest.mark.parametrize("name", ["xl", "modern"])
def test_finished_runs_train_longer(name: str) -> None:
    longer = observe.cut_back(observe.RUNS / name, 1, name)
    observe.resume(longer)
    end = step(longer, -1)
    assert main(["train", "--resume", str(longer), "--train.steps", str(end + 3), "--json"]) == 0
    assert step(longer, -1) == end + 3
    assert json.loads((longer / "overrides.json").read_text())["overrides"][0]["step"] == end


@pytest.mark.parametrize("source", EXPECTED["fine_tuned"])
def test_new_runs_start_from_stored_weights(source: str) -> None:
    found = observe.fine_tuned(Path(source), "tuned")
    assert_metrics(found, EXPECTED["fine_tuned"][source], Path(source).name, start=0)


@pytest.mark.parametrize("name", EXPECTED["memories"])
def test_memory_files_continue(name: str) -> None:
    found = observe.memory(observe.RUNS / name, observe.MEMORIES / f"{name}.memory")
    assert_recorded(found, EXPECTED["memories"][name], name)


@pytest.mark.parametrize("name", EXPECTED["states"])
def test_states_saved_from_python_continue(name: str) -> None:
    found = observe.state_logits(observe.MEMORIES / f"{name}.memory")
    assert_recorded(found, EXPECTED["states"][name])


@pytest.mark.parametrize("name", EXPECTED["exports"])
def test_exported_folders_stand_for_their_run(name: str) -> None:
    folder = Path("exports", name)
    assert_recorded([observe.scores(folder), observe.greedy(folder)], EXPECTED["exports"][name])


def test_the_report_shows_stored_results() -> None:
    page = observe.page(observe.RUNS / "xl")
    results = [json.loads(path.read_text(encoding="utf-8")) for path in (observe.RUNS / "xl/results").glob("*.json")]
    (sample,) = [result["texts"][0] for result in results if result["kind"] == "sample"]
    scores = [result["score"] for result in results if result["kind"] == "score"]
    scores += [score for result in results if result["kind"] == "sweep" for score in result["scores"]]
    assert len(scores) == 4
    shown = [sample, *(f"{score['bits_per_token']:.3f}" for score in scores)]
    assert [text for text in shown if text not in page] == []
    assert "skipped" not in page  # as the page says of a file that it cannot load


def test_the_report_shows_stored_answers() -> None:
    page = observe.page(observe.RUNS / "task")
    answers = EXPECTED["scores"]["task"]["last"]["score"]
    assert f"{answers['character_accuracy']:.1%} of symbols right" in page
    assert "skipped" not in page


def test_a_transfo_xl_folder_becomes_a_run_again() -> None:
    assert_recorded(observe.converted_back(Path("hf/transfo-xl"), "again"), EXPECTED["transfo_xl"])


def test_auto_classes_load_an_exported_folder() -> None:
    pytest.importorskip("transformers")
    assert_recorded(observe.auto_model(Path("hf/xl")), EXPECTED["auto_model"])


def test_adapters_and_models_with_memory_tokens_load() -> None:
    pytest.importorskip("transformers")
    assert_recorded(observe.adapted(), EXPECTED["adapted"], run="modern")


def test_the_archive_is_complete() -> None:
    """A test that loses its files would pass over nothing."""
    assert sorted(os.listdir(observe.RUNS)) == sorted(EXPECTED["scores"])
    assert len(observe.steps(observe.RUNS / "xl")) == 3
