"""Transformers models with memory in the server: completions, chat and turns of several texts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import torch
from helpers.http_server import RunningServer, running
from helpers.real_models import TINY_LLAMA, tiny_llama, tiny_tokenizer

from mnemo.errors import MnemoError
from mnemo.hf import add_memory
from mnemo.hf.served.codec import TransformersDecoder
from mnemo.hf.served.engine import TurnEngine
from mnemo.hf.served.folder import served_folder
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.engine import ReadJob, Token, WriteJob
from mnemo.serving.served_model import ChatMessage
from mnemo.serving.store import SessionStore

SEGMENT = 16
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}system: be kind\n{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
STORY = "Once upon a time there was a little dog. He liked to play in the park with his red ball every day."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path, tokenizer = tmp_path_factory.mktemp("served") / "stories", tiny_tokenizer()
    add_memory(tiny_llama(), tokens=4, segment=SEGMENT).save_pretrained(path)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return served_folder("stories", folder, "cpu")


@pytest.fixture(scope="module")
def server(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    ending = replace(model, name="ending", end=frozenset(generated(model, story_ids(model), 12)[9:10]))
    store = SessionStore(tmp_path_factory.mktemp("store"), [model.sessions])
    with running([model, ending], store) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def story_ids(model: Any) -> list[int]:
    return [*model.prefix, *model.codec.encode(STORY)]


def generated(model: Any, ids: list[int], count: int) -> list[int]:
    """Greedy tokens by the model's own `generate`."""
    out = model.engine.model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)
    return out[0, len(ids) :].tolist()


def test_greedy_text_is_that_of_generate(client: openai.OpenAI, model: Any) -> None:
    ids = story_ids(model)
    answer = client.completions.create(model="stories", prompt=STORY, max_tokens=40, temperature=0)
    expected = model.codec.tokenizer.decode([*ids, *generated(model, ids, 40)], skip_special_tokens=True)
    assert expected.startswith(STORY)
    assert answer.choices[0].text == expected[len(STORY) :]
    assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)


def test_the_end_token_ends_an_answer(client: openai.OpenAI, model: Any) -> None:
    written = generated(model, story_ids(model), 12)
    count = written.index(written[9]) + 1
    answer = client.completions.create(model="ending", prompt=STORY, max_tokens=40, temperature=0)
    whole = client.completions.create(model="stories", prompt=STORY, max_tokens=count - 1, temperature=0)
    assert (answer.choices[0].finish_reason, whole.choices[0].finish_reason) == ("stop", "length")
    assert answer.choices[0].text == whole.choices[0].text
    assert answer.usage is not None and answer.usage.completion_tokens == count


def test_chat_is_the_completion_of_the_template(client: openai.OpenAI, model: Any) -> None:
    chat = client.chat.completions.create(
        model="stories", messages=[{"role": "user", "content": "hello"}], max_tokens=20, seed=3
    )
    # Ids, because a template writes every special token itself.
    prompt = model.codec.encode("system: be kind\nuser: hello\nassistant:")
    plain = client.completions.create(model="stories", prompt=prompt, max_tokens=20, seed=3)
    assert chat.choices[0].message.content == plain.choices[0].text
    assert chat.choices[0].message.role == "assistant"


def test_chat_streams(client: openai.OpenAI) -> None:
    options: dict[str, Any] = dict(
        model="stories", messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}], seed=3, n=2
    )
    whole = client.chat.completions.create(**options, max_completion_tokens=12, logprobs=True, top_logprobs=3)
    chunks = list(client.chat.completions.create(**options, max_completion_tokens=12, stream=True))
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices] and texts[0] != texts[1]
    assert chunks[0].choices[0].delta.role == "assistant"
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in logprobs.content)


def test_a_continued_chat_has_no_second_default_message(model: Any) -> None:
    messages = [ChatMessage("user", "hello")]
    first, later = (model.codec.tokenizer.decode(model.chat.prompt(messages, continued)) for continued in (False, True))
    assert "be kind" in first and "be kind" not in later
    assert "user: hello" in later and later.rstrip().endswith("assistant:")


def test_a_chat_in_a_session(client: openai.OpenAI, server: RunningServer, model: Any) -> None:
    created = httpx2.post(f"{server.url}/v1/sessions", json={"model": "stories", "seed": 5}).json()
    extra = {"session": created["id"]}

    def answer(text: str) -> Any:
        messages: Any = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="stories", messages=messages, max_tokens=20, extra_body=extra)

    first, second = answer("hello"), answer("and then?")
    asked = len(model.chat.prompt([ChatMessage("user", "and then?")], continued=True))
    assert second.usage is not None and second.usage.prompt_tokens == asked
    assert second.usage.model_extra["tokens_read"] == first.usage.total_tokens + asked + second.usage.completion_tokens
    assert httpx2.get(f"{server.url}/v1/sessions/{created['id']}").json()["tokens"] == (
        first.usage.total_tokens + second.usage.total_tokens
    )


