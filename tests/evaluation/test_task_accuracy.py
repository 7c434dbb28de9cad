"""Answers that a model writes by itself: as a plain loop would write them, with nothing of the truth in sight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.marks import few
from helpers.tasks import EVERY_TASK, FEW, MODELS, TASKS, tiny
from torch import Tensor

from mnemo.data.tasks import AnyTask, Copy, Quadratic, Reverse, samples
from mnemo.errors import MnemoError
from mnemo.evaluation import task_accuracy as answers
from mnemo.evaluation.task_accuracy import answer, given_positions, write
from mnemo.memory import XL, Compressive, Lookahead, MemoryTokens, Plan
from mnemo.model import InitConfig, Model, ModelConfig
from mnemo.model.embedding import EmbeddingConfig

OTHERS: dict[str, dict[str, Any]] = {
    "lookahead": {"memory": Plan(long=Lookahead(length=4))},
    "compressive": {"memory": Plan(long=Compressive(length=4, compressed=4, ratio=2))},
    "tokens and cache": {"memory": Plan(long=XL(length=5)), "tokens": MemoryTokens(num=2)},
    "published tokens": {"memory": Plan(long=XL(length=0)), "tokens": MemoryTokens(num=3).published()},
}


def build(task: AnyTask, **parts: Any) -> Model:
    """What it says depends on what it has read."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(num_layers=2, dim=8, num_heads=2, head_dim=4, inner_dim=8)
    loud = {
        "norm": "pre",
        "final_norm": True,
        "init": InitConfig(std=0.5),
        "embedding": EmbeddingConfig(tie_weights=False),
    }
    return Model(ModelConfig(vocab_size=task.vocab_size, **sizes, **loud, **parts)).double().eval()


def plain_loop(model: Model, tokens: Tensor, given: np.ndarray, segment: int) -> Tensor:
    """Every symbol from the whole sample so far, read again from its beginning."""
    text = tokens.clone()
    text[:, ~given] = 0
    said = torch.zeros_like(text)
    for position in range(text.shape[1]):
        if not given[position]:
            text[:, position] = said[:, position - 1]
        state, hidden = None, None
        for begin in range(0, position + 1, segment):
            out, state = model(text[:, begin : min(begin + segment, position + 1)], state)
            hidden = model.logits(out)[:, -1]
        assert hidden is not None
        said[:, position] = hidden.argmax(-1)
    return said


@pytest.mark.parametrize("published", few([False, True], lambda published: not published))
@pytest.mark.parametrize("kind", [*MODELS, *OTHERS])
def test_writing_equals_a_plain_loop(kind: str, published: bool) -> None:
    task = TASKS[0]
    model = build(task, **{**MODELS, **OTHERS}[kind])
    if kind == "published tokens":  # wrapped positions depend on the whole segment, which a plain loop has not read
        model = model.variant(tokens=MemoryTokens(num=3, identical_init=True))
    ((tokens, _),) = samples(task, "test", 8)
    given = given_positions(task, 6, published)
    rows = torch.from_numpy(tokens)
    with torch.no_grad():
        expected = plain_loop(model, rows, given, 6)
    found = write(model, rows, given, 6)
    assert torch.equal(found, expected)
    remembers = kind not in ("none", "prefix") or published
    assert len(found[:, 6:].unique()) > 1 and (len(found[:, 6:].unique(dim=0)) > 2) == remembers


@EVERY_TASK
@pytest.mark.parametrize("segment", few([4, 7, 200], lambda segment: segment == 7))
def test_nothing_of_the_truth_is_read(task: AnyTask, segment: int) -> None:
    model = build(task, **MODELS["tokens"])
    ((tokens, targets),) = samples(task, "test", 8)
    junk, given = tokens.copy(), given_positions(task, segment)
    shown = np.concatenate([np.ones((8, 1), dtype=bool), targets[:, :-1] < 0], 1)
    assert (shown == given).all()
    junk[~shown] = (junk[~shown] + 1) % task.vocab_size
    assert (junk != tokens).any() or task.predicted.sum() == 1
    said = [write(model, torch.from_numpy(rows), given, segment) for rows in (tokens, junk)]
    assert torch.equal(*said)


