"""Jobs on a machine that is there for a limited time: order, deadline, and what is collected."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from helpers.hang_up import default_hang_up

from mnemo import cli
from mnemo.bench.alternatives.rows import ROWS
from mnemo.cli import arguments
from mnemo.config import to_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json
from mnemo.papers import find_experiment
from mnemo.recipes.presets import preset
from mnemo.training.stop_signals import ECHO_SECONDS
from tools import steps_in_time
from tools.gpu_queue import __main__ as command
from tools.gpu_queue import collect, queue, watching
from tools.gpu_queue.plan import Job, read_plan
from tools.gpu_queue.queue import Queue

ROOT = Path(__file__).parents[2]
IF_SET, OUTPUT = re.compile(r"\$\{[^}]*\}"), re.compile(r"\$\([^)]*\)")
"""What a shell replaces: here by nothing, and by a number."""
PLANS = sorted((ROOT / "tools" / "gpu_queue" / "plans").glob("*.toml"))


def write_plan(folder: Path, *jobs: dict[str, Any]) -> Path:
    lines = ['title = "Some jobs"']
    for job in jobs:
        lines += ["[[job]]", *(f"{name} = {json.dumps(value)}" for name, value in ({"minutes": 0.001} | job).items())]
    path = folder / "plan.toml"
    path.write_text("\n".join(lines))
    return path


def run(plan: Path, folder: Path, minutes: float = 1.0, *more: str) -> int:
    return command.main(["run", str(plan), "--minutes", str(minutes), "--folder", str(folder), *more])


@contextmanager
def started(folder: Path, command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A queue in a process of its own, and the process that its job, run in `folder`, names in the file `pid`."""
    plan = write_plan(folder, {"name": "job", "run": [f"cd {folder}", command]})
    words = ["-m", "tools.gpu_queue", "run", str(plan), "--minutes", "1", "--folder", str(folder / "q")]
    with default_hang_up():
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT)
    with process:
        try:
            wait_for(folder / "pid")
            yield process, int((folder / "pid").read_text())
        finally:
            process.kill()
            with suppress(OSError, ValueError):  # the job has a group of its own
                os.killpg(os.getpgid(int((folder / "pid").read_text())), signal.SIGKILL)


def wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists() or (path.name == "pid" and not path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)


def has_ended(process: int) -> bool:
    """It is gone as soon as the system has taken its exit code."""
    for _ in range(200):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def states(folder: Path) -> dict[str, str]:
    return {job["name"]: job["state"] for job in load_json(folder / collect.STATE)["jobs"]}


def test_jobs_run_in_order_with_this_python_and_this_mnemo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plan = write_plan(
        tmp_path,
        {"name": "one", "run": ["python -c 'import sys; print(sys.executable)'", "echo 1 > made.txt"]},
        {"name": "two", "run": ["cat made.txt && mnemo --version"], "after": ["one"]},
    )
    assert run(plan, tmp_path / "q") == 0
    assert states(tmp_path / "q") == {"one": "done", "two": "done"}
    assert (tmp_path / "q" / "one.log").read_text().strip() == sys.executable
    assert (tmp_path / "q" / "two.log").read_text().startswith("1\nmnemo ")
    assert "one: done in" in capsys.readouterr().out


def test_a_failed_job_stops_what_comes_after_it_only(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path,
        {"name": "bad", "run": ["false | cat", "touch never"]},
        {"name": "reads-it", "run": ["true"], "after": ["bad"]},
        {"name": "other", "run": ["true"]},
    )
    assert run(plan, tmp_path / "q") == 1
    assert states(tmp_path / "q") == {"bad": "failed", "reads-it": "skipped", "other": "done"}
    jobs = load_json(tmp_path / "q" / collect.STATE)["jobs"]
    assert [job["why"] for job in jobs] == ["exit code 1", "bad has not succeeded", ""]


def test_a_job_that_cannot_end_in_time_is_not_started(tmp_path: Path) -> None:
    long, short = {"name": "long", "run": ["true"], "minutes": 3}, {"name": "short", "run": ["true"]}
    assert run(write_plan(tmp_path, long, short), tmp_path / "q") == 1
    assert states(tmp_path / "q") == {"long": "skipped", "short": "done"}


