"""Decoding with ring buffers equals plain decoding, token for token; CUDA graphs are tested on a GPU only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import decode_kernels as checks
from helpers.marks import few
from helpers.models import random_model, random_tokens
from helpers.option_places import no_interpreter
from helpers.tolerances import assert_close

from mnemo.errors import MnemoError
from mnemo.inference.decoder import Decoder
from mnemo.inference.generation import generate
from mnemo.inference.ring_decoder import RingDecoder, embed, suits
from mnemo.memory import XL, Compressive, MemoryTokens, Plan
from mnemo.memory.state import leaves
from mnemo.model import Model
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.positions import Learned, NoPositions, Relative, Rotary, Shaw
from mnemo.ops.cuda import decode_kernels

PLAN = Plan(long=XL(length=7), short=XL(length=2), num_long=1)
KINDS: dict[str, dict[str, Any]] = {
    "longer memory": dict(memory=9),
    "shorter memory": dict(memory=2),
    "memory of a segment": dict(memory=4),
    "no memory": dict(memory=0),
    "plan": dict(memory=PLAN),
    "pre-norm": dict(memory=PLAN, norm="pre", final_norm=True),
    "same length": dict(memory=5, same_length=True),
    "same length, no memory": dict(memory=0, same_length=True),
    "clamped": dict(memory=9, positions=Relative(clamp=3)),
    "shared projection": dict(memory=5, positions=Relative(shared_projection=True)),
    "Shaw": dict(memory=6, positions=Shaw(distances=5)),
    "rotary": dict(memory=PLAN, positions=Rotary()),
    "modern": dict(memory=PLAN, positions=Rotary(), norm="pre", final_norm=True, norm_kind="rms", qk_norm=True),
    "normalised heads": dict(memory=5, qk_norm=True),
    "no positions": dict(memory=5, positions=NoPositions()),
    "adaptive": dict(memory=5, embedding=EmbeddingConfig(cutoffs=(5, 11), div_val=2)),
}
SIMILAR = ("shorter memory", "plan", "pre-norm", "same length, no memory", "rotary", "normalised heads")
"""Kinds whose parts others have too."""
SEGMENT = 4


def both(model: Model, batch: int, state: Any = None) -> tuple[Decoder, RingDecoder]:
    """From the same state, empty when left out."""
    start = model.init(batch, cached=True) if state is None else state
    return Decoder(model, start, SEGMENT), RingDecoder(model, start, SEGMENT)


def assert_same_state(a: Any, b: Any) -> None:
    for (path, left), (other, right) in zip(leaves(a), leaves(b), strict=True):
        assert path == other
        assert_close(left, right, msg=path)


def valid_part(state: Any) -> Any:
    """A decoder's state without what no one sees: slots that are not valid, open tokens of fewer rows."""
    memory = [
        torch.where((torch.arange(c.keys.shape[2]) >= c.keys.shape[2] - c.length[:, None])[:, None, :, None], part, 0.0)
        for c in state.state
        for part in c[:2]
    ]
    opened = [
        torch.where((torch.arange(o.keys.shape[2]) < state.count[:, None])[:, None, :, None], part, 0.0)
        for o in state.open
        for part in o
    ]
    return memory, opened, [c.length for c in state.state], state.count


@pytest.mark.parametrize("kind", few(KINDS, lambda kind: kind not in SIMILAR))
def test_rings_equal_the_plain_decoder(kind: str) -> None:
    """Rows at different places, over several segments."""
    model, tokens = random_model(**KINDS[kind]), random_tokens(3, 40)
    plain, rings = both(model, 3)
    for decoder in (plain, rings):
        decoder.feed(tokens[:, :6], lengths=[6, 2, 5])
    for step in range(6, 29):
        token = tokens[:, step : step + 1]
        assert_close(rings.feed(token).hidden, plain.feed(token).hidden)
    assert rings.plain is None
    assert_same_state(valid_part(rings.state()), valid_part(plain.state()))


