"""The first things to know about runs: cards and the table of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mnemo.model import ModelConfig
from mnemo.recipes.memory_words import memory_without_slots
from mnemo.report.loss_units import loss_unit
from mnemo.report.number_text import amount, duration, number, percent
from mnemo.report.page_template import Card
from mnemo.report.results import Answered, Scored
from mnemo.report.run_figures import Group, layer_memories
from mnemo.report.runs import Run
from mnemo.units import bits, perplexity

TIE_SHARE, TIE = 0.01, 0.003
"""Losses that differ by less than this share or this many nats count as equal: one run each has no interval."""
TIE_ANSWERS = 0.02
"""Shares of right answers that differ by less count as equal."""


def plan_words(model: ModelConfig) -> str:
    """A plan in one line: `512 in 3 of 12 layers (interleaved), else 128`."""
    layers = layer_memories(model)
    tokens = [f"{model.tokens.num} memory tokens"] if model.tokens else []
    groups = Counter((layer.kind, layer.length, layer.long) for layer in layers)
    if len({group[:2] for group in groups}) == 1:
        kind, length, _ = next(iter(groups))
        kept = [] if (kind, length) == ("XL", 0) else [f"{_kept(kind, length)} in all {len(layers)} layers"]
        return ", ".join([*kept, *tokens]) or "none"
    (long, count), (short, _) = sorted(groups.items(), key=lambda item: not item[0][2])
    words = (
        f"{_kept(*long[:2])} in {count} of {len(layers)} layers ({model.memory.arrangement}), else {_kept(*short[:2])}"
    )
    return ", ".join([words, *tokens])


def _kept(kind: str, length: int) -> str:
    """Length and mechanism; Transformer-XL's memory is the usual one and is not named."""
    return f"{length:,}" if kind == "XL" else f"{kind} {length:,}" if length else kind


def cards(groups: Sequence[Group]) -> list[Card]:
    scores = [(_accuracy_card(group) or _best_card(group), _memory_card(group)) for group in groups]
    found = [card for pair in scores for card in pair if card is not None]
    return found[:6] + _effort_cards([run for group in groups for run in group.runs])


def _best_card(group: Group) -> Card | None:
    ranked = sorted(((run.best.loss, run) for run in group.runs if run.best), key=lambda pair: pair[0])
    if not ranked:
        return None
    unit, best = group.unit, ranked[0][0]
    tied = [run.name for loss, run in ranked if loss - best <= max(TIE_SHARE * best, TIE)]
    detail = tied[0] if len(tied) == 1 else f"{len(tied)} runs alike: {', '.join(tied)}"
    if len(tied) < len(ranked):
        loss, run = ranked[len(tied)]
        detail += f"; {run.name} reaches {number(unit.of(loss))}"
    return Card(f"Best on {group.corpus}", number(unit.of(best)), unit.short, detail)


def _accuracy_card(group: Group) -> Card | None:
    """The share of right answers, if every run has one."""
    shares = [(score.accuracy, run) for run in group.runs for score in run.results.scores[-1:]]
    known = sorted(((share, run.name) for share, run in shares if share is not None), reverse=True)
    if len(known) < len(group.runs):
        return None
    best, tied = known[0][0], [name for share, name in known if known[0][0] - share <= TIE_ANSWERS]
    tied = [run.name for run in group.runs if run.name in tied]
    detail = tied[0] if len(tied) == 1 else f"{len(tied)} runs alike: {', '.join(tied)}"
    if len(tied) < len(known):
        share, name = known[len(tied)]
        detail += f"; {name} {percent(share)}"
    return Card(f"Right answers on {group.corpus}", percent(best), "", detail)


def _memory_card(group: Group) -> Card | None:
    """The largest gain of a memory over none, with the same weights."""
    unit = group.unit
    gains = []
    for run in group.runs:
        for sweep in run.results.sweeps:
            without, best = sweep[0], min(sweep, key=lambda score: score.loss)
            if without.memory == 0 and best.loss < without.loss - max(TIE_SHARE * without.loss, TIE):
                gains.append((unit.of(without.loss) - unit.of(best.loss), run, without, best))
    if not gains:
        return None
    gain, run, without, best = max(gains, key=lambda entry: entry[0])
    detail = (
        f"{run.name}: {number(unit.of(without.loss))} without, {number(unit.of(best.loss))} with memory {best.memory:,}"
    )
    return Card("With memory", number(gain), f"{unit.short} better", detail)