def test_at_the_deadline_a_job_saves_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = Queue._wait

    def until_ready(self: Queue) -> None:
        if (tmp_path / "ready").exists():
            self._deadline = 0.0
        wait(self)

    monkeypatch.setattr(Queue, "_wait", until_ready)
    saves = "trap 'sleep 0.5; echo saved > work.txt; exit 1' TERM; touch ready; while true; do sleep 0.05; done"
    script = [f"cd {tmp_path}", f"bash -c {json.dumps(saves)} & wait"]
    job = {"name": "late", "run": script, "keep": [str(tmp_path / "work.txt")]}
    assert run(write_plan(tmp_path, job), tmp_path / "q") == 1
    assert "late: the time is over; it has 75 s to save" in capsys.readouterr().out
    assert states(tmp_path / "q") == {"late": "stopped"}
    with tarfile.open(tmp_path / "q" / collect.COLLECTED) as archive:
        names = archive.getnames()
    assert names == ["state.json", "late.log", f"files{tmp_path / 'work.txt'}"]


def test_a_folder_belongs_to_one_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_plan(tmp_path, {"name": "job", "run": [f"echo x >> {tmp_path / 'count'}"]})
    assert run(plan, tmp_path / "q") == 0
    assert run(plan, tmp_path / "q") == 2
    assert "name another folder" in capsys.readouterr().err
    assert (tmp_path / "count").read_text() == "x\n"


def test_what_a_job_has_left_running_does_not_delay_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LEFT_OVER_SECONDS", 0.5)
    stubborn = "bash -c 'trap : TERM; echo $$ > pid; while true; do sleep 0.05; done' > /dev/null &"
    job = {"name": "job", "run": [f"cd {tmp_path}", stubborn, "while ! test -s pid; do sleep 0.05; done"]}
    begin = time.monotonic()
    assert run(write_plan(tmp_path, job), tmp_path / "q") == 0
    assert time.monotonic() - begin < 10 and has_ended(int((tmp_path / "pid").read_text()))


def test_a_queue_that_has_ended_has_a_complete_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    collected = collect.collect

    def slowly(target: Path, *rest: Any) -> list[str]:
        ended.append(load_json(tmp_path / "q" / collect.STATE)["ended"])
        return collected(target, *rest)

    monkeypatch.setattr(queue, "collect", slowly)
    job = {"name": "job", "run": [f"echo x > {tmp_path / 'made'}"], "keep": [str(tmp_path / "made")]}
    assert run(write_plan(tmp_path, job), tmp_path / "q") == 0
    assert not any(ended) and load_json(tmp_path / "q" / collect.STATE)["ended"]
    with tarfile.open(tmp_path / "q" / collect.COLLECTED) as archive:
        assert f"files{tmp_path / 'made'}" in archive.getnames()


def test_large_files_are_left_out_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect, "MOST_BYTES", 10)
    monkeypatch.setattr(queue, "COLLECT_SECONDS", 0.1)
    (tmp_path / "a.bin").write_bytes(bytes(11))
    (tmp_path / "b.bin").write_bytes(bytes(9))
    plan = write_plan(tmp_path, {"name": "job", "run": ["sleep 1"], "keep": [f"{tmp_path}/*.bin"]})
    assert run(plan, tmp_path / "q") == 0
    assert capsys.readouterr().out.count("not collected") == 1
    with tarfile.open(tmp_path / "q" / collect.COLLECTED) as archive:
        assert archive.getnames()[2:] == [f"files{tmp_path / 'b.bin'}"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_queue_stops_its_job(number: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path, "sleep 60 & echo $! > pid; wait") as (process, job):
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert states(tmp_path / "q") == {"job": "stopped"} and has_ended(job)


def test_interrupted_again_a_queue_ends_its_job_by_force(tmp_path: Path) -> None:
    stubborn = "bash -c 'trap \"touch asked\" TERM; echo $$ > pid; while true; do sleep 0.05; done' & wait"
    with started(tmp_path, stubborn) as (process, job):
        process.send_signal(signal.SIGTERM)
        wait_for(tmp_path / "asked")
        time.sleep(ECHO_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM and has_ended(job)


def test_a_signal_while_a_job_is_started_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> Any:
        process = begin(*arguments, **options)
        if options.get("start_new_session"):
            wait_for(tmp_path / "pid")
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(queue.subprocess, "Popen", interrupted)
    jobs = [
        {"name": "one", "run": [f"cd {tmp_path}", "sleep 60 & echo $! > pid; wait"]},
        {"name": "two", "run": ["true"]},
    ]
    assert run(write_plan(tmp_path, *jobs), tmp_path / "q") == 128 + signal.SIGTERM
    assert states(tmp_path / "q") == {"one": "stopped", "two": "waiting"}
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_a_queue_goes_on_if_files_cannot_be_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(queue, "collect", full)
    assert run(write_plan(tmp_path, {"name": "job", "run": ["true"]}), tmp_path / "q") == 0
    assert capsys.readouterr().out.count("no space left on device") == 1


def test_vanished_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "there").write_text("x")
    assert collect.collect(tmp_path / "all.tar.gz", [], [f"{tmp_path}/*"]) == []
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        assert archive.getnames() == [f"files{tmp_path / 'there'}"]


def test_watching_shows_states_and_copies_the_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write_plan(tmp_path, {"name": "job", "run": ["true"]}), tmp_path / "q") == 0
    capsys.readouterr()
    assert command.main(["watch", "--folder", str(tmp_path / "q"), "--copy-to", str(tmp_path / "copy")]) == 0
    assert capsys.readouterr().out == "job: done\n"
    assert (tmp_path / "copy" / collect.COLLECTED).exists()


