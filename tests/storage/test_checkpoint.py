"""Run folders: what is loaded is what was saved, and everything else is one clear line that names the file."""

from __future__ import annotations

import errno
import io
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.edited_files import edit_checkpoint, edit_json
from helpers.marks import few
from helpers.monitors import Signaller
from helpers.toy_runs import metrics, recipe, run, scored_as
from safetensors.torch import load_file

from mnemo.config import to_json
from mnemo.errors import MnemoError
from mnemo.files import lock, tensor_file
from mnemo.recipes.recipe import AverageConfig
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder, run_header, weights
from mnemo.storage.run_folder import open_run
from mnemo.storage.run_header import load_header
from mnemo.training import Unwatched, create_run, train
from mnemo.training.metrics_log import JsonLines


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    run(folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A finished run to damage."""
    return shutil.copytree(finished, tmp_path / "run")


def last(folder: Path) -> Path:
    return checkpoints.checkpoint_path(folder, checkpoints.checkpoint_steps(folder)[-1])


def test_a_run_folder_holds_what_it_promises(finished: Path) -> None:
    assert checkpoints.checkpoint_steps(finished) == [8, 9, 12]  # 8 is the best, which a rollback to step 9 needs
    names = {path.name for path in last(finished).iterdir()}
    assert names == {"weights.safetensors", "training.safetensors", "memory.safetensors", "progress.json"}
    header = json.loads((finished / "recipe.json").read_text())
    assert header["format_version"] == 1 and header["corpus"]["unit"] == "char"
    for name in ("recipe.json", "best.json", f"checkpoints/{last(finished).name}/progress.json"):
        assert json.loads((finished / name).read_text())["format_version"] == 1
    assert json.loads(metrics(finished).splitlines()[0])["format_version"] == 1


def test_an_opened_run_has_the_saved_weights(finished: Path) -> None:
    found = open_run(finished, "last", "cpu")
    weights = load_file(last(finished) / "weights.safetensors")
    assert found.step == 12 and not found.model.training and found.recipe == recipe()
    assert found.model.state_dict().keys() == weights.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in found.model.state_dict().items())


def test_runs_are_found_by_name(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_header.find_run, "__defaults__", (finished.parent,))
    assert open_run("finished").path == finished
    with pytest.raises(MnemoError, match="unknown run 'finishd'; did you mean 'finished'"):
        open_run("finishd")
    with pytest.raises(MnemoError, match="is not a run: it has no recipe.json"):
        open_run(finished / "checkpoints")


def test_best_and_last_differ(tmp_path: Path) -> None:
    run(tmp_path / "run", of=recipe(keep=1), data=scored_as([3.0, 2.0, 4.0], recipe()))
    assert checkpoints.checkpoint_steps(tmp_path / "run") == [8, 12]
    assert open_run(tmp_path / "run").step == 8
    assert open_run(tmp_path / "run", "last").step == 12


def test_averaged_weights_are_the_ones_that_are_opened(tmp_path: Path) -> None:
    run(tmp_path / "run", of=recipe(average=AverageConfig(start=2)))
    found = open_run(tmp_path / "run", "last", "cpu").model.state_dict()
    averages = load_file(last(tmp_path / "run") / "training.safetensors")
    weights = load_file(last(tmp_path / "run") / "weights.safetensors")
    assert all(torch.equal(found[name], averages[f"average/{name}"]) for name in weights)
    assert any(not torch.equal(found[name], weights[name]) for name in weights)


def truncate(path: Path) -> None:
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - 3)


def halve_header(path: Path) -> None:
    with path.open("rb+") as file:
        file.truncate(20)


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_pickle(path: Path) -> None:
    torch.save({"weight": torch.zeros(1000)}, path)


def make_old_pickle(path: Path) -> None:
    torch.save({"weight": torch.zeros(1000)}, path, _use_new_zipfile_serialization=False)


def make_text(path: Path) -> None:
    path.write_text("these are not the numbers you are looking for, " * 20)


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "is truncated: [0-9,]+ of [0-9,]+ bytes"),
    (halve_header, "is truncated or not safetensors"),
    (make_empty, "is truncated or not safetensors"),
    (make_pickle, "is a pickle, not safetensors: it could run code"),
    (make_old_pickle, "is a pickle, not safetensors: it could run code"),
    (make_text, "is truncated or not safetensors"),
    (Path.unlink, "is missing"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
@pytest.mark.parametrize("part", ["weights", "memory"])
def test_a_damaged_file_is_named(damage: Callable[[Path], None], reason: str, part: str, folder: Path) -> None:
    path = last(folder) / f"{part}.safetensors"
    damage(path)
    with pytest.raises(MnemoError, match=f"{path} {reason}") as error:
        open_run(folder, "last")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("damaged", "which", "hint"),
    [
        (12, "last", "step 9 is whole: --which last uses it once newer ones are removed"),
        (9, "best", "step 12 is whole: --which last uses it"),
    ],
)
def test_a_whole_checkpoint_is_named_in_its_place(damaged: int, which: Any, hint: str, folder: Path) -> None:
    run_folder.write_best(folder, 9, 1.0)
    make_empty(checkpoints.checkpoint_path(folder, damaged) / "weights.safetensors")
    for read in (lambda: open_run(folder, which), lambda: run_folder.export_run(folder, folder / "export", which)):
        with pytest.raises(MnemoError, match=f"step-{damaged:08d}/weights.safetensors is truncated .*; {hint}$"):
            read()
    assert not (folder / "export").exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "progress.json"])
def test_links_that_lead_out_of_a_run_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    path = last(folder) / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MnemoError, match=f"{path} is a link that leads out of its run, to {tmp_path}/elsewhere"):
        open_run(folder, "last")


def test_links_inside_a_run_and_of_its_folders_are_followed(folder: Path, tmp_path: Path) -> None:
    path = last(folder) / "weights.safetensors"
    path.rename(folder / "kept")
    path.symlink_to(folder / "kept")
    assert open_run(folder, "last").step == 12
    (folder / "checkpoints").rename(tmp_path / "disk")
    (folder / "checkpoints").symlink_to(tmp_path / "disk")
    assert open_run(folder, "last").step == 12


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda t: t.pop("embedding.tables.0"), "it has no tensor 'embedding.tables.0'"),
    (lambda t: t.update(extra=torch.zeros(1)), "it has an unexpected tensor 'extra'"),
    (
        lambda t: t.update({"embedding.tables.0": torch.zeros(6, 9)}),
        r"'embedding.tables.0' is float32 \[6, 9\], the model has float32 \[6, 8\]",
    ),
    (
        lambda t: t.update({"embedding.tables.0": torch.zeros(6, 8, dtype=torch.float16)}),
        r"'embedding.tables.0' is float16 \[6, 8\], the model has float32 \[6, 8\]",
    ),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_weights_of_another_configuration_are_named(change: Any, reason: str, folder: Path) -> None:
    path = last(folder) / "weights.safetensors"
    edit_checkpoint(path, change)
    for use in (lambda: open_run(folder, "last"), lambda: train(folder)):
        with pytest.raises(MnemoError, match=f"{path} is of another configuration: {reason}"):
            use()


def test_another_recipe_does_not_take_the_weights(folder: Path) -> None:
    other = to_json(recipe(model={"num_layers": 3}))
    edit_json(folder / "recipe.json", lambda header: header.update(recipe=other))
    with pytest.raises(MnemoError, match="weights.safetensors is of another configuration: it has no tensor"):
        open_run(folder)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("recipe.json", "{", "recipe.json is damaged or truncated: it is not JSON"),
        ("recipe.json", "{}", "recipe.json has format_version None; this version of mnemo supports 1"),
        ("recipe.json", '{"format_version": 1}', "recipe.json is damaged: it does not describe the corpus"),
        ("recipe.json", '{"format_version": 1, "corpus": {}}', "recipe.json: recipe: expected an object"),
        ("best.json", '{"format_version": 1}', "best.json is damaged"),
        ("best.json", '{"format_version": 1, "step": 7}', "step-00000007/progress.json is missing"),
        ("best.json", "[]", "best.json is damaged: it holds no JSON object"),
    ],
)
def test_damaged_descriptions_are_named(name: str, content: str, reason: str, folder: Path) -> None:
    (folder / name).write_text(content)
    with pytest.raises(MnemoError, match=reason):
        open_run(folder)


def test_half_written_checkpoints_are_not_seen(folder: Path) -> None:
    shutil.copytree(last(folder), folder / "checkpoints" / ".tmp-abc")
    (folder / "checkpoints" / ".tmp-abc" / "weights.safetensors").write_bytes(b"half")
    assert open_run(folder, "last").step == 12
    train(folder)
    assert not list((folder / "checkpoints").glob(".tmp-*"))


class Notes(Unwatched):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def test_training_goes_on_from_the_last_whole_checkpoint(folder: Path, finished: Path) -> None:
    truncate(last(folder) / "training.safetensors")
    notes = Notes()
    train(folder, monitor=notes)
    assert any("step-00000012/training.safetensors is truncated" in line for line in notes.lines)
    assert "continuing after step 9" in notes.lines
    assert metrics(folder) == metrics(finished)
    assert open_run(folder, "last").step == 12


def test_without_a_whole_checkpoint_nothing_is_overwritten(folder: Path) -> None:
    for step in checkpoints.checkpoint_steps(folder):
        truncate(checkpoints.checkpoint_path(folder, step) / "weights.safetensors")
    before = metrics(folder)
    with pytest.raises(MnemoError, match="step-00000012/weights.safetensors is truncated"):
        train(folder)
    assert metrics(folder) == before and checkpoints.checkpoint_steps(folder) == [8, 9, 12]


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl"])
@pytest.mark.parametrize("left", few([None, 30, 0, 200], lambda left: left is None))
def test_lost_lines_do_not_block_resuming(name: str, left: int | None, tmp_path: Path) -> None:
    """A file that is missing or truncated keeps its whole lines, new ones are appended, and one note says so."""
    for folder in ("whole", "damaged"):
        run(tmp_path / folder, monitor=Signaller(signal.SIGTERM, step=10))
    path, notes = tmp_path / "damaged" / name, Notes()
    before = path.read_bytes()
    path.unlink() if left is None else path.write_bytes(before[:left])
    for folder in ("whole", "damaged"):
        train(tmp_path / folder, monitor=notes)
    (note,) = [line for line in notes.lines if "has lost lines" in line]
    kept = 0 if left is None else before[:left].count(b"\n")
    assert note == f"{path} has lost lines: {kept} are left, and new ones are appended to them"
    whole, damaged = (
        [*map(json.loads, (tmp_path / each / name).read_text().splitlines())] for each in ("whole", "damaged")
    )
    assert [line["step"] for line in damaged] == [
        line["step"] for line in [*whole[:kept], *whole[before.count(b"\n") :]]
    ]
    assert damaged[0]["format_version"] == 1
    assert train(tmp_path / "damaged", monitor=notes).step == 12
    assert len([line for line in notes.lines if "has lost lines" in line]) == 1


def test_another_environment_is_noted_once(folder: Path) -> None:
    notes = Notes()
    train(folder, monitor=notes)
    assert not any("last digits" in line for line in notes.lines)
    path = last(folder) / "progress.json"
    saved = json.loads(path.read_text())
    assert saved["environment"] == {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
    edit_json(path, lambda progress: progress.update(environment={"torch": "1.0", "threads": 64}))
    train(folder, monitor=notes)
    (note,) = [line for line in notes.lines if "last digits" in line]
    assert note.startswith("torch version 1.0 -> ") and "number of threads 64 -> " in note


@pytest.mark.parametrize("file", ["training.safetensors", "progress.json", "metrics.jsonl"])
def test_a_full_disk_leaves_the_last_checkpoint_whole(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    """The disk fills up in the middle of a file of the third checkpoint, or of the metrics before it."""
    full = OSError(errno.ENOSPC, "No space left on device")
    real_save, real_dump, seen = tensor_file.save_file, json.dump, []

    def save(tensors: Any, path: Path, metadata: Any) -> None:
        seen.append(path.name)
        if seen.count(file) == 3:
            path.write_bytes(b"half")
            raise full
        real_save(tensors, path, metadata)

    def dump(data: Any, stream: Any, **options: Any) -> None:
        seen.append(Path(stream.name).name.removeprefix(".tmp-").rpartition(".")[0])
        if seen.count(file) == 3:
            stream.write('{"half')
            raise full
        real_dump(data, stream, **options)

    monkeypatch.setattr(tensor_file, "save_file", save)
    monkeypatch.setattr(json, "dump", dump)
    if file == "metrics.jsonl":
        lines = SimpleNamespace(dumps=_failing(json.dumps, full, after=4))
        monkeypatch.setattr("mnemo.training.metrics_log.json", lines)
    create_run(recipe(), tmp_path / "run")
    with pytest.raises(MnemoError, match="cannot (save|write) .*: No space left on device; .* whole"):
        train(tmp_path / "run")
    assert not list((tmp_path / "run").rglob(".tmp-*"))
    assert open_run(tmp_path / "run", "last").step in (3, 4)
    monkeypatch.undo()
    train(tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(finished)


def _failing(function: Callable[..., Any], error: OSError, after: int) -> Callable[..., Any]:
    calls = iter(range(after))

    def call(*args: Any, **options: Any) -> Any:
        if next(calls, None) is None:
            raise error
        return function(*args, **options)

    return call


def test_a_line_that_finds_the_disk_full_is_given_up(tmp_path: Path) -> None:
    class FullDisk(io.BytesIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            """Fail once, like a file: Python 3.13 reports errors of a second call when the object is collected."""
            if not self.closed:
                super().close()
                self.flush()

    with JsonLines(tmp_path / "metrics.jsonl") as lines:
        lines._file.close()
        lines._file = FullDisk()  # type: ignore[assignment]
        with pytest.raises(MnemoError, match="cannot write .*metrics.jsonl: No space left on device"):
            lines.append({"step": 1})


def test_errors_of_the_tensor_library_are_disk_errors_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*args: Any) -> None:
        raise tensor_file.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensor_file, "save_file", save)
    create_run(recipe(), tmp_path / "run")
    with pytest.raises(MnemoError, match="cannot save .*step-00000000: .*No space left on device"):
        train(tmp_path / "run")


@pytest.mark.skipif(lock.fcntl is None, reason="no file locks here")
def test_a_run_in_use_is_refused(folder: Path) -> None:
    with run_folder.locked(folder), pytest.raises(MnemoError, match="is in use by another process"):
        train(folder)
    train(folder)


@pytest.mark.skipif(lock.fcntl is None, reason="no file locks here")
def test_a_file_system_without_locks_does_not_prevent_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with run_folder.locked(folder):
        assert not run_folder.in_use(folder)


def test_pruning_keeps_the_newest_and_the_best(folder: Path) -> None:
    progress = checkpoints.load_checkpoint(last(folder)).progress
    for step in (20, 30, 40):
        checkpoints.save_checkpoint(folder, {**progress, "step": step}, {part: {} for part in checkpoints.PARTS})
    checkpoints.prune(folder, 2, {9})
    assert checkpoints.checkpoint_steps(folder) == [9, 30, 40]


@pytest.mark.parametrize("reason", ["signal", "clock"])
def test_checkpoints_of_clocks_and_signals_displace_no_others(folder: Path, reason: str) -> None:
    progress = checkpoints.load_checkpoint(last(folder)).progress

    def save(step: int, reason: str) -> list[int]:
        content = {**progress, "step": step, "reason": reason}
        checkpoints.save_checkpoint(folder, content, {part: {} for part in checkpoints.PARTS})
        checkpoints.prune(folder, 2, {9})
        return checkpoints.checkpoint_steps(folder)

    assert save(13, reason) == [9, 12, 13]
    assert save(14, reason) == [9, 12, 14]
    assert save(15, "interval") == [9, 12, 15]
    assert save(16, "end") == [9, 15, 16]


def test_devices_that_are_not_there() -> None:
    with pytest.raises(MnemoError, match="device 'cuda:99' cannot be used"):
        weights.pick_device("cuda:99")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpu", "did you mean 'cuda'?"),
        ("GPU:1", "did you mean 'cuda:1'?"),
        ("CUDA", "did you mean 'cuda'?"),
        ("cuad", "did you mean 'cuda'?"),
        ("metal", "did you mean 'mps'?"),
        ("nowhere", "known: auto, cpu, cuda, cuda:1, mps"),
        ("", "known: auto, cpu, cuda, cuda:1, mps"),
    ],
)
def test_devices_that_have_another_name(name: str, hint: str) -> None:
    with pytest.raises(MnemoError) as raised:
        weights.pick_device(name)
    assert str(raised.value) == f"unknown device '{name}'; {hint}"


def test_recipes_survive_the_folder(finished: Path) -> None:
    header = load_header(finished)
    assert header.recipe == recipe() and header.source is None
    assert replace(header.recipe, train=recipe(steps=5).train) != header.recipe
