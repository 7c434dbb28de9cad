"""One figure for the main claim of each paper, with the paper's values and ours.

A figure is left out if nothing that it shows has been measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from mnemo.errors import plural
from mnemo.papers.evidence import Evidence
from mnemo.papers.experiment import Budget, Figure, Results
from mnemo.papers.gpu import lamemo as gpu_lamemo
from mnemo.papers.gpu import long_range as gpu_long_range
from mnemo.papers.gpu import memory as gpu_memory
from mnemo.papers.gpu import memory_tokens as gpu_tokens
from mnemo.papers.grid import BPC, Grid, Measure
from mnemo.papers.judge import Claim, gain_interval
from mnemo.papers.lamemo import comparison, extrapolation
from mnemo.papers.lamemo.models import LAMEMO, TRANSFORMER_XL
from mnemo.papers.lamemo.models import PAPER as LAMEMO_PAPER
from mnemo.papers.long_range import arrangement, words
from mnemo.papers.long_range.grids import ALL, NONE, SIXTH, SIXTH_FIRST, SIXTH_LAST, Layout
from mnemo.papers.records import scores_that_count, seconds_in_words, seeds_in_words
from mnemo.papers.rmt.accuracy import COPY, REVERSE
from mnemo.papers.rmt.published import BASELINE, RMT, XL
from mnemo.papers.rmt.series import PAPER as RMT_PAPER
from mnemo.papers.rmt.series import Series
from mnemo.papers.xl import evaluation_speed
from mnemo.papers.xl.benchmark import PAPER as XL_PAPER
from mnemo.papers.xl.language_modelling import ENWIK8
from mnemo.recipes.presets import preset
from mnemo.report.quoted_charts import Mark, MarkRow, PanelChart, Place, Trace, panel_figure, row_figure

ARMT_PAPER = "Associative Recurrent Memory Transformer"
INTERVALS = "Bars are 95% intervals of mean differences over seeds; verdicts also correct for several comparisons."


class MainFigure(NamedTuple):
    paper: str
    claim: str
    """The main claim, in one sentence."""
    figure: Figure


def main_figures(evidence: Evidence) -> list[MainFigure]:
    """Those with measured values, older papers first."""
    drawn = ((paper, claim, draw(evidence)) for paper, claim, draw in FIGURES)
    return [MainFigure(paper, claim, figure) for paper, claim, figure in drawn if figure is not None]


def enwik8_by_size(evidence: Evidence) -> Figure | None:
    """Published models and the speedrun: bits per character over parameters."""
    run = evidence.measurement("h200-enwik8")
    if run is None:
        return None
    ours = Mark(run["parameters"] / 1e6, fmean(scores_that_count(run)))
    words = f"Mnemo: {ours.y:.3f} after {seconds_in_words(run)} s on one GPU"
    chart = PanelChart(
        panels={
            "": [
                *_published_sizes(),
                Trace(label="speedrun-enwik8", marks=[ours], color=2, shown=words, place="far below"),
            ]
        },
        x_label="parameters, millions (logarithmic axis)",
        y_label="enwik8 test set, bits per character (lower is better)",
        x_logarithmic=True,
        x_limits=(20, 330),
        x_ticks={float(size): str(size) for size in (25, 50, 100, 200, 300)},
        y_limits=(0.92, 1.38),
    )
    published = preset("enwik8-base").train
    caption = (
        f"The paper's Table 2, and the preset speedrun-enwik8 ({seeds_in_words(run)}): Transformer-XL's memory, long "
        "in a few layers and short in the others, with today's optimizer and norms. It was trained on "
        f"{run['symbols'] / 1e6:,.0f}M symbols, the paper's 12-layer model on "
        f"{published.steps * published.batch * published.segment / 1e6:,.0f}M."
    )
    return panel_figure("enwik8-by-size", "enwik8: bits per character by size", caption, chart)


def _published_sizes() -> list[Trace]:
    """Models of Transformer-XL's Table 2 whose size is known."""
    known = [each for each in ENWIK8.quoted if each.size != "-"]
    marks = {each.label: Mark(float(each.size.removesuffix("M")), float(each.value)) for each in known}
    vanilla = [mark for label, mark in marks.items() if "Al-Rfou" in label]
    others = [mark for label, mark in marks.items() if "Al-Rfou" not in label]
    ours = [Mark(entry.millions, entry.paper) for entry in ENWIK8.entries if entry.millions and entry.paper]
    quoted = partial(Trace, quoted=True)
    words = "transformer without memory"
    return [
        quoted(
            label="recurrent networks", marks=others, color=7, joined=False, shown="recurrent networks", place="right"
        ),
        quoted(label=words, marks=vanilla, color=1, shown=f"{words} (Al-Rfou)", at=0, place="above right"),
        quoted(label="Transformer-XL", marks=ours, color=0, shown="Transformer-XL", at=1, place="above right"),
    ]


