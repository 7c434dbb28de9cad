"""From runs to figures: each with a title, a caption, a text alternative and the numbers it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mnemo.model import ModelConfig
from mnemo.report.charts import Bar, LayerMemory, LineChart, Series, draw_bars, draw_lines, draw_plan
from mnemo.report.content import Figure, Numbers
from mnemo.report.measures import Measure, measure
from mnemo.report.runs import Metric, Run
from mnemo.report.scales import amount, number
from mnemo.report.svg import slugify

SETTLED = 0.06
"""Share of the steps at the start whose losses may leave the picture."""


@dataclass(frozen=True)
class Group:
    """Runs whose losses can be compared: of one corpus, in one unit."""

    slug: str
    corpus: str
    measure: Measure
    runs: tuple[Run, ...]


def grouped(runs: Sequence[Run]) -> list[Group]:
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.corpus_name, str(run.corpus.get("unit"))), []).append(run)
    return [
        Group(f"{index}-{slugify(corpus)}", corpus, measure(unit), tuple(members))
        for index, ((corpus, unit), members) in enumerate(groups.items())
    ]


def learning_curves(group: Group) -> Figure | None:
    series = [*_curves(group, "train"), *_curves(group, "valid")]
    if not series:
        return None
    slug, title = f"learning-{group.slug}", f"Learning curves: {group.corpus}"
    chart = LineChart(
        series=series,
        x_label="step",
        y_label=group.measure.long,
        y_logarithmic=group.measure.logarithmic,
        reference=_guessing(group),
        y_max=_settled_maximum(series),
    )
    description = " ".join(filter(None, (_describe_curve(run, group.measure) for run in group.runs)))
    caption = "Thick with markers: validation. Thin: training."
    rows = [
        (run.name, split, metric.step, metric.loss, group.measure.of(metric.loss))
        for run in group.runs
        for split, metrics in (("train", run.train), ("valid", run.valid))
        for metric in metrics
    ]
    numbers = Numbers(("run", "split", "step", "nats", group.measure.short), tuple(rows))
    return Figure(slug, title, caption, description, draw_lines(chart, slug, title, description), numbers)


def _curves(group: Group, split: str) -> list[Series]:
    """A run without validation shows its training loss as the main line."""
    curves = []
    for run in group.runs:
        metrics = run.train if split == "train" else run.valid
        if metrics:
            points = [(float(metric.step), group.measure.of(metric.loss)) for metric in metrics]
            curves.append(Series(run.name, points, run.color, faint=split == "train" and bool(run.valid)))
    return curves


def _settled_maximum(series: Sequence[Series]) -> float:
    """The largest value once a curve's first steep fall is over: one that ended early, by diverging, counts too."""
    ends = [max(x for x, _ in curve.points) for curve in series]
    return max(y for curve, end in zip(series, ends, strict=True) for x, y in curve.points if x >= SETTLED * end)


def _guessing(group: Group) -> tuple[str, float] | None:
    """What a task's symbols cost without any knowledge of them."""
    levels = {run.corpus.get("chance_loss") for run in group.runs}
    level = levels.pop() if len(levels) == 1 else None
    return ("guessing", group.measure.of(level)) if isinstance(level, (int, float)) else None


def _describe_curve(run: Run, unit: Measure) -> str:
    metrics: list[Metric] = run.valid or run.train
    if not metrics:
        return ""
    kind = "validation" if run.valid else "training"
    first, last = metrics[0], metrics[-1]
    return (
        f"The {kind} loss of {run.name} goes from {number(unit.of(first.loss))} at step {first.step:,} "
        f"to {number(unit.of(last.loss))} {unit.long} at step {last.step:,}."
    )


def final_values(group: Group) -> Figure | None:
    """Bars of the share of right answers where it is known, else of the best validation loss."""
    return accuracies(group) or best_losses(group)


def accuracies(group: Group) -> Figure | None:
    shares = [
        (run, score.accuracy) for run in group.runs for score in run.results.scores[-1:] if score.accuracy is not None
    ]
    if len(shares) < len(group.runs):
        return None
    bars = [Bar(run.name, share, run.color, f"{share:.1%}") for run, share in shares]
    title, caption = f"Right answers: {group.corpus}", "Share of the symbols whose likeliest guess is right."
    return _bar_figure(f"accuracy-{group.slug}", title, caption, bars, "accuracy")


def best_losses(group: Group) -> Figure | None:
    """Bars of the best validation loss, where there are runs to compare."""
    unit = group.measure
    found = [(run, run.best) for run in group.runs]
    bars = [
        Bar(run.name, unit.of(best.loss), run.color, number(unit.of(best.loss)), f"step {best.step:,}")
        for run, best in found
        if best is not None
    ]
    if len(bars) < 2:
        return None
    title, caption = f"Best validation loss: {group.corpus}", f"In {unit.long}; shorter is better."
    return _bar_figure(f"best-{group.slug}", title, caption, bars, unit.short)


def speeds(runs: Sequence[Run]) -> Figure | None:
    bars = [
        Bar(run.name, run.tokens_per_second, run.color, amount(run.tokens_per_second))
        for run in runs
        if run.tokens_per_second is not None
    ]
    if len(bars) < 2:
        return None
    return _bar_figure(
        "speed", "Training speed", "Tokens per second, median; longer is better.", bars, "tokens_per_second"
    )


