"""How long the short memories should be (Figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from mnemo.papers.experiment import Budget, Cell, Experiment, Results, Table
from mnemo.papers.figures import scores_over
from mnemo.papers.grid import BPC, Grid, Measure
from mnemo.papers.judge import Better, Claim, Every, Observed, Outcome, judge, undecided
from mnemo.papers.long_range.arrangement import PAPER
from mnemo.papers.long_range.grids import SIXTH, Scale, characters, novels
from mnemo.papers.long_range.measuring import timing_cell
from mnemo.papers.tables import Column, grid_table, label, published, score
from mnemo.report.plots import Figure, Line, line_figure

PUBLISHED_LENGTHS = (
    *(32, 64, 96, 128, 192, 256, 320, 384, 448, 512),
    *(576, 640, 768, 896, 1024, 1152, 1280, 1536, 1792, 2048),
)
"""Twenty from 32 to 2048; the paper does not list them."""
LENGTHS: dict[Budget, tuple[int, ...]] = {
    "self-test": (4, 8, 16),
    "small": (32, 64, 128, 192, 256, 384, 512, 1024),
    "paper": PUBLISHED_LENGTHS,
}
PUBLISHED = {128: "0.9916", 512: "0.974"}
STEPS = 600
"""At `small`."""
SPEED = "speed"
SLOWER = 0.98
"""Relative speed below which a longer memory counts as slower."""
VALID = Measure(unit="nats", digits=4, key="best_valid_loss")
X_LABEL = "length of short memories"
INSIDE = (
    "The best short memory is neither the shortest nor the longest: less than a long one everywhere is better.",
    "best near 512 of 32-2,048: 0.974 bpc, against the 0.99 bpc of Transformer-XL",
)
TOO_SHORT = ("The shortest memory is worse than the best.", 'below 128 "a drop in modelling performance"')
SLOWS = ("Short memories beyond the best length slow the model down.", 'beyond 512 it "further slows the model down"')


def scale(budget: Budget) -> Scale:
    found = characters(budget)
    return replace(found, recipe=novels(STEPS)) if budget == "small" else found


def grid(budget: Budget) -> Grid:
    setting, lengths = scale(budget), LENGTHS[budget]
    rows = [setting.short_row(length, PUBLISHED.get(length, "-")) for length in lengths]
    trained = Grid(rows=rows, measure=BPC)
    return replace(trained, last=[_timing(budget, setting, tuple(cell.name for cell in trained.cells))])


def _timing(budget: Budget, setting: Scale, trained: tuple[str, ...]) -> Cell:
    """Speed is measured after all trainings, when the device is free."""
    first = replace(setting.recipe, train=replace(setting.recipe.train, seed=setting.seeds[0]))
    seeded = replace(setting, recipe=first)
    recipes = {str(length): seeded.planned(SIXTH, length) for length in LENGTHS[budget]}
    updates, rounds = (1, 1) if budget == "self-test" else (20, 3)
    return timing_cell(SPEED, recipes, updates=updates, rounds=rounds, after=trained)


def speed(results: Results) -> dict[int, float]:
    """Tokens per second by length."""
    measured = [result.values.get("paces", {}) for result in results.select(cell=SPEED)]
    found = {int(length): pace["tokens_per_second"] for paces in measured for length, pace in paces.items()}
    return dict(sorted(found.items()))


def best_length(results: Results, lengths: Sequence[int]) -> int:
    """By validation loss, so that the choice does not favour the test score of the chosen length."""
    trained = grid(results.budget)
    return min(lengths, key=lambda length: fmean(trained.by_seed(results, str(length), VALID).values()))


def is_complete(results: Results) -> bool:
    """Whether every length has every seed: the best of a part would mean little."""
    trained = grid(results.budget)
    scored = [trained.by_seed(results, row.key, measure) for row in trained.rows for measure in (BPC, VALID)]
    return all(len(values) == len(scale(results.budget).seeds) for values in scored)


def claims(results: Results) -> list[Claim]:
    """The lengths that are compared are chosen by validation scores."""
    if not is_complete(results):
        return [undecided(*each, "not measured yet") for each in (INSIDE, TOO_SHORT, SLOWS)]
    shortest, *inner, longest = LENGTHS[results.budget]
    middle, best = (str(best_length(results, lengths)) for lengths in (inner, [*inner, longest]))
    ends = tuple(Better("", "", middle, str(end)) for end in (shortest, longest))
    return [Every(*INSIDE, ends), Better(*TOO_SHORT, best, str(shortest)), Observed(*SLOWS, _slower)]


def _slower(results: Results) -> Outcome | None:
    rates, lengths = speed(results), LENGTHS[results.budget]
    if not rates:
        return None
    best, longest = best_length(results, lengths), max(rates)
    ours = f"{rates[longest]:,.0f} tokens/s at {longest}, {rates[best]:,.0f} at {best}"
    if best == longest:
        return Outcome(f"{ours}; no length is longer than the best", None)
    return Outcome(ours, rates[longest] < SLOWER * rates[best])


def figures(results: Results) -> list[Figure]:
    trained, rates = grid(results.budget), speed(results)
    quality = scores_over(
        trained,
        results,
        line=lambda row: "test",
        x=lambda row: float(row.labels["short"]),
        slug="quality",
        title="Quality by short memory",
        x_label=X_LABEL,
        caption="Test set; the band is the range of seeds. A sixth of the layers, interleaved, is long range.",
        x_kind="doubling",
    )
    return [*quality, *_speed_figure(rates), *_trade(trained, results, rates)]


def _speed_figure(rates: dict[int, float]) -> list[Figure]:
    if not rates:
        return []
    lines = [Line("training", [(float(length), rate) for length, rate in rates.items()])]
    caption, title = "Training steps on random tokens, timed one length after the other.", "Speed by short memory"
    unit = "tokens per second"
    return [line_figure("speed", title, caption, lines, x_label=X_LABEL, y_label=unit, x_kind="doubling")]


def _trade(trained: Grid, results: Results, rates: dict[int, float]) -> list[Figure]:
    return scores_over(
        replace(trained, rows=[row for row in trained.rows if row.labels["short"] in rates]),
        results,
        line=lambda row: row.label,
        x=lambda row: rates[row.labels["short"]],
        slug="trade",
        title="Quality against speed",
        x_label="tokens per second",
        caption="Test set, a point for every length. Best is below and to the right.",
    )


def tables(results: Results) -> list[Table]:
    rates = speed(results)
    pace = Column("tokens/s", lambda grid, results, row: _rate(rates.get(row.labels["short"])))
    columns = (label("short memory"), score(BPC.unit), pace, published("paper's bpc"))
    caption = "Test set. The paper's numbers are for enwik8; '-' if it has a curve only."
    return grid_table(grid(results.budget), results, *columns, title="Length of short memories", caption=caption)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"


SHORT_MEMORY = Experiment(
    name="long-short-memory",
    title="How long the short memories should be",
    paper=PAPER,
    covers=("Figure 4",),
    claim="With a sixth of the layers long range, interleaved, a medium length of the other memories (near 512) is "
    "best; longer ones are slower and worse.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, claims(results)),
    figures=figures,
    tables=tables,
    notes=(
        "At `small`: the model of long-arrangement with 2 of 12 long layers of 1,024, 600 steps on novels, eight "
        "lengths, two seeds. The longest short memory there is as long as the long ones.",
        "The best length is chosen by validation loss and judged by test loss.",
        "The paper does not name its twenty lengths; at `paper` they are ours.",
        "Speed comes from timed steps after all trainings, because trainings may share a GPU.",
    ),
)
