"""The machinery of experiments: grids that go on, results that are checked, needs, pages, the verb."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.edited_files import edit_json
from helpers.monitors import Signaller
from helpers.toy_experiment import cell, experiment, folders, known, lines, made, tiny, toy_command, use_numbers

from mnemo import cli
from mnemo import papers as experiments
from mnemo.data.prepare import prepare
from mnemo.errors import MnemoError
from mnemo.memory import XL, Plan
from mnemo.model import memory_limits
from mnemo.papers import jobs as all_jobs
from mnemo.papers import needs, pages
from mnemo.papers.experiment import look_up
from mnemo.papers.jobs import JOBS, Place, training_cell, training_settings
from mnemo.papers.needs import require_needs
from mnemo.papers.pool import Task, Worker, next_task
from mnemo.papers.runner import run_cell, run_here
from mnemo.papers.store import CELLS, RESULT, RESULTS, RUN, cell_folder, grid_folder, load_grid, save_grid
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import DataConfig
from mnemo.report.experiment_markdown import experiment_markdown
from mnemo.storage.run_folder import locked
from mnemo.training import Unwatched

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def number_job(monkeypatch: pytest.MonkeyPatch) -> None:
    use_numbers(monkeypatch)


def test_cells_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    two = experiment(cell(1), cell(2))
    run_here(two, "small", tmp_path, device="cpu")
    ran = run_here(experiment(cell(1), cell(2), cell(3, reads=["n1"])), "small", tmp_path, device="cpu")
    assert lines(tmp_path) == ["n1", "n2", "n3"] and not ran.failures
    assert [each.cell.name for each in ran.found.results.cells] == ["n1", "n2", "n3"]
    first = ran.found.results.cells[0]
    assert first.values == {"accuracy": 0.1} and first.seconds >= 0 and "torch" in first.versions


def test_what_another_experiment_has_measured_is_taken_over(tmp_path: Path) -> None:
    first, second = experiment(cell(1)), experiment(cell(1), cell(2), cell(3, reads=["n1"]), name="toy-more")
    grids = [grid_folder(tmp_path, each.name, "small") for each in (first, second)]
    ran = [run_here(each, "small", grid, device="cpu") for each, grid in zip((first, second), grids, strict=True)]
    known = cell_folder(grids[1], "n1")
    assert known.is_symlink() and known.resolve() == cell_folder(grids[0], "n1").resolve()
    assert ran[1].found.results.one("n1") == ran[0].found.results.one("n1")
    assert lines(grids[1]) == ["n2", "n3"] and not ran[1].failures
    third = replace(second, name="toy-third")  # its n3 reads n1, whose run is gone
    grid = grid_folder(tmp_path, third.name, "small")
    (cell_folder(grids[0], "n1") / RUN).rmdir()
    run_here(third, "small", grid, device="cpu")
    assert lines(grid) == ["n1", "n3"]
    linked = experiment(cell(2), name="toy-third")  # with links of its own: to what has other settings, and to nothing
    for source in (cell_folder(grids[1], "n2"), tmp_path / "gone"):
        cell_folder(grid, "n2").unlink()
        cell_folder(grid, "n2").symlink_to(source, target_is_directory=True)
        run_here(experiment(cell(2, more=1), name="toy-third"), "small", grid, device="cpu")
        assert not cell_folder(grid, "n2").is_symlink() and lines(grid)[-1] == "n2"
        shutil.rmtree(cell_folder(grid, "n2"))
        run_here(linked, "small", grid, device="cpu")
        assert cell_folder(grid, "n2").is_symlink()
    assert load_grid(grids[1], second, "small").results.one("n2") is not None
    changed = experiment(cell(1, more=1), name="toy-other")
    run_here(changed, "small", grid_folder(tmp_path, "toy-other", "small"), device="cpu")
    assert lines(grid_folder(tmp_path, "toy-other", "small")) == ["n1"]


def test_a_grid_goes_on_elsewhere_with_the_measurements_of_its_file(tmp_path: Path) -> None:
    """Only the cell that others read gets a folder."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    elsewhere.mkdir()
    done, whole = experiment(cell(1), cell(2)), experiment(cell(1), cell(2), cell(3, reads=["n1"]))
    save_grid(elsewhere, whole, run_here(done, "small", here, device="cpu").found.results)
    ran = run_here(whole, "small", elsewhere, device="cpu")
    assert not ran.failures and lines(elsewhere) == ["n3"]
    assert sorted(each.name for each in (elsewhere / "cells").iterdir()) == ["n1", "n3"]
    assert (elsewhere / "cells" / "n1" / RESULT).read_bytes() == (here / "cells" / "n1" / RESULT).read_bytes()
    shutil.rmtree(elsewhere / "cells")
    (elsewhere / "cells").mkdir()
    (elsewhere / "cells" / "n1").symlink_to(tmp_path / "gone", target_is_directory=True)
    assert not run_here(whole, "small", elsewhere, device="cpu").failures
    assert (elsewhere / "cells" / "n1" / RESULT).exists() and lines(elsewhere) == ["n3", "n3"]


