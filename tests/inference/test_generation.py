"""Generation against the parallel pass, and the sampler against counted frequencies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.models import SMALL, random_model, random_tokens
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.decoder import Decoder
from mnemo.inference.generation import generate, read
from mnemo.inference.sampling import sample
from mnemo.inference.sampling_options import Sampling
from mnemo.memory import XL, Plan
from mnemo.memory.state import leaves, select
from mnemo.model import Model, Output
from mnemo.model.positions import Learned, Rotary, Shaw

PLAN = Plan(long=XL(length=6), short=XL(length=2), num_long=1)
SEGMENT = 4


@torch.no_grad()
def logits_of(model: Model, row: Tensor, segment: int = SEGMENT) -> Tensor:
    """Logits of every token of one row, from parallel segments."""
    state, pieces = model.init(1), []
    for part in row[None].split(segment, 1):
        out, state = model(part, state)
        pieces.append(model.logits(out)[0])
    return torch.cat(pieces)


def greedy(model: Model, prompt: Tensor, num_tokens: int) -> Tensor:
    """The slow way: the whole text again for every token."""
    row = prompt
    for _ in range(num_tokens):
        row = torch.cat([row, logits_of(model, row)[-1:].argmax(-1)])
    return row[len(prompt) :]


@pytest.mark.parametrize("positions", [None, Shaw(distances=9), Rotary(), Learned(length=SEGMENT)])
def test_greedy_text_equals_reading_everything_again(positions: Any) -> None:
    changes = {} if positions is None else {"positions": positions}
    model = random_model(memory=0 if isinstance(positions, Learned) else PLAN, **changes)
    prompts = [random_tokens(1, length, seed=length)[0] for length in (1, 4, 10)]
    written = generate(model, prompts, num_tokens=9, segment=SEGMENT, temperature=0).tokens
    for prompt, row in zip(prompts, written, strict=True):
        assert torch.equal(row, greedy(model, prompt, 9))


@pytest.mark.parametrize("continuations", [1, 3])
def test_a_row_does_not_depend_on_other_rows(continuations: int) -> None:
    model = random_model(memory=PLAN)
    prompts = [random_tokens(1, length, seed=length)[0] for length in (9, 2, 9, 4)]
    together = generate(model, prompts, num_tokens=10, segment=SEGMENT, seed=70, continuations=continuations)
    for row, written in enumerate(together.tokens):
        prompt = prompts[row // continuations]
        alone = generate(model, [prompt], num_tokens=10, segment=SEGMENT, seed=70 + row)
        assert torch.equal(alone.tokens[0], written)
    assert len({tuple(row.tolist()) for row in together.tokens}) == 4 * continuations


def test_the_seed_decides_the_text() -> None:
    model, prompt = random_model(), random_tokens(1, 5)
    texts = [generate(model, prompt, num_tokens=12, segment=SEGMENT, seed=seed).tokens for seed in (1, 1, 2)]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_more_tokens_only_lengthen_the_text() -> None:
    model, prompt = random_model(), random_tokens(1, 5)
    short, long = (generate(model, prompt, num_tokens=n, segment=SEGMENT).tokens for n in (5, 20))
    assert torch.equal(short, long[:, :5])


def test_continuing_generated_text() -> None:
    model, prompt = random_model(memory=PLAN), random_tokens(2, 5)
    whole = generate(model, prompt, num_tokens=12, segment=SEGMENT, temperature=0)
    first = generate(model, prompt, num_tokens=5, segment=SEGMENT, temperature=0)
    rest = generate(model, state=first.text_state, num_tokens=7, segment=SEGMENT, temperature=0)
    assert torch.equal(torch.cat([first.tokens, rest.tokens], 1), whole.tokens)
    assert rest.text_state.tokens.tolist() == whole.text_state.tokens.tolist() == [17, 17]
    for (_, a), (_, b) in zip(leaves(rest.text_state), leaves(whole.text_state), strict=True):
        assert_close(a, b)


def test_tokens_are_reported_as_they_are_generated() -> None:
    model, heard = random_model(), []
    written = generate(
        model, random_tokens(2, 3), num_tokens=6, segment=SEGMENT, on_token=lambda step, t: heard.append((step, t))
    )
    assert [step for step, _ in heard] == list(range(6))
    assert torch.equal(torch.stack([tokens for _, tokens in heard], 1), written.tokens)


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 3, 4, 13])
@pytest.mark.parametrize("before", [0, 5])
def test_reading_scores_the_text_and_returns_a_state_to_continue(length: int, before: int) -> None:
    model, row = random_model(memory=PLAN), random_tokens(1, 18)[0]
    state = read(model, row[:before], segment=SEGMENT)[0] if before else None
    reading, score = read(model, row[before : before + length], segment=SEGMENT, state=state)
    logits = logits_of(model, row[: before + length])
    losses = torch.nn.functional.cross_entropy(logits[:-1], row[1 : before + length], reduction="none")
    losses = losses[max(0, before - 1) :]
    assert score.tokens == len(losses) == (length if before else length - 1)
    assert score.nats == pytest.approx(float(losses.sum()), rel=1e-10)
    assert int(reading.tokens) == before + length
    assert_close(model.logits(Output(reading.hidden[:, None], {}))[0, 0], logits[-1])
    written = generate(model, state=reading, num_tokens=6, segment=SEGMENT, temperature=0).tokens[0]
    assert torch.equal(written, greedy(model, row[: before + length], 6))


@torch.no_grad()
def test_prompts_after_a_plain_state_and_after_a_text() -> None:
    model, row = random_model(memory=PLAN), random_tokens(1, 12)[0]
    expected = greedy(model, row, 5)
    _, state = model(row[None, :4], model.init(1, cached=True))
    _, state = model(row[None, 4:8], state)
    behind_state = generate(model, row[None, 8:], state=state, num_tokens=5, segment=SEGMENT, temperature=0)
    reading, _ = read(model, row[:7], segment=SEGMENT)
    behind_reading = generate(model, row[None, 7:], state=reading, num_tokens=5, segment=SEGMENT, temperature=0)
    assert torch.equal(behind_state.tokens[0], expected)
    assert torch.equal(behind_reading.tokens[0], expected)


def test_memory_of_another_length_is_taken_from_the_state() -> None:
    model, row = random_model(memory=PLAN), random_tokens(1, 30)
    longer = model.variant(memory=Plan(long=XL(length=20), short=XL(length=2), num_long=1))
    expected = generate(longer, row, num_tokens=8, segment=SEGMENT, temperature=0).tokens
    state = model.init(1, 20, cached=True)
    assert torch.equal(generate(model, row, state=state, num_tokens=8, segment=SEGMENT, temperature=0).tokens, expected)


def test_cost_per_token_does_not_grow() -> None:
    model = random_model(memory=PLAN)
    decoder = model.decoder(model.init(2, cached=True), segment=SEGMENT)

    def buffers() -> list[tuple[torch.Size, int]]:
        assert isinstance(decoder, Decoder)
        stages = [stage for group in decoder.groups for stage in group.stages]
        tensors = [value for stage in stages for value in vars(stage).values() if isinstance(value, Tensor)]
        return [(tensor.shape, tensor.untyped_storage().nbytes()) for tensor in tensors]

    before = buffers()
    for token in random_tokens(2, 40).split(1, 1):
        decoder.feed(token)
        assert buffers() == before
    sizes = [sum(leaf.numel() for _, leaf in leaves(generated_after(model, n).text_state.state)) for n in (8, 80)]
    assert sizes[0] == sizes[1]


def generated_after(model: Model, num_tokens: int) -> Any:
    return generate(model, random_tokens(1, 4), num_tokens=num_tokens, segment=SEGMENT)


def test_generation_leaves_global_random_numbers_and_the_mode_alone() -> None:
    model = random_model().train()
    before = torch.get_rng_state()
    generate(model, random_tokens(1, 4), num_tokens=3, segment=SEGMENT)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def shares(sampling: Sampling, probabilities: list[float], draws: int = 2000) -> list[float]:
    """How often each token is chosen over an even grid of draws."""
    logits = torch.tensor(probabilities, dtype=torch.float64).log().expand(draws, -1)
    grid = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    return (torch.bincount(sample(logits, grid, sampling), minlength=len(probabilities)) / draws).tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(temperature=0), [0, 1, 0, 0]),
        (Sampling(temperature=0.5), [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        (Sampling(temperature=math.inf), [0.25, 0.25, 0.25, 0.25]),
        (Sampling(top_k=1), [0, 1, 0, 0]),
        (Sampling(top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_k=99), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_p=0.1), [0, 1, 0, 0]),
        (Sampling(top_p=0.41), [0, 4 / 7, 0, 3 / 7]),  # the token that passes p stays
        (Sampling(top_p=0.69), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_p=0.71), [0, 4 / 9, 2 / 9, 3 / 9]),
        (Sampling(top_p=1.0), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_k=3, top_p=0.77), [0, 4 / 7, 0, 3 / 7]),  # p counts what top_k left: 7/9 reach it
        (Sampling(top_k=3, top_p=0.78), [0, 4 / 9, 2 / 9, 3 / 9]),
    ],
)
def test_sampling_shares(sampling: Sampling, expected: list[float]) -> None:
    assert shares(sampling, [0.1, 0.4, 0.2, 0.3]) == pytest.approx(expected, abs=1 / 2000)


def test_impossible_tokens_are_never_chosen() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).expand(3, -1)
    draws = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert sample(logits, draws, Sampling()).tolist() == [1, 3, 3]
    assert sample(logits, draws, Sampling(top_k=4)).tolist() == [1, 3, 3]


def test_equal_scores_are_cut_in_vocabulary_order() -> None:
    assert shares(Sampling(top_k=2), [0.25, 0.25, 0.25, 0.25]) == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_output_that_is_not_finite_is_refused(bad: float) -> None:
    model = random_model(memory=3)
    with torch.no_grad():
        model.softmax.biases[0][1] = bad
    with pytest.raises(MnemoError, match="not finite"):
        generate(model, random_tokens(1, 3), num_tokens=5, segment=SEGMENT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"num_tokens": 0}, "number of tokens"),
        ({"continuations": 0}, "continuations"),
        ({"segment": 0}, "segment"),
        ({"prompts": [torch.empty(0, dtype=torch.int64)]}, "at least one token"),
        ({"prompts": None}, "nothing to continue"),
        ({"prompts": torch.tensor([[SMALL["vocab_size"]]])}, "outside the vocabulary"),
        ({"state": "two rows"}, "1 prompts, but the memory has 2 rows"),
    ],
)
def test_bad_input_is_one_clear_line(options: dict[str, Any], message: str) -> None:
    model = random_model()
    if options.get("state"):
        options = {"state": model.init(2, cached=True)}
    with pytest.raises(MnemoError, match=message):
        generate(model, **({"prompts": random_tokens(1, 3), "num_tokens": 2, "segment": SEGMENT} | options))


def test_many_continuations_of_one_memory_are_rows_of_it() -> None:
    model = random_model(memory=PLAN)
    reading, _ = read(model, random_tokens(1, 11)[0], segment=SEGMENT)
    forked = generate(model, state=reading, num_tokens=6, segment=SEGMENT, continuations=3)
    rows = select(reading, torch.tensor([0, 0, 0]))
    assert torch.equal(generate(model, state=rows, num_tokens=6, segment=SEGMENT).tokens, forked.tokens)


@pytest.mark.gpu
def test_the_gpu_writes_the_same_text() -> None:
    prompts = [random_tokens(1, length, seed=length)[0] for length in (1, 4, 10)]
    texts = []
    for device in ("cpu", "cuda"):
        model = random_model(memory=PLAN).to(device)
        first = generate(model, prompts, num_tokens=9, segment=SEGMENT, seed=4, continuations=2, top_p=0.9)
        rest = generate(model, state=first.text_state, num_tokens=9, segment=SEGMENT, top_k=5)
        texts.append(torch.cat([first.tokens, rest.tokens], 1))
    assert torch.equal(texts[0], texts[1])