def _effort_cards(runs: Sequence[Run]) -> list[Card]:
    timed = [run for run in runs if run.tokens_per_second is not None]
    found = []
    if timed:
        fastest = max(timed, key=lambda run: run.tokens_per_second or 0.0)
        found.append(Card("Training speed", amount(fastest.tokens_per_second), "tokens/s", fastest.name))
    tokens, seconds = sum(run.tokens or 0 for run in runs), sum(run.seconds or 0.0 for run in runs)
    if tokens:
        count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
        found.append(Card("Trained on", amount(tokens), "tokens", f"{count}, {duration(seconds)} in all"))
    return found


Cell = list[tuple[str, list[str]]]
"""Texts of a table's cell, each with details in small print; empty for no value."""


class RunTable(NamedTuple):
    headers: list[str]
    rows: list[tuple[Run, list[Cell]]]


def run_table(runs: Sequence[Run]) -> RunTable:
    """Every run's cells, without columns that are empty for all runs."""
    columns = {
        "Parameters": _size,
        "Memory": _memory,
        "Corpus": _corpus,
        "Best validation": _best,
        "Scores": _scores,
        "Steps": _steps,
        "Tokens/s": _speed,
    }
    found = {header: [describe(run) for run in runs] for header, describe in columns.items()}
    shown = {header: cells for header, cells in found.items() if any(cells)}
    return RunTable(list(shown), [(run, [cells[at] for cells in shown.values()]) for at, run in enumerate(runs)])


def _size(run: Run) -> Cell:
    if run.recipe is None:
        return []
    model = run.recipe.model
    return [(amount(run.parameters), [f"{model.num_layers} layers, width {model.dim}"])]


def _memory(run: Run) -> Cell:
    if run.recipe is None:
        return []
    return [(plan_words(run.recipe.model), [f"segment {run.recipe.train.segment:,}"])]


def _corpus(run: Run) -> Cell:
    unit, size = run.corpus.get("unit"), run.corpus.get("vocab_size")
    about = f"{size:,} {unit}s" if isinstance(size, int) and unit else unit
    return [(run.corpus_name, [str(about)] if about else [])]


def _best(run: Run) -> Cell:
    """In the corpus's usual unit, and in the other one."""
    if run.best is None:
        return []
    loss, unit = run.best.loss, loss_unit(run.corpus.get("unit"))
    other = f"{number(bits(loss))} bits" if unit.short == "ppl" else f"ppl {number(perplexity(loss))}"
    return [(f"{number(unit.of(loss))} {unit.short}", [other, f"step {run.best.step:,}"])]


def _scores(run: Run) -> Cell:
    unit = loss_unit(run.corpus.get("unit"))
    losses = [
        (f"{score.split} {number(unit.of(score.loss))} {unit.short}", [_about_score(score, run)])
        for score in run.results.scores
    ]
    return losses + [
        (f"{score.split} {score.characters:.1%} of symbols right", [_about_answers(score)])
        for score in run.results.answers
    ]


def _about_answers(score: Answered) -> str:
    published = "measured as published" if score.published else ""
    parts = (f"{score.answers:.1%} of answers", f"{score.samples:,} samples", published, score.kind)
    return ", ".join(filter(None, parts))


def _about_score(score: Scored, run: Run) -> str:
    right = "" if score.accuracy is None else f"{score.accuracy:.1%} right"
    memory = _memory_of(score, run) if score.remembers else ""
    parts = (right, memory, f"segment {score.segment:,}", score.kind, f"{score.tokens:,} tokens")
    return ", ".join(filter(None, parts))


def _memory_of(score: Scored, run: Run) -> str:
    """The number of slots; without slots, what the model has instead."""
    instead = "" if score.memory or run.recipe is None else memory_without_slots(run.recipe.model)
    return instead or f"memory {score.memory:,}"


def _steps(run: Run) -> Cell:
    if not run.last_step:
        return []
    planned = run.recipe.train.steps if run.recipe else None
    return [(f"{run.last_step:,}", [f"of {planned:,}"] if planned and planned != run.last_step else [])]


def _speed(run: Run) -> Cell:
    return [] if run.tokens_per_second is None else [(amount(run.tokens_per_second), [duration(run.seconds)])]