def test_cells_that_measure_time_wait_for_the_others_and_run_alone() -> None:
    def task(number: int, alone: bool = False) -> Task:
        return Task(experiment(), replace(cell(number), alone=alone), Path())

    slow, plain, other = task(1, alone=True), task(2), task(3)
    beside = [Worker(plain, subprocess.Popen(["true"]))]
    assert next_task([slow, other], []) is other and next_task([slow], beside) is None and next_task([slow], []) is slow
    assert next_task([other], [Worker(slow, beside[0].process)]) is None
    assert next_task([], []) is None
    assert next_task([plain, other], beside) is other  # what is being measured already is waited for
    reading = Task(experiment(), cell(4, reads=["n3"]), Path())
    assert next_task([reading, other], []) is other  # what it reads is to be made, perhaps anew
    timed = Task(experiment(), cell(4, reads=["n1"]), Path())
    assert next_task([other, slow, timed], []) is slow  # another cell needs what it measures
    assert next_task([other, slow, timed], beside) is other
    beside[0].process.wait()


def one_of_each_paper() -> list[Any]:
    """Names of experiments; those after the first of their paper are thorough."""
    papers: dict[str, str] = {}
    for name in sorted(experiments.every_experiment()):
        papers.setdefault(name.partition("-")[0], name)
    return [
        pytest.param(name, marks=() if name in papers.values() else pytest.mark.thorough)
        for name in sorted(experiments.every_experiment())
    ]


@pytest.mark.parametrize("name", one_of_each_paper())
def test_every_small_budget_says_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_require_corpus", lambda recipe: None)
    monkeypatch.setattr(memory_limits, "memory_bytes", lambda device: 2**60)
    monkeypatch.setattr(needs, "MOST_COUNTED", 1)
    require_needs(experiments.find_experiment(name), "small", CPU)


def test_the_names_that_are_known_without_torch_are_those_of_all_experiments() -> None:
    assert tuple(experiments.every_experiment()) == experiments.NAMES


def test_a_cell_with_other_settings_is_made_anew(tmp_path: Path) -> None:
    run_here(experiment(cell(1)), "small", tmp_path, device="cpu")
    other = experiment(cell(1, more=1))
    (problem,) = load_grid(tmp_path, other, "small").problems
    assert "n1" in problem and "other settings" in problem
    ran = run_here(other, "small", tmp_path, device="cpu")
    assert lines(tmp_path) == ["n1", "n1"] and not ran.found.problems


def test_what_only_changes_the_speed_is_not_measured_again_unless_speed_is_measured() -> None:
    quick, slow = (replace(cell(1), settings={"recipe": [{"compile": how, "steps": 2}]}) for how in (True, False))
    assert quick.fingerprint == slow.fingerprint != replace(slow, settings={"recipe": [{"steps": 3}]}).fingerprint
    assert replace(quick, alone=True).fingerprint != replace(slow, alone=True).fingerprint


def test_a_result_keeps_the_settings_that_it_was_made_with(tmp_path: Path) -> None:
    made, asked = cell(1, compile=False), cell(1, compile="layers")
    run_here(experiment(made), "small", tmp_path, device="cpu")
    (result,) = load_grid(tmp_path, experiment(asked), "small").results.cells
    assert result.cell.settings == made.settings


