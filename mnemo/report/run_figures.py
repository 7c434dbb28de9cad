"""Figures about runs: learning curves, best losses, speeds, memory sweeps, losses by position, memory plans."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mnemo.model import ModelConfig
from mnemo.report.charts import LayerMemory, draw_plans
from mnemo.report.figure import Figure, Numbers
from mnemo.report.loss_units import LossUnit, loss_unit
from mnemo.report.number_text import amount, number
from mnemo.report.plots import Line, bar_figure, line_figure, make_figure
from mnemo.report.results import ByPosition, Scored
from mnemo.report.runs import Run
from mnemo.report.svg import slugify

SETTLED = 0.06
"""Losses of this share of the steps, from the first on, may lie outside of the picture."""


@dataclass(frozen=True)
class Group:
    """Runs whose losses can be compared: one corpus, one unit."""

    slug: str
    corpus: str
    unit: LossUnit
    runs: tuple[Run, ...]


def grouped(runs: Sequence[Run]) -> list[Group]:
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.corpus_name, str(run.corpus.get("unit"))), []).append(run)
    return [
        Group(f"{index}-{slugify(corpus)}", corpus, loss_unit(unit), tuple(members))
        for index, ((corpus, unit), members) in enumerate(groups.items())
    ]


def learning_curves(group: Group) -> Figure | None:
    lines = [line for run in group.runs for line in _curves(run, group.unit)]
    if not lines:
        return None
    figure = line_figure(
        f"learning-{group.slug}",
        f"Learning curves: {group.corpus}",
        "Thick with markers: validation. Thin: training.",
        lines,
        x_label="step",
        y_label=group.unit.long,
        y_logarithmic=group.unit.logarithmic,
        reference=_guessing(group),
        y_max=_settled_maximum(lines),
    )
    rows = [
        (run.name, split, metric.step, metric.loss, group.unit.of(metric.loss))
        for run in group.runs
        for split, metrics in (("train", run.train), ("valid", run.valid))
        for metric in metrics
    ]
    return replace(figure, numbers=Numbers(("run", "split", "step", "nats", group.unit.short), tuple(rows)))


def _curves(run: Run, unit: LossUnit) -> list[Line]:
    """Validation and training loss; the training loss is faint unless there is no other."""
    found = [(run.train, bool(run.valid)), (run.valid, False)]
    return [
        Line(run.name, [(metric.step, unit.of(metric.loss)) for metric in metrics], color=run.color, faint=faint)
        for metrics, faint in found
        if metrics
    ]


def _settled_maximum(lines: Sequence[Line]) -> float:
    """The largest value after each curve's first steep fall, also of a curve that ended early by diverging."""
    settled = []
    for line in lines:
        end = max(x for x, _ in line.points)
        settled += [y for x, y in line.points if y is not None and x >= SETTLED * end]
    return max(settled)


def _guessing(group: Group) -> tuple[str, float] | None:
    """The loss of guessing a task's symbols."""
    levels = {run.corpus.get("chance_loss") for run in group.runs}
    level = levels.pop() if len(levels) == 1 else None
    return ("guessing", group.unit.of(level)) if isinstance(level, (int, float)) else None


def final_values(group: Group) -> Figure | None:
    """Bars of the share of right answers if every run has one, else of the best validation loss."""
    return accuracies(group) or best_losses(group)


def accuracies(group: Group) -> Figure | None:
    scores = [(run, run.results.scores[-1].accuracy) for run in group.runs if run.results.scores]
    known = [(run, share) for run, share in scores if share is not None]
    if len(known) < len(group.runs):
        return None
    caption = "Share of the symbols whose likeliest guess is right."
    title = f"Right answers: {group.corpus}"
    return _run_bars(f"accuracy-{group.slug}", title, caption, known, "accuracy", "{:.1%}".format)


def best_losses(group: Group) -> Figure | None:
    unit = group.unit
    best = [(run, unit.of(run.best.loss)) for run in group.runs if run.best is not None]
    caption, title = f"In {unit.long}; shorter is better.", f"Best validation loss: {group.corpus}"
    return _run_bars(f"best-{group.slug}", title, caption, best, unit.short, number) if len(best) > 1 else None


def speeds(runs: Sequence[Run]) -> Figure | None:
    known = [(run, run.tokens_per_second) for run in runs if run.tokens_per_second is not None]
    caption = "Tokens per second, median; longer is better. Runs that train at the same time slow each other down."
    return _run_bars("speed", "Training speed", caption, known, "tokens_per_second", amount) if len(known) > 1 else None


def _run_bars(
    slug: str,
    title: str,
    caption: str,
    values: Sequence[tuple[Run, float]],
    unit: str,
    shown: Callable[[float], str],
) -> Figure:
    bars, colors = [(run.name, value) for run, value in values], [run.color for run, _ in values]
    figure = bar_figure(slug, title, caption, bars, unit=unit, colors=colors, shown=shown)
    return replace(figure, numbers=Numbers(("run", unit), figure.numbers.rows))


def memory_sweep(group: Group) -> Figure | None:
    """Loss against memory length, of each run's newest sweep."""
    chosen = [(run, run.results.sweeps[-1]) for run in group.runs if run.results.sweeps]
    if not chosen:
        return None
    unit = group.unit
    lines = [
        Line(run.name, [(score.memory, unit.of(score.loss)) for score in scores], color=run.color)
        for run, scores in chosen
    ]
    figure = line_figure(
        f"sweep-{group.slug}",
        f"What memory is worth: {group.corpus}",
        f"The same weights with other memory lengths, on {chosen[0][1][0].split}; no training in between.",
        lines,
        x_label="memory length at evaluation",
        y_label=unit.long,
        x_kind="doubling",
    )
    rows = [
        (run.name, score.split, score.memory, score.segment, score.loss, unit.of(score.loss))
        for run, scores in chosen
        for score in scores
    ]
    headers = ("run", "split", "memory", "segment", "nats", unit.short)
    return replace(figure, numbers=Numbers(headers, tuple(rows)))


