"""Training the demo from the studio: one process, its last line, its end."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx2
import pytest
from helpers.http_server import running, wait_for

from mnemo.serving.studio.demo_training import PATH, DemoTraining

TRAINS = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).mkdir(); print('step 1', flush=True); time.sleep({})"


def demo_that(folder: Path, code: str) -> DemoTraining:
    return DemoTraining(folder / "runs", (sys.executable, "-c", code))


def test_the_demo_trains_once(tmp_path: Path) -> None:
    demo = demo_that(tmp_path, TRAINS.format(60))
    with running([], routes=demo.routes()) as server, httpx2.Client(base_url=server.url) as client:
        assert client.get(PATH).json()["state"] == "absent"
        assert client.post(PATH, json={}).json()["state"] == "training"
        wait_for(lambda: client.get(PATH).json()["line"] == "step 1")
        again = client.post(PATH, json={})
        assert again.status_code == 409 and "already" in again.json()["error"]["message"]
        foreign = client.post(PATH, json={}, headers={"Origin": "https://example.org"})
        assert foreign.status_code == 403
    demo.stop()
    assert demo.state()["state"] == "failed"


@pytest.mark.parametrize(("end", "state"), [("sys.exit(0)", "finished"), ("sys.exit('no memory left')", "failed")])
def test_the_end_of_the_demo(tmp_path: Path, end: str, state: str) -> None:
    demo = demo_that(tmp_path, f"import sys; print('report.html'); {end}")
    with running([], routes=demo.routes()) as server, httpx2.Client(base_url=server.url) as client:
        client.post(PATH, json={})
        wait_for(lambda: client.get(PATH).json()["state"] == state)
        assert client.get(PATH).json()["line"] == ("report.html" if state == "finished" else "no memory left")
    demo.stop()


def test_an_earlier_demo_is_kept(tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    demo = demo_that(tmp_path, "")
    assert demo.state()["state"] == "there"
