"""Wrong input, busy sessions and lost connections: a clear answer, and nothing is lost."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from helpers.http_server import wait_for
from helpers.session_server import SessionServer, session_server
from helpers.sessions import TEXT, random_run
from starlette.requests import Request

from mnemo.data.encoded_pieces import encoded_pieces
from mnemo.serving.errors import ApiError
from mnemo.serving.settings import Settings
from mnemo.serving.uploads import uploaded

MEBIBYTE = 1 << 20
FILE = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionServer]:
    settings = Settings(max_upload_bytes=80 * MEBIBYTE, upload_seconds=2)
    with session_server(random_run(), tmp_path_factory.mktemp("store"), settings) as server:
        yield server


@pytest.fixture
def session(server: SessionServer) -> str:
    session = server.create(seed=3)["id"]
    server.read(session, TEXT)
    return session


@pytest.fixture(autouse=True)
def nothing_is_left(server: SessionServer) -> Iterator[None]:
    yield
    wait_for(lambda: not list(server.store.uploads.iterdir()))


def message(answer: httpx2.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "options", "expected"),
    [
        (b"", {}, "there is no text to read: the body is empty"),
        (bytes(range(256)) * 9, {}, "this is binary data, not text"),
        (b"abc\xe4bc", {}, "this text is not UTF-8 (byte 0xe4 at offset 3): name its encoding, such as ?encoding="),
        (b"abcdefgh", {"encoding": "utf-1000"}, "unknown encoding 'utf-1000'"),
        (b"abcdefgh", {"encoding": "base64"}, "unknown encoding 'base64'"),
        (b"a\xd8", {"encoding": "utf-16"}, "the text is not utf-16"),
        (b"abc", {"encodin": "utf-8"}, "unknown field 'encodin'; did you mean 'encoding'?"),
        (b"abcxyz", {}, "byte 0x78 at offset 3 is not in the vocabulary of 23 bytes"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_body_that_is_no_text(
    body: bytes, options: dict[str, str], expected: str, stream: bool, server: SessionServer, session: str
) -> None:
    before = server.show(session)
    answer = server.client.post(f"/sessions/{session}/read", content=body, params={**options, "stream": stream})
    assert expected in message(answer, 400)
    assert server.show(session) == before


def test_text_in_other_encodings(server: SessionServer, session: str) -> None:
    assert server.read(session, TEXT.encode("utf-16"), encoding="utf-16")["read"]["tokens"] == len(TEXT)
    kind = {"content-type": "text/plain; charset=utf-16"}
    answer = server.client.post(f"/sessions/{session}/read", content=TEXT.encode("utf-16"), headers=kind)
    assert answer.json()["read"]["tokens"] == len(TEXT)
    assert server.post(f"/sessions/{session}/read", {"text": TEXT})["read"]["tokens"] == len(TEXT)
    assert server.show(session)["tokens"] == 4 * len(TEXT)


def test_an_unknown_letter_late_in_a_long_text(
    server: SessionServer, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has read most of it by then: the letter is encoded when little of the text before it is left."""
    monkeypatch.setattr("mnemo.serving.incoming_ids.MOST_BUFFERED", 100)
    monkeypatch.setattr("mnemo.serving.api.sessions.encoded_pieces", partial(encoded_pieces, piece=1000))
    before = server.show(session)
    answer = server.client.post(f"/sessions/{session}/read", content="ab" * 500 + "Z", params={"stream": True})
    assert answer.status_code == 200 and "is not in the vocabulary" in answer.text
    assert server.show(session) == before


def test_a_busy_session(server: SessionServer, session: str) -> None:
    """As with two tabs of a browser: the second one gets an answer at once, and both find the session whole."""
    turn = server.store.take_turn(session)
    path = f"/sessions/{session}"
    answers = [
        server.client.post(f"{path}/read", content=TEXT),
        server.client.post("/completions", json={"model": "tiny", "prompt": "a", "session": session}),
        server.client.patch(path, json={"name": "x"}),
        server.client.delete(path),
        server.client.put(f"{path}/memory", content=b"x"),
    ]
    for answer in answers:
        assert "is busy: another request is changing it" in message(answer, 409)
    assert server.show(session)["busy"]
    assert server.client.get(f"{path}/memory").status_code == 200
    turn.close()
    assert server.read(session, TEXT)["session"]["tokens"] == 2 * len(TEXT)


def test_unknown_sessions(server: SessionServer) -> None:
    for name in ("no", "..", "%2e%2e%2f%2e%2e%2flock", "lock", "session-0000000000000000"):
        answer = server.client.get(f"/sessions/{name}")
        assert answer.status_code == 404 and str(server.store._sessions) not in answer.text


def damaged(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (damaged, "the memory file does not match its checksum: it is damaged"),
        (lambda data: data[:-10], "the memory file is truncated"),
        (lambda data: b"\x80\x04\x95" + data, "the memory file is a pickle, not safetensors"),
        (lambda data: b"", "the memory file is truncated or not safetensors"),
        (lambda data: b"hello" * 9, "not safetensors"),
    ],
)
def test_damaged_memory_files(change: Any, expected: str, server: SessionServer, session: str) -> None:
    before, count = server.show(session), server.store.count()
    data = change(server.client.get(f"/sessions/{session}/memory").content)
    for answer in (
        server.client.post("/sessions", content=data, headers=FILE),
        server.client.put(f"/sessions/{session}/memory", content=data),
    ):
        found = message(answer, 400)
        assert expected in found and str(server.store.uploads) not in found
    assert server.show(session) == before and server.store.count() == count


