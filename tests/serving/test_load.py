"""The load benchmark on tiny models. Speeds are not tested, only what is measured and written."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from helpers.models import random_model

from mnemo.cli import main
from mnemo.errors import MnemoError
from mnemo.memory.state import nbytes
from mnemo.serving.load.growth import EngineConversation, GrowthPoint, lengths_up_to, measure_growth
from mnemo.serving.load.http_sessions import HttpServer, measure_http
from mnemo.serving.load.picture import write_figures
from mnemo.serving.load.sessions import Workload, measure_sessions

SEGMENT = 4


def test_sessions() -> None:
    model, load = random_model(), Workload(prompt=6, tokens=9, rows=2)
    one, many = measure_sessions(model, SEGMENT, (1, 5), load)
    assert (one.sessions, many.sessions, many.rows) == (1, 5, 2)
    for found in (one, many):
        assert 0 < found.first_token_p50 <= found.first_token_p99
        assert 0 < found.token_p50 <= found.token_p99
        assert found.tokens_per_second > 0 and found.batch_tokens_per_second > 0
        assert found.total_tokens_per_second > 0
        assert found.peak_bytes is None
    assert one.state_bytes == many.state_bytes > nbytes(model.init(1, cached=True))
    assert one.to_json()["share_of_batch"] == one.share
    assert one.rows_in_use == 1 and 0.8 < many.rows_in_use <= 1  # of 5 texts in 2 rows, the last is alone
    assert one.read_passes == 2 and 8 <= many.read_passes <= 10  # on a CPU only their ends fit into common passes


def test_the_state_of_a_conversation_does_not_grow_and_a_cache_does() -> None:
    growing_cache = pytest.importorskip("mnemo.hf.growing_cache")
    model, lengths = random_model(dtype=torch.float32), [200, 300, 600]
    ours = measure_growth(EngineConversation(model, SEGMENT), lengths, model.config.vocab_size)
    theirs = measure_growth(growing_cache.GrowingCacheConversation(model), lengths, model.config.vocab_size)
    assert [point.length for point in ours] == [point.length for point in theirs] == lengths
    assert len({point.bytes for point in ours}) == 1
    per_token = 2 * 4 * model.config.num_layers * model.config.num_heads * model.config.head_dim
    assert [point.bytes for point in theirs] == [length * per_token for length in lengths]
    assert all(point.seconds_per_token > 0 and point.read_seconds_per_token > 0 for point in (*ours, *theirs))


def test_the_compared_transformer_has_the_size_of_the_model() -> None:
    growing_cache = pytest.importorskip("mnemo.hf.growing_cache")
    model = random_model(dtype=torch.float32, dim=64, num_heads=4, head_dim=16, inner_dim=258)
    ours, theirs = (
        sum(parameter.numel() for parameter in layers.parameters())
        for layers in (model.stages, growing_cache.GrowingCacheConversation(model).model.model.layers)
    )
    assert theirs == pytest.approx(ours, rel=0.1)


def test_lengths() -> None:
    assert lengths_up_to(100_000) == [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000]
    assert lengths_up_to(3_000) == [1_000, 2_000, 3_000] and lengths_up_to(500) == [500]


def test_pictures(tmp_path: Path) -> None:
    points = [GrowthPoint(length, 0.002, 0.0001, 2**20 * length) for length in (100, 300)]
    paths = write_figures(tmp_path / "load.json", {"Mnemo": points, "other": points})
    assert [path.name for path in paths] == ["load-cost.svg", "load-memory.svg"]
    points = [replace(point, device_seconds_per_token=0.001) for point in points]
    paths = write_figures(tmp_path / "load.json", {"Mnemo": points, "other": points})
    assert [path.name for path in paths] == ["load-cost.svg", "load-gpu.svg", "load-memory.svg"]
    assert all("Mnemo" in path.read_text() and "</svg>" in path.read_text() for path in paths)


@pytest.mark.thorough
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "load.json"
    options = "--sessions 1,3 --rows 2 --length 200 --device cpu --threads 1"
    assert main(["bench", "--serving", "tiny-bytes", *options.split(), "--out", str(out)]) == 0
    found = json.loads(out.read_text())["serving"]
    assert [row["sessions"] for row in found["sessions"]] == [1, 3]
    assert {"Mnemo", "Llama in transformers (eager), growing cache"} >= set(found["growth"]) >= {"Mnemo"}
    assert (tmp_path / "load-cost.svg").is_file() and (tmp_path / "load-memory.svg").is_file()
    assert "MiB/session" in capsys.readouterr().out


class Answers(BaseHTTPRequestHandler):
    """A server that streams as many events as a request wants tokens."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._start("application/json")
        self.wfile.write(b'{"object": "list", "data": [{"id": "small"}]}')

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if wanted["model"] != "small" or not wanted["stream"] or len(wanted["prompt"]) != 512:
            self.send_error(400, "wrong request")
            return
        self._start("text/event-stream")
        for _ in range(wanted["max_tokens"]):
            self.wfile.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")

    def _start(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_running_server(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "http.json"
    assert main(["bench", "--http", server, "--sessions", "1,3", "--out", str(out)]) == 0
    found = json.loads(out.read_text())["http"]
    assert [row["sessions"] for row in found] == [1, 3]
    assert all(row["tokens_per_second"] > 0 and row["first_event_p50"] > 0 for row in found)
    assert "first event s" in capsys.readouterr().out


def test_servers_that_cannot_be_measured(server: str) -> None:
    with pytest.raises(MnemoError, match="no address of a server"):
        HttpServer.at("nowhere")
    with pytest.raises(MnemoError, match="no server answers"):
        measure_http(HttpServer.at("http://127.0.0.1:9"), [1], prompt=512, tokens=3)
    with pytest.raises(MnemoError, match="answered 'HTTP/1.1 400"):
        measure_http(HttpServer.at(server), [1], prompt=5, tokens=3)
    with pytest.raises(MnemoError, match="streams no tokens"):
        measure_http(HttpServer.at(server), [1], prompt=512, tokens=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("nosuch", "nosuch"),
        ("tiny-bytes --sessions 1,x", "separated by commas"),
        ("tiny-bytes --sessions 0", "must be positive"),
        ("tiny-bytes --length 5", "at least 200"),
        ("tiny-bytes --rows 0", "must be positive"),
    ],
)
def test_wrong_options(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--serving", *options.split()]) == 2
    assert message in capsys.readouterr().err
