"""Malformed requests: every wrong value of every field gets an error in OpenAI's form, and the server goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from helpers.http_server import running, serial
from helpers.sessions import random_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GOOD = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
WRONG: dict[str, list[Any]] = {
    "model": [None, 1, "", "nosuch", [], {}, True, "x" * 2000],
    "prompt": [1, {}, True, [], [[]], [1, "a"], ["a", 1], [True], [1.5], [-1], [10**6], [[23]], [["a"]], "Z"],
    "max_tokens": [-1, 1.5, "3", True, [], {}, 10**9, 10**18],
    "temperature": ["1", -0.1, True, [], {}, 10**6],
    "top_p": ["1", -0.1, 1.1, 0, True, [], {}],
    "top_k": [0, -1, "1", 1.5, True],
    "n": [0, -1, 1.5, "2", True, 10**6, []],
    "stop": [1, True, {}, [1], [""], "", [["a"]], ["a"] * 100, "a" * 2000],
    "seed": ["1", 1.5, True, -1, 2**62, []],
    "stream": ["yes", 1, [], {}],
    "stream_options": [1, "a", [], {"include_usage": 1}, {"include_usage": True}, {"nosuch": 1}],
    "echo": ["yes", 1, []],
    "logprobs": [-1, 21, "1", 1.5, True, []],
    "best_of": [0, 2, "1", True],
    "suffix": ["end"],
    "presence_penalty": [0.5],
    "frequency_penalty": [0.5],
    "logit_bias": [{"1": 2}],
    "session": ["nosuch", 1, [], "x" * 1000],
    "fork": [True, 1, "yes"],
    "nosuch": [1],
    "promt": ["abc"],
}
BODIES = [b"", b"{", b"[]", b"1", b"null", b'"a"', b"\xff\xfe", b'{"model": NaN}', b'{"model": 1e999}', b"{} {}"]
BODIES += [
    b"[" * 100_000,
    b'{"model": "tiny", "model": "tiny"}',
    b'{"model": "\\ud800"}',
    b'{"n": ' + b"1" * 5000 + b"}",
]


@pytest.fixture(scope="module")
def server() -> Iterator[httpx2.Client]:
    """A client of a server that still works after all tests."""
    with running([serial(random_run())]) as server, httpx2.Client(base_url=server.url) as client:
        yield client
        assert client.post("/v1/completions", json=GOOD).status_code == 200


def send(server: httpx2.Client, content: bytes, path: str = "/v1/completions") -> httpx2.Response:
    return server.post(path, content=content, headers={"content-type": "application/json"})


def assert_error(response: httpx2.Response, *statuses: int) -> dict[str, Any]:
    error = response.json()["error"]
    assert response.status_code in statuses, response.text
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "\n" not in error["message"] and len(error["message"]) < 1100
    return error


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_wrong_values(server: httpx2.Client, field: str, value: Any) -> None:
    error = assert_error(send(server, json.dumps(GOOD | {field: value}).encode()), 400, 404)
    assert error["param"].startswith(field) if error["param"] else field in error["message"]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:20]))
def test_bodies_that_are_no_objects(server: httpx2.Client, body: bytes) -> None:
    assert_error(send(server, body), 400)


def test_a_missing_model_lists_the_models(server: httpx2.Client) -> None:
    error = assert_error(send(server, b'{"prompt": "abc"}'), 400)
    assert error["param"] == "model" and "this server has: tiny" in error["message"]


def test_similar_names_are_suggested(server: httpx2.Client) -> None:
    error = assert_error(send(server, b'{"model": "tiny", "promt": "abc"}'), 400)
    assert error["message"] == "unknown field 'promt'; did you mean 'prompt'?"


@pytest.mark.parametrize("path", ["/nosuch", "/v1/nosuch", "/v1/completions/x", "/v1/models/../../etc/passwd", "/%00"])
def test_unknown_paths(server: httpx2.Client, path: str) -> None:
    assert_error(send(server, b"{}", path), 404, 405)
    assert_error(server.get(path), 404)


def test_wrong_methods(server: httpx2.Client) -> None:
    error = assert_error(server.get("/v1/completions"), 405)
    assert error["message"] == "GET is not possible for /v1/completions"
    assert_error(server.delete("/v1/models"), 405)


def test_chat_without_a_template(server: httpx2.Client) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    error = assert_error(send(server, json.dumps(body).encode(), "/v1/chat/completions"), 400)
    assert error["message"] == "model 'tiny' has no chat template: use /v1/completions"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 1}),
        ("/tokenize", {"prompt": "Z"}),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": [1, 999]}),
        ("/detokenize", {"tokens": [True]}),
    ],
)
def test_tokenizer_routes(server: httpx2.Client, path: str, body: dict[str, Any]) -> None:
    assert_error(send(server, json.dumps(body).encode(), path), 400)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CHAT_FIELDS = ["messages", "max_completion_tokens", "logprobs", "top_logprobs", "response_format", "tools"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]),
    changes=st.dictionaries(st.sampled_from([*WRONG, *CHAT_FIELDS, "tokens"]), JSON, max_size=4),
)
def test_any_values(server: httpx2.Client, path: str, changes: dict[str, Any]) -> None:
    response = send(server, json.dumps(GOOD | {"max_tokens": 1} | changes).encode(), path)
    if response.status_code != 200:
        assert_error(response, 400, 404)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=100))
def test_any_bytes(server: httpx2.Client, body: bytes) -> None:
    assert_error(send(server, body), 400)
