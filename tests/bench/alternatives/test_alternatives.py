"""Rows of equal training time: declared sizes, stages that continue, and the command."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hang_up import default_hang_up
from helpers.marks import few
from helpers.own_memories import forget_mechanisms, keep_mechanisms
from helpers.stand_in_delta import use_stand_in
from helpers.tiny_runs import sample_text

from mnemo.bench.alternatives import delta_reference, measure
from mnemo.bench.alternatives.measure import Conditions, measure_row
from mnemo.bench.alternatives.recipes import DELTAS, for_training, recipe_of, register
from mnemo.bench.alternatives.results import HEADERS, collect, remarks, result_path, table
from mnemo.bench.alternatives.rows import CARRIED, CORPUS, PRESET, ROWS, SEPARATE, SLIDING, SYMBOLS, find_rows
from mnemo.cli import bench_alternatives, main, row_process
from mnemo.data.prepare import prepare
from mnemo.errors import MnemoError
from mnemo.memory import XL, mechanism
from mnemo.memory.own import own_mechanisms, require_imports
from mnemo.recipes.presets import preset
from mnemo.storage import weights
from mnemo.storage.run_folder import InUse, locked, open_run
from mnemo.storage.run_header import load_header
from mnemo.training import Unwatched, create_run
from mnemo.training.stop_signals import stop_on_signals
from mnemo.training.training_log import TIMING

HAS_LIBRARY = importlib.util.find_spec("fla") is not None


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)


@pytest.fixture(scope="module")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of corpora, with a small text under the name of the one that rows are trained on."""
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "enwik8").write_text(sample_text(400), encoding="utf-8")
    prepare(CORPUS, folder / "enwik8", root=folder, allow_mismatch=True)
    return folder


