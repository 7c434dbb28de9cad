"""Results of evaluation and generation in a run's `results` folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mnemo.analysis.growth import Sizes
from mnemo.recipes.recipe import Recipe
from mnemo.report.files import Record, is_number, read_json
from mnemo.report.score_conditions import in_words

SAMPLING = ("temperature", "top_k", "top_p", "seed", "step")
"""Settings of a sample that are shown."""


@dataclass(frozen=True)
class Scored:
    """One pass over a split."""

    split: str
    loss: float
    """Nats per token."""
    memory: int
    segment: int
    tokens: int
    accuracy: float | None = None
    """Share of right answers, for tasks."""
    kind: str = ""
    """How it was scored, where that differs from the usual way."""
    remembers: bool = True
    """Whether the model had its memory."""


class ByPosition(NamedTuple):
    score: Scored
    losses: list[float]
    """Nats per token at each position of a segment."""


@dataclass(frozen=True)
class Answered:
    """Answers that a model wrote to a task's samples."""

    split: str
    characters: float
    """Share of right symbols."""
    answers: float
    """Share of answers without a wrong symbol."""
    samples: int
    published: bool
    """Whether it was measured as the task's published code does."""
    kind: str = ""
    """As in `Scored`."""


@dataclass(frozen=True)
class Sample:
    prompt: str
    texts: tuple[str, ...]
    settings: str


@dataclass
class Results:
    scores: list[Scored] = field(default_factory=list)
    sweeps: list[list[Scored]] = field(default_factory=list)
    """Each with the shortest memory first."""
    by_position: list[ByPosition] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    growth: dict[int, Sizes] = field(default_factory=dict)
    """Sizes of weights, rows, scores and logits, by step."""


def read_results(folder: Path, notes: list[str], recipe: Recipe | None = None) -> Results:
    """All results that can be loaded, in the order of their file names; the others are named in `notes`.

    `recipe`: that of the run, whose settings of evaluation are the usual ones.
    """
    results = Results()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        record = read_json(path, notes)
        if record is None:
            continue
        try:
            # Files of older versions say in their name only that the memory was off.
            _add(results, {"no_memory": "-no-memory-" in path.name, **record}, recipe)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            notes.append(f"results/{path.name} is incomplete ({reason}); skipped")
    return results


def _add(results: Results, record: Record, recipe: Recipe | None) -> None:
    def scored(score: Record) -> Scored:
        return _scored(score, record, recipe)

    # Files of `mnemo analyse --growth` had no kind at first.
    match record.get("kind", "growth" if "steps" in record else None):
        case "score":
            results.scores.append(scored(record["score"]))
        case "temperature":
            # The one before it is at temperature 1: that is a result of its own.
            results.scores.append(scored(_filled(record["scores"])[-1]))
        case "sweep":
            results.sweeps.append(_by_memory(map(scored, _filled(record["scores"]))))
        case "find-length":
            # First, since the last sweep is shown: lengths that the user chose are preferred.
            results.sweeps.insert(0, _by_memory(map(scored, _filled(record["tried"]))))
        case "positions":
            losses = [_finite("loss", loss) for loss in _filled(record["score"]["by_position"])]
            results.by_position.append(ByPosition(scored(record["score"]), losses))
        case "answers":
            results.answers.append(_answered(record["score"], in_words(record, {}, recipe)))
        case "sample":
            results.samples.append(_sample(record))
        case "growth":
            results.growth = {int(_number(step, "step")): Sizes.from_json(step) for step in _filled(record["steps"])}
        case kind:
            raise ValueError(f"unknown kind {kind!r}")


def _by_memory(scores: Iterable[Scored]) -> list[Scored]:
    return sorted(scores, key=lambda score: score.memory)


def _scored(record: Record, result: Record, recipe: Recipe | None) -> Scored:
    return Scored(
        split=str(record["split"]),
        loss=_number(record, "loss"),
        memory=int(_number(record, "memory")),
        segment=int(_number(record, "segment")),
        tokens=int(_number(record, "tokens")),
        accuracy=None if record.get("accuracy") is None else _number(record, "accuracy"),
        kind=in_words(result, record, recipe),
        remembers=not (result["no_memory"] or record.get("sliding")),
    )


def _answered(record: Record, kind: str) -> Answered:
    return Answered(
        split=str(record["split"]),
        characters=_number(record, "character_accuracy"),
        answers=_number(record, "answer_accuracy"),
        samples=int(_number(record, "samples")),
        published=record.get("published") is True,
        kind=kind,
    )


def _number(record: Record, name: str) -> float:
    return _finite(name, record[name])


def _finite(name: str, value: object) -> float:
    if not is_number(value):
        raise ValueError(f"{name} is {value!r}")
    return float(value)


def _filled(entries: object) -> list[Any]:
    if not isinstance(entries, list) or not entries:
        raise ValueError("it lists nothing")
    return entries


def _sample(record: Record) -> Sample:
    settings = [f"{name.replace('_', '-')} {record[name]}" for name in SAMPLING if record.get(name) is not None]
    return Sample(str(record.get("prompt", "")), tuple(str(text) for text in record["texts"]), ", ".join(settings))
