"""Copying long sequences: more segments at one length, and more length at one memory (Figure 5a, b)."""

from __future__ import annotations

from dataclasses import dataclass

from mnemo.data.tasks import Copy
from mnemo.papers.experiment import Budget, Experiment, Figure, Results, Table
from mnemo.papers.grid import ACCURACY, Grid, Row
from mnemo.papers.judge import Better, Claim, far_below, judge, solves
from mnemo.papers.rmt import published
from mnemo.papers.rmt.accuracy import range_of_segments
from mnemo.papers.rmt.published import MODELS, RMT, XL, beside, quote
from mnemo.papers.rmt.recipes import LONG_AS_PUBLISHED, SELF_TEST, SMALL, in_stages
from mnemo.papers.rmt.series import CACHES, GROWING, ONE_SEED, PAPER, PUBLISHED_WAY, TINY, accuracy_over
from mnemo.papers.tables import cell_labels, grid_table, num_seeds, score
from mnemo.papers.tables import published as published_value

ALPHABET = 8
BY_SEGMENTS, BY_SIZE = "segments", "size"
QUOTED = {BY_SEGMENTS: published.LONG_COPY_BY_SEGMENTS, BY_SIZE: published.LONG_COPY_BY_SIZE}
TRAINING = {"self-test": SELF_TEST, "small": SMALL, "paper": LONG_AS_PUBLISHED}
SPLITS = {"self-test": TINY, "small": {}, "paper": {"valid": 10_000, "test": 20_000}}
FEWER_ARE_RIGHT = 0.01
"""Accuracy that RMT must lose from short to long sequences."""


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

    def published(self, panel: str, value: int) -> int:
        """The number of segments, or of symbols, that stands for this one in the paper."""
        return value if panel == BY_SEGMENTS else value * SIZES["paper"].segment // self.segment


SIZES = {
    "self-test": Sizes(size=6, memory={3: 3}, growing=(4,), segment=6, fixed=3),
    "small": Sizes(size=48, memory={9: 16, 6: 12, 3: 24}, growing=(72, 48, 24, 8), segment=24, fixed=12),
    "paper": Sizes(size=120, memory=published.LONG_COPY_MEMORY, growing=(40, 120, 240, 360), segment=120, fixed=60),
}


def key(model: str, panel: str, value: int) -> str:
    return f"{model} with {value} {'segments' if panel == BY_SEGMENTS else 'symbols'}"


def _row(budget: Budget, panel: str, model: str, size: int, segments: int, memory: int) -> Row:
    segment = 3 * size // segments
    shorter = range_of_segments(segment, size) if budget != "paper" else ()
    labels = {"panel": panel, "model": model, "size": size, "segments": segments, "memory": memory}
    there = SIZES[budget].published(panel, labels[panel])
    return Row(
        key=key(model, panel, labels[panel]),
        name=f"{panel}-{size}-in-{segments}-{model.lower()}-{memory}",
        label=key(model, panel, labels[panel]),
        seeds=range(1, ONE_SEED[budget] + 1),
        settings=in_stages(
            [Copy(symbols=each, alphabet=ALPHABET, **SPLITS[budget]) for each in (*shorter, size)],
            model,
            segment=segment,
            memory=memory,
            training=TRAINING[budget],
        ),
        job="rmt-task",
        labels=labels,
        paper=(quote(QUOTED[panel], model, there),),
        color=MODELS.index(model),
    )


