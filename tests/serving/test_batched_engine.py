"""Texts that are computed together get the same tokens as each gets alone, whatever else runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from helpers.mechanisms import MECHANISMS, few_first
from helpers.models import random_model, random_tokens
from helpers.serial_engine import SerialEngine
from helpers.tolerances import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.generation import TextState
from mnemo.inference.ring_copies import RingCopies
from mnemo.inference.row_group import RowGroup
from mnemo.inference.sampling_options import Sampling
from mnemo.inference.shared_rows import SharedRows
from mnemo.memory.state import leaves
from mnemo.model import Model
from mnemo.ops.cuda import decode_kernels
from mnemo.serving.batched_engine import BatchedEngine
from mnemo.serving.engine import Engine, Handle, Progress, ReadJob, Token, WriteJob
from mnemo.serving.row_decoders import RingRows
from mnemo.serving.writing_rows import WritingRows

SEGMENT = 4
WAIT = 60
SAMPLINGS = (Sampling(), Sampling(0), Sampling(0.7, 5), Sampling(1.2, None, 0.6), Sampling(0.9, 7, 0.8))


class Request(NamedTuple):
    """Read a text, then continue it in two parts."""

    length: int
    num_tokens: int
    sampling: Sampling
    seed: int
    top_logprobs: int = 0
    cancel_after: int | None = None
    """Tokens of the first part that are consumed before it is cancelled"""

    def ids(self) -> Tensor:
        return random_tokens(1, self.length, seed=self.seed)[0]

    def write(self, state: Any, first_draw: int = 0) -> WriteJob:
        return WriteJob(
            state=state,
            num_tokens=self.num_tokens,
            sampling=self.sampling,
            seed=self.seed,
            first_draw=first_draw,
            top_logprobs=self.top_logprobs,
        )


def thorough(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.thorough)


def random_request(choose: random.Random) -> Request:
    length, num_tokens, seed = choose.randint(1, 13), choose.randint(1, 14), choose.randint(0, 99)
    return Request(length, num_tokens, choose.choice(SAMPLINGS), seed, choose.choice((0, 0, 3)))


def tokens_of(handle: Handle, cancel_after: int | None = None) -> list[Token]:
    tokens = []
    for event in handle.events():
        assert isinstance(event, Token)
        tokens.append(event)
        if len(tokens) == cancel_after:
            handle.cancel()
    return tokens


def run_all(engine: Engine, requests: list[Request]) -> list[list[Token]]:
    """Everything that the requests write; parts are submitted when the engine is at many different places."""
    reads = [engine.submit(ReadJob(state=None, ids=[request.ids()], together=True)) for request in requests]
    both = list(zip(requests, reads, strict=True))
    firsts = [engine.submit(request.write(read.result(WAIT).state)) for request, read in both]
    written, seconds = [], []
    for request, first in zip(requests, firsts, strict=True):
        written.append(tokens_of(first, request.cancel_after))
        result = first.result(WAIT)
        assert result.tokens == len(written[-1])
        seconds.append(engine.submit(request.write(result.state, result.tokens)))
    for tokens, second in zip(written, seconds, strict=True):
        tokens += tokens_of(second)
    return written


def assert_same_texts(model: Model, requests: list[Request], segment: int = SEGMENT, **options: Any) -> None:
    with closing(SerialEngine(model, segment)) as serial:
        alone = run_all(serial, [request._replace(cancel_after=None) for request in requests])
    with closing(BatchedEngine(model, segment, **options)) as batched:
        together = run_all(batched, requests)
    for mine, theirs, request in zip(together, alone, requests, strict=True):
        # After cancelling, fewer tokens are written than in the serial engine.
        count = len(mine)
        assert count == len(theirs) or request.cancel_after is not None
        assert [token.id for token in mine] == [token.id for token in theirs[:count]]
        for token, other in zip(mine, theirs, strict=False):
            assert token.logprob == pytest.approx(other.logprob, rel=1e-5, abs=1e-5)
            assert [top for top, _ in token.top] == [top for top, _ in other.top]


@pytest.mark.parametrize("name", few_first())
def test_every_memory_writes_the_same_together(name: str) -> None:
    choose = random.Random(name)
    requests = [random_request(choose) for _ in range(5)]
    assert_same_texts(random_model(**MECHANISMS[name]), requests, segment=5, rows=3)


@pytest.mark.parametrize("name", ["xl", *map(thorough, ("lookahead", "xl-plan-modern", "rmt-with-cache", "infinite"))])
def test_in_single_precision(name: str) -> None:
    choose = random.Random(name)
    model = random_model(dtype=torch.float32, **MECHANISMS[name])
    assert_same_texts(model, [random_request(choose) for _ in range(9)], rows=8)


def test_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter."""
    pytest.importorskip("triton")
    monkeypatch.setattr(decode_kernels, "INTERPRETED", True)
    model = random_model(dtype=torch.float32, **{**MECHANISMS["xl-plan-modern"], "num_layers": 1})
    assert_same_texts(model, [Request(5, 3, Sampling(), 0), Request(2, 2, Sampling(), 1)], rows=2)


