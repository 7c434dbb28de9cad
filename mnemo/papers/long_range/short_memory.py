"""How long the short memories should be (Figure 4)."""

from __future__ import annotations

import statistics
from dataclasses import replace

from mnemo.config import to_json
from mnemo.papers.experiment import Budget, Cell, Experiment, Results, Table, Verdict
from mnemo.papers.long_range.arrangement import PAPER
from mnemo.papers.long_range.comparing import BITS, judged, missing, scored
from mnemo.papers.long_range.grids import SIXTH, Scale, characters, novels, short_cells
from mnemo.report.plots import Figure, Line, line_figure, lines_over_seeds, scatter_figure

PUBLISHED_LENGTHS = (
    *(32, 64, 96, 128, 192, 256, 320, 384, 448, 512),
    *(576, 640, 768, 896, 1024, 1152, 1280, 1536, 1792, 2048),
)
"""Twenty from 32 to 2048; the paper does not say which."""
LENGTHS: dict[Budget, tuple[int, ...]] = {
    "smoke": (4, 8, 16),
    "small": (32, 64, 128, 192, 256, 384, 512, 1024),
    "paper": PUBLISHED_LENGTHS,
}
STEPS = 600
"""At `small`."""
SPEED = "speed"
SLOWER = 0.98
"""Share of the speed that a longer memory must at least cost to count."""


def scale(budget: Budget) -> Scale:
    found = characters(budget)
    return replace(found, recipe=novels(STEPS)) if budget == "small" else found


def cells(budget: Budget) -> list[Cell]:
    """Speed is measured behind all trainings, when the device is free."""
    setting, lengths = scale(budget), LENGTHS[budget]
    trained = short_cells(setting, lengths)
    recipes = {str(length): to_json(setting.planned(SIXTH, setting.seeds[0], length)) for length in lengths}
    times = {"updates": 1, "rounds": 1} if budget == "smoke" else {"updates": 20, "rounds": 3}
    after = tuple(cell.name for cell in trained)
    timing = Cell(
        name=SPEED,
        job="long-pace",
        settings={"recipes": recipes, **times},
        labels={"cell": SPEED},
        after=after,
        alone=True,
    )
    return [*trained, timing]


def quality(results: Results) -> dict[int, dict[int, float]]:
    """Bits per character by length and seed."""
    found: dict[int, dict[int, float]] = {}
    for result in scored(results, share=SIXTH.share):
        found.setdefault(result.labels["short"], {})[result.labels["seed"]] = BITS.of(result)
    return dict(sorted(found.items()))


def speed(results: Results) -> dict[int, float]:
    """Tokens per second by length."""
    measured = [result.values.get("paces", {}) for result in results.select(cell=SPEED)]
    found = {int(length): pace["tokens_per_second"] for paces in measured for length, pace in paces.items()}
    return dict(sorted(found.items()))


def best_length(found: dict[int, dict[int, float]]) -> int:
    return min(found, key=lambda length: statistics.fmean(found[length].values()))


def is_complete(results: Results) -> bool:
    """Whether every length has every seed: a best one of a part would mean little."""
    expected = {cell.name for cell in cells(results.budget) if cell.name != SPEED}
    return expected <= {result.cell.name for result in scored(results)}


def verdicts(results: Results) -> list[Verdict]:
    return [_inside(results), _too_short(results), _slower(results)]


def _inside(results: Results) -> Verdict:
    claim = "The best short memory is neither the shortest nor the longest: less than a long one everywhere is better."
    paper = "best near 512 of 32-2,048: 0.974 bpc, against the 0.99 bpc of Transformer-XL"
    if not is_complete(results):
        return missing(claim, paper)
    found = quality(results)
    best, ends = best_length(found), (min(found), max(found))
    ours = f"best at {best}: {_text(found, best)}; " + "; ".join(f"{end}: {_text(found, end)}" for end in ends)
    if results.budget == "smoke":
        return judged(results, claim, paper, ours, None)
    inner = best_length({length: seeds for length, seeds in found.items() if length not in ends})
    lost = [[found[end][seed] - value for seed, value in found[inner].items()] for end in ends]
    needed = BITS.clear(0.0, len(found[inner]))
    if min(map(statistics.fmean, lost)) <= -needed:
        return judged(results, claim, paper, ours, False)
    clear = all(min(each) > 0 and statistics.fmean(each) >= needed for each in lost)
    note = "" if clear else f"; not by {needed} bpc with every seed"
    return judged(results, claim, paper, ours + note, clear or None)


