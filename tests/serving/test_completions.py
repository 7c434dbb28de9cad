"""`/v1/completions` by the real client of OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
import torch
from helpers.http_server import RunningServer, running, serial
from helpers.sessions import SEGMENT, TEXT, random_run
from helpers.tiny_runs import tiny_run

from mnemo.data.tokenizers import ByteTokenizer, WordTokenizer
from mnemo.inference.generation import read
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.batched_engine import BatchedEngine
from mnemo.serving.served_model import RunCodec, served_run
from mnemo.serving.store import SessionStore
from mnemo.serving.text_stream import TextStream
from mnemo.session.session import Session
from mnemo.session.text_run import with_tokenizer
from mnemo.storage.run_folder import open_run

PROMPT = TEXT[:11]
IDS = list(range(11))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    batched = random_run()
    engine = BatchedEngine(batched.run.model, SEGMENT, rows=3)
    models = [
        serial(random_run()),
        served_run("batched", batched, engine),
        serial(with_tokenizer(open_run(tiny_run(), device="cpu")), "trained"),
    ]
    store = SessionStore(tmp_path_factory.mktemp("store"), [model.sessions for model in models])
    with running(models, store) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def complete(client: openai.OpenAI, **options: Any) -> Any:
    return client.completions.create(**({"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "seed": 3} | options))


def text_of(client: openai.OpenAI, **options: Any) -> str:
    return complete(client, **options).choices[0].text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "batched", "trained"]
    found = client.models.retrieve("tiny")
    assert found.owned_by == "mnemo" and found.model_extra is not None
    assert found.model_extra["segment"] == SEGMENT and found.model_extra["state_bytes"] > 0
    with pytest.raises(openai.NotFoundError, match="unknown model 'tine'; did you mean 'tiny'"):
        client.models.retrieve("tine")


def test_health(server: RunningServer) -> None:
    assert httpx2.get(f"{server.url}/health").json()["status"] == "ok"


def test_greedy_text_is_that_of_a_session(client: openai.OpenAI) -> None:
    session = Session(random_run(), sampling=Sampling(0))
    session.read(PROMPT)
    answer = complete(client, temperature=0)
    assert answer.choices[0].text == session.generate(20)
    assert (answer.choices[0].finish_reason, answer.object) == ("length", "text_completion")


def test_usage_has_the_size_of_the_state(client: openai.OpenAI) -> None:
    usage = complete(client).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 20, 31)
    assert usage.model_extra["tokens_read"] == 31
    assert usage.model_extra["state_bytes"] > 0


def test_a_stream_has_the_text_of_the_whole_answer(client: openai.OpenAI) -> None:
    whole = complete(client)
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert len(chunks) > 10
    assert chunks[-1].usage == whole.usage and chunks[-2].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_seeds(client: openai.OpenAI) -> None:
    assert text_of(client) == text_of(client)
    assert text_of(client) != text_of(client, seed=4)
    assert text_of(client, seed=None) != text_of(client, seed=None)


def test_several_choices_equal_single_ones(client: openai.OpenAI) -> None:
    prompts = [PROMPT, TEXT[5:9]]
    choices = complete(client, prompt=prompts, n=2).choices
    assert [choice.index for choice in choices] == [0, 1, 2, 3]
    single = [text_of(client, prompt=prompts[row // 2], seed=3 + row) for row in range(4)]
    assert [choice.text for choice in choices] == single and len(set(single)) == 4


def test_several_choices_in_a_stream(client: openai.OpenAI) -> None:
    whole = complete(client, n=3)
    texts, ends = ["", "", ""], []
    for chunk in complete(client, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends += [choice.index] if choice.finish_reason else []
    assert texts == [choice.text for choice in whole.choices] and sorted(ends) == [0, 1, 2]


def test_concurrent_requests_share_steps_and_equal_single_ones(client: openai.OpenAI) -> None:
    """More requests than rows, of different lengths and settings."""
    options = [dict(seed=i, prompt=TEXT[: i + 2], max_tokens=10 + 3 * i, temperature=i % 3 / 2) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: text_of(client, model="batched", **each), options))
    assert together == [text_of(client, model="tiny", **each) for each in options]


def test_prompts_of_every_form(client: openai.OpenAI) -> None:
    expected = text_of(client)
    for prompt in ([PROMPT], IDS, [IDS]):
        assert text_of(client, prompt=prompt) == expected
    assert len(complete(client, prompt=[IDS, IDS[:3]]).choices) == 2


def test_an_empty_prompt_starts_a_document(client: openai.OpenAI) -> None:
    opened = with_tokenizer(open_run(tiny_run(), device="cpu"))
    session = Session(opened, sampling=Sampling(0))
    expected = session.generate(10)
    for prompt in ("", None, [""]):
        assert text_of(client, model="trained", prompt=prompt, max_tokens=10, temperature=0) == expected


def test_temperature_and_limits(client: openai.OpenAI) -> None:
    greedy = text_of(client, temperature=0)
    assert text_of(client, extra_body={"top_k": 1}) == greedy
    assert text_of(client, top_p=1e-9) == greedy
    assert text_of(client, temperature=3) != greedy


def test_stop_strings(client: openai.OpenAI) -> None:
    whole = text_of(client, max_tokens=60)
    stop = whole[20:23]
    answer = complete(client, max_tokens=60, stop=[stop, "Z"])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == whole.index(stop) + 3
    chunks = list(complete(client, max_tokens=60, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert complete(client, stop=["Z"]).choices[0].finish_reason == "length"


def test_log_probabilities(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=5, temperature=0).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == list(range(20))
    assert all(len(top) == 5 for top in logprobs.top_logprobs)
    pairs = zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    assert all(mine == max(top.values()) for mine, top in pairs)
    everything = complete(client, logprobs=20, max_tokens=1).choices[0].logprobs.top_logprobs[0]
    assert sum(map(math.exp, everything.values())) == pytest.approx(1, abs=0.2)


def test_the_chosen_token_is_always_listed(client: openai.OpenAI) -> None:
    logprobs = complete(client, logprobs=1, temperature=2).choices[0].logprobs
    for token, mine, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == mine and len(top) in (1, 2)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_echoed_prompt_is_scored(client: openai.OpenAI, max_tokens: int) -> None:
    choice = complete(client, echo=True, logprobs=1, max_tokens=max_tokens).choices[0]
    assert choice.text.startswith(PROMPT) and len(choice.text) == len(PROMPT) + max_tokens
    model = random_run().run.model
    _, score = read(model, torch.tensor(IDS), segment=SEGMENT)
    logprobs = choice.logprobs.token_logprobs
    assert logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
    assert -sum(logprobs[1 : len(PROMPT)]) == pytest.approx(score.nats, abs=1e-4)
    assert choice.logprobs.text_offset == list(range(len(PROMPT) + max_tokens))


def test_echo_without_log_probabilities(client: openai.OpenAI) -> None:
    assert text_of(client, echo=True) == PROMPT + text_of(client)
    choices = complete(client, echo=True, n=2, prompt=[PROMPT, "abc"]).choices
    assert [choice.text[:3] for choice in choices] == [PROMPT[:3]] * 2 + ["abc"] * 2


def test_characters_of_several_bytes(client: openai.OpenAI) -> None:
    """Incomplete characters are held back, and each has its name in the log-probabilities."""
    text = "café 3\nthe cat"
    answer = complete(client, model="trained", prompt=text, echo=True, max_tokens=0, logprobs=0)
    names = answer.choices[0].logprobs.tokens
    assert answer.choices[0].text == text
    assert names[3:5] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_a_prompt_that_ends_inside_a_character(client: openai.OpenAI) -> None:
    """The echo ends before the character; the text after it completes the character, or replaces it."""
    prompt = list("café".encode())[:-1]
    answer = complete(client, model="trained", prompt=prompt, echo=True, max_tokens=6, temperature=1000, logprobs=0)
    offsets = answer.choices[0].logprobs.text_offset
    assert answer.choices[0].text[:3] == "caf" and offsets[4] == 3
    written = b"".join(raw_token(name) for name in answer.choices[0].logprobs.tokens)
    assert answer.choices[0].text == written.decode("utf-8", "replace")


def raw_token(name: str) -> bytes:
    return bytes.fromhex(name.removeprefix("bytes:").replace("\\x", "")) if name.startswith("bytes:") else name.encode()


def test_characters_that_two_requests_write(server: RunningServer, client: openai.OpenAI) -> None:
    """Random bytes, one for each request, are the same text as all of them in one request."""
    wish = {"model": "trained", "prompt": "", "seed": None, "temperature": 1000}
    first, second = (session_of(server, model="trained") for _ in range(2))
    texts = [complete(client, **wish, max_tokens=1, extra_body={"session": first}) for _ in range(60)]
    whole = complete(client, **wish, max_tokens=60, extra_body={"session": second}).choices[0].text
    assert whole.startswith("".join(answer.choices[0].text for answer in texts))
    assert len(whole) < 60  # some characters have several bytes


def test_too_many_log_probabilities(client: openai.OpenAI) -> None:
    for wish in ({"max_tokens": 16_384, "n": 64}, {"prompt": "ab" * 60_000, "echo": True, "max_tokens": 0}):
        with pytest.raises(openai.BadRequestError, match="log-probabilities of") as caught:
            complete(client, **{"logprobs": 20} | wish)
        assert caught.value.param == "logprobs"


def session_of(server: RunningServer, **options: Any) -> str:
    body = {"model": "tiny", "seed": 5} | options
    return httpx2.post(f"{server.url}/v1/sessions", json=body).json()["id"]


def test_a_session_goes_on(server: RunningServer, client: openai.OpenAI) -> None:
    session = session_of(server)
    extra = {"session": session}
    first = complete(client, seed=None, extra_body=extra)
    second = complete(client, seed=None, prompt="", extra_body=extra)
    whole = complete(client, seed=5, max_tokens=40)
    assert first.choices[0].text + second.choices[0].text == whole.choices[0].text
    assert second.model_extra["session"] == session
    assert second.usage.model_extra["tokens_read"] == 51
    assert first.usage.model_extra["state_bytes"] > 0


def test_the_state_of_a_session_does_not_grow(server: RunningServer, client: openai.OpenAI) -> None:
    extra = {"session": session_of(server)}
    sizes = [complete(client, max_tokens=8, extra_body=extra).usage.model_extra["state_bytes"] for _ in range(6)]
    model = random_run().run.model
    most = 2 * sizes[0] + SEGMENT * model.config.dim * model.config.num_layers * 16
    assert max(sizes) < most


def test_a_fork_leaves_the_session(server: RunningServer, client: openai.OpenAI) -> None:
    extra = {"session": session_of(server)}
    complete(client, seed=None, extra_body=extra)
    options: dict[str, Any] = dict(seed=None, prompt="", max_tokens=10)
    forks = [text_of(client, **options, extra_body=extra | {"fork": True}) for _ in range(2)]
    many = complete(client, **options, n=3, extra_body=extra | {"fork": True}).choices
    assert forks[0] == forks[1] == many[0].text == text_of(client, **options, extra_body=extra)
    assert len({choice.text for choice in many}) == 3


def test_a_stop_string_leaves_the_session_exactly_there(server: RunningServer, client: openai.OpenAI) -> None:
    extra, options = {"session": session_of(server)}, dict(seed=None, max_tokens=60)
    whole = complete(client, **options, extra_body=extra | {"fork": True}).choices[0].text
    stop = whole[20:23]
    complete(client, **options, stop=stop, extra_body=extra)
    rest = text_of(client, seed=None, prompt="", max_tokens=10, extra_body=extra)
    assert rest == whole[whole.index(stop) + 3 :][:10]


def test_a_stream_that_is_closed_keeps_its_text(server: RunningServer, client: openai.OpenAI) -> None:
    session = session_of(server)
    with complete(client, seed=None, max_tokens=5000, stream=True, extra_body={"session": session}) as stream:
        received = "".join(next(stream).choices[0].text for _ in range(5))
    url = f"{server.url}/v1/sessions/{session}"
    for _ in range(500):
        found = httpx2.get(url).json()
        if not found.get("busy"):
            break
    written = found["tokens"] - len(PROMPT)
    assert 5 <= written < 5000
    whole = text_of(client, seed=5, max_tokens=written + 10)
    assert whole.startswith(received)
    rest = text_of(client, seed=None, prompt="", max_tokens=10, extra_body={"session": session})
    assert rest == whole[written:]


def test_sessions_that_cannot_be_used(server: RunningServer, client: openai.OpenAI) -> None:
    session = session_of(server)
    with pytest.raises(openai.NotFoundError, match="no session 'nosuch'"):
        complete(client, extra_body={"session": "nosuch"})
    with pytest.raises(openai.APIStatusError, match="is of the model 'tiny', not 'trained'"):
        complete(client, model="trained", prompt="the", extra_body={"session": session})
    with pytest.raises(openai.BadRequestError, match="n > 1 with a 'session' needs \"fork\": true"):
        complete(client, n=2, extra_body={"session": session})
    with pytest.raises(openai.BadRequestError, match="one prompt"):
        complete(client, prompt=["a", "b"], extra_body={"session": session})
    with pytest.raises(openai.NotFoundError):
        complete(client, extra_body={"session": "../../etc/passwd"})


def feed(stream: TextStream, tokens: bytes) -> list[str]:
    return [stream.feed(token) for token in tokens]


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    stream = TextStream(ByteTokenizer().decoder(), b"", ["abc", "bd"])
    assert feed(stream, b"xab") == ["x", "", ""]
    assert feed(stream, b"x") == ["abx"] and not stream.stopped
    assert feed(stream, b"ab") == ["", ""] and stream.finish() == "ab"
    stream = TextStream(ByteTokenizer().decoder(), b"", ["abc", "bd"])
    assert "".join(feed(stream, b"xabd")) == "xa" and stream.stopped and stream.finish() == ""


def test_the_longest_begin_of_a_stop_string_is_held_back() -> None:
    stream = TextStream(ByteTokenizer().decoder(), b"", ["aab"])
    assert feed(stream, b"aaa") == ["", "", "a"]
    assert feed(stream, b"b") == [""] and stream.stopped


def test_names_of_tokens() -> None:
    codec = RunCodec(WordTokenizer(("the", "cat", "<eos>")))
    assert [codec.name(token) for token in range(3)] == ["the", "cat", "\n"]
    assert codec.piece(1) == b"cat"
    assert RunCodec(ByteTokenizer()).name(0xC3) == "bytes:\\xc3"
