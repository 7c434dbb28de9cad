"""lm-evaluation-harness as a client: its `local-completions` gives the scores that the model itself gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.http_server import RunningServer, running, serial
from helpers.tiny_runs import tiny_run

from mnemo.inference.generation import read
from mnemo.session.session import Session
from mnemo.session.text_run import OpenedRun, with_tokenizer
from mnemo.storage.run_folder import open_run

pytest.importorskip("lm_eval")
pytest.importorskip("tenacity")

from lm_eval.api.instance import Instance
from lm_eval.models import openai_completions

LocalCompletions: Any = openai_completions.LocalCompletionsAPI
CONTEXT, CONTINUATION = "the cat that saw", " the dog sat under a café"


@pytest.fixture(scope="module")
def opened() -> OpenedRun:
    return with_tokenizer(open_run(tiny_run(), device="cpu"))


@pytest.fixture(scope="module")
def server(opened: OpenedRun) -> Iterator[RunningServer]:
    with running([serial(opened)]) as server:
        yield server


@pytest.fixture(params=[1, 2], ids=["one-by-one", "concurrent"])
def harness(server: RunningServer, request: pytest.FixtureRequest) -> Any:
    url = f"{server.url}/v1/completions"
    return LocalCompletions(base_url=url, model="tiny", batch_size=2, num_concurrent=request.param)


def asked(kind: str, *arguments: object) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)  # type: ignore[arg-type]


def test_the_tokenizer_of_the_server_is_used(harness: Any, opened: OpenedRun) -> None:
    assert harness.tokenizer_backend == "remote"
    assert harness.tok_encode(CONTEXT) == opened.tokenizer.encode(CONTEXT).tolist()


def test_log_likelihood(harness: Any, opened: OpenedRun) -> None:
    scores = harness.loglikelihood([asked("loglikelihood", CONTEXT, CONTINUATION), asked("loglikelihood", "a", "b")])
    session = Session(opened)
    session.read(CONTEXT)
    assert scores[0][0] == pytest.approx(-session.read(CONTINUATION).nats, abs=1e-4)
    assert not scores[0][1]


def test_greedy_continuations_are_recognised(harness: Any, opened: OpenedRun) -> None:
    session = Session(opened)
    session.sampling = session.sampling._replace(temperature=0.0)
    session.read(CONTEXT)
    greedy = session.generate(6)
    ((_, is_greedy),) = harness.loglikelihood([asked("loglikelihood", CONTEXT, greedy)])
    assert is_greedy


def test_rolling_log_likelihood(harness: Any, opened: OpenedRun) -> None:
    (score,) = harness.loglikelihood_rolling([asked("loglikelihood_rolling", CONTEXT)])
    ids = [*opened.tokenizer.encode("\0"), *opened.tokenizer.encode(CONTEXT)]
    _, expected = read(opened.run.model, torch.tensor(ids, dtype=torch.int64), segment=8)
    assert score == pytest.approx(-expected.nats, abs=1e-4)


def test_generation(harness: Any, opened: OpenedRun) -> None:
    session = Session(opened)
    session.sampling = session.sampling._replace(temperature=0.0)
    session.read(CONTEXT)
    written = session.generate(20)
    options = {"until": [written[5:8]], "max_gen_toks": 20, "do_sample": False}
    (text,) = harness.generate_until([asked("generate_until", CONTEXT, options)])
    assert text == written[: written.index(written[5:8])]