@pytest.fixture
def enwik8(small_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus and the memories of rows, until the test ends."""
    keep_mechanisms(monkeypatch)
    register()
    monkeypatch.setenv("MNEMO_DATA", str(small_corpus))


def conditions(folder: Path, seconds: float = 0.2) -> Conditions:
    return Conditions(folder=folder, device="cpu", seconds=seconds, miniature=True, commit="abc")


def test_rows_are_selected_by_name_in_the_table_s_order() -> None:
    assert [row.name for row in find_rows("plain-512, memory")] == ["memory", "plain-512"]
    assert len(find_rows(None)) == len(ROWS) == 6
    with pytest.raises(MnemoError, match="did you mean 'plain-512'"):
        find_rows("plain-51")


def test_plain_transformers_have_two_ways_to_read_and_the_others_carry_their_state() -> None:
    assert [(r.name, r.segment, r.context) for r in ROWS["plain-1024"].readings] == [
        (SEPARATE, 1024, 0),
        (SLIDING, 512, 512),
    ]
    assert [(r.name, r.segment) for r in ROWS["memory"].readings] == [(CARRIED, 512)]
    assert [(r.name, r.segment) for r in ROWS["gated-deltanet"].readings] == [(CARRIED, 2048)]


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_rows_differ_from_the_preset_in_memory_and_segment_only(row: Any) -> None:
    recipe, base = recipe_of(row, "cpu"), preset(PRESET)
    assert recipe.train.batch * recipe.train.segment == SYMBOLS == base.train.batch * base.train.segment
    same = replace(recipe.train, batch=64, segment=512, device="auto", compile=None)
    assert (same, recipe.data, recipe.evaluation) == (base.train, base.data, base.evaluation)
    assert replace(recipe.model, memory=base.model.memory, positions=base.model.positions) == base.model
    assert any(recipe.model.memory.lengths(12)) == (row.name == "memory")


def test_the_rate_falls_over_the_steps_of_the_row() -> None:
    recipe = for_training(recipe_of(ROWS["plain-512"], "cpu"), 9000, lines=150, evaluations=6)
    train = recipe.train
    assert (train.steps, train.schedule.steps, train.schedule.warmup) == (9000, None, 200)
    assert (train.log_every, train.eval_every) == (60, 1500)


@pytest.mark.parametrize("name", [pytest.param("plain-512", marks=pytest.mark.thorough), "gated-deltanet"])
def test_a_row_is_trained_for_its_time_and_scored(name: str, stand_in: None, enwik8: None, tmp_path: Path) -> None:
    found = measure_row(ROWS[name], conditions(tmp_path), Unwatched())
    assert json.loads(result_path(tmp_path, ROWS[name]).read_text())["test"] == found["test"]
    assert found["steps"] == int(0.2 * found["probe"]["symbols_per_second"] / 1024) or found["steps"] == 1
    assert found["training"]["symbols"] == 1024 * found["steps"]
    assert found["training"]["seconds"] * found["training"]["symbols_per_second"] == pytest.approx(
        found["training"]["symbols"]
    )
    assert any("2 layers of width 32" in note for note in found["training"]["notes"])
    assert list(found["training"]["valid_curve"])[-1] == str(found["steps"])
    assert [score["reading"] for score in found["valid"]] == [reading.name for reading in ROWS[name].readings]
    best = min(found["valid"], key=lambda score: score["bpc"])
    assert (found["test"]["reading"], found["test"]["context"]) == (best["reading"], best["context"])
    assert 0 < found["test"]["bpc"] < 9 and found["commit"] == "abc" and found["probe"]["peak_bytes"] is None
    assert open_run(tmp_path / name, "last", "cpu").step == found["steps"]
    assert not (tmp_path / f"{name}-probe").exists()
    assert ("kernels" in found) == (ROWS[name].kind == "delta")


def test_a_row_with_wrong_kernels_is_not_timed(
    stand_in: None, enwik8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_reference, "LARGEST_ERROR", 0.0)
    for only_speed in (True, False):
        with pytest.raises(MnemoError, match=r"are wrong here.*; if the compiler breaks them, --few-warps may help"):
            measure_row(ROWS["kimi-delta"], replace(conditions(tmp_path), only_speed=only_speed), Unwatched())
    assert not result_path(tmp_path, ROWS["kimi-delta"]).exists()


def test_rows_of_the_library_have_their_layers() -> None:
    assert list(DELTAS) == [row.name for row in ROWS.values() if row.kind == "delta"]


def test_runs_of_the_comparison_are_opened_like_others(
    enwik8: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process that has not measured."""
    recipe = for_training(recipe_of(ROWS["plain-512"], "cpu", miniature=True), 1, lines=1)
    create_run(recipe, tmp_path / "runs" / "plain")
    forget_mechanisms()
    assert load_header(tmp_path / "runs" / "plain").recipe.model.memory == recipe.model.memory
    assert main(["runs", "--runs", str(tmp_path / "runs")]) == 0
    assert "import" not in "".join(capsys.readouterr())


def test_a_memory_of_the_same_name_stays_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_mechanisms(monkeypatch)
    forget_mechanisms()
    with pytest.raises(MnemoError, match="needs --import my.py"):
        require_imports([{"name": "Flash", "file": "my.py"}], "a run")
    own = mechanism(dataclass(frozen=True, kw_only=True)(type("Flash", (XL,), {})))
    require_imports([{"name": "Flash", "file": "my.py"}], "a run")
    assert own_mechanisms() == {"flash": own}


@pytest.mark.thorough
def test_an_interrupted_row_continues_with_its_next_stage(
    enwik8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ROWS["memory"]

    def fail(self: Any) -> Any:
        raise MnemoError("the power is off")

    with monkeypatch.context() as broken:
        broken.setattr(measure.Measurement, "test", fail)
        with pytest.raises(MnemoError, match="the power is off"):
            measure_row(row, conditions(tmp_path), Unwatched())
    earlier = json.loads(result_path(tmp_path, row).read_text())
    assert "test" not in earlier
    assert "row memory is trained, but not scored" in collect(tmp_path)["remarks"]
    monkeypatch.setattr(measure.Measurement, "_train", fail)
    found = measure_row(row, conditions(tmp_path), Unwatched())
    assert found["training"] == earlier["training"]
    assert found["test"]["memory"] == 32
    with pytest.raises(MnemoError, match=r"number of --seconds \(0.2, now 3.0\): .* remove it and .*memory, or"):
        measure_row(row, conditions(tmp_path, seconds=3.0), Unwatched())


@pytest.mark.thorough
def test_the_speed_alone_is_measured_first(enwik8: None, tmp_path: Path) -> None:
    given = conditions(tmp_path)
    found = measure_row(ROWS["memory"], replace(given, only_speed=True), Unwatched())
    assert found["steps"] >= 1 and "training" not in found
    assert "row memory is measured for its speed only, and not trained" in collect(tmp_path)["remarks"]
    assert list(tmp_path.iterdir()) == [result_path(tmp_path, ROWS["memory"])]
    assert measure_row(ROWS["memory"], given, Unwatched())["steps"] == found["steps"]


def test_training_that_was_cut_off_goes_on_from_its_checkpoint(
    enwik8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, started = ROWS["plain-512"], list[str]()
    recipe = for_training(recipe_of(row, "cpu", miniature=True), 3, lines=measure.LINES, evaluations=6)
    create_run(recipe, tmp_path / row.name)
    monkeypatch.setattr(measure.Measurement, "steps", lambda self: 3)
    monkeypatch.setattr(
        measure,
        "create_run",
        lambda recipe, folder, **options: started.append(folder.name) or create_run(recipe, folder),
    )
    found = measure_row(row, conditions(tmp_path), Unwatched())
    assert started == ["plain-512-probe"] and found["training"]["symbols"] == 3 * 1024
    other = conditions(tmp_path / "other")
    create_run(replace(recipe, train=replace(recipe.train, seed=5)), other.folder / row.name)
    with pytest.raises(MnemoError, match="started with other settings"):
        measure_row(row, other, Unwatched())


def test_unequal_conditions_are_remarked() -> None:
    row = {"row": "memory", "seconds_aimed": 450.0, "machine": {}, "commit": "a", "test": {}}
    rows = [
        row | {"training": {"seconds": 470.0}},
        row | {"row": "plain-512", "commit": "b", "card": {"used_mib": 9e3}},
    ]
    found = remarks(rows)
    assert "rows differ in commit" in found
    assert "row memory was trained 4.4% longer than declared" in found
    assert "row plain-512 was not alone: 9,000 MiB of the GPU were in use at its start" in found
    assert "row plain-1024 is not measured" in found and "row plain-512 is not measured" not in found


def test_a_row_of_the_library_is_measured_with_one_kind_of_kernels(
    stand_in: None, enwik8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, given = ROWS["kimi-delta"], replace(conditions(tmp_path), only_speed=True)
    few = replace(given, few_warps=True)
    monkeypatch.setattr(measure, "use_few_warps", list)
    with pytest.raises(MnemoError, match="has variants that could be left out"):
        measure_row(row, few, Unwatched())
    monkeypatch.setattr(measure, "use_few_warps", lambda: ["product"])
    assert measure_row(row, few, Unwatched())["few_warps"] is True
    assert "row kimi-delta has kernels with few warps" in collect(tmp_path)["remarks"]
    with pytest.raises(MnemoError, match=r"another choice of --few-warps \(True, now False\)"):
        measure_row(row, given, Unwatched())
    assert "few_warps" not in measure_row(ROWS["plain-512"], few, Unwatched())
    assert "few_warps" not in measure_row(ROWS["plain-512"], given, Unwatched())


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "runs/alternatives-trial"),
        (["--seconds", "450"], "runs/alternatives-trial"),
        (["--device", "cuda"], "runs/alternatives"),
        (["--device", "cuda", "--seconds", "450"], "runs/alternatives"),
        (["--device", "cuda", "--seconds", "60"], "runs/alternatives-trial"),
        (["--device", "cuda", "--seconds", "60", "--runs", "mine"], "mine"),
    ],
)
def test_trials_do_not_block_the_declared_measurement(
    words: list[str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Conditions] = []
    monkeypatch.setattr(weights, "pick_device", torch.device)
    monkeypatch.setattr(bench_alternatives, "require_corpus", lambda name: None)
    monkeypatch.setattr(row_process, "measure_here", lambda name, given: measured.append(given))
    monkeypatch.setattr(bench_alternatives, "collect", lambda folder, planned: {"rows": [], "remarks": []})
    words = ["--device", "cpu", *words] if "--device" not in words else words
    assert main(["bench", "--alternatives", "--what", "memory", *words]) == 0
    assert [given.folder for given in measured] == [Path(folder)]


def test_a_table_shows_what_is_known() -> None:
    known = {"row": "memory", "steps": 9000, "probe": {"peak_bytes": 3 * 2**30}, "valid": [{"bpc": 1.2}, {"bpc": 1.1}]}
    (line,) = table([known])
    assert line == ("memory", "-", "1.1000", "-", "-", "3.0", "-", "9,000", "-")
    assert len(line) == len(HEADERS)


def test_the_command_measures_a_row_and_merges_it(
    enwik8: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "--alternatives", "--runs", str(tmp_path / "rows"), "--device", "cpu"]
    assert main([*words, "--what", "plain-1024", "--seconds", "0.1", "--commit", "abc"]) == 0
    printed = capsys.readouterr()
    assert "plain-1024" in printed.out and "row memory is not measured" in printed.err
    assert main([*words, "--merge", "--json", "--out", str(tmp_path / "all.json")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in record["rows"]] == ["plain-1024"]
    assert json.loads((tmp_path / "all.json").read_text())["rows"] == record["rows"]
    assert any("these numbers say nothing" in remark for remark in record["remarks"])


def test_rows_that_were_measured_otherwise_are_not_shown(tmp_path: Path) -> None:
    for name, seconds in (("memory", 450.0), ("plain-512", 5.0)):
        known = {"row": name, "test": {}, "seconds_aimed": seconds, "miniature": False}
        bench_alternatives.write_json(result_path(tmp_path, ROWS[name]), known)
    found = collect(tmp_path, {"seconds_aimed": 450.0, "miniature": False})
    assert [row["row"] for row in found["rows"]] == ["memory"]
    assert "row plain-512 is left out: it was measured otherwise" in found["remarks"]
    assert "rows differ in number of --seconds" in collect(tmp_path)["remarks"]


@pytest.mark.parametrize("name", DELTAS)
def test_a_row_that_needs_a_gpu_says_so_before_it_asks_for_a_corpus(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MNEMO_DATA", str(tmp_path))
    assert main(["bench", "--alternatives", "--device", "cpu", "--what", name, "--runs", str(tmp_path / "rows")]) == 2
    assert "need a CUDA device, not cpu" in capsys.readouterr().err


def write_result(given: Conditions, name: str) -> None:
    path = result_path(given.folder, ROWS[name])
    path.parent.mkdir(exist_ok=True)
    about = {"seconds_aimed": given.seconds, "miniature": given.miniature}
    bench_alternatives.write_json(path, {"row": name, "test": {}, **about})


def test_several_rows_are_measured_apart_and_one_that_fails_is_named(
    enwik8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = []

    def apart(name: str, given: Conditions, stop: Any) -> int:
        measured.append((name, given.seconds, given.miniature))
        if ROWS[name].kind == "delta":
            return row_process.FAILED
        write_result(given, name)
        return 0

    monkeypatch.setattr(row_process, "measure_apart", apart)
    words = ["bench", "--alternatives", "--runs", str(tmp_path / "rows"), "--device", "cpu"]
    assert main([*words, "--what", "plain-512,gated-deltanet"]) == 1
    assert measured == [("plain-512", 1.0, True), ("gated-deltanet", 1.0, True)]
    assert "not measured: gated-deltanet" in capsys.readouterr().err
    measured.clear()
    assert main(words) == 0  # without names, rows that a CPU cannot run are left out
    assert [name for name, *_ in measured] == ["memory", "plain-512", "plain-1024", "plain-2048"]
    assert "row gated-deltanet is left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "exit_code", "rows"),
    [
        (128 + signal.SIGTERM, 143, ["memory"]),
        (row_process.IN_USE, 1, ["memory"]),
        (128 + signal.SIGSEGV, 1, ["memory", "plain-512"]),  # a crash
    ],
)
def test_no_row_is_begun_after_a_signal_or_beside_another_command(
    code: int, exit_code: int, rows: list[str], enwik8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = list[str]()

    def apart(name: str, given: Conditions, stop: Any) -> int:
        measured.append(name)
        write_result(given, name)
        return code

    monkeypatch.setattr(row_process, "measure_apart", apart)
    words = ["bench", "--alternatives", "--runs", str(tmp_path / "rows"), "--device", "cpu"]
    assert main([*words, "--what", "memory,plain-512"]) == exit_code
    assert measured == rows


@pytest.mark.parametrize(
    "number", few([signal.SIGTERM, signal.SIGINT, signal.SIGHUP], lambda each: each == signal.SIGTERM)
)
def test_a_stopped_measurement_is_saved_and_leaves_no_process(
    number: signal.Signals, enwik8: None, tmp_path: Path
) -> None:
    words = ["bench", "--alternatives", "--runs", str(tmp_path), "--device", "cpu", "--what", "plain-512,plain-1024"]
    command = [sys.executable, "-W", "ignore", "-m", "mnemo", *words, "--seconds", "60"]
    with default_hang_up():
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    run = tmp_path / "plain-512"
    wait_until(lambda: (run / TIMING).exists())
    process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "the same command goes on" in printed
    assert list(run.glob("checkpoints/step-*")) and not (tmp_path / "plain-1024.json").exists()
    with locked(run):
        pass  # nobody else holds it


@pytest.mark.thorough
@pytest.mark.slow
def test_a_row_ends_with_the_command_that_was_killed(enwik8: None, tmp_path: Path) -> None:
    words = ["bench", "--alternatives", "--runs", str(tmp_path), "--device", "cpu", "--what", "plain-512,plain-1024"]
    command = [sys.executable, "-W", "ignore", "-m", "mnemo", *words, "--seconds", "60"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    run = tmp_path / "plain-512"
    wait_until(lambda: (run / TIMING).exists())
    process.kill()
    process.wait()
    wait_until(lambda: is_free(run))
    assert list(run.glob("checkpoints/step-*"))


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_free(run: Path) -> bool:
    try:
        with locked(run):
            return True
    except InUse:
        return False


@pytest.mark.thorough
@pytest.mark.slow
def test_a_process_of_a_row_reports_its_failure(enwik8: None, tmp_path: Path) -> None:
    """Without a GPU, the row of the library cannot run; its process says so, and the others go on."""
    with stop_on_signals() as stop:
        code = row_process.measure_apart("gated-deltanet", conditions(tmp_path), stop)
    assert code == row_process.FAILED
    assert not result_path(tmp_path, ROWS["gated-deltanet"]).exists()


def test_a_stopped_row_exits_with_its_signal(enwik8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(name: str, given: Conditions) -> None:
        raise measure.RowStopped(ROWS[name], signal.SIGTERM)

    monkeypatch.setattr(row_process, "measure_here", stopped)
    words = ["bench", "--alternatives", "--device", "cpu", "--what", "memory", "--runs", str(tmp_path)]
    assert main(words) == 128 + signal.SIGTERM


def test_trials_are_named_where_the_measurement_has_no_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bench_alternatives.TRIALS.mkdir(parents=True)
    assert main(["bench", "--alternatives", "--merge"]) == 2
    assert "--runs runs/alternatives-trial" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "0"], "must be positive"),
        (["--merge"], "has no results"),
        (["--what", "memori"], "did you mean 'memory'"),
        (["--merge", "--only-speed"], "--merge measures nothing"),
        (["--few-warps", "--what", "plain-512"], "--few-warps is for rows of flash-linear-attention"),
        (["--gpu-table"], "--gpu-table and --alternatives are different measurements"),
        (["--profile"], "--profile and --alternatives are different measurements"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, enwik8: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--alternatives", "--device", "cpu", "--runs", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_row_whose_speed_alone_is_known_shows_it() -> None:
    row = {"row": "memory", "probe": {"symbols_per_second": 1e6, "peak_bytes": 2**31}, "steps": 9}
    shown = dict(zip(HEADERS, table([row])[0], strict=True))
    assert (shown["train symbols/s"], shown["train GiB"], shown["seconds"], shown["steps"]) == (
        "1,000,000",
        "2.0",
        "-",
        "9",
    )


@pytest.mark.parametrize("words", [["--seconds", "3"], ["--only-speed", "--gpu-table"], ["--few-warps"]])
def test_options_of_this_comparison_alone_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert "need --alternatives" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch warns of itself while it compiles
@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_measured_on_a_gpu(name: str, enwik8: None, tmp_path: Path) -> None:
    if ROWS[name].kind == "delta" and not HAS_LIBRARY:
        pytest.skip("flash-linear-attention is not installed")
    found = measure_row(ROWS[name], replace(conditions(tmp_path), device="cuda"), Unwatched())
    assert found["probe"]["steps"] == measure.TINY_PROBE_STEPS and found["probe"]["peak_bytes"] > 0
    assert not [note for note in found["training"]["notes"] if "continuing without" in note]
    assert 0 < found["test"]["bpc"] < 9