def test_a_broken_result_is_named_and_not_averaged_in(tmp_path: Path) -> None:
    grid = experiment(cell(1), cell(3))
    run_here(grid, "small", tmp_path, device="cpu")
    for broken in ("{", "[]", '{"format_version": 99}', '{"format_version": 1, "values": 3}', "\x00"):
        (cell_folder(tmp_path, "n3") / RESULT).write_text(broken)
        found = load_grid(tmp_path, grid, "small")
        assert found.results.values("accuracy", model="A") == [0.1], broken
        assert len(found.problems) == 1 and "n3" in found.problems[0], broken


def test_results_that_were_kept_are_read_without_their_cells(tmp_path: Path) -> None:
    grid = experiment(cell(1), cell(2))
    ran = run_here(grid, "small", tmp_path / "a", device="cpu")
    (tmp_path / "b").mkdir()
    save_grid(tmp_path / "b", grid, ran.found.results)
    found = load_grid(tmp_path / "b", grid, "small")
    assert found.results == ran.found.results and not found.problems
    (tmp_path / "b" / "results.json").write_text('{"format_version": 1, "cells": 4}')
    assert load_grid(tmp_path / "b", grid, "small").problems == (f"{tmp_path / 'b' / 'results.json'} lists no cells",)


def test_a_result_that_lacks_what_it_should_have_is_named_in_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1), cell(3)))
    arguments = toy_command(tmp_path)
    assert cli.main(arguments) == 0
    path = cell_folder(grid_folder(tmp_path / "out", "toy-numbers", "small"), "n3") / RESULT
    page = tmp_path / "site" / "toy-numbers" / "small" / "report.html"
    for values in ({}, {"accuracy": "much"}, {"precision": 1}, None):
        page.unlink()
        edit_json(path, lambda result, values=values: result.update(values=values))
        capsys.readouterr()
        assert cli.main([*arguments, "--report"]) == 0
        printed = capsys.readouterr()
        assert "left out" in printed.err and "n3" in printed.err and "open: A reaches" in printed.out
        assert "n3" in page.read_text()


def test_an_interruption_outside_of_training_leaves_a_page_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(settings: dict[str, Any], place: Place) -> dict[str, Any]:
        if settings["number"] == 3:
            raise KeyboardInterrupt
        return made(settings, place)

    known(monkeypatch, experiment(cell(1), cell(3)))
    monkeypatch.setitem(JOBS, "number", interrupted)
    assert cli.main(toy_command(tmp_path)) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert (tmp_path / "site" / "toy-numbers" / "small" / "report.html").exists()


def test_a_cell_that_fails_keeps_only_those_from_running_that_need_it(tmp_path: Path) -> None:
    grid = experiment(cell(1, fails=True), cell(2), cell(3, reads=["n1"]))
    ran = run_here(grid, "small", tmp_path, device="cpu", print_line=(printed := []).append)
    reasons = ["n1: the sky is falling", "n3: n1 is not done"]
    assert list(map(str, ran.failures)) == reasons
    assert [line for line in printed if line.startswith("cell ")] == [f"cell {each}" for each in reasons]
    assert [each.cell.name for each in ran.found.results.cells] == ["n2"]


def test_training_that_is_interrupted_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    scores = {"short": {"split": "valid", "batch": 2, "limit": 200, "memory": 2}}
    grid = experiment(training_cell("one", tiny(steps=6), {"model": "A"}, scores))
    whole = run_here(grid, "small", tmp_path / "whole", device="cpu")
    stopped = run_here(grid, "small", tmp_path / "stopped", device="cpu", monitor=Signaller(signal.SIGTERM, step=3))
    assert stopped.signal == signal.SIGTERM and not stopped.found.results.cells
    kept = tmp_path / "stopped" / "cells" / "one" / "seconds"
    before, shared = kept.read_text().split()
    assert float(before) > 0 and shared == "1"
    kept.write_text("1000.0 7")
    again = run_here(grid, "small", tmp_path / "stopped", device="cpu")
    (expected,), (found,) = whole.found.results.cells, again.found.results.cells
    assert found.seconds > 1000 and found.at_once == 7
    assert expected.at_once == 1
    assert "up to 7 cells shared the machine" in dict(pages._facts(grid, again.found.results))["Time"]
    same = ("steps", "tokens", "parameters", "best_valid_loss", "curve", "train_curve")
    assert {key: found.values[key] for key in same} == {key: expected.values[key] for key in same}
    assert found.values["scores"]["short"]["memory"] == 2
    assert found.values["scores"]["short"]["loss"] == expected.values["scores"]["short"]["loss"]
    assert [step for step, _ in found.values["curve"]] == [2, 4, 6]