def loss_by_position(group: Group) -> Figure | None:
    """A line for every way in which a run was scored."""
    scored = _labelled(group.runs)
    if not scored:
        return None
    unit = group.unit
    colors = _line_colors([run for run, _, _ in scored])
    lines = [
        Line(label, [(position, unit.of(loss)) for position, loss in enumerate(losses, 1)], color=color)
        for color, (_, label, (_, losses)) in zip(colors, scored, strict=True)
    ]
    figure = line_figure(
        f"positions-{group.slug}",
        f"Loss by position in the segment: {group.corpus}",
        "Without memory the first tokens of a segment have little context; with memory they are like the others.",
        lines,
        x_label="position",
        y_label=unit.long,
    )
    rows = [
        (run.name, score.split, score.memory, score.segment, score.kind, position, loss, unit.of(loss))
        for run, _, (score, losses) in scored
        for position, loss in enumerate(losses, 1)
    ]
    headers = ("run", "split", "memory", "segment", "scored with", "position", "nats", unit.short)
    return replace(figure, numbers=Numbers(headers, tuple(rows)))


def _labelled(runs: Sequence[Run]) -> list[tuple[Run, str, ByPosition]]:
    """Losses by position, a run's longest memory first; of results under equal conditions, one.

    The name of a line has the conditions in which results of one run differ.
    """
    by_run = [{_conditions(found.score): found for found in run.results.by_position} for run in runs]
    differing = {at for found in by_run for at, words in enumerate(zip(*found, strict=True)) if len(set(words)) > 1}
    labelled = list[tuple[Run, str, ByPosition]]()
    for run, found in zip(runs, by_run, strict=True):
        for words, each in sorted(found.items(), key=lambda item: item[1].score.memory, reverse=True):
            shown = [part for at, part in enumerate(words) if at in differing and part]
            labelled.append((run, ", ".join([run.name, *shown]), each))
    return labelled


def _conditions(score: Scored) -> tuple[str, ...]:
    memory = f"memory {score.memory:,}" if score.remembers else ""
    return f"{score.split} split", memory, f"segment {score.segment:,}", score.kind


def _line_colors(runs: Sequence[Run]) -> list[int]:
    """A run's own colour for its first line, and unused colours for further ones."""
    unused = (number for number in itertools.count() if number not in {run.color for run in runs})
    return [run.color if run not in runs[:at] else next(unused) for at, run in enumerate(runs)]


def layer_memories(model: ModelConfig) -> list[LayerMemory]:
    """Every layer's memory, first layer first."""
    plan, num_layers = model.memory, model.num_layers
    long = set(plan.long_layers(num_layers))
    pairs = zip(plan.memories(num_layers), plan.lengths(num_layers), strict=True)
    return [
        LayerMemory(type(memory).__name__, length, at in long, memory.traits.besides)
        for at, (memory, length) in enumerate(pairs)
    ]


def memory_plans(runs: Sequence[Run]) -> list[Figure | None]:
    return [_memory_plan(run, number) for number, run in enumerate(runs)]


def _memory_plan(run: Run, number: int) -> Figure | None:
    """The memory of every layer of one run, and its memory tokens."""
    if run.recipe is None:
        return None
    model, segment = run.recipe.model, run.recipe.train.segment
    layers = layer_memories(model)
    read, write = (0, 0) if model.tokens is None else (model.tokens.num_read, model.tokens.num_written)
    listed = ", ".join(map(_kept, layers))
    around = f" {read} memory tokens before the segment, {write} after it." if read or write else ""
    description = f"Segment of {segment:,} tokens. Memory by layer, first layer first: {listed}.{around}"
    rows = [
        (at, layer.kind, layer.length, "long" if layer.long else "short", layer.besides)
        for at, layer in enumerate(layers, 1)
    ]
    tokens = [("all", type(model.tokens).__name__, read or write, "", "")] if read or write else []
    headers = ("layer", "mechanism", "memory", "range", "besides")[: 5 if any(layer.besides for layer in layers) else 4]
    return make_figure(
        f"plan-{number}-{slugify(run.name)}",
        run.name,
        _plan_caption(model, layers),
        description,
        draw_plans({run.name: layers}, segment, run.color, (read, write)),
        Numbers(headers, tuple(row[: len(headers)] for row in (*rows, *tokens))),
    )


def _kept(layer: LayerMemory) -> str:
    slots = f"{layer.kind} {layer.length}" if layer.length or not layer.besides else ""
    return " and ".join(filter(None, (slots, layer.besides)))


def _plan_caption(model: ModelConfig, layers: Sequence[LayerMemory]) -> str:
    where = "around" if model.tokens and model.tokens.num_read else "after"
    tokens = f" {model.tokens.num} memory tokens {where} every segment." if model.tokens else ""
    kinds = Counter(layer.kind for layer in layers)
    if set(kinds) != {"XL"}:
        besides = " and ".join(dict.fromkeys(layer.besides for layer in layers if layer.besides))
        dotted = f" Dotted, not to scale: {besides}." if besides else ""
        return " and ".join(f"{count} × {kind}" for kind, count in kinds.items()) + f".{dotted}{tokens}"
    reach = sum(layer.length for layer in layers)
    if not reach:
        return tokens.strip() or "No memory: nothing is known of the text before the segment."
    return f"Reaches {reach:,} tokens back from the segment, over {len(layers)} layers.{tokens}"
