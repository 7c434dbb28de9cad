"""A real server with sessions, and the HTTP client for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from helpers.http_server import RunningServer, running, serial

from mnemo.serving.settings import Settings
from mnemo.serving.store import SessionStore
from mnemo.session.text_run import OpenedRun


class SessionServer:
    """`client`: requests go to paths below `/v1`."""

    def __init__(self, server: RunningServer, store: SessionStore) -> None:
        self.server, self.store = server, store
        self.client = httpx2.Client(base_url=f"{server.url}/v1", timeout=60)

    def create(self, **fields: Any) -> dict[str, Any]:
        return self.post("/sessions", fields)

    def post(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.post(path, json=fields)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def show(self, session: str) -> dict[str, Any]:
        return self.client.get(f"/sessions/{session}").json()

    def read(self, session: str, text: str | bytes, **options: Any) -> dict[str, Any]:
        data = text.encode() if isinstance(text, str) else text
        answer = self.client.post(f"/sessions/{session}/read", content=data, params=options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def write(self, session: str, num_tokens: int, **fields: Any) -> str:
        """The continuation of a session."""
        fields = {"session": session, "max_tokens": num_tokens, **fields}
        return self.post("/completions", {"model": "tiny", "prompt": "", **fields})["choices"][0]["text"]


@contextmanager
def session_server(
    opened: OpenedRun, folder: Path, settings: Settings | None = None, **limits: Any
) -> Iterator[SessionServer]:
    model = serial(opened)
    store = SessionStore(folder, [model.sessions], **limits)
    with running([model], store, settings) as server:
        sessions = SessionServer(server, store)
        with sessions.client:
            yield sessions


def events_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The contents of a stream of events, which ends with `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