def test_messages_that_the_template_refuses(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no tools here"):
        client.chat.completions.create(
            model="stories", messages=[{"role": "tool", "content": "1", "tool_call_id": "x"}]
        )


def test_texts_take_turns_and_equal_single_ones(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        return client.completions.create(model="stories", prompt=STORY, max_tokens=25, seed=seed).choices[0].text

    alone = [text(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(text, range(4))) == alone
    assert len(set(alone)) == 4


def test_a_long_read_does_not_stall_a_writer(model: Any) -> None:
    engine: TurnEngine = model.engine
    ids = torch.tensor(model.codec.encode(STORY))
    start = engine.submit(ReadJob(state=None, ids=[ids])).result().state
    long = engine.submit(ReadJob(state=None, ids=[ids.repeat(200)]))
    job = WriteJob(state=start, num_tokens=5, sampling=Sampling(), seed=0)  # type: ignore[arg-type]
    engine.submit(job).result(timeout=60)
    assert not long.done
    long.cancel()
    assert long.result(timeout=60).cancelled


def test_states_can_be_continued_and_scored(model: Any) -> None:
    engine, ids = model.engine, torch.tensor(model.codec.encode(STORY))
    whole = engine.submit(ReadJob(state=None, ids=[ids], keep_losses=True)).result()
    first = engine.submit(ReadJob(state=None, ids=[ids[:21]])).result()
    second = engine.submit(ReadJob(state=first.state, ids=[ids[21:]])).result()
    assert first.nats + second.nats == pytest.approx(whole.nats, abs=1e-3)
    assert first.predicted + second.predicted == whole.predicted == len(ids) - 1
    labelled = model.engine.model(ids[None], labels=ids[None]).loss.detach()
    assert whole.nats / whole.predicted == pytest.approx(float(labelled), abs=1e-4)

    def written(state: Any) -> list[int]:
        handle = engine.submit(WriteJob(state=state, num_tokens=20, sampling=Sampling(0), seed=0))
        return [event.id for event in handle.events() if isinstance(event, Token)]

    assert written(second.state) == written(whole.state)


def test_associative_memory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    add_memory(tiny_llama(), tokens=4, segment=SEGMENT, kind="associative").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model: Any = served_folder("associative", tmp_path, "cpu")
    ids = story_ids(model)
    read = model.engine.submit(ReadJob(state=None, ids=[torch.tensor(ids)])).result()
    write = model.engine.submit(WriteJob(state=read.state, num_tokens=40, sampling=Sampling(0), seed=0))
    assert [event.id for event in write.events()] == generated(model, ids, 40)
    model.sessions.save(tmp_path / "a.memory", write.result().state)
    assert model.sessions.load(tmp_path / "a.memory").tokens == len(ids) + 40
    assert model.sessions.nbytes(write.result().state) < 2 * model.sessions.nbytes(read.state)
    model.engine.close()


def test_memory_files_of_sessions(model: Any, tmp_path: Path) -> None:
    ids = torch.tensor(model.codec.encode(STORY))
    state = model.engine.submit(ReadJob(state=None, ids=[ids])).result().state
    model.sessions.save(tmp_path / "a.memory", state)
    loaded = model.sessions.load(tmp_path / "a.memory")
    assert loaded.tokens == len(ids)
    assert model.sessions.nbytes(loaded.state) == model.sessions.nbytes(state)
    assert model.sessions.memory_use(state, True).tokens == len(ids)


def test_the_memory_of_a_session_cannot_be_changed(server: RunningServer) -> None:
    for change in ({"memory_length": 3}, {"memory": False}):
        refused = httpx2.post(f"{server.url}/v1/sessions", json={"model": "stories"} | change)
        assert refused.status_code == 400 and "stories" in refused.json()["error"]["message"]


def test_the_decoder_gives_the_whole_text_in_pieces(model: Any) -> None:
    text = "a café, a naïve 🐶 dog"
    ids = model.codec.encode(text)
    decoder = TransformersDecoder(model.codec.tokenizer)
    pieces = [decoder.feed([token]) for token in ids]
    assert "".join(pieces) + decoder.finish() == model.codec.tokenizer.decode(ids, skip_special_tokens=True)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_model_without_memory_is_refused() -> None:
    with pytest.raises(MnemoError, match="without memory: mnemo.hf.add_memory adds it"):
        served_folder("plain", TINY_LLAMA)
