"""`mnemo studio`: the models that it serves, the browser, and the end by Ctrl-C while pages are open."""

from __future__ import annotations

import os
import re
import shutil
import signal
import webbrowser
from pathlib import Path

import httpx2
import pytest
from helpers import commands
from helpers.http_server import wait_for
from helpers.tiny_runs import tiny_run

from mnemo.cli import main, studio
from mnemo.serving.settings import Settings
from mnemo.storage.shipped import SHIPPED

SHIPPED_MODEL = f"novels-small={SHIPPED / 'novels-small'}"


def test_without_runs_the_shipped_model_is_served(tmp_path: Path) -> None:
    assert studio.default_models(tmp_path) == (SHIPPED_MODEL,)


def test_the_last_run_and_the_demo_are_served_as_well(tmp_path: Path) -> None:
    shutil.copytree(tiny_run(), tmp_path / "mine")
    shutil.copytree(tiny_run(), tmp_path / "demo" / "bytes")
    expected = (f"mine={tmp_path / 'mine'}", SHIPPED_MODEL, f"demo={tmp_path / 'demo' / 'bytes'}")
    assert studio.default_models(tmp_path) == expected


@pytest.mark.parametrize("removed", ["recipe.json", "tokenizer.json"])
def test_a_run_that_cannot_be_served_is_left_out(tmp_path: Path, removed: str) -> None:
    shutil.copytree(tiny_run(), tmp_path / "mine")
    (tmp_path / "mine" / removed).unlink()
    if removed == "recipe.json":
        (tmp_path / "mine" / removed).write_text("{")
    assert studio.default_models(tmp_path) == (SHIPPED_MODEL,)


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", "nosuch"]) == 2
    assert "nosuch" in capsys.readouterr().err
    assert main(["studio", "--host", "0.0.0.0"]) == 2
    assert "needs a key" in capsys.readouterr().err


@pytest.mark.parametrize("opens", [True, False])
def test_the_browser_is_opened(
    opens: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or opens)
    studio._open_browser("http://127.0.0.1:8000", [], Settings())
    assert opened == ["http://127.0.0.1:8000/studio"]
    assert ("there is no browser" in capsys.readouterr().err) == (not opens)


@pytest.mark.slow
def test_ctrl_c_ends_the_studio_while_a_page_is_open(tmp_path: Path) -> None:
    messages = tmp_path / commands.MESSAGES
    messages.touch()
    process = commands.start(["studio", "--no-browser", "--port", "0", "--device", "cpu"], tmp_path)
    try:
        wait_for(lambda: not process.is_alive() or "\n" in messages.read_text())
        (address,) = re.findall(r"the studio is at (\S+)/studio with novels-small", messages.read_text())
        assert httpx2.get(f"{address}/studio/runs").status_code == 200
        with httpx2.stream("GET", f"{address}/studio/api/runs/events", timeout=60) as events:
            assert next(events.iter_lines()) == "event: runs"
            os.kill(process.pid or 0, signal.SIGINT)
            process.join(30)
            assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
