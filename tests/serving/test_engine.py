"""Both engines: jobs, events, cancelling, limits and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch
from helpers.models import random_model, random_tokens
from helpers.serial_engine import SerialEngine
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.generation import TextState, read
from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import leaves
from mnemo.model import Model
from mnemo.serving.batched_engine import BatchedEngine
from mnemo.serving.engine import EngineClosed, EngineFull, Progress, ReadJob, Token, WriteJob

SEGMENT = 4
AnyEngine = SerialEngine | BatchedEngine


def one_row(model: Model, segment: int) -> BatchedEngine:
    return BatchedEngine(model, segment, rows=1)


@pytest.fixture(params=[SerialEngine, one_row])
def engine(request: pytest.FixtureRequest) -> Iterator[AnyEngine]:
    engine = request.param(random_model(), SEGMENT)
    yield engine
    engine.close(wait=False)


def text(engine: AnyEngine, length: int = 6) -> TextState:
    state = engine.submit(ReadJob(state=None, ids=[random_tokens(1, length)[0]])).result(20).state
    assert isinstance(state, TextState)
    return state


def write(engine: AnyEngine, state: TextState, num_tokens: int, **changes: object) -> list[int]:
    job = WriteJob(**{**dict(state=state, num_tokens=num_tokens, sampling=Sampling(), seed=3), **changes})  # type: ignore[arg-type]
    return [event.id for event in engine.submit(job).events() if isinstance(event, Token)]


def test_reading_equals_read_however_the_ids_arrive(engine: AnyEngine) -> None:
    ids = random_tokens(1, 18)[0]
    expected, score = read(engine.model, ids, segment=SEGMENT)
    for sizes in ([18], [1] * 18, [5, 0, 13], [4, 4, 4, 4, 2]):
        pieces = ids.split(sizes)
        for source in (list(pieces), iter(pieces)):
            handle = engine.submit(ReadJob(state=None, ids=source, keep_losses=True))
            events, result = list(handle.events()), handle.result(20)
            assert all(isinstance(event, Progress) for event in events)
            losses = [loss for event in events if isinstance(event, Progress) for loss in event.losses]
            assert len(losses) == result.predicted == score.tokens == 17
            assert result.nats == pytest.approx(score.nats) == pytest.approx(sum(losses))
            for (_, mine), (_, theirs) in zip(leaves(result.state), leaves(expected), strict=True):
                assert_close(mine, theirs)


def test_a_text_continued_in_two_jobs_equals_one_job(engine: AnyEngine) -> None:
    start = text(engine)
    whole = write(engine, start, 12)
    handle = engine.submit(WriteJob(state=start, num_tokens=5, sampling=Sampling(), seed=3))
    first, middle = [event.id for event in handle.events() if isinstance(event, Token)], handle.result(20)
    assert isinstance(middle.state, TextState) and int(middle.state.tokens) == 11
    assert first + write(engine, middle.state, 7, first_draw=5) == whole
    assert write(engine, start, 12, seed=4) != whole


def test_log_probabilities(engine: AnyEngine) -> None:
    start = text(engine)
    handle = engine.submit(
        WriteJob(state=start, num_tokens=6, sampling=Sampling(temperature=0), seed=0, top_logprobs=4)
    )
    tokens = [event for event in handle.events() if isinstance(event, Token)]
    assert all(token.top[0] == (token.id, token.logprob) and len(token.top) == 4 for token in tokens)
    ids = torch.tensor([token.id for token in tokens])
    _, score = read(engine.model, ids, segment=SEGMENT, state=start)
    assert handle.result(20).nats == pytest.approx(score.nats) == pytest.approx(-sum(t.logprob for t in tokens))


def test_until_makes_a_token_the_last(engine: AnyEngine) -> None:
    start = text(engine)
    whole = write(engine, start, 12)
    seen: list[int] = []
    assert write(engine, start, 12, until=lambda token: seen.append(token) or len(seen) == 5) == whole[:5]


def test_cancelling_keeps_the_tokens_of_the_events(engine: AnyEngine) -> None:
    start = text(engine)
    whole = write(engine, start, 40)
    handle = engine.submit(WriteJob(state=start, num_tokens=10**9, sampling=Sampling(), seed=3))
    tokens = []
    for event in handle.events():
        tokens.append(event.id if isinstance(event, Token) else -1)
        if len(tokens) == 3:
            handle.cancel()
    result = handle.result(20)
    assert result.cancelled and isinstance(result.state, TextState) and result.tokens == len(tokens)
    both = tokens + write(engine, result.state, 40, first_draw=len(tokens))
    assert both[:40] == whole


def test_events_in_an_event_loop(engine: AnyEngine) -> None:
    start = text(engine)

    async def tokens(seed: int) -> list[int]:
        handle = engine.submit(WriteJob(state=start, num_tokens=9, sampling=Sampling(), seed=seed))
        return [event.id async for event in handle.aevents() if isinstance(event, Token)]

    async def both() -> list[list[int]]:
        return list(await asyncio.gather(tokens(3), tokens(4)))

    assert asyncio.run(both()) == [write(engine, start, 9), write(engine, start, 9, seed=4)]


def test_a_full_queue(engine: AnyEngine) -> None:
    start, engine.queue_limit = text(engine), 2
    endless = WriteJob(state=start, num_tokens=10**9, sampling=Sampling(), seed=3)
    running = engine.submit(endless)
    next(iter(running.events()))
    waiting = [engine.submit(endless) for _ in range(2)]
    with pytest.raises(EngineFull, match="2 requests are waiting"):
        engine.submit(endless)
    assert engine.stats().queued == 2 and engine.stats().writing == 1
    waiting[0].cancel()
    running.cancel()
    assert running.result(20).cancelled and waiting[0].result(20).tokens == 0
    waiting[1].cancel()
    waiting[1].result(20)


def test_closing(engine: AnyEngine) -> None:
    start = text(engine)
    last = engine.submit(WriteJob(state=start, num_tokens=20, sampling=Sampling(), seed=3))
    engine.close(wait=True)
    assert last.result(0).tokens == 20
    with pytest.raises(EngineClosed, match="shutting down"):
        engine.submit(last.job)


def test_closing_at_once_ends_jobs_with_an_error(engine: AnyEngine) -> None:
    start = text(engine)
    endless = WriteJob(state=start, num_tokens=10**9, sampling=Sampling(), seed=3)
    handles = [engine.submit(endless) for _ in range(3)]
    engine.close(wait=False)
    for handle in handles:
        with pytest.raises(EngineClosed):
            handle.result(20)
        with pytest.raises(EngineClosed):
            list(handle.events())


def test_errors_of_a_job_end_that_job_only(engine: AnyEngine) -> None:
    start = text(engine)

    def broken() -> Iterator[Tensor]:
        yield random_tokens(1, 9)[0]
        raise OSError("connection lost")

    for ids, message in ((broken(), "the text broke off: connection lost"), ([torch.tensor([99])], "token id 99")):
        with pytest.raises(MnemoError, match=message):
            engine.submit(ReadJob(state=start, ids=ids)).result(20)
    nothing = start._replace(hidden=torch.full_like(start.hidden, float("nan")))
    with pytest.raises(MnemoError, match="not finite"):
        write(engine, nothing, 3)
    assert len(write(engine, start, 3)) == 3


def test_an_upload_that_waits_does_not_use_the_processor(engine: AnyEngine) -> None:
    go_on = threading.Event()

    def slow() -> Iterator[Tensor]:
        yield random_tokens(1, 5)[0]
        go_on.wait()
        yield random_tokens(1, 5)[0]

    turns = 0
    original = engine.take_turn

    def counted() -> bool:
        nonlocal turns
        turns += 1
        return original()

    engine.take_turn = counted  # type: ignore[method-assign]
    handle = engine.submit(ReadJob(state=None, ids=slow()))
    next(iter(handle.events()))
    threading.Event().wait(0.2)
    assert turns < 20
    go_on.set()
    assert handle.result(20).tokens == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": 0}, "must be positive"),
        ({"seed": -1}, "seed -1"),
        ({"sampling": Sampling(temperature=-1)}, "temperature"),
        ({"top_logprobs": 21}, "limit is 20"),
        ({"first_draw": -1}, "draws -1"),
        ({"state": None}, "after at least one token"),
    ],
)
def test_wrong_jobs(engine: AnyEngine, changes: dict[str, object], message: str) -> None:
    job = WriteJob(**{**dict(state=text(engine), num_tokens=1, sampling=Sampling(), seed=0), **changes})  # type: ignore[arg-type]
    with pytest.raises(MnemoError, match=message):
        engine.submit(job)
