"""`mnemo watch`: one picture, lines while a run trains, and the end together with the training."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from helpers.run_folders import make_run, recipe
from rich.console import Console

from mnemo.cli import main, watch_run
from mnemo.cli.console import format_time
from mnemo.files.lock import takes_lock
from mnemo.report.runs import read_run
from mnemo.report.terminal_plot import BLANK, Curve, as_text, draw
from mnemo.storage import run_folder
from mnemo.storage.run_folder import in_use, locked


def test_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine", recipe())
    assert main(["watch", str(folder), "--once"]) == 0
    out = capsys.readouterr().out
    first, legend, *rows = out.splitlines()
    assert first == "mine: finished at step 400 of 400, 2.2029 bpc, best valid 2.2751 bpc"
    assert legend.split() == ["●", "training,", "bpc", "●", "validation,", "bpc"]
    assert rows[0].startswith(" 6.130 ┤") and rows[-1].endswith("step 400")
    assert sum(BLANK < ord(letter) < BLANK + 256 for letter in out) > 40


def test_a_run_that_stopped_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine", recipe(), steps=100)
    assert main(["watch", str(folder)]) == 0  # no process trains it, so that it does not wait
    earlier, trained, last = capsys.readouterr().out.splitlines()
    assert trained.startswith("step 100/400  ") and trained.endswith("lr 1.00e-03  20,100 tokens/s  15s left")
    assert earlier == "step 50: valid 5.3251 bpc, the best so far"
    assert last == "step 100: valid 3.8895 bpc, the best so far"
    assert main(["watch", str(folder), "--once"]) == 0
    assert "mine: not training at step 100 of 400" in capsys.readouterr().out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine", recipe(), steps=100)
    assert main(["watch", str(folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["training"] is False and answer["unit"] == "byte"
    assert answer["status"]["step"] == 100 and answer["status"]["seconds_left"] == pytest.approx(15)
    assert answer["best"]["step"] == 100


def test_the_last_run_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["watch"]) == 2
    assert "there is no run in runs: name the folder of one\n" in capsys.readouterr().err
    make_run(tmp_path / "runs" / "demo" / "bytes", recipe())
    assert main(["watch"]) == 2
    assert "no run in runs itself: name the folder of one, such as demo/bytes" in capsys.readouterr().err
    for name in ("older", "newer"):
        make_run(tmp_path / "runs" / name, recipe())
        time.sleep(0.02)
    assert main(["watch", "--once"]) == 0
    assert capsys.readouterr().out.startswith("newer: ")


def test_it_follows_until_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second process that trains is a lock on the folder and lines that are appended."""
    folder = make_run(tmp_path / "mine", recipe(), steps=50)
    seen, appended = threading.Event(), threading.Event()

    def train() -> None:
        with locked(folder):
            seen.wait(30)
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": 60, "split": "train", "loss": 1.0, "lr": 2e-3, "tokens": 1}) + "\n")
                file.write('{"step": 70, "spl')  # the line that is being written
            appended.set()

    def after_a_look(seconds: float) -> None:
        assert seconds == 0.5 and in_use(folder)
        seen.set()
        appended.wait(30)
        thread.join(30)

    thread = threading.Thread(target=train)
    thread.start()
    while not in_use(folder):
        pass
    monkeypatch.setattr(watch_run.time, "sleep", after_a_look)
    assert main(["watch", str(folder), "--every", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step 50/400 ") and lines[1].startswith("step 50: valid ")
    assert lines[2].startswith("step 60/400  1.4427 bpc  lr 2.00e-03  ")
    assert len(lines) == 3 and not in_use(folder)


def test_a_live_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine", recipe())
    text = watch_run._picture(read_run(folder, "mine"), True, Console(width=60, height=20).size)
    assert {span.style for span in text.spans} == {"dim", "cyan", "yellow"}
    lines = text.plain.splitlines()
    assert "0s left, best valid" in lines[0] and max(map(len, lines[1:])) <= 60
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["watch", str(folder)]) == 0
    assert "validation" in capsys.readouterr().out


def test_ctrl_c_leaves_the_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "mine", recipe(), steps=50)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch_run.time, "sleep", interrupt)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with locked(folder):
        assert main(["watch", str(folder)]) == 0
        assert "the training goes on" in capsys.readouterr().err


def test_before_the_first_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine", recipe())
    (folder / "metrics.jsonl").unlink()
    assert main(["watch", str(folder), "--once"]) == 0
    assert "nothing is logged yet, and no process trains it\nno points yet" in capsys.readouterr().out
    assert main(["watch", str(folder), "--every", "0"]) == 2
    assert format_time(float("nan")) == "?"


def test_a_look_at_the_lock_does_not_refuse_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "mine", recipe())
    (folder / "lock").touch()
    look = (folder / "lock").open()
    assert takes_lock(look, shared=True)
    monkeypatch.setattr(run_folder.time, "sleep", lambda seconds: look.close())
    with locked(folder):
        assert in_use(folder)


@pytest.mark.parametrize(("width", "height"), [(20, 5), (72, 14), (8, 3)])
def test_curves_reach_the_corners(width: int, height: int) -> None:
    rows = draw(
        [Curve("a", [(0, 1.0), (10, 3.0)]), Curve("b", []), Curve("c", [(10, 1.0)])], width=width, height=height
    )
    lines = as_text(rows).splitlines()
    assert "● a" in lines[0] and "● b" not in lines[0]
    assert "3.000" in lines[1] and "1.000" in lines[-3]
    assert lines[1].rstrip()[-1] != "┤" and {piece.curve for row in rows for piece in row} == {None, 0, 2}


def test_a_steep_beginning_lies_above_the_picture() -> None:
    curve = Curve("loss", [(1, 1e6), (50, 2.0), (100, 1.0)])
    lines = as_text(draw([curve], height=12)).splitlines()
    assert "2.000" in lines[1] and not any(
        BLANK < ord(letter) < BLANK + 256 for line in lines[1:4] for letter in line[:20]
    )


def test_a_level_curve_and_a_single_point() -> None:
    assert as_text(draw([Curve("a", [(5, 2.0)])])) and as_text(draw([Curve("a", [(1, 2.0), (2, 2.0)])]))
    assert as_text(draw([])) == "no points yet"