def test_watching_says_if_there_is_no_queue_or_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without waiting for the time that it was given."""
    monkeypatch.setattr(watching, "START_SECONDS", 0.1)
    watch = ["watch", "--folder", str(tmp_path / "q"), "--seconds", "600"]
    assert command.main(watch) == 2
    assert "no queue has begun" in capsys.readouterr().err
    write_state(tmp_path / "q", "running")
    (tmp_path / "q" / "job.log").write_text("step 1\n")
    os.utime(tmp_path / "q" / collect.STATE, (0, 0))
    assert command.main(watch) == 0
    assert "the queue may have been killed\njob, 5 s: step 1\n" in capsys.readouterr().out


def write_state(folder: Path, *states: str) -> None:
    folder.mkdir(exist_ok=True)
    names = ("job", "next")
    jobs = [{"name": name, "state": state, "why": "", "seconds": 5} for name, state in zip(names, states, strict=False)]
    write_json(folder / collect.STATE, {"ended": False, "jobs": jobs})


def test_watching_ends_when_a_job_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_state(tmp_path / "q", "running", "waiting")
    (tmp_path / "q" / "job.log").write_text("step 1\nit broke\n")
    monkeypatch.setattr(watching, "COLLECT_SECONDS", 0.01)
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: write_state(tmp_path / "q", "failed", "running"))
    watch = ["watch", "--folder", str(tmp_path / "q"), "--seconds", "600"]
    assert command.main(watch) == 0
    assert capsys.readouterr().out == "job: running\njob: failed\n  it broke\nnext: running\nnext, 5 s: \n"
    capsys.readouterr()
    assert command.main([*watch[:-1], "0"]) == 0
    assert "job: failed\n  it broke\n" in capsys.readouterr().out


def test_a_queue_goes_on_without_a_reader(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, {"name": "one", "run": ["true"]}, {"name": "two", "run": ["true"]})
    words = ["-m", "tools.gpu_queue", "run", str(plan), "--minutes", "1", "--folder", str(tmp_path / "q")]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert states(tmp_path / "q") == {"one": "done", "two": "done"}


def test_the_state_names_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMIT", "574cc742")
    assert run(write_plan(tmp_path, {"name": "job", "run": ["true"]}), tmp_path / "q") == 0
    state = load_json(tmp_path / "q" / collect.STATE)
    assert state["title"] == "Some jobs" and state["commit"] == "574cc742" and {"gpu", "driver"} < state.keys()
    assert {"mnemo", "python", "torch"} <= state["versions"].keys()


def test_only_some_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_plan(
        tmp_path, {"name": "a", "run": ["false"]}, {"name": "b", "run": ["true"], "after": ["a"], "minutes": 0.5}
    )
    assert run(plan, tmp_path / "q", 1.0, "--only", "b", "--dry-run") == 0
    assert "0.5 minutes at most, 1 are there" in capsys.readouterr().out
    assert run(plan, tmp_path / "q", 0.5, "--dry-run") == 0
    assert "b (0.5 min, may not be started)" in capsys.readouterr().out
    assert run(plan, tmp_path / "q", 1.0, "--only", "b") == 0
    assert run(plan, tmp_path / "q", 1.0, "--only", "c") == 2


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([{"name": "a"}], "it has no run"),
        ([{"name": "a b", "run": ["true"]}], "name = 'a b' is wrong"),
        ([{"name": "a", "run": []}], r"run = \[\] is wrong"),
        ([{"name": "a", "run": ["true"], "minutes": 0}], "minutes = 0 is wrong"),
        ([{"name": "a", "run": ["true"], "alone": True}], "unknown key alone"),
        ([{"name": "a", "run": ["true"], "after": ["b"]}], "a is after b, which is no job before it"),
        ([{"name": "a", "run": ["true"]}] * 2, "two jobs are named a"),
        ([], r"it has no \[\[job\]\]"),
    ],
)
def test_wrong_plans_are_refused(jobs: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match=message):
        read_plan(write_plan(tmp_path, *jobs))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_plans_of_the_project_fit_and_their_commands_are_right(path: Path) -> None:
    jobs = read_plan(path).jobs
    assert sum(job.minutes for job in jobs) < 28
    found = [(verb, words) for job in jobs for verb, words in commands(job)]
    assert found
    for verb, words in found:
        if verb == "train":
            assert cli.main([verb, *words, "--dry-run"]) == 0
            continue
        args = arguments.parse(verb, import_module(f"mnemo.cli.{verb}"), words)
        if verb == "reproduce":
            assert all(find_experiment(name) for name in args.names)
        if verb == "bench":
            assert args.what in ROWS


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_plans_of_the_project_keep_their_results(path: Path) -> None:
    for job in read_plan(path).jobs:
        for verb, words in commands(job):
            if verb in ("eval", "analyse"):
                assert f"{words[0]}/results/*" in job.keep
            elif verb == "train":
                assert f"runs/{words[words.index('--name') + 1]}/*.json*" in job.keep
            elif verb == "bench":
                row = words[words.index("--what") + 1]
                assert {"runs/alternatives/*.json", f"runs/alternatives/{row}/*.json*"} <= set(job.keep)
            elif verb == "reproduce":
                assert f"runs/reproduce/{words[0]}/gpu/cells/*/result.json" in job.keep
            else:
                assert verb == "prepare"


def commands(job: Job) -> Iterator[tuple[str, list[str]]]:
    """Verbs of mnemo and their arguments, without those that continue a run or are for another version (python -m)."""
    for line in (line for line in job.run if not line.startswith("python")):
        for one in re.split(r"\|+", OUTPUT.sub("7", IF_SET.sub("", line)).replace("\\\n", "")):
            _, mnemo, words = one.partition("mnemo ")
            verb, *arguments = shlex.split(words) if mnemo else [""]
            if verb and "--resume" not in arguments:
                yield verb, arguments


def test_steps_for_a_time_are_those_of_a_settled_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = preset("tiny-bytes")
    write_json(tmp_path / "recipe.json", {"recipe": to_json(recipe), "corpus": {}})
    symbols = recipe.train.batch * recipe.train.segment
    speeds = [1.0, 5.0, 99.0, 100.5, 104.0]
    lines = [json.dumps({"step": step, "tokens_per_second": speed * symbols}) for step, speed in enumerate(speeds)]
    (tmp_path / "timing.jsonl").write_text("\n".join(lines[:2]))
    assert steps_in_time.main([str(tmp_path), "10"]) == 2
    assert "the run is too short to tell its speed" in capsys.readouterr().err
    (tmp_path / "timing.jsonl").write_text("\n".join(lines))
    assert steps_in_time.main([str(tmp_path), "10"]) == 0
    assert capsys.readouterr().out == "1005\n"
    for most, shown in (("1000", "1000\n"), ("2000", "1005\n")):
        assert steps_in_time.main([str(tmp_path), "10", most]) == 0
        assert capsys.readouterr().out == shown
    assert steps_in_time.main([str(tmp_path), "10", "few"]) == 2