def _bar_figure(slug: str, title: str, caption: str, bars: Sequence[Bar], column: str) -> Figure:
    description = f"{caption} " + ", ".join(f"{bar.label}: {bar.shown}" for bar in bars) + "."
    numbers = Numbers(("run", column), tuple((bar.label, bar.value) for bar in bars))
    return Figure(slug, title, caption, description, draw_bars(bars, slug, title, description), numbers)


def memory_sweep(group: Group) -> Figure | None:
    """Loss against memory length, of each run's newest sweep."""
    chosen = [(run, run.results.sweeps[-1]) for run in group.runs if run.results.sweeps]
    if not chosen:
        return None
    unit = group.measure
    series = [
        Series(run.name, [(float(score.memory), unit.of(score.loss)) for score in sweep.scores], run.color)
        for run, sweep in chosen
    ]
    slug, title = f"sweep-{group.slug}", f"What memory is worth: {group.corpus}"
    chart = LineChart(series, "memory length at evaluation", unit.long, x_kind="doubling")
    sentences = [
        f"{run.name} goes from {number(unit.of(sweep.scores[0].loss))} with a memory of {sweep.scores[0].memory:,} "
        f"to {number(unit.of(sweep.scores[-1].loss))} {unit.long} with {sweep.scores[-1].memory:,}."
        for run, sweep in chosen
    ]
    rows = [
        (run.name, score.split, score.memory, score.segment, score.loss, unit.of(score.loss))
        for run, sweep in chosen
        for score in sweep.scores
    ]
    split = chosen[0][1].scores[0].split
    caption = f"The same weights with other memory lengths, on {split}; no training in between."
    numbers = Numbers(("run", "split", "memory", "segment", "nats", unit.short), tuple(rows))
    description = " ".join(sentences)
    return Figure(slug, title, caption, description, draw_lines(chart, slug, title, description), numbers)


def loss_by_position(group: Group) -> Figure | None:
    """A line for every memory length that was scored; a length scored twice shows the newer result."""
    found = [(run, {result.score.memory: result.losses for result in run.results.positions}) for run in group.runs]
    lines = [
        (run, memory, losses) for run, results in found for memory, losses in sorted(results.items(), reverse=True)
    ]
    if not lines:
        return None
    unit, one_each = group.measure, all(len(results) <= 1 for _, results in found)
    series = [
        Series(
            run.name if one_each else f"{run.name}, memory {memory:,}",
            [(float(at), unit.of(loss)) for at, loss in enumerate(losses, 1)],
            run.color if one_each else index,
        )
        for index, (run, memory, losses) in enumerate(lines)
    ]
    slug, title = f"positions-{group.slug}", f"Loss by position in the segment: {group.corpus}"
    description = " ".join(
        f"{run.name} with memory {memory:,}: {number(unit.of(losses[0]))} at the first token of a segment, "
        f"{number(unit.of(losses[-1]))} {unit.long} at the last."
        for run, memory, losses in lines
    )
    caption = "Without memory a segment's first tokens have little to go by; with memory they are like the others."
    rows = [
        (run.name, memory, at, loss, unit.of(loss))
        for run, memory, losses in lines
        for at, loss in enumerate(losses, 1)
    ]
    numbers = Numbers(("run", "memory", "position", "nats", unit.short), tuple(rows))
    chart = LineChart(series, "position", unit.long, markers=False)
    return Figure(slug, title, caption, description, draw_lines(chart, slug, title, description), numbers)


def layer_memories(model: ModelConfig) -> list[LayerMemory]:
    """Every layer's memory, first layer first."""
    plan, num_layers = model.memory, model.num_layers
    long = set(plan.long_layers(num_layers))
    pairs = zip(plan.memories(num_layers), plan.lengths(num_layers), strict=True)
    return [LayerMemory(type(memory).__name__, length, at in long) for at, (memory, length) in enumerate(pairs)]


def memory_plan(run: Run) -> Figure | None:
    """The memory of every layer of one run."""
    if run.recipe is None:
        return None
    layers, segment = layer_memories(run.recipe.model), run.recipe.train.segment
    slug, title = f"plan-{run.color}-{slugify(run.name)}", run.name
    listed = ", ".join(f"{layer.kind} {layer.length}" for layer in layers)
    description = f"Segment of {segment:,} tokens. Memory by layer, first layer first: {listed}."
    svg = draw_plan(layers, segment, run.color, slug, f"Memory plan of {title}", description)
    rows = [(at, layer.kind, layer.length, "long" if layer.long else "short") for at, layer in enumerate(layers, 1)]
    numbers = Numbers(("layer", "mechanism", "memory", "range"), tuple(rows))
    return Figure(slug, title, _plan_caption(run.recipe.model, layers), description, svg, numbers)


def _plan_caption(model: ModelConfig, layers: Sequence[LayerMemory]) -> str:
    tokens = f" {model.tokens.num} memory tokens around every segment." if model.tokens else ""
    kinds = Counter(layer.kind for layer in layers)
    if set(kinds) != {"XL"}:
        return " and ".join(f"{count} × {kind}" for kind, count in kinds.items()) + f".{tokens}"
    reach = sum(layer.length for layer in layers)
    if not reach:
        return tokens.strip() or "No memory: nothing is known of the text before the segment."
    return f"Reaches {reach:,} tokens back from the segment, over {len(layers)} layers.{tokens}"
