"""The playground with a model of transformers that has memory tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from helpers.http_server import running
from helpers.real_models import tiny_llama, tiny_tokenizer

from mnemo.hf import add_memory
from mnemo.hf.served.folder import served_folder
from mnemo.serving.store import SessionStore
from mnemo.serving.studio import StudioSettings, studio_routes

PATH = "/studio/api/playground"
STORY = "Once upon a time there was a little dog. He liked to play in the park with his red ball every day."


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("model") / "stories"
    add_memory(tiny_llama(), tokens=4, segment=16).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    model = served_folder("stories", folder, "cpu")
    store = SessionStore(tmp_path_factory.mktemp("store"), [model.sessions])
    with running([model], store, routes=studio_routes(StudioSettings())) as server:
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            yield client


def work(client: httpx2.Client, path: str, **sent: Any) -> list[dict[str, Any]]:
    answer = client.post(path, **sent)
    assert answer.status_code == 200, answer.text
    found = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
    assert found[-1]["type"] == "done"
    return found


def test_it_reads_measures_and_writes(client: httpx2.Client) -> None:
    start = client.get(PATH).json()
    assert [(model["name"], model["lengths"]) for model in start["models"]] == [("stories", [])]
    session = client.post("/v1/sessions", json={"model": "stories"}).json()["id"]
    one = f"{PATH}/sessions/{session}"
    work(client, f"{one}/read?name=story", content=STORY)
    work(client, f"{one}/measure")
    written = work(client, f"{one}/write", json={"tokens": 12, "seed": 3})
    window = client.get(f"{one}/tokens").json()
    text = "".join(event["text"] for event in written if event["type"] == "token")
    shown = "".join(window["texts"])
    assert STORY in shown and shown.endswith(text)
    assert all(bits is not None and bits >= 0 for bits in window["bits"][1:])
    known = [without for without in window["without"][1:-12] if without is not None]
    assert len(known) == len(window["without"]) - 13
    first_segment = [abs(a - b) for a, b in zip(window["bits"][1:16], window["without"][1:16], strict=True)]
    assert max(first_segment) < 2e-3
    details = client.get(f"{one}/token?at=20").json()
    assert details["attention"] is None and "not available for this kind of model" in details["why"]
    assert client.get(one).json()["memory"]["memory_tokens"] == 4