def test_selection_by_labels(tmp_path: Path) -> None:
    results = run_here(experiment(cell(1), cell(2), cell(3)), "small", tmp_path, device="cpu").found.results
    assert {each.at_once for each in results.cells} == {1}
    assert results.values("accuracy", model="A") == [0.1, 0.3]
    assert results.values("nothing") == [] and results.select(model="C") == []
    assert results.one("n2") is results.cells[1] and results.one("n9") is None
    assert look_up({"a": {"b": 1}}, "a.b") == 1 and look_up({"a": 1}, "a.b") is None


def test_the_verb_judges_and_writes_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1), cell(3)), experiment(cell(2), name="toy-evens"))
    out, where = tmp_path / "out", ["--budget", "small", *folders(tmp_path)]
    assert cli.main(["reproduce", "toy-numbers", *where, "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert "yes: A reaches more than 0.2." in printed.out and "[1/2] n1 (model A, seed 1)" in printed.err
    page = tmp_path / "site" / "toy-numbers" / "small" / "report.html"
    index = tmp_path / "site" / "index.html"
    assert printed.out.splitlines()[-2:] == [str(page), f"index of all pages: {index}"]
    text = page.read_text()
    assert "Numbers &lt;grow&gt;" in text and "Ours are made up." in text and "2 of 2 done" in text
    assert (page.parent / "report-files" / "numbers.svg").exists()
    assert "toy-numbers/small/report.html" in index.read_text()
    kept = out / "toy-numbers" / "small" / "results.json"
    assert sorted(path.name for path in kept.parent.iterdir()) == ["cells", "made.txt", "results.json"]
    stored = json.loads(kept.read_text())
    assert [each["cell"] for each in stored["cells"]] == ["n1", "n3"] and stored["format_version"] == 1
    assert cli.main(["reproduce", "toy-numbers", *where, "--report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["holds"] is True
    assert lines(grid_folder(out, "toy-numbers", "small")) == ["n1", "n3"]


def test_the_page_of_a_self_test_says_at_its_top_that_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notes would be about models, steps and data that were not used."""
    known(monkeypatch, toy := experiment(cell(1), cell(3)))
    assert cli.main([*toy_command(tmp_path), "--budget", "self-test"]) == 0
    text = (tmp_path / "site" / "toy-numbers" / "self-test" / "report.html").read_text()
    first = text.index("tiny models ran about two steps")
    assert first < text.index("those of the real experiment, whose claim is: Numbers grow.") < text.index("<table")
    assert "What differs from the paper" not in text and toy.notes[0] not in text
    page = pages.outline(toy, load_grid(grid_folder(tmp_path / "out", toy.name, "self-test"), toy, "self-test"))
    assert "tiny models ran about two steps" in experiment_markdown(page, "", "").text


def test_complete_results_need_no_gpu_and_no_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1), cell(3)))
    arguments = toy_command(tmp_path)
    assert cli.main(arguments) == 0
    assert "budget small is meant for a GPU; on this device it may take very long" in capsys.readouterr().err
    monkeypatch.setattr("mnemo.cli.reproduction.require_needs", lambda *given: pytest.fail("nothing is to be run"))
    assert cli.main(arguments) == 0
    printed = capsys.readouterr()
    assert "yes: A reaches" in printed.out and not printed.err


def test_a_cell_that_is_done_is_not_run_again_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1), cell(2)))
    arguments = toy_command(tmp_path)
    assert cli.main([*arguments, "--cell", "n1", "--json"]) == 0
    printed = capsys.readouterr()
    path = Path(json.loads(printed.out)["result"])
    assert json.loads(path.read_text())["values"] == {"accuracy": 0.1}
    assert "budget small is meant for a GPU" in printed.err
    assert cli.main([*arguments, "--cell", "n1"]) == 0
    assert "n1 is done already" in capsys.readouterr().err
    cell_folder(grid_folder(tmp_path / "out", "toy-numbers", "small"), "n2").mkdir()
    (cell_folder(grid_folder(tmp_path / "out", "toy-numbers", "small"), "n1") / RESULT).unlink()
    capsys.readouterr()
    assert cli.main([*arguments, "--report"]) == 2  # cells that have begun are no results
    assert "continues the 2 cells that it has begun" in capsys.readouterr().err
    assert cli.main(["reproduce", "toy-numbers", "--list", "--out", str(tmp_path / "out")]) == 0
    assert "small: 0 of 2 cells, 2 begun" in capsys.readouterr().out
    assert lines(grid_folder(tmp_path / "out", "toy-numbers", "small")) == ["n1"]


def test_a_cell_is_made_by_one_process_at_a_time(tmp_path: Path) -> None:
    """A second command makes other cells, then waits. A cell that is complete by then is not made again."""
    both = experiment(cell(1), cell(2, reads=["n1"]), cell(3))
    folder = cell_folder(tmp_path, "n1")
    folder.mkdir(parents=True)
    printed: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(locked(folder))

        def print_line(line: str) -> None:
            printed.append(line)
            if "waiting" in line:
                assert lines(tmp_path) == ["n3"]
                stack.close()

        ran = run_here(both, "small", tmp_path, device="cpu", print_line=print_line)
    assert not ran.failures and lines(tmp_path) == ["n3", "n1", "n2"]
    assert printed[1] == "waiting for another command, which is making n1"
    assert not any("made by another command" in line for line in printed)  # this command has made it
    run_cell(both.cells("small")[0], both.cells("small"), tmp_path, CPU, Unwatched())
    assert lines(tmp_path) == ["n3", "n1", "n2"]


def test_cells_that_another_command_has_made_are_named(tmp_path: Path) -> None:
    both, printed = experiment(cell(1), cell(2)), list[str]()

    def print_line(line: str) -> None:
        printed.append(line)
        if line.startswith("[1/2] n1"):
            run_cell(both.cells("small")[1], both.cells("small"), tmp_path, CPU, Unwatched())

    ran = run_here(both, "small", tmp_path, device="cpu", print_line=print_line)
    assert not ran.failures and lines(tmp_path) == ["n2", "n1"]
    assert printed[1:] == ["cell n2: made by another command"]


def test_a_cell_that_is_taken_at_the_same_moment_is_waited_for(tmp_path: Path) -> None:
    """Between the look at its lock and the lock itself, another command may take it."""
    both = experiment(cell(1), cell(2, reads=["n1"]))
    folder = cell_folder(tmp_path, "n1")
    folder.mkdir(parents=True)
    with ExitStack() as other:
        printed: list[str] = []

        def print_line(line: str) -> None:
            printed.append(line)
            if len(printed) == 1:
                other.enter_context(locked(folder))
            elif "waiting" in line:
                other.close()

        ran = run_here(both, "small", tmp_path, device="cpu", print_line=print_line)
    assert not ran.failures and lines(tmp_path) == ["n1", "n2"]
    assert "waiting for another command, which is making n1" in printed


def test_a_single_cell_that_another_process_is_making_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1)))
    folder = cell_folder(grid_folder(tmp_path / "out", "toy-numbers", "small"), "n1")
    folder.mkdir(parents=True)
    with locked(folder):
        assert cli.main([*toy_command(tmp_path), "--cell", "n1"]) == 2
    assert f"{folder} is in use by another process" in capsys.readouterr().err


def test_a_corpus_that_is_not_the_published_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MNEMO_DATA", str(tmp_path / "data"))
    (tmp_path / "text8").write_text("abc " * 1000)
    prepare("text8", tmp_path / "text8", allow_mismatch=True)
    known(monkeypatch, experiment(training_cell("one", tiny(data=DataConfig(corpus="text8")), {})))
    assert cli.main(toy_command(tmp_path)) == 0
    said = capsys.readouterr().err
    assert "not the published corpus: text8: " in said and "has 4,000 bytes, the published one 100,000,000" in said
    assert "meant for a GPU: to train, a few cores, which compute 100 GFLOP/s, take about 0.00 s (Ctrl-C" in said
    assert re.search(r"step 2/2  \d\.\d+ bpc", said)  # as the results


def test_one_cell_reads_others_from_a_copied_file_of_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = experiment(cell(1), cell(2, reads=["n1"]))
    known(monkeypatch, both)
    first = run_here(experiment(cell(1)), "small", tmp_path / "elsewhere", device="cpu")
    grid = grid_folder(tmp_path / "out", both.name, "small")
    grid.mkdir(parents=True)
    save_grid(grid, both, first.found.results)
    arguments = toy_command(tmp_path)
    assert cli.main([*arguments, "--cell", "n1", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["result"]) == grid / RESULTS and not (grid / CELLS).exists()
    assert cli.main([*arguments, "--cell", "n2"]) == 0
    assert lines(grid) == ["n2"]
    assert [each.cell.name for each in load_grid(grid, both, "small").results.cells] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("option", "further"),
    [("--out", []), ("--out", ["--cell", "n1"]), ("--out", ["--jobs", "2"]), ("--site", []), ("--site", ["--report"])],
)
@pytest.mark.parametrize("inside", ["", "within"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(
    option: str,
    further: list[str],
    inside: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known(monkeypatch, experiment(cell(1)))
    if "--report" in further:
        assert cli.main(toy_command(tmp_path)) == 0
    (tmp_path / "file").write_text("")
    wrong = tmp_path / "file" / inside
    monkeypatch.setitem(JOBS, "number", lambda *given: pytest.fail("it was run"))
    capsys.readouterr()
    assert cli.main([*toy_command(tmp_path), option, str(wrong), *further]) == 2
    said = capsys.readouterr()
    assert f"mnemo: error: there can be no folder {wrong} (" in said.err and not said.out
    assert said.err.splitlines()[-1].endswith(f"): choose another with {option}")


def test_stored_results_are_judged_again_and_stay_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1), cell(3)), experiment(cell(2), name="toy-evens"))
    out, where = tmp_path / "out", ["--budget", "small", *folders(tmp_path)]
    assert cli.main(["reproduce", *where, "--report"]) == 2
    assert cli.main(["reproduce", "toy-numbers", *where, "--device", "cpu"]) == 0
    kept = out / "toy-numbers" / "small" / "results.json"
    before = (kept.stat().st_mtime_ns, kept.read_bytes())
    capsys.readouterr()
    assert cli.main(["reproduce", *where, "--report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"] == "toy-numbers"
    assert (kept.stat().st_mtime_ns, kept.read_bytes()) == before
    overview = tmp_path / "RESULTS.md"
    assert cli.main(["reproduce", "--out", str(out), "--overview", str(overview)]) == 0
    text = overview.read_text()
    row = "[toy-numbers](out/toy-numbers/small/results.json) | Numbers \\<grow\\> (A paper, Table 1) | \\- | 1 of 1"
    assert row in text and "1 experiment, 1 of 1 claims holds" in text
    assert cli.main(["reproduce", "--out", str(out), "--overview", str(overview)]) == 0
    assert overview.read_text() == text
    assert f"there is no folder {tmp_path / 'measurements'}" in capsys.readouterr().err
    (tmp_path / "measurements").mkdir()
    assert cli.main(["reproduce", "--out", str(out), "--overview", str(overview)]) == 0
    assert "measurements" not in capsys.readouterr().err
    assert cli.main(["reproduce", "--out", str(tmp_path / "no"), "--overview", str(overview)]) == 2
    assert cli.main(["reproduce", "--out", str(out), "--overview", str(tmp_path)]) == 2
    assert f"is a folder: name a file, such as {overview}" in capsys.readouterr().err


def test_the_verb_reports_failures_and_wrong_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1, fails=True)))
    arguments = ["--budget", "small", *folders(tmp_path), "--device", "cpu"]
    assert cli.main(["reproduce", "toy-numbers", *arguments]) == 1
    said = capsys.readouterr().err
    assert said.count("the sky is falling") == 1
    assert said.splitlines()[-1] == "mnemo: check failed: 1 of the cells failed: toy-numbers n1"
    assert cli.main(["reproduce", "toy-number", *arguments]) == 2
    assert "did you mean 'toy-numbers'?" in capsys.readouterr().err
    assert cli.main(["reproduce", "toy", *arguments]) == 2
    assert "'toy' is the beginning of several experiments: toy-numbers" in capsys.readouterr().err
    assert cli.main(["reproduce", *arguments]) == 2
    assert "mnemo reproduce --list" in capsys.readouterr().err
    assert cli.main(["reproduce", "toy-numbers", *arguments, "--cell", "n7"]) == 2
    assert "unknown cell of toy-numbers 'n7'; known: n1" in capsys.readouterr().err
    assert cli.main(["reproduce", "toy-numbers", *arguments, "--cell", "n1", "--report"]) == 2
    assert "--report runs nothing" in capsys.readouterr().err
    assert cli.main(["reproduce", "toy-numbers", *arguments, "--overview", str(tmp_path / "all.md")]) == 2
    assert "leave the names out" in capsys.readouterr().err
    assert cli.main(["reproduce", "toy-numbers", *arguments, "--out", str(tmp_path / "no"), "--report"]) == 2
    assert f"there are no results of toy-numbers at budget small in {tmp_path / 'no'}" in capsys.readouterr().err
    known(monkeypatch, experiment(cell(1), cell(2, reads=["n1"])))
    assert cli.main(["reproduce", "toy-numbers", *arguments, "--cell", "n2"]) == 2
    assert "n2 needs the results of n1: run --cell n1 first" in capsys.readouterr().err
    assert [cli.main(["reproduce", "toy-numbers", *arguments, "--cell", name]) for name in ("n1", "n2")] == [0, 0]


def test_the_list_says_how_much_of_each_budget_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*options: str) -> str:
        assert cli.main(["reproduce", "--list", *folders(tmp_path), *options]) == 0
        return capsys.readouterr().out

    known(monkeypatch, experiment(cell(1), cell(2)))
    assert listed() == "toy-numbers  [small, paper] Table 1: Numbers grow.\n"
    assert cli.main([*toy_command(tmp_path), "--cell", "n1"]) == 0
    assert "[small: 1 of 2 cells, paper]" in listed()
    assert cli.main(["reproduce", "--list", "--json", *folders(tmp_path)]) == 0
    budgets = json.loads(capsys.readouterr().out)[0]["budgets"]
    assert budgets["small"] == {"cells": 2, "done": 1, "begun": 0}
    assert budgets["self-test"] == {"cells": 2, "done": 0, "begun": 0}
    assert cli.main(toy_command(tmp_path)) == 0
    assert "[small: done, paper]" in listed()
    assert listed("--budget", "paper") == listed() and listed("--budget", "laptop") == ""


def test_reports_without_names_are_of_everything_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1)))
    arguments = [*folders(tmp_path), "--device", "cpu"]
    assert cli.main(["reproduce", *arguments, "--report"]) == 2
    assert f"there are no results in {tmp_path / 'out'}: " in capsys.readouterr().err
    for budget in ("self-test", "paper"):
        assert cli.main(["reproduce", "toy-numbers", "--budget", budget, *arguments]) == 0
    shutil.rmtree(tmp_path / "site")
    assert cli.main(["reproduce", *arguments, "--report"]) == 0
    assert {page.parent.name for page in (tmp_path / "site").glob("*/*/report.html")} == {"self-test", "paper"}
    shutil.rmtree(tmp_path / "site")
    assert cli.main(["reproduce", *arguments, "--report", "--budget", "paper"]) == 0
    assert {page.parent.name for page in (tmp_path / "site").glob("*/*/report.html")} == {"paper"}
    capsys.readouterr()
    assert cli.main(["reproduce", "toy-numbers", *arguments, "--report"]) == 2
    said = capsys.readouterr().err
    assert "no results of toy-numbers at budget small" in said and "some at --budget self-test and paper\n" in said
    assert cli.main(["reproduce", *arguments, "--report", "--budget", "small"]) == 2
    assert "there are no results at budget small in" in capsys.readouterr().err


def test_two_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two jobs"):
        all_jobs.job("train")(made)
    with pytest.raises(MnemoError, match="unknown job 'trian'; did you mean 'train'"):
        all_jobs.find_job("trian")


def test_a_cell_with_another_memory_than_its_preset_is_tested_as_it_is_trained() -> None:
    recipe = preset("tiny-bytes")
    other = replace(recipe, model=replace(recipe.model, memory=Plan(long=XL(length=0))))
    assert training_settings(recipe)["recipe"]["test"]["memory"] == 256
    assert training_settings(other)["recipe"]["test"]["memory"] is None