def speed_of_evaluation(evidence: Evidence) -> Figure | None:
    results = evidence.results(evaluation_speed.SPEED, "small")
    if results is None or not (found := evaluation_speed.ratios(results)):
        return None
    published = [Mark(length, ratio) for length, ratio in evaluation_speed.PUBLISHED.items()]
    ours = [Mark(length, ratio) for length, ratio in found.items()]
    traces = [
        Trace(
            label="Transformer-XL",
            marks=published,
            color=1,
            quoted=True,
            shown=f"{published[-1].y:,.0f}x",
            place="left",
        ),
        Trace(label="Transformer-XL", marks=ours, color=0, shown=f"{ours[-1].y:,.0f}x", place="below"),
    ]
    chart = PanelChart(
        panels={"": traces},
        x_label="attention length, tokens",
        y_label="times as fast as a sliding window",
        y_limits=(0, 1.12 * max(mark.y for mark in (*published, *ours))),
        x_limits=(600, 4050),
    )
    caption = (
        "Evaluation that reuses the state, compared with a transformer that computes a whole window for every token "
        f"(Table 7). Ours on one {results.cells[0].hardware}; speed does not depend on the weights, which are random."
    )
    return panel_figure("evaluation-speed", "Evaluation: state reuse against a sliding window", caption, chart)


PLANS: Mapping[Layout, str] = {
    SIXTH: "a sixth, interleaved",
    SIXTH_LAST: "the last sixth",
    SIXTH_FIRST: "the first sixth",
    NONE: "no layer",
}


class PlanSource(NamedTuple):
    """An experiment that compares plans of long memories."""

    experiment: str
    budget: Budget
    grid: Callable[[Budget], Grid]
    claims: Sequence[Claim]
    published: Mapping[Layout, str]
    heading: str
    corpus: str
    """Ours."""


PLAN_SOURCES = (
    PlanSource(
        "gpu-long-range",
        "gpu",
        lambda budget: Grid(rows=gpu_long_range.rows(budget), measure=BPC),
        gpu_long_range.claims("gpu"),
        arrangement.PUBLISHED,
        "enwik8, bits per character",
        "enwik8",
    ),
    PlanSource(
        "long-wikitext103",
        "small",
        words.grid,
        words.CLAIMS,
        words.PUBLISHED,
        "WikiText-103 (paper), WikiText-2 (ours): perplexity",
        "WikiText-2",
    ),
)


def few_long_memories(evidence: Evidence) -> Figure | None:
    """Perplexity or bits of a few long memories, relative to long memories in all layers."""
    rows, ours = list[MarkRow](), list[str]()
    for source in PLAN_SOURCES:
        results = evidence.results(source.experiment, source.budget)
        if results is not None and (found := _plan_rows(source, results)):
            rows += found
            if any(False in row.marks for row in found):
                seeds = source.grid(source.budget).by_seed(results, ALL.key)
                ours.append(f"{source.corpus}: {plural(len(seeds), 'seed')}")
    if not rows:
        return None
    measured = f" ({', '.join(ours)})" if ours else ""
    caption = (
        "How much worse a model becomes if only some layers have a long memory and the others a short one. A sixth is "
        f"4 of 24 layers (enwik8) or 3 of 18 (WikiText-103) in the paper, 2 of 12 here{measured}. {INTERVALS}"
    )
    return row_figure(
        "few-long-memories",
        "A long memory in a few layers is enough",
        caption,
        rows,
        x_label="% above long memories in all layers",
        better="left is better",
        values="paper / ours",
    )


