"""`/v1/completions` by the real client of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import openai
import pytest
from helpers.http_server import RunningServer, running, serial
from helpers.sessions import TEXT, random_run

from mnemo.session.session import Session

PROMPT = TEXT[:11]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running([serial(random_run())]) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "mnemo"
    with pytest.raises(openai.NotFoundError, match="unknown model 'tine'; did you mean 'tiny'"):
        client.models.retrieve("tine")


def test_greedy_text_is_that_of_a_session(client: openai.OpenAI) -> None:
    session = Session(random_run())
    session.read(PROMPT)
    session.sampling = session.sampling._replace(temperature=0.0)
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=20, temperature=0)
    assert answer.choices[0].text == session.generate(20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.completion_tokens == 20


def test_a_stream_has_the_text_of_the_whole_answer(client: openai.OpenAI) -> None:
    options = dict(model="tiny", prompt=PROMPT, max_tokens=20, seed=3)
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert len(chunks) > 10
    assert chunks[-1].usage == whole.usage and chunks[-2].choices[0].finish_reason == "length"


def test_httpx(server: RunningServer) -> None:
    assert httpx2.get(f"{server.url}/health").json()["status"] == "ok"