def test_the_memory_of_another_model(server: SessionServer, session: str, tmp_path: Path) -> None:
    with session_server(random_run(seed=1), tmp_path) as other:
        foreign = other.create()["id"]
        other.read(foreign, TEXT)
        data = other.client.get(f"/sessions/{foreign}/memory").content
    answer = server.client.put(f"/sessions/{session}/memory", content=data)
    assert "the memory file is the memory file of another model" in message(answer, 400)


def test_a_memory_that_is_not_finite(server: SessionServer, session: str) -> None:
    facts, state = server.store.session(session)
    broken = state._replace(hidden=torch.full_like(state.hidden, torch.nan))
    path = server.store.uploads / "broken"
    server.store.model_of(session).save(path, broken)
    data = path.read_bytes()
    path.unlink()
    answer = server.client.post("/sessions", content=data, headers=FILE)
    assert "numbers that are not finite" in message(answer, 400)


def test_an_empty_session_has_nothing_to_save(server: SessionServer) -> None:
    empty = server.create()["id"]
    assert "nothing to save: no text has been read yet" in message(server.client.get(f"/sessions/{empty}/memory"), 400)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"nam": "x"}, "unknown field 'nam'; did you mean 'name'?"),
        ({"name": "x" * 201}, "'name' has 201 characters; at most 200 are allowed"),
        ({"name": "a\nb"}, "all of them printable"),
        ({"seed": -1}, "'seed' is -1; it must be from 0"),
        ({"memory_length": "long"}, "'memory_length' must be a whole number, not a string"),
        ({"memory_length": 1 << 24}, "more than the"),
        ({"memory": 1}, "'memory' must be true or false, not a whole number"),
    ],
)
def test_wrong_fields(fields: dict[str, Any], expected: str, server: SessionServer, session: str) -> None:
    before, count = server.show(session), server.store.count()
    assert expected in message(server.client.post("/sessions", json=fields), 400)
    assert expected in message(server.client.patch(f"/sessions/{session}", json=fields), 400)
    assert server.show(session) == before and server.store.count() == count


def raw(server: SessionServer, head: str, body: bytes = b"") -> socket.socket:
    """A connection that has sent the begin of a request."""
    connection = socket.create_connection(("127.0.0.1", server.server.port), timeout=30)
    connection.sendall(f"{head}\r\nHost: 127.0.0.1\r\n\r\n".encode() + body)
    return connection


def test_a_client_that_stops_in_the_middle_of_a_text(server: SessionServer, session: str) -> None:
    before = server.show(session)
    head = f"POST /v1/sessions/{session}/read HTTP/1.1\r\nContent-Length: 1000"
    with raw(server, head, b"abc"):
        wait_for(lambda: server.store.is_busy(session))
    wait_for(lambda: not server.store.is_busy(session))
    assert server.show(session) == before


def test_a_client_that_sends_nothing(server: SessionServer, session: str) -> None:
    head = f"POST /v1/sessions/{session}/read HTTP/1.1\r\nContent-Length: 1000"
    with raw(server, head, b"abc") as connection:
        assert b"408" in connection.recv(1000)
    assert not server.store.is_busy(session)


def test_a_client_that_leaves_while_the_model_reads(server: SessionServer, session: str) -> None:
    before, text = server.show(session), TEXT * 20_000
    head = f"POST /v1/sessions/{session}/read?stream=true HTTP/1.1\r\nContent-Length: {len(text)}"
    with raw(server, head, text.encode()) as connection:
        assert b"session.progress" in connection.recv(10_000) + connection.recv(10_000)
    wait_for(lambda: not server.store.is_busy(session))
    assert server.show(session) == before
    wait_for(lambda: server.store.model_of(session).engine.stats().reading == 0)


def test_large_bodies(server: SessionServer, session: str) -> None:
    """They go to the disk piece by piece, and are checked there."""

    def body(size: int, last: bytes) -> Iterator[bytes]:
        for _ in range(size):
            yield b"a" * MEBIBYTE
        yield last

    before = server.show(session)
    tracemalloc.start()
    answer = server.client.post(f"/sessions/{session}/read", content=body(64, b"\xff"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"byte 0xff at offset {64 * MEBIBYTE:,}" in message(answer, 400)
    assert peak < 48 * MEBIBYTE
    assert server.show(session) == before


def test_bodies_that_are_too_large(server: SessionServer, session: str) -> None:
    """By their declared length, or while they arrive."""
    for path in (f"/v1/sessions/{session}/read", "/v1/sessions"):
        with raw(server, f"POST {path} HTTP/1.1\r\nContent-Length: {81 * MEBIBYTE}") as connection:
            assert b"HTTP/1.1 413" in connection.recv(1000)
    with pytest.raises(ApiError, match="larger than the allowed 10 bytes") as error:
        asyncio.run(upload(server.store.uploads, [b"12345678", b"12345678"], limit=10))
    assert error.value.status == 413


async def upload(folder: Path, parts: list[bytes], limit: int) -> None:
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    async with uploaded(Request({"type": "http"}, receive), folder, limit=limit, seconds=5):
        raise AssertionError