def _plan_rows(source: PlanSource, results: Results) -> list[MarkRow]:
    grid, rows = source.grid(source.budget), []
    for layout, label in PLANS.items():
        marks = {}
        quoted = source.published.get(layout, "-")
        if quoted != "-":
            marks[True] = Mark(100 * (float(quoted) / float(source.published[ALL]) - 1), 0)
        gain = gain_interval(grid, results, source.claims, layout.key, ALL.key)
        if gain is not None:
            mean, high, low = (_worse(grid, results, each) for each in gain)
            marks[False] = Mark(mean, 0, low, high)
        if marks:
            heading = "" if rows else source.heading
            rows.append(MarkRow(label=label, marks=marks, shown=_both(marks), heading=heading))
    return rows


def _both(marks: Mapping[bool, Mark]) -> str:
    """The percents of the paper and ours as text."""
    return " / ".join(f"{marks[kind].x:+.1f}%" if kind in marks else "–" for kind in (True, False))


def _worse(grid: Grid, results: Results, gain: float) -> float:
    """By how many percent the score is higher than that of long memories in all layers, for a gain in nats."""
    if grid.measure is BPC:
        return -100 * gain / fmean(grid.by_seed(results, ALL.key).values())
    return 100 * math.expm1(-gain)


def accuracy_by_segments(evidence: Evidence) -> Figure | None:
    found: list[tuple[Series, Results]] = []
    for name, series in (("rmt-copy", COPY), ("rmt-reverse", REVERSE)):
        results = evidence.results(name, "small")
        if results is not None:
            found.append((series, results))
    if not found:
        return None
    panels = {series.task: _task_traces(series, results, alone=len(found) == 1) for series, results in found}
    chart = PanelChart(
        panels=panels,
        x_label="segments that the task is cut into",
        y_label="share of right symbols",
        y_limits=(0, 1.14),
        level=0.1,
    )
    caption = (
        "Figure 4: a memory of one segment's length; guessing gives 0.1 (dotted). Models have 2 layers here, 4 in the "
        "paper. Bars: standard deviation of the published runs; lowest and highest of our seeds, where there are two."
    )
    return panel_figure("accuracy-by-segments", "Memory tokens carry a task over many segments", caption, chart)


TASK_MODELS = {RMT: ("RMT", 0), XL: ("Transformer-XL", 1), BASELINE: ("no memory", 7)}
NAMED_IN = {RMT: "copy", XL: "reverse", BASELINE: "reverse"}
"""The panel that names a model, if both are there."""
NAMED_AT: dict[tuple[str, str], tuple[int, Place]] = {
    ("copy", RMT): (-2, "above"),
    ("copy", XL): (-2, "below left"),
    ("copy", BASELINE): (1, "above right"),
    ("reverse", RMT): (-2, "above"),
    ("reverse", XL): (-1, "below left"),
    ("reverse", BASELINE): (-1, "above left"),
}
"""At which of its marks a model is named, and on which side of it: where there is room."""


def _task_traces(series: Series, results: Results, *, alone: bool) -> list[Trace]:
    """Published and own accuracies of every model, over the number of segments; `alone`: there is no other panel."""
    grid = series.shown(results.budget)
    traces = []
    for model, (name, color) in TASK_MODELS.items():
        published = [_published_accuracy(count, text) for count, text in sorted(series.quoted[model].items())]
        found = {
            count: list(grid.by_seed(results, series.key(model, count)).values()) for count in sorted(series.counts)
        }
        ours = [Mark(count, fmean(values), min(values), max(values)) for count, values in found.items() if values]
        at, place = NAMED_AT[series.task, model]
        shown = name if alone or NAMED_IN[model] == series.task else ""
        traces.append(Trace(label=name, marks=published, color=color, quoted=True))
        traces.append(Trace(label=name, marks=ours, color=color, shown=shown, at=at, place=place))
    return [trace for trace in traces if trace.marks]


