"""Limits and faults: full queues, time limits, clients that disconnect, shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from helpers import commands
from helpers.http_server import RunningServer, running, serial, wait_for
from helpers.serial_engine import SerialEngine
from helpers.sessions import random_run

from mnemo.serving.app import create_app
from mnemo.serving.settings import Settings

BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 2000, "seed": 1}
LONG = 16_384


class SlowEngine(SerialEngine):
    """Waits before every step until the test lets it go on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.seconds = 0.0
        super().__init__(*args, **options)

    def take_turn(self) -> bool:
        self.gate.wait()
        time.sleep(self.seconds)
        return super().take_turn()


@contextmanager
def slow_server(**settings: Any) -> Iterator[tuple[RunningServer, SlowEngine]]:
    opened = random_run()
    engine = SlowEngine(opened.run.model, opened.run.recipe.train.segment)
    engine.seconds = 0.002
    model = replace(serial(opened), engine=engine)
    with running([model], settings=Settings(**settings)) as server:
        yield server, engine
        engine.gate.set()


def post(server: RunningServer, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60)


def in_background(call: Callable[[], Any]) -> list[Any]:
    """Results of a call in another thread."""
    results: list[Any] = []
    threading.Thread(target=lambda: results.append(call()), daemon=True).start()
    return results


def metric(server: RunningServer, name: str) -> float:
    text = httpx2.get(f"{server.url}/metrics").text
    (value,) = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return float(value)


def test_a_full_server_answers_429() -> None:
    with slow_server(max_requests=2) as (server, engine):
        engine.gate.clear()
        waiting = [in_background(lambda: post(server, BODY | {"max_tokens": 1})) for _ in range(2)]
        wait_for(lambda: server.app.state.server.running == 2)
        refused = post(server, BODY)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.RateLimitError, match="try again later"):
            client.completions.create(model="tiny", prompt="abc")
        engine.gate.set()
        wait_for(lambda: all(waiting))
        assert [done[0].status_code for done in waiting] == [200, 200]
        assert post(server, BODY | {"max_tokens": 1}).status_code == 200


def test_a_full_engine_answers_429() -> None:
    with slow_server() as (server, engine):
        engine.queue_limit = 1
        engine.gate.clear()
        first = in_background(lambda: post(server, BODY | {"max_tokens": 1}))
        wait_for(lambda: engine.stats().queued == 1)
        assert post(server, BODY).status_code == 429
        engine.gate.set()
        wait_for(lambda: first)
        assert first[0].status_code == 200


def test_several_choices_of_which_one_finds_the_queue_full() -> None:
    """All jobs of the request are cancelled, and the answer is an error."""
    with slow_server() as (server, engine):
        engine.queue_limit = 3
        refused = post(server, BODY | {"n": 20})
        assert refused.status_code == 429
        wait_for(lambda: not engine.stats().writing and not engine.stats().queued)


def test_a_time_limit() -> None:
    with slow_server(request_seconds=0.3) as (server, engine):
        response = post(server, BODY | {"max_tokens": LONG})
        assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
        wait_for(lambda: not engine.active())


def test_a_time_limit_of_a_stream_is_its_last_event() -> None:
    with slow_server(request_seconds=0.5) as (server, engine):
        lines = post(server, BODY | {"max_tokens": LONG, "stream": True}).text.strip().split("\n\n")
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert len(events) > 5 and all("choices" in event for event in events[:-1])
        assert events[-1]["error"]["code"] == "timeout"
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIError, match="took longer than"):
            list(client.completions.create(model="tiny", prompt="abc", max_tokens=LONG, stream=True))
        wait_for(lambda: not engine.active())


def test_a_body_that_does_not_arrive() -> None:
    with slow_server(upload_seconds=0.2) as (server, _):
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert connection.recv(1000).split()[1] == b"408"


def test_headers_that_do_not_arrive() -> None:
    with slow_server(upload_seconds=0.2) as (server, _):
        whole = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for before in (b"", whole):
            with socket.create_connection(("127.0.0.1", server.port), timeout=3) as connection:
                connection.sendall(before)
                while before and b"}" not in connection.recv(1000):  # the end of the answer
                    pass
                connection.sendall(whole[:-2])
                assert not connection.recv(1000)  # the server has closed the connection


def test_answers_are_sent_at_once() -> None:
    """The body of an answer does not wait until the client has acknowledged the headers."""
    with running([serial(random_run())]) as server, httpx2.Client(base_url=server.url) as client:
        client.get("/v1/models")
        (connection,) = server.uvicorn.server_state.connections
        own: Any = connection.transport
        assert own.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_client_that_disconnects_in_its_body_gets_no_answer() -> None:
    app, sent = create_app([serial(random_run())]), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert not sent


