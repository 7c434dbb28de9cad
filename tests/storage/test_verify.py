"""Checkpoints that are not those of their step and run are refused, and `mnemo verify` says what is wrong."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign.corruption import campaign
from helpers.edited_files import edit_json, flip_bit, remove_checksums
from helpers.toy_runs import metrics, run

from mnemo.cli import main
from mnemo.data import corpus as corpora
from mnemo.errors import MnemoError
from mnemo.files import checksum
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.storage.run_folder import open_run
from mnemo.storage.run_header import load_header
from mnemo.storage.run_tokenizer import load_tokenizer
from mnemo.storage.verify import verify
from mnemo.training import Unwatched, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    run(folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A finished run to damage."""
    return shutil.copytree(finished, tmp_path / "run")


def step(folder: Path, number: int) -> Path:
    return checkpoints.checkpoint_path(folder, number)


class Notes(Unwatched):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def test_lost_changes_are_found_and_can_be_given_again(folder: Path) -> None:
    train(folder, overrides={"train.steps": 15, "train.optimizer.lr": 1e-4})
    (folder / "overrides.json").unlink()
    assert any("has lost 1 of the 1 changes before step-00000015" in line for line in verify(folder).problems)
    with pytest.raises(MnemoError, match="has lost 1 of the 1 changes .*: restore it, or give"):
        train(folder)
    train(folder, overrides={"train.steps": 18, "train.optimizer.lr": 1e-4})
    assert load_header(folder).recipe.train.optimizer.lr == 1e-4 and verify(folder).problems == []


@pytest.mark.parametrize("name", ["best.json", "overrides.json"])
def test_descriptions_of_another_run_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    run(tmp_path / "other")
    for each in (folder, tmp_path / "other"):
        train(each, overrides={"train.steps": 15})
    shutil.copy(tmp_path / "other" / name, folder / name)
    assert any(f"{name} belongs to another run" in line for line in verify(folder).problems)
    with pytest.raises(MnemoError, match=f"{name} belongs to another run"):
        open_run(folder)


def test_a_corrupt_newest_checkpoint_is_passed_over(folder: Path, finished: Path) -> None:
    flip_bit(step(folder, 12) / "training.safetensors", -1)
    notes = Notes()
    train(folder, monitor=notes)
    assert any("step-00000012/training.safetensors does not match its checksum" in line for line in notes.lines)
    assert "continuing after step 9" in notes.lines and metrics(folder) == metrics(finished)
    assert verify(folder).problems == []


def test_repeated_runs_have_equal_tensor_files_and_different_ids(finished: Path, tmp_path: Path) -> None:
    run(tmp_path / "again")
    first, second = (checkpoints.load_checkpoint(step(each, 12)).progress for each in (finished, tmp_path / "again"))
    assert first["checksums"] == second["checksums"]
    assert first["run_id"] != second["run_id"] and metrics(tmp_path / "again") == metrics(finished)
    assert first["run_id"] == load_header(finished).run_id


def test_another_runs_checkpoint_is_refused(folder: Path, tmp_path: Path) -> None:
    run(tmp_path / "other")
    shutil.rmtree(step(folder, 12))
    shutil.copytree(step(tmp_path / "other", 12), step(folder, 12))
    with pytest.raises(MnemoError, match="step-00000012 belongs to another run: its run_id is .*; step 9 is whole"):
        open_run(folder, "last")


def test_another_steps_folder_is_refused(folder: Path) -> None:
    shutil.rmtree(step(folder, 12))
    step(folder, 9).rename(step(folder, 12))
    with pytest.raises(MnemoError, match="step-00000012 is damaged: it holds the checkpoint of step 9"):
        open_run(folder, "last")


def test_another_tokenizer_is_refused(folder: Path) -> None:
    edit_json(folder / "tokenizer.json", lambda content: content["tokenizer"].update(symbols=" abcd\0"))
    with pytest.raises(MnemoError, match="tokenizer.json is not the tokenizer that .* was created with"):
        load_tokenizer(folder)


def test_a_missing_tokenizer_is_not_that_of_a_run_without_text(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MnemoError, match="tokenizer.json is missing: the run was created with a tokenizer"):
        load_tokenizer(folder)


def test_one_cause_is_one_problem(folder: Path) -> None:
    (folder / "recipe.json").write_text("{")
    problems = verify(folder).problems
    assert len(problems) == len(set(problems))