def _published_accuracy(count: int, text: str) -> Mark:
    """From `0.278 ± 0.121 (11 runs)`."""
    mean, _, rest = text.partition(" (")[0].partition(" ± ")
    value, deviation = float(mean), float(rest) if rest else 0.0
    return Mark(count, value, value - deviation, min(1.0, value + deviation))


def recurrence_on_text(evidence: Evidence) -> Figure | None:
    """Loss of Transformer-XL, and of models without memory, relative to that of Al-Rfou's transformer."""
    results = evidence.results("gpu-xl", "gpu")
    if results is None:
        return None
    grid = Grid(rows=gpu_memory.rows("gpu"), measure=BPC)
    rows = _saved(grid, results, gpu_memory.claims("gpu"), gpu_memory.VANILLA)
    if not rows:
        return None
    caption = (
        "How much of the loss of Al-Rfou's transformer (12 layers, learned positions, no memory) each model saves, on "
        "enwik8 with segments of 512. All have 12 layers of the published size. They train on 68M symbols, the last "
        "one on 92M, which takes the same time as 68M with memory; the paper's on 4,506M. Relative positions: "
        f"Transformer-XL without its memory. {INTERVALS}"
    )
    return row_figure(
        "recurrence-on-text",
        "A memory of earlier segments, at equal steps and at equal time",
        caption,
        rows,
        x_label="% of loss below Al-Rfou's transformer",
        better="right is better",
        values="paper / ours",
    )


def tokens_on_text(evidence: Evidence) -> Figure | None:
    """Loss of memory tokens and of a cache, relative to that of a model without memory."""
    results = evidence.results("gpu-rmt", "gpu")
    if results is None:
        return None
    rows = _saved(Grid(rows=gpu_tokens.rows("gpu"), measure=BPC), results, gpu_tokens.claims("gpu"), gpu_tokens.NONE)
    if not rows:
        return None
    caption = (
        "How much of the loss of a model without memory each memory saves, on enwik8 with segments of 128. Models have "
        f"10M parameters here and 41M in the paper, which trains on 33 times as many symbols. {INTERVALS}"
    )
    return row_figure(
        "tokens-on-text",
        "A few memory tokens in a language model",
        caption,
        rows,
        x_label="% of loss below no memory",
        better="right is better",
        values="paper / ours",
    )


def _saved(grid: Grid, results: Results, claims: Sequence[Claim], reference: str) -> list[MarkRow]:
    """What share of the loss of one row the others save, published and measured."""
    quoted = {row.key: _bits(row.paper[0]) for row in grid.rows}
    rows = []
    for row in grid.rows:
        gain = gain_interval(grid, results, claims, row.key, reference)
        if row.key == reference or gain is None:
            continue
        loss = fmean(grid.by_seed(results, reference).values())
        marks = {False: Mark(100 * gain[0] / loss, 0, *(100 * each / loss for each in gain[1:]))}
        if (bits := quoted[row.key]) is not None and (published := quoted[reference]) is not None:
            marks[True] = Mark(100 * (1 - bits / published), 0)
        rows.append(MarkRow(label=row.label, marks=marks, shown=_both(marks)))
    return rows


def _bits(text: str) -> float | None:
    """The first number of a published score; None if there is no score."""
    found = re.match(r"\d+\.\d+", text)
    return None if found is None else float(found[0])


class Pairing(NamedTuple):
    """Where LaMemo and Transformer-XL were trained alike."""

    label: str
    experiment: str
    budget: Budget
    claim: str


AHEAD = comparison.PAIRS[1][2]
PAIRINGS = (
    Pairing("enwik8, memory 128, dropout", "gpu-lamemo", "gpu", "LaMemo is better than Transformer-XL."),
    Pairing("WikiText-2, memory 150", "lamemo-wikitext103", "small", AHEAD),
    Pairing("novels, memory 512", "lamemo-enwik8", "small", AHEAD),
    Pairing("novels, memory 256", "lamemo-text8", "small", AHEAD),
    Pairing("novels, memory 128", "lamemo-novels", "small", AHEAD),
)
PUBLISHED_PAIRS = {
    "WikiText-103, memory 150": comparison.WIKITEXT103,
    "enwik8, memory 512": comparison.ENWIK8,
    "text8, memory 512": comparison.TEXT8,
}


