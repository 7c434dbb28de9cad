"""Scores against sums that are computed here token by token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.mechanisms import MECHANISMS, few_first
from helpers.models import SMALL, random_model
from helpers.tolerances import assert_close

from mnemo.data.corpus import Split
from mnemo.data.streams import Batch, stacked
from mnemo.errors import MnemoError
from mnemo.evaluation.length_search import find_length, sweep_memory
from mnemo.evaluation.perplexity import evaluate, score_split
from mnemo.evaluation.score import WORDS_TO_GUESS_FROM, Score
from mnemo.evaluation.settings import resolve
from mnemo.memory import XL, Plan
from mnemo.model import Model
from mnemo.model.positions import Learned, Relative, Rotary, Sinusoidal
from mnemo.recipes.recipe import EvalConfig

LONG_AND_SHORT = Plan(long=XL(length=7), short=XL(length=2), num_long=1)


def text(length: int = 101, documents: list[int] | None = None, seed: int = 0) -> Split:
    ids = np.random.default_rng(seed).integers(SMALL["vocab_size"], size=length).astype(np.uint8)
    begins = None if documents is None else np.array(documents)
    return Split("valid", ids, begins, num_bytes=length, num_words=length // 5, num_lines=3)


@torch.no_grad()
def row_losses(
    model: Model, ids: np.ndarray, segment: int, lengths: int | tuple[int, ...] | None = None
) -> torch.Tensor:
    """Losses of one row from a cold start, read with the plain state, not the cached one."""
    row = torch.from_numpy(ids.astype(np.int64))[None]
    state, losses = model.init(1, lengths), []
    for begin in range(0, row.shape[1] - 1, segment):
        piece = row[:, begin : begin + segment + 1]
        out, state = model(piece[:, :-1], state)
        losses.append(model.loss(out, piece[:, 1:]))
    return torch.cat(losses, 1)[0]


def expected(model: Model, ids: np.ndarray, batch: int, segment: int, lengths=None) -> torch.Tensor:
    num = len(ids) // batch
    rows = [row_losses(model, ids[i * num : (i + 1) * num], segment, lengths) for i in range(batch)]
    return torch.stack(rows)


def close(score: Score, losses: torch.Tensor) -> None:
    assert score.tokens == losses.numel()
    assert_close(torch.tensor(score.loss, dtype=torch.float64), losses.double().mean())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("plan", [Plan(long=XL(length=5)), LONG_AND_SHORT])
def test_published_protocol(batch: int, plan: Plan) -> None:
    model, split = random_model(memory=plan), text()
    score = evaluate(model, split, EvalConfig(batch=batch), segment=4)
    close(score, expected(model, split.ids, batch, 4))
    assert (score.batch, score.segment, score.memory, score.context) == (batch, 4, plan.long.length, 0)


@pytest.mark.parametrize("name", few_first())
def test_every_mechanism(name: str) -> None:
    model, split = random_model(**MECHANISMS[name]), text(31)
    close(evaluate(model, split, EvalConfig(batch=2), segment=4), expected(model, split.ids, 2, 4))


def test_the_configuration_overrides_memory_and_segment() -> None:
    model, split = random_model(memory=LONG_AND_SHORT), text()
    score = evaluate(model, split, EvalConfig(batch=2, segment=3, memory=11), segment=99)
    close(score, expected(model, split.ids, 2, 3, lengths=11))
    assert (score.segment, score.memory) == (3, 11)


def test_memory_zero_leaves_short_range_layers_alone_and_no_memory_does_not() -> None:
    model, split = random_model(memory=LONG_AND_SHORT), text()
    long_off = evaluate(model, split, EvalConfig(batch=1, memory=0), segment=4)
    all_off = evaluate(model, split, EvalConfig(batch=1), segment=4, no_memory=True)
    close(long_off, expected(model, split.ids, 1, 4, lengths=0))
    close(all_off, expected(model, split.ids, 1, 4, lengths=(0, 0, 0)))
    assert long_off.loss != all_off.loss
    assert all_off.memory == 0


def test_clamp_and_same_length_are_taken_from_the_configuration() -> None:
    model, split = random_model(), text()
    score = evaluate(model, split, EvalConfig(batch=2, clamp=3, same_length=True), segment=4)
    close(score, expected(model.variant(clamp=3, same_length=True), split.ids, 2, 4))
    assert (score.clamp, score.same_length) == (3, True)
    assert model.config.positions == Relative()


def test_limit_takes_the_first_symbols() -> None:
    model, split = random_model(), text()
    short = replace(split, ids=split.ids[:31])
    limited = evaluate(model, split, EvalConfig(batch=2), segment=4, limit=31)
    assert limited.loss == evaluate(model, short, EvalConfig(batch=2), segment=4).loss
    assert limited.loss == evaluate(model, split, EvalConfig(batch=2, limit=31), segment=4).loss
    assert limited.tokens == 28


def test_one_pass_scores_at_every_temperature() -> None:
    model, split = random_model(memory=Plan(long=XL(length=0))), text(41)
    model.softmax.biases[0].data.normal_()
    row = torch.from_numpy(split.ids.astype(np.int64))
    with torch.no_grad():
        logits = model.logits(model(row[:-1].view(10, 4))[0]).view(40, -1)
    at = (0.5, 1.0, 2.0)
    scores = score_split(model, split, resolve(EvalConfig(batch=1), segment=4), at)
    for score, temperature in zip(scores, at, strict=True):
        losses = torch.nn.functional.cross_entropy(logits / temperature, row[1:], reduction="none")
        close(score, losses)
        assert_close(torch.tensor(score.by_position, dtype=torch.float64), losses.view(10, 4).mean(0).double())
        assert score.temperature == temperature


def test_a_sliding_window_has_temperatures_too() -> None:
    model, split, config = random_model(), text(30), EvalConfig()
    warm, plain = score_split(model, split, replace(resolve(config, segment=4), sliding=True), (1.7, 1.0))
    assert plain.loss == evaluate(model, split, config, segment=4, sliding=True).loss != warm.loss


def test_bits_perplexities_and_attention() -> None:
    model, split = random_model(), text()
    score = evaluate(model, split, EvalConfig(batch=1), segment=4)
    assert score.bits_per_token == pytest.approx(score.loss / math.log(2), rel=1e-15)
    assert score.perplexity == pytest.approx(math.exp(score.loss), rel=1e-15)
    assert score.word_perplexity == pytest.approx(math.exp(score.loss * 101 / 20), rel=1e-12)
    assert score.attention == 9
    assert score.to_json()["perplexity"] == score.perplexity
    assert evaluate(model, replace(split, num_words=0), EvalConfig(batch=1), segment=4).word_perplexity is None


def test_a_model_spells_if_it_predicts_words_better_than_a_guess() -> None:
    score = replace(evaluate(random_model(), text(), EvalConfig(batch=1), segment=4), tokens_per_word=6.0)
    at_the_limit = math.log(WORDS_TO_GUESS_FROM) / 6
    assert replace(score, loss=at_the_limit - 1e-6).spells
    assert not replace(score, loss=at_the_limit + 1e-6).spells
    assert not replace(score, loss=1.0, tokens_per_word=None).spells


def test_a_hopeless_model_has_infinite_perplexity() -> None:
    score = evaluate(random_model(), text(), EvalConfig(batch=1), segment=4)
    hopeless = replace(score, loss=1e6)
    assert hopeless.perplexity == math.inf
    assert hopeless.to_json()["perplexity"] is None


@torch.no_grad()
@pytest.mark.parametrize("memory", [0, 5])
def test_context_is_encoded_again_and_stays_out_of_the_memory(memory: int) -> None:
    model, split, context, segment = random_model(memory=memory), text(41), 3, 4
    row = torch.from_numpy(split.ids.astype(np.int64))[None]
    state, losses = model.init(1), []
    for begin in range(0, 40, segment):
        first = max(0, begin - context)
        piece = row[:, first : begin + segment + 1]
        out, _ = model(piece[:, :-1], state)
        losses.append(model.loss(out, piece[:, begin - first + 1 :]))
        stays = max(0, piece.shape[1] - 1 - context)
        if stays:
            _, state = model(piece[:, :stays], state)
    score = evaluate(model, split, EvalConfig(batch=1), segment=segment, context=context)
    close(score, torch.cat(losses, 1))
    assert evaluate(model, split, EvalConfig(batch=1, context=context), segment=segment).loss == score.loss


@pytest.mark.parametrize("batch", [1, 2])
def test_windows_without_memory_are_read_many_at_a_time(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, split, calls = random_model(memory=0), text(83), []
    read = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *args, **kw: calls[-1].append(len(args[1])) or read(*args, **kw))
    losses = []
    for tokens in (1, 5 * 7 * batch):
        monkeypatch.setattr("mnemo.evaluation.perplexity.TOKENS_AT_ONCE", tokens)
        calls.append([])
        losses.append(evaluate(model, split, EvalConfig(batch=batch), segment=4, context=3).by_position)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert set(calls[0]) == {batch} and sum(calls[0]) == sum(calls[1]) and max(calls[1]) == 5 * batch


@pytest.mark.parametrize("at_once, taken", [(1, [1, 2, 3]), (2, [2, 4, 5])])
def test_no_more_windows_are_read_ahead_than_are_needed(at_once: int, taken: list[int]) -> None:
    given: list[int] = []

    def batches() -> Iterator[Batch]:
        for number in range(5):
            given.append(number)
            yield Batch(torch.zeros(1, 4), torch.zeros(1, 4))

    windows = stacked(batches(), at_once)
    assert [next(windows) is not None and len(given) for _ in taken] == taken


@torch.no_grad()
@pytest.mark.parametrize(
    "positions", [Relative(), Rotary(), Sinusoidal(), Sinusoidal(countdown=True), Learned(length=9, align_end=True)]
)
def test_sliding_window_predicts_every_token_from_the_full_window(positions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemo.evaluation.perplexity.TOKENS_AT_ONCE", 25)  # batches of 5 windows
    model, split, window = random_model(memory=0, positions=positions), text(31), 5
    row = torch.from_numpy(split.ids.astype(np.int64))[None]
    out, _ = model(row[:, :window])
    losses = [model.loss(out, row[:, 1 : window + 1])]
    for end in range(window + 1, 31):
        out, _ = model(row[:, end - window : end])
        losses.append(model.loss(out, row[:, end : end + 1]))
    score = evaluate(model, split, EvalConfig(batch=7), segment=window, sliding=True)
    close(score, torch.cat(losses, 1))
    assert score.sliding and score.memory == 0


def test_sliding_window_switches_the_memory_off() -> None:
    split = text(31)
    with_memory, without = random_model(memory=5), random_model(memory=0)
    scores = [evaluate(m, split, EvalConfig(), segment=5, sliding=True) for m in (with_memory, without)]
    assert scores[0].loss == scores[1].loss


def test_how_many_sliding_windows_are_read_at_a_time_changes_nothing_but_their_number(monkeypatch) -> None:
    model, split, rows = random_model(memory=0), text(31), []
    read = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *args, **kw: rows.append(len(args[1])) or read(*args, **kw))
    losses = [evaluate(model, split, EvalConfig(), segment=5, sliding=True, windows=n).loss for n in (1, 4, 100)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
    assert rows == [1] * 26 + [1, *[4] * 6, 1] + [1, 25]


def test_a_sliding_window_longer_than_the_text() -> None:
    model, split = random_model(memory=0), text(8)
    score = evaluate(model, split, EvalConfig(), segment=20, sliding=True)
    close(score, row_losses(model, split.ids, 20))


def test_loss_by_position() -> None:
    model, split = random_model(), text(4 * 10 + 3)
    score = evaluate(model, split, EvalConfig(batch=1), segment=4)
    losses = row_losses(model, split.ids, 4)
    assert len(score.by_position) == 4
    for position, loss in enumerate(score.by_position):
        assert_close(torch.tensor(loss, dtype=torch.float64), losses[position::4].mean())


@pytest.mark.parametrize("batch", [1, 2])
def test_documents_start_afresh(batch: int) -> None:
    edges = [0, 9, 10, 23, 40]
    model, split = random_model(memory=4), text(50, documents=edges)
    row_edges = sorted({*edges, *(i * (50 // batch) for i in range(batch + 1))})
    spans = zip(row_edges, [*row_edges[1:], 50], strict=True)
    documents = [split.ids[a:b] for a, b in spans if b - a > 1]
    score = evaluate(model, split, EvalConfig(batch=batch), segment=4, documents="reset")
    close(score, torch.cat([row_losses(model, document, 4) for document in documents]))


def test_sentences_keep_the_memory_and_predict_nothing_across() -> None:
    model, split = random_model(), text(40, documents=[0, 9, 20, 31])
    score = evaluate(model, split, EvalConfig(batch=1), segment=4, order="sentences")
    assert score.tokens == 36
    assert score.order == "sentences"
    assert score.loss != evaluate(model, split, EvalConfig(batch=1), segment=4).loss


def test_evaluation_leaves_model_and_random_numbers_as_they_were() -> None:
    model = random_model(dropout=replace(random_model().config.dropout, input=0.5)).train()
    before, weights = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    first = evaluate(model, text(), EvalConfig(batch=2, same_length=True), segment=4)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert first.loss == evaluate(model.eval(), text(), EvalConfig(batch=2, same_length=True), segment=4).loss


def test_training_goes_on_after_evaluation() -> None:
    """Tables and caches of an evaluation must not turn up in a backward pass."""
    model = random_model().train()
    evaluate(model, text(), EvalConfig(batch=2), segment=4)
    out, _ = model(torch.zeros(2, 4, dtype=torch.int64))
    model.loss(out, torch.ones(2, 4, dtype=torch.int64)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_sweep_scores_every_length() -> None:
    model, split = random_model(memory=LONG_AND_SHORT), text()
    scores = sweep_memory(model, split, resolve(EvalConfig(batch=2), segment=4), [0, 3, 12])
    assert [score.memory for score in scores] == [0, 3, 12]
    for score, length in zip(scores, [0, 3, 12], strict=True):
        close(score, expected(model, split.ids, 2, 4, lengths=length))


def fake_perplexities(monkeypatch: pytest.MonkeyPatch, perplexity) -> list[int]:
    """Replace `score_split` by a curve over attention lengths; return the list of the lengths that are scored."""
    asked = []
    real = evaluate(random_model(), text(), EvalConfig(batch=1), segment=4)

    def scored(model, split, settings, progress):
        score = replace(real, memory=settings.memory or 0, context=settings.context, segment=settings.segment)
        asked.append(score.attention)
        return [replace(score, loss=math.log(perplexity(score.attention)))]

    monkeypatch.setattr("mnemo.evaluation.length_search.score_split", scored)
    return asked


def test_find_length_grows_until_the_gain_is_small_and_then_shortens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_perplexities(monkeypatch, lambda length: 20 + max(0, 500 - length) / 100)
    model = random_model(memory=64)
    found = find_length(model, text(20_000), resolve(EvalConfig(batch=10), segment=64), trained_span=64)
    assert found.initial.attention == 128 and found.initial.perplexity == pytest.approx(23.72)
    assert found.best.perplexity == pytest.approx(20)
    exact = 500 - 20 * 1e-3 * 100
    assert exact <= found.shortest.attention <= exact + 128 / 16
    assert max(asked) == 1024
    assert len(asked) == len(set(asked)) == len(found.tried)
    assert [score.attention for score in found.tried] == sorted(asked)


def test_find_length_may_end_below_the_training_length(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_perplexities(monkeypatch, lambda length: 20 + max(0, 80 - length) / 10 + max(0, length - 128))
    found = find_length(
        random_model(memory=64), text(20_000), resolve(EvalConfig(batch=10, segment=16), segment=64), trained_span=64
    )
    assert found.best.attention <= 128
    assert 79 <= found.shortest.attention <= 88


def test_find_length_ends_with_the_row_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_perplexities(monkeypatch, lambda length: 1000 / length)
    find_length(random_model(memory=64), text(3000), resolve(EvalConfig(batch=10), segment=64), trained_span=64)
    assert max(asked) == 300


def test_find_length_lengthens_the_window_of_a_model_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_perplexities(monkeypatch, lambda length: 1000 / length)
    model = random_model(memory=0, positions=Learned(length=50))
    found = find_length(model, text(3000), resolve(EvalConfig(batch=10), segment=16), trained_span=24)
    assert found.initial.attention == 24
    assert max(asked) == 50
    assert found.best.context == 34 and found.best.memory == 0


def test_find_length_runs_a_real_model() -> None:
    found = find_length(random_model(memory=4), text(600), resolve(EvalConfig(batch=2), segment=4), trained_span=4)
    assert found.initial.attention == 8
    assert found.best.perplexity <= found.initial.perplexity
    assert found.shortest.perplexity <= found.best.perplexity * 1.001
    assert found.shortest.attention <= found.best.attention


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (EvalConfig(memory=-1), {}, "negative"),
        (EvalConfig(segment=0), {}, "segment length 0"),
        (EvalConfig(batch=0), {}, "batch 0"),
        (EvalConfig(batch=60), {}, "too few"),
        (EvalConfig(clamp=0), {}, "clamp 0"),
        (EvalConfig(), {"limit": 0}, "limit 0"),
        (EvalConfig(), {"documents": "reset"}, "no documents"),
        (EvalConfig(), {"sliding": True, "documents": "reset"}, "sliding"),
        (EvalConfig(batch=1), {"sliding": True, "limit": 1}, "nothing to predict"),
        (EvalConfig(), {"sliding": True, "windows": 0}, "windows at a time 0"),
    ],
)
def test_bad_input_is_one_clear_line(config: EvalConfig, options: dict, message: str) -> None:
    with pytest.raises(MnemoError, match=message):
        evaluate(random_model(), text(), config, segment=4, **options)


def test_memory_for_a_model_with_absolute_positions_is_refused() -> None:
    model = random_model(memory=0, positions=Sinusoidal())
    assert evaluate(model, text(), EvalConfig(), segment=4).memory == 0
    with pytest.raises(MnemoError, match="absolute"):
        evaluate(model, text(), EvalConfig(memory=3), segment=4)


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    split = text()
    split.ids[50] = 200
    with pytest.raises(MnemoError, match="200"):
        evaluate(random_model(), split, EvalConfig(batch=1), segment=4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{}, {"documents": "reset"}, {"context": 3}, {"sliding": True}, {"no_memory": True}], ids=str
)
def test_the_gpu_gives_the_same_score(options: dict) -> None:
    split = text(200, documents=[0, 9, 40, 70, 71, 120])
    config = EvalConfig(batch=2, memory=9, same_length=True)
    scores = [evaluate(random_model().to(device), split, config, segment=4, **options) for device in ("cpu", "cuda")]
    assert scores[0].tokens == scores[1].tokens
    assert scores[1].loss == pytest.approx(scores[0].loss, rel=1e-10)