@pytest.mark.parametrize("stream", [True, False])
def test_computing_stops_when_the_client_disconnects(stream: bool) -> None:
    with slow_server() as (server, engine):
        with pytest.raises(httpx2.TimeoutException) if not stream else _nothing():
            timeout = httpx2.Timeout(60 if stream else 0.5)
            body = BODY | {"max_tokens": LONG, "stream": stream}
            with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=timeout) as response:
                next(response.iter_raw())
        wait_for(lambda: not engine.active())
        written = engine.stats().tokens_written
        assert 0 < written < LONG
        time.sleep(0.1)
        assert engine.stats().tokens_written == written
        assert metric(server, "mnemo_cancelled_requests_total") == 1
        assert post(server, BODY | {"max_tokens": 1}).status_code == 200


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_a_waiting_request_that_is_cancelled_is_not_computed() -> None:
    with slow_server() as (server, engine):
        engine.gate.clear()
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{server.url}/v1/completions", json=BODY, timeout=0.3)
        engine.gate.set()
        wait_for(lambda: not engine.active() and not engine.stats().queued)
        assert engine.stats().tokens_written == 0


def test_metrics() -> None:
    with slow_server() as (server, _):
        assert post(server, BODY | {"max_tokens": 5}).status_code == 200
        assert metric(server, "mnemo_tokens_read_total") == 3
        assert metric(server, "mnemo_tokens_written_total") == 5
        assert metric(server, "mnemo_running_requests") == 0
        assert metric(server, "mnemo_first_token_seconds_count") == 1
        text = httpx2.get(f"{server.url}/metrics").text
        assert 'mnemo_requests_total{method="POST",path="/v1/completions",status="200"} 1.0' in text
        # A client cannot make the list of metrics grow by asking for many paths.
        for number in range(3):
            httpx2.get(f"{server.url}/nosuch/{number}")
        text = httpx2.get(f"{server.url}/metrics").text
        assert 'mnemo_requests_total{method="GET",path="other",status="404"} 3.0' in text and "nosuch" not in text


def test_a_failing_model_is_an_error_of_the_server() -> None:
    with slow_server() as (server, engine):
        engine.model.get_parameter(next(iter(dict(engine.model.named_parameters())))).data.fill_(float("nan"))
        response = post(server, BODY)
        assert response.status_code == 500 and "not finite" in response.json()["error"]["message"]
        assert response.json()["error"]["type"] == "server_error"


def test_shutdown_lets_streams_finish() -> None:
    with slow_server() as (server, _):
        body = BODY | {"max_tokens": 200, "stream": True}
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.uvicorn.should_exit = True
            assert [line for line in lines if line][-1] == "data: [DONE]"
        server.thread.join(30)
        assert not server.thread.is_alive()
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/health")


def test_shutdown_does_not_wait_for_ever() -> None:
    with slow_server(shutdown_seconds=1) as (server, engine):
        body = BODY | {"max_tokens": LONG, "stream": True}
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            next(response.iter_raw())
            server.uvicorn.should_exit = True
            server.thread.join(20)
            assert not server.thread.is_alive()
        assert engine.stats().tokens_written < LONG


@contextmanager
def command(folder: Path, *arguments: str) -> Iterator[tuple[BaseProcess, list[str]]]:
    """`mnemo serve` in another process, and the lines that it prints until it is ready."""
    (folder / commands.MESSAGES).touch()
    process = commands.start(["serve", "--port", "0", "--device", "cpu", *arguments], folder)
    try:
        wait_for(lambda: not process.is_alive() or re.search("try: curl.*\n", messages(folder)))
        yield process, messages(folder).splitlines()
    finally:
        process.kill()
        process.join()


def messages(folder: Path) -> str:
    return (folder / commands.MESSAGES).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_the_command(tmp_path: Path, number: signal.Signals) -> None:
    with command(tmp_path) as (process, lines):
        assert "using novels-small, which comes with mnemo" in lines[0]
        address = re.findall(r"serving novels-small at (http://127.0.0.1:\d+)/v1", lines[1])[0]
        printed = re.findall(r"try: (curl .*)$", lines[2])[0]
        assert address in printed
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        assert len(client.completions.create(model="novels-small", prompt="It was", max_tokens=5).choices[0].text) == 5
        done = subprocess.run(["bash", "-c", printed], capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout)["choices"][0]["finish_reason"] == "length"
        os.kill(process.pid or 0, number)
        process.join(30)
        assert process.exitcode == 0
        assert messages(tmp_path).splitlines()[len(lines) :] == ["mnemo: the server has stopped"]
