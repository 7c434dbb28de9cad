"""Requests that must be refused: foreign hosts and pages, wrong keys, bodies that are too large."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from helpers.http_server import RunningServer, running, serial
from helpers.sessions import random_run

from mnemo.errors import MnemoError
from mnemo.serving.settings import Settings

KEY = "secret-0123"
BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 1}
PAGE = "https://friendly.example"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running([serial(random_run())]) as server:
        yield server


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    """A server with a key, for pages of one origin."""
    settings = Settings(api_key=KEY, allowed_origins=(PAGE,), allowed_hosts=("models.example",))
    with running([serial(random_run())], settings=settings) as server:
        yield server


def post(server: RunningServer, body: Any = BODY, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.post(f"{server.url}/v1/completions", json=body, headers=named)


def assert_refused(response: httpx2.Response, status: int, code: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["message"] and error["type"].endswith("_error")
    assert "access-control-allow-origin" not in response.headers


def test_a_usual_request(server: RunningServer) -> None:
    response = post(server)
    assert response.status_code == 200
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in response.headers and "server" not in response.headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "127.0.0.1@evil.example",
        "",
        "a b",
    ],
)
def test_foreign_hosts(server: RunningServer, host: str) -> None:
    """A page whose domain name resolves to 127.0.0.1 sends its own name."""
    assert_refused(post(server, host=host), 403, "foreign_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"])
def test_own_hosts(server: RunningServer, host: str) -> None:
    assert post(server, host=host).status_code == 200


def test_two_hosts(server: RunningServer) -> None:
    head = "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).split()[1] in (b"400", b"403")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://"]
)
def test_foreign_pages(server: RunningServer, origin: str) -> None:
    assert_refused(post(server, origin=origin), 403, "foreign_origin")


def test_own_pages(server: RunningServer) -> None:
    assert post(server, origin=server.url).status_code == 200


def test_a_foreign_page_without_an_origin(server: RunningServer) -> None:
    for site in ("cross-site", "same-site"):
        response = httpx2.get(f"{server.url}/v1/models", headers={"sec-fetch-site": site})
        assert_refused(response, 403, "foreign_origin")
    own = httpx2.get(f"{server.url}/v1/models", headers={"sec-fetch-site": "same-origin"})
    link = httpx2.get(f"{server.url}/health", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
    assert (own.status_code, link.status_code) == (200, 200)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_types_that_pages_send_without_asking(server: RunningServer, kind: str) -> None:
    content = b'{"model": "tiny", "prompt": "abc"}'
    response = httpx2.post(f"{server.url}/v1/completions", content=content, headers={"content-type": kind})
    assert_refused(response, 415, "not_json")


def test_no_page_may_ask_by_default(server: RunningServer) -> None:
    asked = {"origin": PAGE, "access-control-request-method": "POST"}
    response = httpx2.options(f"{server.url}/v1/completions", headers=asked)
    assert_refused(response, 403, "foreign_origin")


def test_a_permitted_page(locked: RunningServer) -> None:
    asked = {"origin": PAGE, "access-control-request-method": "POST"}
    response = httpx2.options(f"{locked.url}/v1/completions", headers=asked)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (204, PAGE)
    response = post(locked, origin=PAGE, authorization=f"Bearer {KEY}")
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "access-control-allow-origin" not in post(locked, authorization=f"Bearer {KEY}").headers
    assert post(locked, origin=PAGE).status_code == 401


@pytest.mark.parametrize("given", ["", KEY, f"Basic {KEY}", "Bearer", "Bearer wrong", f"Bearer {KEY}x", "Bearer \xfc"])
def test_wrong_keys(locked: RunningServer, given: str) -> None:
    response = httpx2.post(
        f"{locked.url}/v1/completions", json=BODY, headers=[(b"authorization", given.encode("latin-1"))]
    )
    assert_refused(response, 401, "invalid_api_key")


def test_the_key_is_for_every_path_but_health_and_pages(locked: RunningServer) -> None:
    for path in ("/v1/models", "/metrics", "/v1/sessions", "/nosuch", "/studio/api/runs", "/studio/api/"):
        assert httpx2.get(f"{locked.url}{path}").status_code == 401, path
    assert httpx2.get(f"{locked.url}/health").status_code == 200
    assert httpx2.get(f"{locked.url}/studio/nosuch").status_code == 404
    assert httpx2.post(f"{locked.url}/studio/nosuch").status_code == 401


def test_the_client_with_a_key(locked: RunningServer) -> None:
    right, wrong = (openai.OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0) for key in (KEY, "other"))
    assert [model.id for model in right.models.list()] == ["tiny"]
    with pytest.raises(openai.AuthenticationError, match="the API key is wrong or missing"):
        wrong.models.list()


def test_further_hosts(locked: RunningServer) -> None:
    allowed = post(locked, host="models.example", authorization=f"Bearer {KEY}")
    assert allowed.status_code == 200
    assert_refused(post(locked, host="other.example", authorization=f"Bearer {KEY}"), 403, "foreign_host")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_machines_need_a_key(host: str) -> None:
    with pytest.raises(MnemoError, match="needs a key: give --api-key KEY"):
        Settings(host=host)
    assert Settings(host=host, api_key=KEY).host == host


def test_a_server_for_other_machines_accepts_any_name_with_the_key() -> None:
    with running([serial(random_run())], settings=Settings(host="0.0.0.0", api_key=KEY)) as server:
        server.url = f"http://127.0.0.1:{server.port}"
        assert post(server, host="box.local", authorization=f"Bearer {KEY}").status_code == 200
        assert_refused(post(server, host="box.local"), 401, "invalid_api_key")
        foreign = post(server, host="box.local", origin="https://evil.example", authorization=f"Bearer {KEY}")
        assert_refused(foreign, 403, "foreign_origin")


@pytest.mark.parametrize("key", ["", "two words", "schlüssel"])
def test_impossible_keys(key: str) -> None:
    with pytest.raises(MnemoError, match="API key"):
        Settings(api_key=key)


def test_a_body_that_is_too_large_is_not_received_whole() -> None:
    settings, sent = Settings(max_body_bytes=10_000), 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(10_000):
            sent += 65_536
            yield b" " * 65_536

    with running([serial(random_run())], settings=settings) as server:
        assert_refused(post(server, BODY | {"prompt": "a" * 10_000}), 413, "request_too_large")
        try:
            headers = {"content-type": "application/json"}
            response = httpx2.post(f"{server.url}/v1/completions", content=endless(), headers=headers)
            assert_refused(response, 413, "request_too_large")
        except httpx2.TransportError:
            pass  # the server has closed the connection while the client was sending
        assert post(server).status_code == 200
    assert sent < 10_000 * 65_536


def test_an_announced_upload_that_is_too_large() -> None:
    with running([serial(random_run())], settings=Settings(max_upload_bytes=1000)) as server:
        assert_refused(post(server, BODY | {"prompt": "a" * 2000}), 413, "request_too_large")


def test_an_announced_size_of_many_digits(server: RunningServer) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    for digits in (20, 5000):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(f"{head}Content-Length: {'9' * digits}\r\n\r\n".encode())
            assert connection.recv(100).split()[1] in (b"400", b"413")


def test_web_sockets_are_refused(server: RunningServer) -> None:
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    assert httpx2.get(f"{server.url}/v1/models", headers=upgrade).status_code in (200, 400, 403, 426)