@pytest.mark.parametrize("name", ["longer memory", "plan", "rotary", "no memory"])
def test_many_tokens_between_single_ones(name: str) -> None:
    model, tokens = random_model(**KINDS[name]), random_tokens(2, 40)
    plain, rings = both(model, 2)
    begin = 0
    for count in (1, 1, 7, 1, 1, 1, 3, 1, 11, 1):
        part = tokens[:, begin : begin + count]
        assert_close(rings.feed(part).hidden, plain.feed(part).hidden)
        begin += count


@pytest.mark.parametrize("name", ["longer memory", "rotary"])
def test_states_are_copies_and_open_again(name: str) -> None:
    model, tokens = random_model(**KINDS[name]), random_tokens(2, 30)
    _, rings = both(model, 2)
    rings.feed(tokens[:, :5], lengths=[5, 3])
    for step in range(5, 12):
        rings.feed(tokens[:, step : step + 1])
    state = rings.state()
    kept = [leaf.clone() for _, leaf in leaves(state)]
    expected = [rings.feed(tokens[:, step : step + 1]).hidden.clone() for step in range(12, 22)]
    assert all(torch.equal(leaf, before) for (_, leaf), before in zip(leaves(state), kept, strict=True))
    for again in both(model, 2, state):
        for step, hidden in zip(range(12, 22), expected, strict=True):
            assert_close(again.feed(tokens[:, step : step + 1]).hidden, hidden)


def test_a_loaded_memory_of_plain_inputs() -> None:
    model, tokens = random_model(memory=6), random_tokens(2, 12)
    with torch.no_grad():
        _, state = model(tokens[:, :5], model.init(2))
    plain, rings = both(model, 2, state)
    for step in range(5, 12):
        token = tokens[:, step : step + 1]
        assert_close(rings.feed(token).hidden, plain.feed(token).hidden)


@pytest.mark.parametrize("single", [False, True])
def test_rows_fork(single: bool) -> None:
    model, tokens = random_model(memory=PLAN), random_tokens(4, 20)
    plain, rings = both(model, 2)
    for decoder in (plain, rings):
        decoder.feed(tokens[:2, :6], lengths=[6, 3])
        if single:
            decoder.feed(tokens[:2, 6:7])
    rows = torch.tensor([1, 0, 1, 1])
    before = rings.state()
    forked, expected = rings.select(rows), plain.select(rows)
    for step in range(7, 14):
        token = tokens[:, step : step + 1]
        assert_close(forked.feed(token).hidden, expected.feed(token).hidden)
    assert_same_state(valid_part(rings.state()), valid_part(before))


def test_which_models_suit() -> None:
    assert suits(random_model(memory=PLAN).config)
    assert not suits(random_model(memory=0, positions=Learned(length=9)).config)
    assert not suits(random_model(memory=0, tokens=MemoryTokens(num=2)).config)
    assert not suits(random_model(memory=Plan(long=Compressive(length=4, compressed=4, ratio=2))).config)


