"""Sessions whose memory is off: every segment starts from an empty state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers.serial_engine import SerialEngine
from helpers.sessions import SEGMENT, TEXT, random_run

from mnemo.inference.sampling_options import Sampling
from mnemo.serving.engine import Progress, ReadJob, Token, WriteJob
from mnemo.serving.forgetting import ForgettingEngine
from mnemo.serving.session_model import RunSessions
from mnemo.session.session import Session

IDS = torch.arange(3 * SEGMENT + 1)
GREEDY = Sampling(0.0)


@pytest.fixture(scope="module")
def model() -> Iterator[RunSessions]:
    opened = random_run()
    engine = SerialEngine(opened.run.model, SEGMENT)
    yield RunSessions("letters", opened, engine)
    engine.close()


@pytest.fixture
def local() -> Session:
    session = Session(random_run(), sampling=GREEDY)
    session.set_memory(on=False)
    return session


def write_job(model: RunSessions, **options: object) -> WriteJob:
    engine = ForgettingEngine(model, None)
    text = engine.submit(ReadJob(state=model.empty(None), ids=[IDS])).result().state
    return WriteJob(**{"state": text, "num_tokens": 3 * SEGMENT, "sampling": GREEDY, "seed": 0, **options})


def test_reading_equals_a_local_session(model: RunSessions, local: Session) -> None:
    loss = local.read_tokens(IDS)
    handle = ForgettingEngine(model, None).submit(ReadJob(state=model.empty(None), ids=[IDS[:5], IDS[5:]]))
    events = [event for event in handle.events() if isinstance(event, Progress)]
    assert events[-1].tokens == len(IDS) == handle.result().tokens and handle.done
    assert events[-1].nats == handle.result().nats == pytest.approx(loss.nats)
    assert [event.tokens for event in events] == sorted({event.tokens for event in events})


def test_writing_equals_a_local_session(model: RunSessions, local: Session) -> None:
    local.read_tokens(IDS)
    handle = ForgettingEngine(model, None).submit(write_job(model))
    ids = [event.id for event in handle.events() if isinstance(event, Token)]
    assert "".join(TEXT[token] for token in ids) == local.generate(3 * SEGMENT)
    assert handle.result().tokens == 3 * SEGMENT and not handle.result().cancelled


@pytest.mark.parametrize("last", [1, SEGMENT - 1, SEGMENT, 2 * SEGMENT])
def test_the_last_token_ends_the_text(last: int, model: RunSessions) -> None:
    """Also where a segment ends."""
    seen: list[int] = []
    job = write_job(model, until=lambda token: (seen.append(token), len(seen) == last)[1])
    handle = ForgettingEngine(model, None).submit(job)
    ids = [event.id for event in handle.events() if isinstance(event, Token)]
    assert ids == seen and len(ids) == last == handle.result().tokens


def test_cancel(model: RunSessions) -> None:
    handle = ForgettingEngine(model, None).submit(write_job(model, num_tokens=10_000))
    events = handle.events()
    first = [next(events) for _ in range(SEGMENT + 1)]
    handle.cancel()
    count = len(first) + len(list(events))
    result = handle.result()
    assert result.cancelled and result.tokens == count < 10_000
