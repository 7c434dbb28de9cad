"""Copying long sequences: more segments at one length, and more length at one memory (Figure 5a, b)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mnemo.data.tasks import Copy
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.rmt import published
from mnemo.papers.rmt.published import MODELS, RMT, XL
from mnemo.papers.rmt.recipes import LONG_AS_PUBLISHED, SMALL, SMOKE, stages_of, task_cell
from mnemo.papers.rmt.series import ACCURACY, CACHES, GROWING, PAPER, PUBLISHED_WAY, TINY
from mnemo.papers.rmt.telling import (
    FAR,
    SOLVED,
    is_far_below,
    is_solved,
    judged,
    measured_lines,
    quoted_lines,
    said,
    spread,
    unique,
)
from mnemo.report.plots import line_figure

ALPHABET = 8
GUESSING = 1 / ALPHABET
SEEDS = {"smoke": 1, "small": 1, "paper": 3}
TRAINING = {"smoke": SMOKE, "small": SMALL, "paper": LONG_AS_PUBLISHED}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    size: int
    """Symbols of the sequence that is cut into more and more segments."""
    memory: dict[int, int]
    """Memory by the number of segments that it is cut into."""
    growing: tuple[int, ...]
    """Sizes of the sequences at one length of segments and one memory."""
    segment: int
    fixed: int
    """Memory at any size."""

    def segments(self, size: int) -> int:
        return 3 * size // self.segment


SIZES = {
    "smoke": Sizes(size=6, memory={3: 3}, growing=(4,), segment=6, fixed=3),
    "small": Sizes(size=48, memory={9: 16, 6: 12, 3: 24}, growing=(72, 48, 24, 8), segment=24, fixed=12),
    "paper": Sizes(size=120, memory=published.LONG_COPY_MEMORY, growing=(40, 120, 240, 360), segment=120, fixed=60),
}
SPLITS = {"smoke": TINY, "small": {}, "paper": {"valid": 10_000, "test": 20_000}}


def _cell(budget: Budget, panel: str, model: str, size: int, segments: int, memory: int, seed: int) -> Cell:
    segment = 3 * size // segments
    shorter = range(segment, size, segment) if budget != "paper" else ()
    sizes: Sequence[int] = [*shorter, size]
    tasks = [Copy(symbols=each, alphabet=ALPHABET, **SPLITS[budget]) for each in sizes]
    stages = stages_of(tasks, model, segment=segment, memory=memory, seed=seed, training=TRAINING[budget])
    labels = {"panel": panel, "model": model, "size": size, "segments": segments, "memory": memory, "seed": seed}
    return task_cell(f"{panel}-{size}-in-{segments}-{model.lower()}-{memory}-seed{seed}", stages, labels)


def cells(budget: Budget) -> list[Cell]:
    sizes, seeds = SIZES[budget], range(1, SEEDS[budget] + 1)
    cut = [
        _cell(budget, "segments", model, sizes.size, count, memory, seed)
        for count, memory in sizes.memory.items()
        for seed in seeds
        for model in (RMT, XL)
    ]
    longer = [
        _cell(budget, "size", model, size, sizes.segments(size), sizes.fixed, seed)
        for size in sizes.growing
        for seed in seeds
        for model in (RMT, XL)
    ]
    return [*cut, *longer]


def _runs(results: Results, panel: str, model: str, **place: int) -> list[float]:
    return results.values(ACCURACY, panel=panel, model=model, **place)


def _asked(results: Results, count: int) -> int:
    """Runs in so many segments; 0 where this budget has none."""
    return SEEDS[results.budget] if count in SIZES[results.budget].memory else 0


def _solved_in(results: Results, count: int) -> Verdict:
    return judged(
        results,
        f"RMT copies a long sequence in {count} segments (every run at {SOLVED} or better).",
        said(published.LONG_COPY_BY_SEGMENTS[RMT, count]),
        {RMT: _runs(results, "segments", RMT, segments=count)},
        is_solved,
        wanted=_asked(results, count),
    )


def _falls(results: Results) -> Verdict:
    return judged(
        results,
        f"In 9 segments Transformer-XL is far below RMT (mean lower by {FAR} or more).",
        f"Transformer-XL {published.LONG_COPY_BY_SEGMENTS[XL, 9]}, RMT {published.LONG_COPY_BY_SEGMENTS[RMT, 9]}",
        {model: _runs(results, "segments", model, segments=9) for model in (XL, RMT)},
        is_far_below,
        wanted=_asked(results, 9),
        margin=FAR,
    )


def _longer(results: Results, at: int) -> Verdict:
    """At the second longest (-2) or the longest (-1) size of this budget."""
    theirs = sorted(SIZES["paper"].growing)[at]
    size = sorted(SIZES[results.budget].growing)[max(at, -len(SIZES[results.budget].growing))]
    quoted = [f"{model} {published.LONG_COPY_BY_SIZE[model, theirs]}" for model in (XL, RMT)]
    return judged(
        results,
        f"At one memory, RMT copies {size} symbols far better than Transformer-XL ({theirs} in the paper).",
        ", ".join(quoted),
        {model: _runs(results, "size", model, size=size) for model in (XL, RMT)},
        is_far_below,
        wanted=SEEDS[results.budget],
        margin=FAR,
    )


def _degrades(results: Results) -> Verdict:
    sizes = sorted(SIZES[results.budget].growing)
    return judged(
        results,
        f"At one memory, RMT's accuracy falls from {sizes[0]} symbols to {sizes[-1]} (by more than {1 - SOLVED:.2f}).",
        f"120: {published.LONG_COPY_BY_SIZE[RMT, 120]}, 360: {published.LONG_COPY_BY_SIZE[RMT, 360]}",
        {f"{size} symbols": _runs(results, "size", RMT, size=size) for size in (sizes[0], sizes[-1])},
        lambda short, long: fmean(short) - fmean(long) > 1 - SOLVED,
        wanted=SEEDS[results.budget] if len(sizes) > 1 else 0,
        margin=FAR,
    )


def verdicts(results: Results) -> list[Verdict]:
    return [
        *(_solved_in(results, count) for count in (9, 6, 3)),
        _falls(results),
        _longer(results, -2),
        _longer(results, -1),
        _degrades(results),
    ]


def _panel(results: Results, panel: str) -> Results:
    return Results(budget=results.budget, cells=results.select(panel=panel))


def figures(results: Results) -> list[Figure]:
    drawn = []
    for panel, x_label, quoted in (
        ("segments", "segments", published.LONG_COPY_BY_SEGMENTS),
        ("size", "symbols to copy", published.LONG_COPY_BY_SIZE),
    ):
        lines = measured_lines(_panel(results, panel), ACCURACY, "model", panel, MODELS)
        axes: dict[str, Any] = {"x_label": x_label, "y_label": "accuracy per character"}
        axes |= {"reference": ("guessing", GUESSING), "x_from_least": panel == "segments"}
        title, caption = f"Long copies: accuracy by {x_label}", "Mean over seeds; the band is their range."
        theirs = "The authors' result files, sequences of 120 symbols." if panel == "segments" else "Memory 60."
        if lines:
            drawn.append(line_figure(f"long-copy-by-{panel}", title, caption, lines, **axes))
            lines = quoted_lines(quoted, MODELS)
            drawn.append(
                line_figure(f"long-copy-by-{panel}-published", f"{title}, as published", theirs, lines, **axes)
            )
    return drawn


def _table(results: Results, panel: str, title: str) -> Table:
    names = ("model", "size", "segments", "memory")
    places = unique(tuple(each.labels[name] for name in names) for each in results.select(panel=panel))
    quoted = published.LONG_COPY_BY_SEGMENTS if panel == "segments" else published.LONG_COPY_BY_SIZE
    paper, here = SIZES["paper"], SIZES[results.budget]
    longer = paper.segment / here.segment if panel == "size" else paper.size / here.size
    rows = []
    for place in places:
        labels: dict[str, Any] = dict(zip(names, place, strict=True))
        theirs = quoted.get((labels["model"], labels[panel] * longer if panel == "size" else labels[panel]))
        rows.append((*place, spread(results.values(ACCURACY, panel=panel, **labels)), said(theirs)))
    caption = "Published values are quoted, not run."
    if longer != 1:
        caption += f" They belong to sequences of {longer:g} times the length."
    return Table(title, (*names, "ours, per character", "paper"), rows, caption)


EXPERIMENT = Experiment(
    name="rmt-long-copy",
    title="Copy long sequences",
    paper=PAPER,
    covers=("Figure 5a", "Figure 5b"),
    claim="RMT copies long sequences in many segments, where Transformer-XL falls to guessing; at a memory of one size "
    "it degrades later as sequences grow.",
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=lambda results: [
        _table(results, "segments", "One length, more segments"),
        _table(results, "size", "One memory, longer sequences"),
    ],
    notes=(
        f"{GROWING} The published runs take 250,000 to 900,000 steps of 32 samples instead.",
        "At the small budget, models have 2 layers of width 128 with the norm before each layer; the published ones "
        f"have 4 with the norm behind. {CACHES}",
        *PUBLISHED_WAY,
        "The paper copies 40, 120, 240 and 360 symbols in segments of 120 with a memory of 60 (Figure 5b), and 120 "
        "symbols in 3, 6 and 9 segments (Figure 5a). The small budget copies 8, 24, 48 and 72 in segments of 24 "
        "with a memory of 12, and 48 symbols in 3, 6 and 9 segments.",
        "Figure 5a's caption says memory 60; the result files have 60, 30 and 40 in 3, 6 and 9 segments, and so do we, "
        "in proportion.",
        f"The small budget has one seed: models closer than {FAR} are not told apart there.",
    ),
)