def _too_short(results: Results) -> Verdict:
    claim = "The shortest memory is worse than the best by more than 0.01 bpc."
    paper = 'below 128 "a drop in modelling performance"'
    if not is_complete(results):
        return missing(claim, paper)
    found = quality(results)
    best, shortest = best_length(found), min(found)
    lost = statistics.fmean(found[shortest].values()) - statistics.fmean(found[best].values())
    ours = f"{shortest}: {lost:+.{BITS.digits}f} bpc beside {best}"
    return judged(results, claim, paper, ours, lost > BITS.equal(0.0))


def _slower(results: Results) -> Verdict:
    claim = "Short memories beyond the best length slow the model down."
    paper = 'beyond 512 it "further slows the model down"'
    rates = speed(results)
    if not is_complete(results) or not rates:
        return missing(claim, paper)
    best, longest = best_length(quality(results)), max(rates)
    ours = f"{rates[longest]:,.0f} tokens/s at {longest}, {rates[best]:,.0f} at {best}"
    if best == longest and results.budget != "smoke":
        return judged(results, claim, paper, f"{ours}; nothing is longer than the best", None)
    return judged(results, claim, paper, ours, rates[longest] < SLOWER * rates[best])


def _text(found: dict[int, dict[int, float]], length: int) -> str:
    return BITS.text(list(found[length].values()))


def figures(results: Results) -> list[Figure]:
    found, rates = quality(results), speed(results)
    return [*_quality_figure(found), *_speed_figure(rates), *_trade(found, rates)]


def _quality_figure(found: dict[int, dict[int, float]]) -> list[Figure]:
    points = [("test", float(length), value) for length, seeds in found.items() for value in seeds.values()]
    caption = "Test set; the band is the range of seeds. A sixth of the layers, interleaved, has long memories besides."
    return _over_lengths("quality", "Quality by short memory", caption, lines_over_seeds(points), BITS.unit)


def _speed_figure(rates: dict[int, float]) -> list[Figure]:
    lines = [Line("training", [(float(length), rate) for length, rate in rates.items()])] if rates else []
    caption = "Training steps on random tokens, timed one length after the other."
    return _over_lengths("speed", "Speed by short memory", caption, lines, "tokens per second")


def _over_lengths(slug: str, title: str, caption: str, lines: list[Line], unit: str) -> list[Figure]:
    if not lines:
        return []
    label = "length of short memories"
    return [line_figure(slug, title, caption, lines, x_label=label, y_label=unit, x_kind="doubling")]


def _trade(found: dict[int, dict[int, float]], rates: dict[int, float]) -> list[Figure]:
    groups = {
        str(length): [(rates[length], value) for value in seeds.values()]
        for length, seeds in found.items()
        if length in rates
    }
    if not groups:
        return []
    caption = "A group for every short memory, a point for every seed. Best is below and to the right."
    title, x_label = "Quality against speed", "tokens per second"
    return [scatter_figure("trade", title, caption, groups, x_label=x_label, y_label=BITS.unit)]


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"


def tables(results: Results) -> list[Table]:
    found, rates = quality(results), speed(results)
    rows = [
        [str(length), _text(found, length), _rate(rates.get(length)), PUBLISHED.get(length, "-")] for length in found
    ]
    headers = ["short memory", BITS.unit, "tokens/s", "paper's bpc"]
    caption = "Test set. The paper's numbers are for enwik8; '-' where it only has a picture."
    return [Table(title="Length of short memories", headers=headers, rows=rows, caption=caption)] if rows else []


PUBLISHED = {128: "0.9916", 512: "0.974"}
SHORT_MEMORY = Experiment(
    name="long-short-memory",
    title="How long the short memories should be",
    paper=PAPER,
    covers=("Figure 4",),
    claim="With a sixth of the layers long range, interleaved, a medium length of the other memories (near 512) is "
    "best; longer ones are slower and worse.",
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "At `small`: the model of long-arrangement with 2 of 12 long layers of 1,024, 600 steps on novels, eight "
        "lengths, two seeds. The longest short memory there is as long as the long ones.",
        "The paper does not name its twenty lengths; at `paper` they are ours.",
        "Speed comes from timed steps behind all trainings, not from the trainings, which may share a GPU.",
    ),
)