def look_ahead(evidence: Evidence) -> Figure | None:
    """LaMemo's loss relative to Transformer-XL's, published and measured."""
    ours = []
    for pairing in PAIRINGS:
        verdict = evidence.verdict(*pairing[1:])
        if verdict is not None and verdict.margin is not None:
            mean, low, high = (None if share is None else 100 * share for share in verdict.margin.shares)
            mark = Mark(mean or 0.0, 0, low, high)
            heading = "" if ours else "measured"
            ours.append(MarkRow(label=pairing.label, marks={False: mark}, shown=f"{mark.x:+.1f}%", heading=heading))
    if not ours:
        return None
    quoted = []
    for label, each in PUBLISHED_PAIRS.items():
        nats = {model: each.test[model] if each.measure is BPC else math.log(each.test[model]) for model in PAIR}
        share = 100 * (1 - nats[LAMEMO] / nats[TRANSFORMER_XL])
        heading = "" if quoted else "published"
        quoted.append(MarkRow(label=label, marks={True: Mark(share, 0)}, shown=f"{share:+.1f}%", heading=heading))
    without_dropout = (
        "The novels' models have no dropout; trained so, the authors' LaMemo is worse than their Transformer-XL, too. "
        if any(row.label.startswith("novels") for row in ours)
        else ""
    )
    caption = f"LaMemo's test loss compared with that of Transformer-XL, trained alike. {without_dropout}{INTERVALS}"
    return row_figure(
        "look-ahead",
        "A memory that looks ahead",
        caption,
        [*quoted, *ours],
        x_label="% of loss below Transformer-XL's",
        better="right is better",
    )


PAIR = (LAMEMO, TRANSFORMER_XL)


def longer_memories(evidence: Evidence) -> Figure | None:
    """Memories beyond those of training: LaMemo without dropout, ours and the authors' code, and with dropout."""
    results, authors = evidence.results("lamemo-extrapolation", "small"), evidence.measurement("lamemo-authors")
    if results is None or authors is None:
        return None
    panels = {"novels, no dropout": _without_dropout(results, authors)}
    caption = (
        "Trained without dropout, LaMemo no longer predicts when distances exceed those of training (from a memory of "
        "256 on): in Mnemo (8 layers of 256, two seeds) and in the authors' code (8 layers of 384, one run)."
    )
    dropped = evidence.results("gpu-lamemo", "gpu")
    predicts = evidence.verdict("gpu-lamemo", "gpu", gpu_lamemo.STILL_PREDICTS)
    if dropped is not None and predicts is not None and predicts.holds:
        panels["enwik8, with dropout"] = _with_dropout(dropped)
        caption += " With the published dropout it does not break (12 layers of 512, three seeds)."
    chart = PanelChart(
        panels=panels,
        x_label="memory at evaluation, tokens (trained with 128)",
        y_label="test set, bits per byte",
        x_ticks={float(length): str(length) for length in (128, 256, 384, 512, 640)},
        y_limits=(1.0, 5.8),
        quoted="the authors' code",
    )
    return panel_figure("longer-memories", "LaMemo and memories longer than in training", caption, chart)


def _without_dropout(results: Results, authors: Mapping[str, Any]) -> list[Trace]:
    grid, traces = extrapolation.grid("small"), []
    for color, model in enumerate(PAIR):
        listed = authors["models"][model]["by_multiple"]
        marks = [Mark(extrapolation.TARGET * int(multiple), bits) for multiple, bits in listed.items()]
        measures = {multiple: extrapolation.at("small", multiple) for multiple in extrapolation.MULTIPLES}
        ours = _by_memory(grid, results, model, measures)
        traces.append(Trace(label=model, marks=marks, color=color, quoted=True))
        traces.append(Trace(label=model, marks=ours, color=color, shown=model, at=-3))
    return traces


def _with_dropout(results: Results) -> list[Trace]:
    """One name for both lines, which are close to each other."""
    grid = Grid(rows=gpu_lamemo.rows("gpu"), measure=BPC)
    measures = {multiple: gpu_lamemo.multiple(multiple) for multiple in gpu_lamemo.MULTIPLES}
    ours = {model: _by_memory(grid, results, row, measures) for model, row in zip(PAIR, ("lamemo", "xl"), strict=True)}
    return [
        Trace(label=model, marks=marks, color=color, shown="" if color else "both models", at=-4)
        for color, (model, marks) in enumerate(ours.items())
    ]


