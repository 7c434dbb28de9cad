"""Routes of the playground: scores, writing, forks, memory files, wrong input, interruptions and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from helpers.http_server import RunningServer, running, serial, wait_for
from helpers.sessions import SEGMENT, random_run
from helpers.tolerances import assert_close

from mnemo import analysis
from mnemo.data.tokenizers import ByteTokenizer
from mnemo.inference.sampling_options import Sampling
from mnemo.memory import XL, Plan
from mnemo.serving.session_model import RunSessions
from mnemo.serving.settings import Settings
from mnemo.serving.store import SessionStore
from mnemo.serving.studio import StudioSettings, studio_routes
from mnemo.serving.studio.playground_models import model_json
from mnemo.session.session import Session

PATH = "/studio/api/playground"
TEXT = "abcdefghijklmnopqrstuvw" * 3 + "tsrq"
OPENED = random_run()
BITS = 1 / np.log(2)


class Client:
    """Requests to the playground of a running server."""

    def __init__(self, server: RunningServer, store: SessionStore) -> None:
        self.store, self.url = store, server.url
        self.http = httpx2.Client(base_url=server.url + PATH, timeout=60)

    def get(self, path: str) -> Any:
        return self._checked(self.http.get(path))

    def post(self, path: str, content: Any = None) -> Any:
        return self._checked(self.http.post(path, json=content or {}))

    def _checked(self, answer: httpx2.Response) -> Any:
        content = answer.json()
        assert answer.status_code == 200, content
        return content

    def new(self, **fields: Any) -> str:
        return self.public("POST", json={"model": "tiny", **fields}).json()["id"]

    def public(self, method: str, path: str = "", **sent: Any) -> httpx2.Response:
        """A request to the public routes of sessions, as the page sends them."""
        return httpx2.request(method, f"{self.url}/v1/sessions{path}", timeout=60, **sent)

    def events(self, path: str, **sent: Any) -> list[dict[str, Any]]:
        """All events of a stream; the last one describes the session."""
        answer = self.http.post(path, **sent)
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
        assert lines[-1] == "[DONE]"
        found = [json.loads(line) for line in lines[:-1]]
        assert found[-1]["type"] == "done", found[-1]
        return found

    def read(self, session: str, text: str | bytes = TEXT) -> list[dict[str, Any]]:
        return self.events(f"/sessions/{session}/read?name=it", content=text)

    def measure(self, session: str) -> None:
        self.events(f"/sessions/{session}/measure")

    def write(self, session: str, tokens: int = 9, **settings: Any) -> str:
        found = self.events(f"/sessions/{session}/write", json={"tokens": tokens, "seed": 1, **settings})
        return "".join(event["text"] for event in found if event["type"] == "token")

    def window(self, session: str, begin: int = 0, end: int = 4096) -> Any:
        return self.get(f"/sessions/{session}/tokens?begin={begin}&end={end}")


@contextmanager
def playground(folder: Path, settings: Settings | None = None) -> Iterator[Client]:
    model = serial(OPENED)
    store = SessionStore(folder, [RunSessions("tiny", OPENED, model.engine)])
    routes = studio_routes(StudioSettings(transcripts=folder / "transcripts"))
    with running([model], store, settings, routes=routes) as server:
        client = Client(server, store)
        with client.http:
            yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with playground(tmp_path_factory.mktemp("store")) as client:
        yield client


def ids(text: str) -> torch.Tensor:
    return torch.from_numpy(OPENED.tokenizer.encode(text).astype(np.int64))


def assert_losses(found: list[float | None], expected: np.ndarray) -> None:
    """The losses of all tokens but the first, to the three digits that are sent."""
    assert found[0] is None
    assert np.abs(np.array(found[1:], np.float64) - expected * BITS).max() < 6e-4


def test_the_start_lists_models_and_limits(client: Client) -> None:
    start = httpx2.get(client.url + PATH).json()
    assert [model["name"] for model in start["models"]] == ["tiny"]
    assert start["models"][0]["lengths"][0] == 0 and start["models"][0]["trained"] in start["models"][0]["lengths"]
    assert start["limits"]["page"] > 0


def test_losses_are_those_of_the_analyses(client: Client) -> None:
    session = client.new()
    progress = [event for event in client.read(session) if event["type"] == "progress"]
    assert [event["tokens"] for event in progress] == [*range(0, len(TEXT), SEGMENT), len(TEXT)]
    client.measure(session)
    window = client.window(session)
    assert "".join(window["texts"]) == TEXT and window["total"] == len(TEXT)
    assert_losses(window["bits"], analysis.token_losses(OPENED.run.model, ids(TEXT), segment=SEGMENT))
    expected = analysis.token_losses_without_memory(OPENED.run.model, ids(TEXT), segment=SEGMENT)
    assert_losses(window["without"], expected)
    mean = client.get(f"/sessions/{session}/overview")["mean"]
    assert abs(mean["without"] - expected.mean() * BITS) < 1e-4
    assert window["openings"] == list(range(0, len(TEXT), SEGMENT))


def test_a_text_in_two_parts_has_the_losses_of_the_whole(client: Client) -> None:
    session = client.new()
    client.read(session, TEXT[:10])
    client.measure(session)
    client.read(session, TEXT[10:])
    client.measure(session)
    window = client.window(session)
    assert_losses(window["bits"], analysis.token_losses(OPENED.run.model, ids(TEXT), segment=SEGMENT))
    assert_losses(window["without"], analysis.token_losses_without_memory(OPENED.run.model, ids(TEXT), segment=SEGMENT))


def test_windows_are_parts_of_the_text(client: Client) -> None:
    session = client.new()
    client.read(session)
    window = client.window(session, 20, 30)
    assert (window["begin"], window["end"], window["total"]) == (20, 30, len(TEXT))
    assert "".join(window["texts"]) == TEXT[20:30]
    assert client.window(session, 1000)["texts"] == []


def test_repetitions_and_attention_of_a_token(client: Client) -> None:
    session = client.new()
    client.read(session)
    window = client.window(session)
    assert window["earlier"][40] == 23 and window["same"][40] == 16
    assert window["earlier"][3] == 0
    found = client.get(f"/sessions/{session}/token?at=40")
    assert found["earlier"]["distance"] == 23 and TEXT[10:18] in found["earlier"]["text"]
    whole = analysis.attention_to_memory(OPENED.run.model, ids(TEXT), segment=SEGMENT)
    assert abs(found["attention"]["share"] - whole.share[39]) < 1e-4
    assert found["attention"]["distance"] == whole.peak[39] + 1
    assert client.http.get(f"/sessions/{session}/token?at=9999").status_code == 404
    assert client.http.get(f"/sessions/{session}/token?at=-1").status_code == 400


def test_writing_is_that_of_the_engine_and_shown(client: Client) -> None:
    session = client.new()
    client.read(session)
    text = client.write(session, 11)
    window = client.window(session)
    assert "".join(window["texts"]) == TEXT + text and len(text) == 11
    assert window["written"] == [[len(TEXT), len(TEXT) + 11]]
    client.measure(session)
    assert client.window(session)["without"][-1] is not None
    assert client.get(f"/sessions/{session}")["tokens"] == len(TEXT) + 11
    expected = analysis.token_losses(OPENED.run.model, ids(TEXT + text), segment=SEGMENT)
    assert_losses(window["bits"], expected)


def test_an_empty_session_writes_after_the_start_of_a_document(client: Client) -> None:
    session = client.new()
    assert len(client.write(session, 5)) == 5
    assert client.get(f"/sessions/{session}")["tokens"] == 6


def test_forks_have_the_text_and_differ_later(client: Client) -> None:
    session = client.new()
    client.read(session)
    fork = client.post(f"/sessions/{session}/fork")["id"]
    assert client.window(fork) == client.window(session)
    assert client.write(session, 20) == client.write(fork, 20)
    client.read(fork, "abc")
    assert client.get(f"/sessions/{fork}")["shown"] == client.get(f"/sessions/{session}")["shown"] + 3


def test_the_memory_length_changes(client: Client) -> None:
    session = client.new()
    client.read(session)
    before = client.get(f"/sessions/{session}")["memory"]["length"]
    client.public("PATCH", f"/{session}", json={"memory_length": before // 2})
    assert client.get(f"/sessions/{session}")["memory"]["length"] == before // 2


def test_a_saved_memory_continues_alike(client: Client) -> None:
    session = client.new()
    client.read(session)
    file = client.public("GET", f"/{session}/memory").content
    loaded = client.get("/sessions/" + client.public("POST", "?model=tiny", content=file).json()["id"])
    assert (loaded["tokens"], loaded["shown"]) == (len(TEXT), 0)
    assert client.write(loaded["id"], 20) == client.write(session, 20)
    window = client.window(loaded["id"])
    assert window["gaps"] == [[0, len(TEXT)]]
    assert not list(client.store.uploads.iterdir())


def test_two_memories_are_compared_on_a_text(client: Client) -> None:
    first, second = client.new(), client.new()
    client.read(first)
    client.read(second, TEXT[30:60])
    found = client.post("/compare", {"sessions": [first, second], "text": "abcdefgh"})
    for text, bits, mean in zip((TEXT, TEXT[30:60]), found["bits"], found["mean"], strict=True):
        session = Session(OPENED)
        session.read(text)
        score = session.score("abcdefgh")
        assert_close(torch.tensor(mean, dtype=torch.float32), torch.tensor(score.nats / 8 * BITS, dtype=torch.float32))
        assert len(bits) == 8 and None not in bits
    assert client.get(f"/sessions/{first}")["tokens"] == len(TEXT)


def test_a_comparison_with_an_empty_memory_leaves_out_the_first_token(client: Client) -> None:
    first, second = client.new(), client.new()
    client.read(first)
    found = client.post("/compare", {"sessions": [first, second], "text": "abcd"})
    assert found["bits"][1][0] is None and None not in found["bits"][0]
    assert abs(found["mean"][0] - np.mean(found["bits"][0][1:])) < 1e-3


NO_TEXT = {
    "binary": (b"\x89PNG\r\n\x1a\n\x00\xff", "not UTF-8 text"),
    "zeros": (bytes(500), "control characters"),
    "utf-16": ("abc".encode("utf-16"), "UTF-16"),
    "empty": (b"", "is empty"),
    "unknown letters": (b"xyz", "not in the vocabulary"),
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_files_that_are_no_text_change_nothing(client: Client, kind: str) -> None:
    data, message = NO_TEXT[kind]
    session = client.new()
    client.read(session)
    answer = client.http.post(f"/sessions/{session}/read?name=it", content=data)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]
    info = client.get(f"/sessions/{session}")
    assert (info["tokens"], info["shown"], info["busy"]) == (len(TEXT), len(TEXT), False)


def test_wrong_requests_have_clear_answers(client: Client) -> None:
    session = client.new()
    cases = {
        "/sessions/nothing": (404, "no session"),
        f"/sessions/{session}/tokens?begin=x": (400, "'begin' must be a whole number"),
    }
    for path, (status, message) in cases.items():
        answer = client.http.get(path)
        assert answer.status_code == status and message in answer.json()["error"]["message"]
    for settings, message in (({"tokens": 0}, "tokens"), ({"temperature": -1}, "temperature"), ({"x": 1}, "unknown")):
        answer = client.http.post(f"/sessions/{session}/write", json=settings)
        assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_a_session_that_is_busy_answers_so_and_works_later(client: Client) -> None:
    session = client.new()
    client.read(session)
    turn = client.store.take_turn(session)
    requests: dict[str, Any] = {"read": {"content": TEXT}, "write": {"json": {}}}
    for path, sent in requests.items():
        answer = client.http.post(f"/sessions/{session}/{path}", **sent)
        assert answer.status_code == 409 and "busy" in answer.json()["error"]["message"]
    assert client.get(f"/sessions/{session}")["busy"]
    turn.close()
    client.write(session)
    assert client.get(f"/sessions/{session}")["tokens"] == len(TEXT) + 9


def test_a_reader_that_disconnects_leaves_what_was_read(client: Client) -> None:
    session = client.new()
    long = TEXT * 400
    with client.http.stream("POST", f"/sessions/{session}/read?name=book", content=long) as answer:
        lines = answer.iter_lines()
        for _ in range(5):
            next(lines)
    wait_for(lambda: not client.store.is_busy(session))
    wait_for(lambda: (client.http.get(f"/sessions/{session}").json()["tokens"]) > 0)
    facts = client.store.facts(session)
    window = client.window(session, 0, 4096)
    assert 0 < facts.tokens < len(long)
    assert window["total"] == facts.tokens
    other = Session(OPENED, sampling=Sampling(0.0))
    other.read(long[: facts.tokens])
    assert client.write(session, 12, temperature=0) == other.generate(12)


def test_the_page_is_informed_about_an_interruption_until_the_next_work(client: Client) -> None:
    session = client.new()
    with client.http.stream("POST", f"/sessions/{session}/read?name=book", content=TEXT * 400) as answer:
        next(answer.iter_lines())
    found: list[Any] = []

    def interrupted() -> bool:
        found.append(client.get(f"/sessions/{session}")["interrupted"])
        return found[-1] is not None

    wait_for(interrupted)
    assert found[-1]["kind"] == "read" and found[-1]["name"] == "book" and found[-1]["total"] == len(TEXT) * 400
    assert client.get(f"/sessions/{session}")["interrupted"] == found[-1]
    client.write(session)
    assert client.get(f"/sessions/{session}")["interrupted"] is None


def test_a_restarted_server_shows_the_same_text(tmp_path: Path) -> None:
    with playground(tmp_path) as before:
        session = before.new()
        before.read(session)
        before.measure(session)
        shown = before.window(session)
    with playground(tmp_path) as after:
        assert after.window(session) == shown
        assert after.get(f"/sessions/{session}")["tokens"] == len(TEXT)
        after.write(session)


def test_a_text_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with playground(tmp_path, Settings(max_upload_bytes=1000)) as client:
        session = client.new()
        answer = client.http.post(f"/sessions/{session}/read", content="a" * 1001)
        assert answer.status_code == 413 and "1,000 bytes" in answer.json()["error"]["message"]
        assert client.get(f"/sessions/{session}")["tokens"] == 0


def test_texts_of_deleted_sessions_are_removed(client: Client) -> None:
    session, other = client.new(), client.new()
    client.read(session)
    client.read(other)
    client.public("DELETE", f"/{session}")
    assert client.http.get(f"/sessions/{session}").status_code == 404
    httpx2.get(client.url + PATH)
    left = [path.stem for path in (client.store.uploads.parent / "transcripts").iterdir()]
    assert session not in left and other in left


def test_characters_of_several_bytes_come_with_their_last_token(tmp_path: Path) -> None:
    opened = random_run(ByteTokenizer(), vocab_size=256)
    model = serial(opened)
    store = SessionStore(tmp_path, [RunSessions("tiny", opened, model.engine)])
    with running([model], store, routes=studio_routes(StudioSettings())) as server:
        client = Client(server, store)
        with client.http:
            session = client.new()
            client.read(session, "a–b")
            assert client.window(session)["texts"] == ["a", "", "", "–", "b"]
            assert client.window(session, 2, 5)["texts"] == ["", "–", "b"]


def test_a_model_without_slots_has_no_lengths_to_choose() -> None:
    for memory, has_lengths in ((Plan(long=XL(length=8)), True), (Plan(long=XL(length=0)), False)):
        opened = random_run(memory=memory)
        model = serial(opened)
        assert bool(model_json(model)["lengths"]) == has_lengths
        model.engine.close()
