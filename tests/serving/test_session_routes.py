"""The routes of sessions, by HTTP clients of a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from helpers.http_server import serial, wait_for
from helpers.session_server import SessionServer, events_of, session_server
from helpers.sessions import SEGMENT, TEXT, random_run

from mnemo.data.encoded_pieces import PIECE
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.api import sessions
from mnemo.serving.engine import EngineClosed, EngineFull
from mnemo.session.session import Session

LONG = (TEXT * 9)[3:]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionServer]:
    with session_server(random_run(), tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def session(server: SessionServer) -> str:
    return server.create(seed=3)["id"]


def greedy() -> Session:
    return Session(random_run(), sampling=Sampling(0.0))


def test_a_new_session_is_empty(server: SessionServer) -> None:
    made = server.create(model="tiny", name="diary", seed=7, memory_length=2)
    assert made["object"] == "session" and made["name"] == "diary" and made["seed"] == 7
    assert made["tokens"] == 0 and made["memory"]["length"] == 2 and made["memory"]["on"]
    assert server.show(made["id"]) == made


def test_reading_and_writing_equal_a_local_session(server: SessionServer, session: str) -> None:
    local = greedy()
    loss = local.read(LONG)
    found = server.read(session, LONG)
    assert found["read"]["tokens"] == len(LONG) and found["session"]["tokens"] == len(LONG)
    assert found["read"]["loss"] == pytest.approx(loss.loss)
    assert server.write(session, 11, temperature=0) == local.generate(11)
    assert server.write(session, 5, temperature=0, prompt="abc") == (local.read("abc"), local.generate(5))[1]
    shown = server.show(session)
    assert shown["tokens"] == len(LONG) + 19 == local.num_tokens
    assert shown["memory"]["open"] == local.num_tokens % SEGMENT
    assert [layer["filled"] for layer in shown["memory"]["layers"]] == [use.filled for use in local.memory().layers]


def test_the_state_does_not_grow(server: SessionServer, session: str) -> None:
    """Apart from the open segment."""
    sizes = [server.read(session, TEXT[:SEGMENT] * count)["session"]["state_bytes"] for count in (10, 1, 100)]
    assert len(set(sizes)) == 1


def test_events_while_reading(server: SessionServer, session: str) -> None:
    answer = server.client.post(f"/sessions/{session}/read", content=LONG, params={"stream": True, "losses": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *progress, last = events_of(answer)
    assert [event["tokens"] for event in progress] == [*range(SEGMENT, len(LONG), SEGMENT), len(LONG)]
    assert progress[-1]["bytes"] == progress[-1]["total_bytes"] == len(LONG)
    assert sum(len(event["losses"]) for event in progress) == len(LONG) - 1
    assert last["object"] == "session.read" and last["session"]["tokens"] == len(LONG)


def test_memory_files(server: SessionServer, session: str, tmp_path: Path) -> None:
    """A saved memory continues in a new session, replaces another one, and is a file of the command line."""
    server.read(session, LONG)
    data = server.client.get(f"/sessions/{session}/memory").content
    kind = {"content-type": "application/octet-stream"}
    made = server.client.post("/sessions", content=data, headers=kind, params={"name": "loaded"}).json()
    other = server.create()["id"]
    put = server.client.put(f"/sessions/{other}/memory", content=data)
    assert put.status_code == 200 and put.json()["tokens"] == made["tokens"] == len(LONG)
    (tmp_path / "x.memory").write_bytes(data)
    local = greedy()
    local.load(tmp_path / "x.memory")
    expected = local.generate(9)
    assert [server.write(each, 9, temperature=0) for each in (session, made["id"], other)] == [expected] * 3
    assert not list(server.store.uploads.iterdir())


def test_fork(server: SessionServer, session: str) -> None:
    server.read(session, LONG)
    same = server.post(f"/sessions/{session}/fork", {})
    other = server.post(f"/sessions/{session}/fork", {"seed": 99, "name": "other"})
    assert same["tokens"] == other["tokens"] == len(LONG) and other["name"] == "other"
    looked = server.write(session, 30, fork=True)
    written = server.write(session, 30)
    assert written == looked == server.write(same["id"], 30)
    assert server.write(other["id"], 30) != written
    assert server.show(same["id"])["tokens"] == len(LONG) + 30


def test_changes(server: SessionServer, session: str) -> None:
    server.read(session, LONG)
    changed = server.client.patch(f"/sessions/{session}", json={"name": "new", "memory_length": 1}).json()
    assert changed["name"] == "new" and changed["memory"]["length"] == 1
    off = server.client.patch(f"/sessions/{session}", json={"memory": False}).json()
    assert not off["memory"]["on"] and off["name"] == "new"
    local = greedy()
    local.read(LONG)
    local.set_memory(1)
    local.set_memory(1, on=False)
    assert server.read(session, TEXT)["read"]["loss"] == pytest.approx(local.read(TEXT).loss)
    assert server.write(session, 9, temperature=0) == local.generate(9)
    back = server.client.patch(f"/sessions/{session}", json={"memory_length": None, "memory": True}).json()
    assert back["memory"]["length"] is None and back["memory"]["on"]


def test_list_and_delete(server: SessionServer, session: str) -> None:
    listed = server.client.get("/sessions").json()["data"]
    assert listed[0]["id"] == session and not listed[0]["busy"] and listed[0]["problem"] is None
    assert server.client.delete(f"/sessions/{session}").json()["deleted"]
    assert session not in [each["id"] for each in server.client.get("/sessions").json()["data"]]
    for answer in (server.client.get(f"/sessions/{session}"), server.client.delete(f"/sessions/{session}")):
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "session_not_found"


def test_the_openai_client(server: SessionServer, session: str) -> None:
    server.read(session, LONG)
    options = {"model": "tiny", "prompt": "ab", "max_tokens": 6, "temperature": 0, "extra_body": {"session": session}}
    local = greedy()
    local.read(LONG)
    local.read("ab")
    with openai.OpenAI(base_url=f"{server.server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.completions.create(**options)
        assert answer.choices[0].text == local.generate(6)
        assert answer.usage.model_extra["tokens_read"] == len(LONG) + 8
        local.read("ab")
        chunks = client.completions.create(**options, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == local.generate(6)
    assert server.show(session)["tokens"] == local.num_tokens


def test_names_of_digits(server: SessionServer, session: str) -> None:
    server.read(session, TEXT)
    memory = server.client.get(f"/sessions/{session}/memory").content
    for name in ("2024", "true"):
        assert server.client.post("/sessions", params={"name": name}, content=memory).json()["name"] == name
        assert server.client.post(f"/sessions/{session}/fork", params={"name": name}).json()["name"] == name


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("text/plain; charset*" + "9" * 5000 + "=x", 3),
        ('text/plain; format=flowed; Charset="UTF-16-LE"', 3),
        ("text/plain; charset=none", None),
    ],
)
def test_encodings_in_the_header(server: SessionServer, session: str, kind: str, tokens: int | None) -> None:
    text = "cat".encode("utf-16-le" if "UTF-16" in kind else "utf-8")
    answer = server.client.post(f"/sessions/{session}/read", content=text, headers={"Content-Type": kind})
    assert answer.status_code == (400 if tokens is None else 200), answer.text
    assert server.show(session)["tokens"] == (tokens or 0)


def test_losses_need_a_stream(server: SessionServer, session: str) -> None:
    answer = server.client.post(f"/sessions/{session}/read", params={"losses": "true"}, content=TEXT)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "losses"
    assert server.show(session)["tokens"] == 0


@pytest.mark.parametrize(("error", "status"), [(EngineFull, 429), (EngineClosed, 503)])
def test_an_engine_that_takes_no_texts(
    server: SessionServer, session: str, error: type[Exception], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job: object) -> None:
        raise error("not now")

    monkeypatch.setattr(server.store.models["tiny"].engine, "submit", refuse)
    answer = server.client.post(f"/sessions/{session}/read", content=TEXT)
    assert answer.status_code == status and answer.json()["error"]["message"] == "not now"


def test_a_client_that_receives_no_events_stops_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_AHEAD", 1)
    path = tmp_path / "text"
    path.write_text("cat" * PIECE)
    text, pieces = sessions.FileText(path, serial(random_run())), []
    reader = iter(text)
    first = len(next(reader))
    thread = threading.Thread(target=lambda: pieces.append(len(next(reader))))
    thread.start()
    thread.join(0.2)
    assert not pieces
    text.received(first)
    wait_for(lambda: pieces)
    text.close()
    assert list(reader) == []