@pytest.mark.parametrize("name", [thorough("xl"), "xl-plan-modern", "xl-without-positions"])
def test_rows_copied_as_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through rings of one row and tensors of fixed sizes, which can be recorded."""
    original, made = RingRows.__init__, []

    def with_copies(self: RingRows, model: Model, like: Any, *options: Any) -> None:
        original(self, model, like, *options)
        self.copies = RingCopies(self.rings, like)
        self.join(0, self.take(0))
        made.append(self)

    monkeypatch.setattr(RingRows, "__init__", with_copies)
    choose = random.Random(name)
    assert_same_texts(random_model(**MECHANISMS[name]), [random_request(choose) for _ in range(9)], 5, rows=3)
    assert made


REQUESTS = st.builds(
    Request,
    length=st.integers(1, 11),
    num_tokens=st.integers(1, 17),
    sampling=st.sampled_from(SAMPLINGS),
    seed=st.integers(0, 9),
    top_logprobs=st.sampled_from([0, 2]),
    cancel_after=st.none() | st.integers(1, 9),
)


@settings(max_examples=6, deadline=None)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=6),
    rows=st.integers(1, 5),
    fixed=st.booleans(),
    segment=st.sampled_from([1, 2, 3, 5, 8]),
    name=st.sampled_from(["xl", "xl-plan", "lookahead", "rmt", "mt", "compressive", "infinite", "lstm"]),
)
def test_any_requests_write_the_same_together(
    requests: list[Request], rows: int, fixed: bool, segment: int, name: str
) -> None:
    assert_same_texts(random_model(**MECHANISMS[name]), requests, segment, rows=rows, fixed=fixed)


@pytest.fixture
def engine() -> Iterator[BatchedEngine]:
    engine = BatchedEngine(random_model(), SEGMENT, rows=4)
    yield engine
    engine.close(wait=False)


def read(engine: Engine, length: int = 6, seed: int = 0) -> TextState:
    job = ReadJob(state=None, ids=[random_tokens(1, length, seed=seed)[0]])
    state = engine.submit(job).result(WAIT).state
    assert isinstance(state, TextState)
    return state


def test_texts_share_steps(engine: BatchedEngine) -> None:
    states = [read(engine, length) for length in (3, 6, 8, 9)]
    handles = [engine.submit(Request(0, 100, Sampling(), 1).write(state)) for state in states]
    for handle in handles:
        handle.result(WAIT)
    assert engine.stats().tokens_written == 400
    assert engine.stats().steps < 200


@pytest.mark.parametrize("name", ["rmt-with-cache", *map(thorough, ("lookahead", "compressive", "infinite", "lstm"))])
def test_texts_inside_their_segments_share_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every memory: only first and last tokens of segments are computed for single texts."""
    segment, shared, alone = 32, [], []
    for kind, calls in ((SharedRows, shared), (RowGroup, alone)):
        original = kind.feed
        monkeypatch.setattr(kind, "feed", lambda *a, o=original, c=calls: (c.append(1), o(*a))[1])
    with closing(BatchedEngine(random_model(**MECHANISMS[name]), segment, rows=4)) as engine:
        states = [read(engine, length) for length in (3, 36, 17, 25)]
        alone.clear()
        handles = [engine.submit(Request(0, 160, Sampling(), 1).write(state)) for state in states]
        for handle in handles:
            handle.result(WAIT)
    assert len(shared) < 200 and len(alone) <= 4 * 2 * 6