def panel_rows(budget: Budget, panel: str) -> list[Row]:
    sizes = SIZES[budget]
    places = [(sizes.size, count, memory) for count, memory in sizes.memory.items()]
    if panel == BY_SIZE:
        places = [(size, 3 * size // sizes.segment, sizes.fixed) for size in sizes.growing]
    return [_row(budget, panel, model, *place) for place in places for model in (RMT, XL)]


def grid(budget: Budget, *panels: str) -> Grid:
    rows = [row for panel in panels or QUOTED for row in panel_rows(budget, panel)]
    return Grid(rows=rows, measure=ACCURACY)


def claims(budget: Budget) -> list[Claim]:
    sizes = sorted(SIZES[budget].growing)
    shortest, longest = (key(RMT, BY_SIZE, size) for size in (sizes[0], sizes[-1]))
    return [
        *(_solved_in(count) for count in (9, 6, 3)),
        far_below(
            "In 9 segments Transformer-XL is far below RMT (mean lower by 0.1 or more).",
            beside(QUOTED[BY_SEGMENTS], 9, XL, RMT),
            key(XL, BY_SEGMENTS, 9),
            key(RMT, BY_SEGMENTS, 9),
        ),
        *(_longer(budget, size) for size in sizes[-2:]),
        Better(
            f"At one memory, RMT's accuracy falls from {sizes[0]} symbols to {sizes[-1]} (by {FEWER_ARE_RIGHT} or "
            "more).",
            f"120: {QUOTED[BY_SIZE][RMT][120]}, 360: {QUOTED[BY_SIZE][RMT][360]}",
            shortest,
            longest,
            needed=FEWER_ARE_RIGHT,
        ),
    ]


def _solved_in(count: int) -> Claim:
    text = f"RMT copies a long sequence in {count} segments (every run at 0.99 or better)."
    return solves(text, QUOTED[BY_SEGMENTS][RMT][count], key(RMT, BY_SEGMENTS, count))


def _longer(budget: Budget, size: int) -> Claim:
    theirs = SIZES[budget].published(BY_SIZE, size)
    return far_below(
        f"At one memory, RMT copies {size} symbols far better than Transformer-XL ({theirs} in the paper).",
        beside(QUOTED[BY_SIZE], theirs, XL, RMT),
        key(XL, BY_SIZE, size),
        key(RMT, BY_SIZE, size),
    )


def figures(results: Results) -> list[Figure]:
    axes = {BY_SEGMENTS: "segments", BY_SIZE: "symbols to copy"}
    return [
        figure
        for panel, x_label in axes.items()
        for figure in accuracy_over(
            grid(results.budget, panel),
            results,
            panel,
            slug=f"long-copy-by-{panel}",
            title=f"Long copies: accuracy by {x_label}",
            x_label=x_label,
            chance=1 / ALPHABET,
        )
    ]


def tables(results: Results) -> list[Table]:
    titles = {BY_SEGMENTS: "One length, more segments", BY_SIZE: "One memory, longer sequences"}
    return [
        table
        for panel, title in titles.items()
        for table in grid_table(
            grid(results.budget, panel),
            results,
            *cell_labels("model", "size", "segments", "memory"),
            num_seeds(),
            score("ours, per character"),
            published_value("paper"),
            title=title,
            caption="Published values are those of sequences in proportion: 120 symbols, or segments of 120.",
        )
    ]


EXPERIMENT = Experiment(
    name="rmt-long-copy",
    title="Copy long sequences",
    paper=PAPER,
    covers=("Figure 5a", "Figure 5b"),
    claim="RMT copies long sequences in many segments, where Transformer-XL falls to guessing; at a memory of one size "
    "it degrades later as sequences grow.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, claims(results.budget)),
    figures=figures,
    tables=tables,
    notes=(
        f"{GROWING} The published runs take 250,000 to 900,000 steps of 32 samples instead.",
        "small: 2 layers of width 128 with the norm before each layer, one seed; the published models have 4 with the "
        f"norm after each. {CACHES}",
        *PUBLISHED_WAY,
        "The paper copies 40, 120, 240 and 360 symbols in segments of 120 with a memory of 60 (Figure 5b), and 120 "
        "symbols in 3, 6 and 9 segments (Figure 5a). small copies 8, 24, 48 and 72 in segments of 24 with a memory of "
        "12, and 48 symbols in 3, 6 and 9 segments.",
        "Figure 5a's caption says memory 60; the result files have 60, 30 and 40 in 3, 6 and 9 segments. small has "
        "memories in proportion.",
    ),
)