class Knowing:
    """Says what it is told to."""

    def __init__(self, said: np.ndarray) -> None:
        self.said, self.asked = said, 0

    def __call__(self, model: Model, tokens: Tensor, given: np.ndarray, segment: int) -> Tensor:
        part = self.said[self.asked : self.asked + len(tokens)]
        self.asked += len(tokens)
        return torch.from_numpy(part)


def scored(task: AnyTask, said: np.ndarray, monkeypatch: pytest.MonkeyPatch, **options: Any) -> answers.AnswerScore:
    monkeypatch.setattr(answers, "write", Knowing(said))
    return answer(build(task, **MODELS["none"]), task, segment=6, **options)


def right(task: AnyTask) -> np.ndarray:
    ((_, targets),) = samples(task, "test", 100)
    return targets.copy()


@pytest.mark.parametrize("batch", [3, 8, 100])
def test_accuracies_count_characters_and_whole_answers(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS[1]
    said = right(task)
    assert scored(task, said, monkeypatch, batch=batch).answer_accuracy == 1
    said[2, -1] = 0
    said[5, 6:9] = 0
    said[6, 0] = 5  # before the answer: nobody asked
    score = scored(task, said, monkeypatch, batch=batch)
    assert score.character_accuracy == pytest.approx(1 - 4 / 48) and score.answer_accuracy == pytest.approx(6 / 8)
    assert score.by_position == pytest.approx([7 / 8] * 3 + [1, 1, 7 / 8])
    assert (score.samples, score.segments, score.split) == (8, 2, "test")


def test_an_equation_counts_by_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS[3]
    truth = right(task)
    filled = int((truth[:, 29:179] > 0).sum())
    said = truth.copy()
    said[0, 40] = 1  # in a step, of the solution, not in the answer
    score = scored(task, said, monkeypatch)
    assert score.answer_accuracy == 1
    assert score.character_accuracy == pytest.approx(1 - int(truth[0, 40] > 0) / filled)
    said = truth.copy()
    said[0, 149] = 1  # the answer's first character
    said[1, 170] = 5  # something behind its end
    assert scored(task, said, monkeypatch).answer_accuracy == pytest.approx(6 / 8)
    published = scored(task, said, monkeypatch, published=True)
    assert published.answer_accuracy == pytest.approx(7 / 8) and published.published


def test_the_published_way_gives_symbols_away() -> None:
    task = Copy(symbols=4, **FEW)
    assert np.flatnonzero(~given_positions(task, 4, published=True)).tolist() == [5, 6, 7, 9, 10, 11]
    assert np.flatnonzero(~given_positions(task, 4)).tolist() == list(range(5, 12))
    assert given_positions(task, 12, published=True).all()  # answers shorter than a segment
    equations = given_positions(Quadratic(**FEW), 30, published=True)
    assert [position for position in range(30, 180) if equations[position]] == [30, 60, 90, 120, 150]
    whole = given_positions(Quadratic(**FEW), 180, published=True)
    assert np.flatnonzero(whole).tolist() == list(range(31))


def test_the_published_way_looks_at_the_first_samples_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PUBLISHED_SAMPLES", 5)
    task = TASKS[0]
    model = build(task, **MODELS["tokens"])
    assert answer(model, task, segment=6, published=True).samples == 5
    assert answer(model, task, segment=6).samples == 8
    assert answer(model, task, segment=6, limit=3, split="valid").samples == 3


def test_a_trained_model_answers_by_itself() -> None:
    """One symbol to turn around is one to remember: learned at once, and then every answer is right."""
    task = Reverse(symbols=1, alphabet=3, train=64, valid=8, test=32)
    torch.manual_seed(0)
    model = Model(replace(tiny(task), norm="pre", final_norm=True, init=InitConfig(std=0.3)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    ((tokens, targets),) = samples(task, "train", 64)
    rows, wanted = torch.from_numpy(tokens), torch.from_numpy(targets)
    for _ in range(150):
        _, state = model(rows[:, :1])
        out, _ = model(rows[:, 1:], state)
        loss = model.loss(out, wanted[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    score = answer(model, task, segment=1)
    assert score.segments == 2 and score.answer_accuracy == 1


def test_bad_input_is_one_line() -> None:
    task = TASKS[0]
    model = build(task, **MODELS["none"])
    with pytest.raises(MnemoError, match="must be positive"):
        answer(model, task, segment=6, batch=0)
    with pytest.raises(MnemoError, match="has 37 symbols, the model 12"):
        answer(model, TASKS[2], segment=5)