def _by_memory(grid: Grid, results: Results, row: str, measures: Mapping[int, Measure]) -> list[Mark]:
    """Mean, lowest and highest over seeds; memories in multiples of the targets."""
    marks = []
    for multiple, measure in measures.items():
        bits = [BPC.shown(loss) for loss in grid.by_seed(results, row, measure).values()]
        if bits:
            marks.append(Mark(extrapolation.TARGET * multiple, fmean(bits), min(bits), max(bits)))
    return marks


def facts_in_books(evidence: Evidence) -> Figure | None:
    """BABILong: right answers over the length of the text."""
    compared = evidence.measurement("h200-babilong-comparison")
    run = evidence.measurement("h200-babilong-associative")
    if compared is None or run is None:
        return None
    published = next(each for each in compared["published"] if each["label"] == "ARMT")
    with_memory, cut = (_answers(run["results"], kind) for kind in ("", "_cut"))
    traces = [
        Trace(label="memory cut", marks=cut, color=7, shown="memory cut", at=2, place="right"),
        Trace(label="with memory", marks=with_memory, color=0, shown="SmolLM2-135M with memory", at=3),
        Trace(
            label="ARMT (published)",
            marks=[Mark(length, 100 * accuracy) for length, accuracy in published["points"]],
            color=1,
            quoted=True,
            shown="ARMT, published",
            at=3,
        ),
    ]
    chart = PanelChart(
        panels={"": traces},
        x_label="length of the text, tokens (logarithmic axis)",
        y_label="BABILong qa1, right answers in %",
        x_logarithmic=True,
        x_ticks={512: "512", 2**12: "4k", 2**15: "32k", 2**18: "256k", 2**21: "2M", 5e7: "50M"},
        x_limits=(400, 7e7),
        y_limits=(0, 118),
    )
    caption = (
        f"One run of {run['options']['minutes']:g} minutes on one {run['machine']['name']}, shared with another "
        f"run, trained on texts of at most {trained_length(run):,} tokens. Bars are 95% intervals (Wilson) over test "
        "samples. The published values are means of three runs of another model (GPT-2)."
    )
    return panel_figure("facts-in-books", "Facts hidden in books", caption, chart)


def trained_length(measured: Mapping[str, Any]) -> int:
    """Tokens of the longest texts of the training. `8` are 8 segments, `4x96` are 4 of 96 tokens."""
    options = measured["options"]
    stages = [stage.partition("x") for stage in options["stages"]]
    return max(int(count) * int(size or options["segment"]) for count, _, size in stages)


def _answers(results: Sequence[Mapping[str, Any]], kind: str) -> list[Mark]:
    return [
        Mark(each["length"], 100 * each[f"accuracy{kind}"], *(100 * end for end in each[f"interval{kind}"]))
        for each in results
    ]


FIGURES: tuple[tuple[str, str, Callable[[Evidence], Figure | None]], ...] = (
    (XL_PAPER, "A transformer with a memory of earlier segments needs fewer bits at the same size.", enwik8_by_size),
    (XL_PAPER, "A memory is better than none, also at equal training time (our comparison).", recurrence_on_text),
    (XL_PAPER, "Reusing the state makes evaluation three orders of magnitude faster.", speed_of_evaluation),
    (arrangement.PAPER, "Long memories in a sixth of the layers do as well as in all.", few_long_memories),
    (RMT_PAPER, "A few memory tokens carry information over many segments.", accuracy_by_segments),
    (RMT_PAPER, "A few memory tokens keep much of what a cache of 40 slots gains.", tokens_on_text),
    (LAMEMO_PAPER, "A memory that looks ahead is better than one that does not.", look_ahead),
    (LAMEMO_PAPER, "Without dropout in training, longer memories break LaMemo (our finding).", longer_memories),
    (ARMT_PAPER, "An associative memory finds facts in long texts.", facts_in_books),
)