def test_a_lost_name_of_the_best_checkpoint_is_found_in_the_newest_one(folder: Path) -> None:
    best = open_run(folder).step
    (folder / "best.json").unlink()
    assert open_run(folder).step == best


def test_changed_metrics_are_a_note(folder: Path) -> None:
    shutil.rmtree(step(folder, 12))
    flip_bit(folder / "metrics.jsonl", 5)
    notes = Notes()
    train(folder, monitor=notes)
    assert any(
        "metrics.jsonl has changed in its first" in line and "does not depend on it" in line for line in notes.lines
    )


def test_old_files_load_with_one_note(folder: Path, finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove_checksums(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum, "_noted", set())
        caplog.set_level(logging.WARNING, "mnemo")
        for _ in range(2):
            assert open_run(folder, "last").step == 12
        shutil.rmtree(step(folder, 12))
        train(folder)
    assert metrics(folder) == metrics(finished)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("mnemo: note: ") and "step-00000012 has no checksums (written by an earlier version)" in line
    found = verify(folder)
    assert found.problems == [] and any(path.endswith("step-00000009/weights.safetensors") for path in found.unchecked)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights": (lambda f: flip_bit(step(f, 9) / "weights.safetensors", -1), "step-00000009/weights.safetensors"),
    "memory": (lambda f: flip_bit(step(f, 12) / "memory.safetensors", -1), "step-00000012/memory.safetensors"),
    "missing": (lambda f: (step(f, 9) / "training.safetensors").unlink(), "training.safetensors is missing"),
    "progress": (lambda f: flip_bit(step(f, 9) / "progress.json", 30), "progress.json"),
    "metrics": (lambda f: flip_bit(f / "metrics.jsonl", 9), "metrics.jsonl has changed in its first"),
    "timing": (lambda f: (f / "timing.jsonl").write_text(""), "timing.jsonl has lost lines"),
    "recipe": (lambda f: edit_json(f / "recipe.json", lambda h: h.update(run_id="x")), "belongs to another run"),
    "best": (lambda f: run_folder.write_best(f, 5, 1.0), "best.json names step 5, which has no checkpoint"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing: the run was created with"),
    "no checkpoint": (lambda f: shutil.rmtree(f / "checkpoints"), "has no checkpoint"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_verify_names_every_damage(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, message = DAMAGES[name]
    assert main(["verify", str(folder)]) == 0
    # Four of each checkpoint, three descriptions and two files of numbers.
    count = 4 * len(checkpoints.checkpoint_steps(folder)) + 5
    assert f"run {folder}: whole; {count} file(s) match their checksums" in capsys.readouterr().out
    damage(folder)
    assert main(["verify", str(folder)]) == 1
    assert any(line.startswith("wrong: ") and message in line for line in capsys.readouterr().out.splitlines())


def test_verify_lists_all_problems_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (9, 12):
        flip_bit(step(folder, number) / "weights.safetensors", -1)
    corpus = corpora.find("toy")
    assert main(["verify", str(folder), "toy", "--json"]) == 1
    found, text = json.loads(capsys.readouterr().out)
    assert found["kind"] == "run" and not found["whole"] and len(found["problems"]) == 2
    assert text == {
        "kind": "corpus",
        "path": str(corpus),
        "files": 7,
        "unchecked": [],
        "problems": [],
        "whole": True,
    }


def test_verify_checks_exports(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = tmp_path / "export"
    assert main(["export", str(folder), "--output", str(export)]) == 0
    assert main(["verify", str(export)]) == 0
    assert f"export {export}: whole; 4 file(s)" in capsys.readouterr().out
    flip_bit(export / "weights.safetensors", -1)
    assert main(["verify", str(export)]) == 1
    assert "weights.safetensors does not match its checksum" in capsys.readouterr().out
    with pytest.raises(MnemoError, match="weights.safetensors does not match its checksum"):
        open_run(export)


def test_verify_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "is not a run, an export or a corpus" in capsys.readouterr().err
    assert main(["verify", "nothing-of-this-name"]) == 2
    assert "unknown run, corpus or file" in capsys.readouterr().err
    assert main(["verify"]) == 2
    assert "name at least one run, corpus or memory file" in capsys.readouterr().err


@pytest.mark.slow
def test_every_attack_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNEMO_DATA", "data")
    lines: list[str] = []
    found = campaign(trials=1, seed=3, folder=tmp_path, say=lines.append)
    assert lines == [] and sum(count.tried for count in found.values()) > 60
