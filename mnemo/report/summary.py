"""What a reader wants to know first: cards and the table of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mnemo.model import ModelConfig
from mnemo.report.figures import Group, layer_memories
from mnemo.report.markup import Markup, dot, join, table, tag
from mnemo.report.measures import bits, measure, perplexity
from mnemo.report.results import Answered, Scored
from mnemo.report.runs import Run
from mnemo.report.scales import amount, duration, number


@dataclass(frozen=True)
class Card:
    label: str
    value: str
    unit: str
    detail: str


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
    """Transformer-XL's memory is the usual one and goes without its name."""
    return f"{length:,}" if kind == "XL" else f"{kind} {length:,}" if length else kind


def cards(groups: Sequence[Group]) -> Markup:
    found = [card for group in groups for card in _group_cards(group)][:6]
    found += _effort_cards([run for group in groups for run in group.runs])
    return tag("dl", *(_draw(card) for card in found), class_="cards") if found else Markup("")


def _draw(card: Card) -> Markup:
    value = tag("div", card.value, tag("small", f" {card.unit}"), class_="big")
    return tag("div", tag("dt", card.label), tag("dd", value, tag("div", card.detail, class_="detail")), class_="card")


def _group_cards(group: Group) -> list[Card]:
    return [card for card in (_best_card(group), _memory_card(group)) if card is not None]


def _best_card(group: Group) -> Card | None:
    ranked = sorted(((run.best.loss, run) for run in group.runs if run.best), key=lambda pair: pair[0])
    if not ranked:
        return None
    unit, (loss, run) = group.measure, ranked[0]
    detail = run.name
    if len(ranked) > 1:
        detail += f"; {ranked[1][1].name} reaches {number(unit.of(ranked[1][0]))}"
    return Card(f"Best on {group.corpus}", number(unit.of(loss)), unit.short, detail)


def _memory_card(group: Group) -> Card | None:
    """The largest gain of a memory over none, with the same weights."""
    unit = group.measure
    gains = []
    for run in group.runs:
        for sweep in run.results.sweeps:
            without, best = sweep.scores[0], min(sweep.scores, key=lambda score: score.loss)
            if without.memory == 0 and best.loss < without.loss:
                gains.append((unit.of(without.loss) - unit.of(best.loss), run, without, best))
    if not gains:
        return None
    gain, run, without, best = max(gains, key=lambda entry: entry[0])
    detail = (
        f"{run.name}: {number(unit.of(without.loss))} without, {number(unit.of(best.loss))} with memory {best.memory:,}"
    )
    return Card("Gain from memory", f"−{number(gain)}", unit.short, detail)


def _effort_cards(runs: Sequence[Run]) -> list[Card]:
    timed = [run for run in runs if run.tokens_per_second is not None]
    found = []
    if timed:
        fastest = max(timed, key=lambda run: run.tokens_per_second or 0.0)
        found.append(Card("Training speed", amount(fastest.tokens_per_second), "tokens/s", fastest.name))
    tokens, seconds = sum(run.tokens or 0 for run in runs), sum(run.seconds or 0.0 for run in runs)
    if tokens:
        found.append(Card("Trained on", amount(tokens), "tokens", f"{_count(runs, 'run')} in {duration(seconds)}"))
    return found


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


HEADERS = ("Run", "Parameters", "Memory", "Corpus", "Best validation", "Scores", "Steps", "Tokens/s")


def run_table(runs: Sequence[Run]) -> Markup:
    rows = [(_name(run), *_size(run), _corpus(run), _best(run), _scores(run), _steps(run), _speed(run)) for run in runs]
    shown = [i for i in range(len(HEADERS)) if i == 0 or any(row[i] != "–" for row in rows)]
    content = table([HEADERS[i] for i in shown], [[row[i] for i in shown] for row in rows])
    return tag("div", content, class_="card wide scroll stacked")


def _name(run: Run) -> Markup:
    preset = run.header.get("preset")
    return join([dot(run.color), tag("span", run.name, class_="name"), _small(f"preset {preset}") if preset else None])


def _small(words: object) -> Markup:
    return tag("small", words)


def _size(run: Run) -> tuple[object, object]:
    if run.recipe is None:
        return "–", "–"
    model = run.recipe.model
    shape = f"{model.num_layers} layers, width {model.dim}"
    return join([amount(run.parameters), _small(shape)]), join(
        [plan_words(model), _small(f"segment {run.recipe.train.segment:,}")]
    )


def _corpus(run: Run) -> Markup:
    unit, size = run.corpus.get("unit"), run.corpus.get("vocab_size")
    about = f"{size:,} {unit}s" if isinstance(size, int) and unit else unit
    return join([run.corpus_name, _small(about) if about else None])


def _best(run: Run) -> object:
    if run.best is None:
        return "–"
    return join([_both(run, run.best.loss), _small(f"step {run.best.step:,}")])


def _both(run: Run, loss: float) -> Markup:
    """In the corpus's usual unit, and in the other one."""
    unit = measure(run.corpus.get("unit"))
    other = f"{number(bits(loss))} bits" if unit.short == "ppl" else f"ppl {number(perplexity(loss))}"
    return join([tag("strong", f"{number(unit.of(loss))} {unit.short}"), _small(other)])


def _scores(run: Run) -> object:
    unit = measure(run.corpus.get("unit"))
    entries = [
        join([f"{score.split} {number(unit.of(score.loss))} {unit.short}", _small(_about_score(score))])
        for score in run.results.scores
    ]
    entries += [
        join([f"{score.split} {score.characters:.1%} of symbols right", _small(_about_answers(score))])
        for score in run.results.answers
    ]
    return join(entries) if entries else "–"


def _about_answers(score: Answered) -> str:
    how = ", measured as published" if score.published else ""
    return f"{score.answers:.1%} of answers, {score.samples:,} samples{how}"


def _about_score(score: Scored) -> str:
    right = "" if score.accuracy is None else f"{score.accuracy:.1%} right, "
    how = f", {score.kind}" if score.kind else ""
    return f"{right}memory {score.memory:,}, segment {score.segment:,}{how}, {score.tokens:,} tokens"


def _steps(run: Run) -> object:
    if not run.last_step:
        return "–"
    planned = run.recipe.train.steps if run.recipe else None
    of = _small(f"of {planned:,}") if planned and planned != run.last_step else None
    return join([f"{run.last_step:,}", of])


def _speed(run: Run) -> object:
    if run.tokens_per_second is None:
        return "–"
    return join([amount(run.tokens_per_second), _small(duration(run.seconds))])