def test_adaptive_embeddings_without_looking_into_bins() -> None:
    model = random_model(embedding=EmbeddingConfig(cutoffs=(5, 11), div_val=2))
    tokens = torch.arange(23)[None]
    assert_close(embed(model.embedding, tokens), model.embedding(tokens))


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 4}, {"top_p": 0.8, "continuations": 3}])
def test_text_written_in_rings_is_the_same(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = random_model(memory=PLAN), []
    prompts = [random_tokens(1, length, seed=length)[0] for length in (1, 4, 10)]
    expected = generate(model, prompts, num_tokens=15, segment=SEGMENT, seed=3, **options)
    monkeypatch.setattr("mnemo.inference.ring_decoder.preferred", lambda model: suits(model.config))
    got = generate(
        model, prompts, num_tokens=15, segment=SEGMENT, seed=3, on_token=lambda _, t: seen.append(t), **options
    )
    assert torch.equal(got.tokens, expected.tokens) and torch.equal(torch.stack(seen, 1), got.tokens)
    assert_close(got.text_state.hidden, expected.text_state.hidden)
    on = [generate(model, state=result.text_state, num_tokens=9, segment=SEGMENT) for result in (got, expected)]
    assert torch.equal(on[0].tokens, on[1].tokens)


def test_rings_report_an_output_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(memory=3)
    monkeypatch.setattr("mnemo.inference.ring_decoder.preferred", lambda model: suits(model.config))
    with torch.no_grad():
        model.softmax.biases[0][0] = float("nan")
    with pytest.raises(MnemoError, match="not finite"):
        generate(model, random_tokens(1, 3), num_tokens=5, segment=SEGMENT)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of decoding run in Triton's interpreter; `native` tests run them on a GPU."""
    pytest.importorskip("triton")
    monkeypatch.setattr(decode_kernels, "INTERPRETED", True)


@no_interpreter
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("first, last", few([(0, 1), (1, 4)], lambda first, _: first == 0))
def test_kernels_in_the_interpreter(first: int, last: int) -> None:
    checks.check_attention(checks.SHAPES[first:last])
    checks.check_projections(checks.SIZES_OF_PRODUCTS[2 * first : 2 * last])


@no_interpreter
@pytest.mark.usefixtures("interpreted")
def test_further_kernels_in_the_interpreter() -> None:
    checks.check_tilings()
    checks.check_projected_parts()
    checks.check_embedding()
    checks.check_choice()


RINGS = [(2, 3), (5, 1), *((number, 3) for number in (0, 1, 3, 4, 5, 6)), (0, 1), (2, 1)]
"""Numbers of a model, and of rows."""


@no_interpreter
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("number, batch", few(RINGS, lambda *case: case in RINGS[:2]))
def test_rings_with_kernels_in_the_interpreter(number: int, batch: int) -> None:
    checks.check_rings(checks.MODELS[number], batch)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["longer memory", "plan", "no memory", "same length", "Shaw", "rotary", "adaptive"])
def test_recorded_rings_equal_the_plain_decoder_on_a_gpu(name: str) -> None:
    changes = {**KINDS[name], "head_dim": 16, "dim": 32}
    model, tokens = random_model(dtype=torch.float32, **changes).cuda(), random_tokens(3, 40).cuda()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.3)
    plain, rings = both(model, 3)
    for decoder in (plain, rings):
        decoder.feed(tokens[:, :6], lengths=[6, 2, 5])
    for step in range(6, 29):
        token = tokens[:, step : step + 1]
        assert_close(rings.feed(token).hidden, plain.feed(token).hidden)
    assert rings.step is not None and rings.step.is_recorded
    written = generate(model, tokens[:, :5].cpu(), num_tokens=20, segment=SEGMENT, top_k=5).tokens
    alone = generate(model.cpu(), tokens[:, :5].cpu(), num_tokens=20, segment=SEGMENT, top_k=5).tokens
    assert torch.equal(written, alone)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("rows", [8, 17, 40])
def test_many_recorded_rows_equal_the_plain_decoder_on_a_gpu(rows: int) -> None:
    """Rows at different places, as many as for kernels of few rows and more."""
    changes = {**KINDS["plan"], "head_dim": 16, "dim": 32}
    model, tokens = random_model(dtype=torch.float32, **changes).cuda(), random_tokens(rows, 40).cuda()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.3)
    plain, rings = both(model, rows)
    for decoder in (plain, rings):
        decoder.feed(tokens[:, :6], lengths=[1 + row % 6 for row in range(rows)])
    for step in range(6, 19):
        token = tokens[:, step : step + 1]
        assert_close(rings.feed(token).hidden, plain.feed(token).hidden)
    assert rings.step is not None and rings.step.is_recorded
