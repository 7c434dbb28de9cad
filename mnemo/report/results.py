"""What evaluation and generation left in a run's `results` folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemo.files.safe_load import is_finite
from mnemo.report.files import Record, is_number, read_json

KINDS = {
    "sliding": (True, "sliding window"),
    "same_length": (True, "same length"),
    "documents": ("reset", "documents reset"),
    "order": ("sentences", "sentences"),
}
"""Fields of a score, the value that is worth a word, and that word."""


@dataclass(frozen=True)
class Scored:
    """One pass over a split."""

    split: str
    loss: float
    """Nats per token."""
    memory: int
    segment: int
    tokens: int
    word_perplexity: float | None = None
    accuracy: float | None = None
    """Share of the answers that were right, for tasks."""
    kind: str = ""
    """How it was scored, where that is not segment by segment through the whole text."""


@dataclass(frozen=True)
class Sweep:
    source: str
    """Name of the file."""
    scores: tuple[Scored, ...]
    """Shortest memory first."""


@dataclass(frozen=True)
class ByPosition:
    source: str
    score: Scored
    losses: tuple[float, ...]
    """Nats per token at each position of the segment."""


@dataclass(frozen=True)
class Answered:
    """What a model wrote on a task's samples."""

    split: str
    characters: float
    """Share of right symbols."""
    answers: float
    """Share of answers without a wrong one."""
    samples: int
    published: bool
    """Measured as the task's released code does."""


@dataclass(frozen=True)
class Sample:
    source: str
    prompt: str
    texts: tuple[str, ...]
    settings: str


@dataclass
class Results:
    scores: list[Scored] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    positions: list[ByPosition] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)


def read_results(folder: Path, notes: list[str]) -> Results:
    """All results that can be read, oldest file name first; the rest is named in `notes`."""
    results = Results()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        record = read_json(path, notes)
        if record is None:
            continue
        try:
            _take(results, path.stem, record)
        except (KeyError, TypeError, ValueError) as error:
            notes.append(f"results/{path.name} is incomplete ({_reason(error)}); skipped")
    return results


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def _take(results: Results, source: str, record: Record) -> None:
    kind = record.get("kind")
    if kind == "score":
        results.scores.append(_scored(record["score"]))
    elif kind == "sweep":
        results.sweeps.append(_sweep(source, record["scores"]))
    elif kind == "find-length":
        # Behind any sweep, which shows lengths that somebody chose.
        results.sweeps.insert(0, _sweep(source, record["tried"]))
    elif kind == "positions":
        losses = tuple(_finite("loss", loss) for loss in _filled(record["score"]["by_position"]))
        results.positions.append(ByPosition(source, _scored(record["score"]), losses))
    elif kind == "answers":
        results.answers.append(_answered(record["score"]))
    elif kind == "sample":
        results.samples.append(_sample(source, record))
    else:
        raise ValueError(f"unknown kind {kind!r}")


def _sweep(source: str, entries: object) -> Sweep:
    scores = sorted((_scored(entry) for entry in _filled(entries)), key=lambda score: score.memory)
    return Sweep(source, tuple(scores))


def _scored(record: Record) -> Scored:
    return Scored(
        split=str(record["split"]),
        loss=_number(record, "loss"),
        memory=int(_number(record, "memory")),
        segment=int(_number(record, "segment")),
        tokens=int(_number(record, "tokens")),
        word_perplexity=_optional(record, "word_perplexity"),
        accuracy=_optional(record, "accuracy"),
        kind=", ".join(words for name, (value, words) in KINDS.items() if record.get(name) == value),
    )


def _answered(record: Record) -> Answered:
    return Answered(
        split=str(record["split"]),
        characters=_number(record, "character_accuracy"),
        answers=_number(record, "answer_accuracy"),
        samples=int(_number(record, "samples")),
        published=record.get("published") is True,
    )


def _optional(record: Record, name: str) -> float | None:
    """Perplexities of words may be larger than anything that can be drawn; they are then left out."""
    value = record.get(name)
    too_large = is_finite(value) and not is_number(value)
    return None if value is None or too_large else _number(record, name)


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


def _sample(source: str, record: Record) -> Sample:
    texts = tuple(str(text) for text in record["texts"])
    shown = ("temperature", "top_k", "top_p", "seed", "step")
    settings = ", ".join(f"{name.replace('_', '-')} {record[name]}" for name in shown if record.get(name) is not None)
    return Sample(source, str(record.get("prompt", "")), texts, settings)