def test_a_memory_that_cannot_share_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(0)
    monkeypatch.setattr("mnemo.serving.row_decoders.can_share", lambda *_: False)
    assert_same_texts(random_model(**MECHANISMS["lookahead"]), [random_request(choose) for _ in range(7)], rows=3)


def test_a_text_joins_and_leaves_with_one_copy(engine: BatchedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of other texts are not copied."""
    calls = []
    for name in ("join", "take", "move"):
        original = getattr(RingRows, name)

        def counted(*arguments: Any, name: str = name, original: Any = original) -> Any:
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(RingRows, name, counted)
    state = read(engine)
    handles = [engine.submit(Request(0, num, Sampling(), 1).write(state)) for num in (5, 20, 9, 14, 3, 30)]
    for handle in handles:
        handle.result(WAIT)
    assert {name: calls.count(name) for name in calls} == {"join": 6, "take": 6, "move": 6}


def test_tokens_that_are_handed_out_during_the_next_step() -> None:
    """The order of work on a GPU, with texts that end and are cancelled."""
    choose, model = random.Random(5), random_model()
    requests = [random_request(choose) for _ in range(8)]
    requests = [request._replace(cancel_after=choose.choice((None, 1, 3))) for request in requests]
    with closing(SerialEngine(model, SEGMENT)) as serial:
        alone = run_all(serial, [request._replace(cancel_after=None) for request in requests])
    with closing(BatchedEngine(model, SEGMENT, rows=3)) as engine:
        engine.on_gpu = True
        together = run_all(engine, requests)
    for mine, theirs in zip(together, alone, strict=True):
        assert [token.id for token in mine] == [token.id for token in theirs[: len(mine)]]


def test_a_long_read_does_not_stall_writing(engine: BatchedEngine) -> None:
    """Between two tokens, at most one segment is read."""
    state = read(engine)
    long = engine.submit(ReadJob(state=None, ids=[random_tokens(1, 2000)[0]]))
    events = iter(long.events())
    next(events)
    before = engine.stats()
    engine.submit(Request(0, 50, Sampling(), 1).write(state)).result(WAIT)
    after = engine.stats()
    assert not long.done
    assert after.tokens_read - before.tokens_read <= SEGMENT * 60
    assert all(isinstance(event, Progress) for event in events)
    assert long.result(WAIT).tokens == 2000


def test_texts_that_are_read_take_turns(engine: BatchedEngine) -> None:
    long = engine.submit(ReadJob(state=None, ids=[random_tokens(1, 2000)[0]]))
    read(engine, length=40)
    assert not long.done
    long.cancel()
    assert long.result(WAIT).cancelled


def test_an_output_that_is_not_finite_ends_one_text_only(engine: BatchedEngine) -> None:
    state, job = read(engine), Request(0, 60, Sampling(), 1)
    expected = [token.id for token in tokens_of(engine.submit(job.write(state)))]
    damaged = state._replace(hidden=torch.full_like(state.hidden, float("nan")))
    handles = [engine.submit(job.write(one)) for one in (state, damaged, state, damaged, damaged, state, state)]
    for index, handle in enumerate(handles):
        if index in (1, 3, 4):
            with pytest.raises(MnemoError, match="not finite"):
                handle.result(WAIT)
        else:
            assert [token.id for token in tokens_of(handle)] == expected


def test_an_error_of_the_whole_step_ends_its_texts_and_the_engine_goes_on(
    engine: BatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = read(engine)
    with monkeypatch.context() as broken:
        broken.setattr(RingRows, "feed", lambda *_: 1 / 0)
        with pytest.raises(MnemoError, match="the model failed: division by zero"):
            engine.submit(Request(0, 5, Sampling(), 1).write(state)).result(WAIT)
    assert engine.submit(Request(0, 5, Sampling(), 1).write(state)).result(WAIT).tokens == 5


def test_memories_of_different_lengths(engine: BatchedEngine) -> None:
    model, ids = engine.model, [random_tokens(1, 9)[0]]
    lengths = (2, 5, 9, 2, 7, 5)
    states = [
        engine.submit(ReadJob(state=model.init(1, length, cached=True), ids=ids)).result(WAIT).state
        for length in lengths
    ]
    jobs = [Request(0, 25, Sampling(), seed).write(state) for seed, state in enumerate(states)]
    together = [[token.id for token in tokens_of(handle)] for handle in [engine.submit(job) for job in jobs]]
    with closing(SerialEngine(model, SEGMENT)) as serial:
        assert together == [[token.id for token in tokens_of(serial.submit(job))] for job in jobs]


def test_states_are_not_changed_and_results_are_copies(engine: BatchedEngine) -> None:
    state = read(engine)
    before = [leaf.clone() for _, leaf in leaves(state)]
    first = engine.submit(Request(0, 9, Sampling(), 1).write(state)).result(WAIT).state
    kept = [leaf.clone() for _, leaf in leaves(first)]
    for handle in [engine.submit(Request(0, 30, Sampling(), seed).write(state)) for seed in range(6)]:
        handle.result(WAIT)
    assert all(torch.equal(leaf, old) for (_, leaf), old in zip(leaves(state), before, strict=True))
    assert all(torch.equal(leaf, old) for (_, leaf), old in zip(leaves(first), kept, strict=True))


def test_a_cancelled_text_frees_its_row(engine: BatchedEngine) -> None:
    state = read(engine)
    endless = [engine.submit(Request(0, 10**9, Sampling(), seed).write(state)) for seed in range(4)]
    for handle in endless:
        next(iter(handle.events()))
    waiting = engine.submit(Request(0, 5, Sampling(), 1).write(state))
    assert engine.stats().writing == 4 and engine.stats().queued == 1
    endless[1].cancel()
    assert waiting.result(WAIT).tokens == 5
    for handle in endless:
        handle.cancel()
        assert handle.result(WAIT).cancelled
    assert engine.stats().writing == 0


def test_results_of_both_engines_have_the_same_states() -> None:
    model, states = random_model(memory=5), []
    for kind in (SerialEngine, BatchedEngine):
        with closing(kind(model, SEGMENT)) as engine:
            result = engine.submit(Request(0, 14, Sampling(), 3).write(read(engine))).result(WAIT)
            states.append(result)
    one, other = states
    assert one.nats == pytest.approx(other.nats) and int(one.state.tokens) == int(other.state.tokens) == 20
    assert_close(one.state.hidden, other.state.hidden)
    assert torch.equal(one.state.state.count, other.state.state.count)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "name", ["xl", *map(thorough, ("lookahead", "xl-plan-modern", "compressive", "rmt-with-cache"))]
)
def test_with_fixed_rows_the_numbers_do_not_depend_on_other_texts(name: str, device: str) -> None:
    """Bit by bit: log-probabilities alone and among others."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = random_model(dtype=torch.float32, **{**MECHANISMS[name], "dim": 32, "head_dim": 16}).to(device)
    choose = random.Random(0)
    requests = [random_request(choose)._replace(num_tokens=15) for _ in range(6)]
    with closing(BatchedEngine(model, 8, rows=4, fixed=True)) as engine:
        alone = [run_all(engine, [request])[0] for request in requests]
        together = run_all(engine, requests)
    assert together == alone


@contextmanager
def held(engine: BatchedEngine) -> Iterator[None]:
    """Stop the engine's thread inside a step, so that everything that is submitted meanwhile is there at once."""
    reached, gate = threading.Event(), threading.Event()

    def wait(_: int) -> bool:
        reached.set()
        return gate.wait(WAIT)

    job = WriteJob(state=read(engine), num_tokens=2, sampling=Sampling(), seed=0, until=wait)
    handle = engine.submit(job)
    assert reached.wait(WAIT)
    yield
    gate.set()
    handle.result(WAIT)


def passes_of(engine: BatchedEngine, lengths: Sequence[int], **changes: Any) -> int:
    """Passes in which texts of these lengths are read, all of which are submitted at once."""
    with held(engine):
        before = engine.stats().passes
        ids = [random_tokens(1, length, seed=length)[0] for length in lengths]
        handles = [engine.submit(ReadJob(state=None, ids=[one], together=True, **changes)) for one in ids]
    for handle, length in zip(handles, lengths, strict=True):
        assert handle.result(WAIT).tokens == length
    return engine.stats().passes - before


@pytest.mark.parametrize(("length", "pieces"), [(32, 1), (64, 2), (70, 3)])
def test_equal_prompts_of_64_sessions_are_read_in_few_passes(length: int, pieces: int) -> None:
    """Of 16 texts each; one after the other it would be a pass for each piece of each text."""
    with closing(BatchedEngine(random_model(), 32, rows=64, fixed=True)) as engine:
        assert passes_of(engine, [length] * 64) == 64 // 16 * pieces


def test_prompts_of_different_lengths_share_passes() -> None:
    with closing(BatchedEngine(random_model(), 32, rows=16, fixed=True)) as engine:
        assert passes_of(engine, [17, 32, 20, 31]) == 1
        assert passes_of(engine, [3, 16, 17, 32]) == 2  # padded to 16 and to 32
        assert passes_of(engine, [32, 40, 50, 64]) == 3  # a whole segment of all; 8 and 18 of two; 32 of one


def test_a_pass_without_fixed_rows_has_at_most_the_tokens_of_a_segment() -> None:
    """On a CPU its time grows with them, and texts that are being written wait for it."""
    with closing(BatchedEngine(random_model(), 32, rows=8)) as engine:
        assert passes_of(engine, [4] * 8) == 1
        assert passes_of(engine, [8, 5, 6, 7, 8, 8]) == 2
        assert passes_of(engine, [32] * 3) == 3


@pytest.mark.parametrize("fixed", [False, True])
def test_a_text_that_must_be_reproduced_is_read_alone(fixed: bool) -> None:
    model, ids = random_model(dtype=torch.float32), random_tokens(1, 21)[0]
    with closing(BatchedEngine(model, 8, rows=8, fixed=fixed)) as engine:
        alone = engine.submit(ReadJob(state=None, ids=[ids])).result(WAIT)
        with held(engine):
            others = [engine.submit(ReadJob(state=None, ids=[ids], together=True)) for _ in range(4)]
            again = engine.submit(ReadJob(state=None, ids=[ids]))
        for other in others:
            assert other.result(WAIT).nats == pytest.approx(alone.nats)
        pairs = zip(leaves(alone.state), leaves(again.result(WAIT).state), strict=True)
        assert all(torch.equal(leaf, other) for (_, leaf), (_, other) in pairs)


@pytest.mark.parametrize("name", ["xl-plan", "lookahead", "rmt-with-cache", "compressive-most-used", "lstm"])
@pytest.mark.parametrize("fixed", [False, True])
def test_texts_that_are_read_together_have_the_same_losses_and_states(name: str, fixed: bool) -> None:
    """From the beginning and from inside a segment, in rows that leave at different times."""
    model, results = random_model(**MECHANISMS[name]), []
    lengths = (9, 3, 16, 3, 1, 8, 12)
    for kind in (SerialEngine, BatchedEngine):
        options: dict[str, Any] = dict(rows=4, fixed=fixed) if kind is BatchedEngine else {}
        with closing(kind(model, 8, **options)) as engine:
            states = [None] * len(lengths)
            for part in range(2):
                ids = [random_tokens(1, length, seed=length + part)[0] for length in lengths]
                jobs = [
                    ReadJob(state=state, ids=[one], keep_losses=True, together=True)
                    for state, one in zip(states, ids, strict=True)
                ]
                handles = [engine.submit(job) for job in jobs]
                found = [handle.result(WAIT) for handle in handles]
                states = [result.state for result in found]
                events = [[event for event in handle.events() if isinstance(event, Progress)] for handle in handles]
                results.append((found, events))
    for (mine, my_events), (theirs, their_events) in zip(results[:2], results[2:], strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert (one.tokens, one.predicted) == (other.tokens, other.predicted)
            for (_, leaf), (_, same) in zip(leaves(one.state), leaves(other.state), strict=True):
                assert_close(leaf, same)
        for ours, others in zip(my_events, their_events, strict=True):
            assert [event.tokens for event in ours] == [event.tokens for event in others]
            assert [event.losses for event in ours] == [pytest.approx(event.losses) for event in others]


def test_damaged_and_broken_texts_end_alone(engine: BatchedEngine) -> None:
    """Texts in the same pass go on."""
    ids = random_tokens(1, 6)[0]
    fine = read(engine)
    damaged = fine._replace(hidden=torch.full_like(fine.hidden, float("nan")))
    with held(engine):
        jobs = [ReadJob(state=state, ids=[ids], together=True) for state in (fine, damaged, fine)]
        handles = [engine.submit(job) for job in jobs]
        wrong = engine.submit(ReadJob(state=None, ids=[torch.tensor([10**6])], together=True))
    assert handles[0].result(WAIT).nats == pytest.approx(handles[2].result(WAIT).nats)
    with pytest.raises(MnemoError, match="not finite"):
        handles[1].result(WAIT)
    with pytest.raises(MnemoError):
        wrong.result(WAIT)


def test_a_pass_that_fails_ends_its_texts_and_the_engine_goes_on(
    engine: BatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(RowGroup, "feed_padded", lambda *_: 1 / 0)
        with pytest.raises(MnemoError, match="the model failed: division by zero"):
            read(engine)
    assert read(engine).tokens == 6
    assert engine.stats().reading == 0


def test_rows_are_full_while_texts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions arrive at once, read their prompts, and write; counted at every step."""
    used, start = [], WritingRows.start_step

    def counted(batch: WritingRows) -> None:
        used.append((len(batch.texts), engine.stats().queued))
        start(batch)

    choose = random.Random(1)
    with closing(BatchedEngine(random_model(), 16, rows=8, fixed=True)) as engine:
        with held(engine):
            reads = [
                engine.submit(ReadJob(state=None, ids=[random_tokens(1, 16, seed=seed)[0]], together=True))
                for seed in range(48)
            ]
        states = [handle.result(WAIT).state for handle in reads]
        with held(engine):
            monkeypatch.setattr(WritingRows, "start_step", counted)
            jobs = [Request(0, choose.randint(5, 60), Sampling(), seed).write(s) for seed, s in enumerate(states)]
            handles = [engine.submit(job) for job in jobs]
        total = sum(handle.result(WAIT).tokens for handle in handles)
    waiting = [rows for rows, queued in used if queued]
    assert len(waiting) > 50
    assert sum(rows == 8 for rows in waiting) >= 0.9 * len(waiting)
    assert sum(rows for rows, _ in used) >= total - 2


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_with_fixed_rows_reading_together_gives_the_same_bits(device: str) -> None:
    """Alone in a pass and at any place among others; in the type and about the sizes of real models on a GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    sizes = dict(dim=32, head_dim=16) if device == "cpu" else dict(dim=512, num_heads=8, head_dim=64, inner_dim=2048)
    model = random_model(dtype=torch.float32 if device == "cpu" else torch.bfloat16, memory=64, **sizes).to(device)
    texts = [random_tokens(1, length, seed=length)[0] for length in (64, 64, 40, 150, 33, 9, 64, 129)]
    jobs = [ReadJob(state=None, ids=[ids], together=True) for ids in texts]
    with closing(BatchedEngine(model, 64, rows=16, fixed=True)) as engine:
        alone = [engine.submit(job).result(WAIT) for job in jobs]
        passes = engine.stats().passes
        with held(engine):
            handles = [engine.submit(job) for job in jobs]
        together = [handle.result(WAIT) for handle in handles]
        assert passes == 12 and engine.stats().passes - passes <= 7  # one of them before the engine is held
    for one, other in zip(alone, together, strict=True):
        assert one.nats == other.nats
        for (_, leaf), (_, same) in zip(leaves(one.state), leaves(other.state), strict=True):
            assert torch.equal(leaf, same)
