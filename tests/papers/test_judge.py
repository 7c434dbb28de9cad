"""The one rule for verdicts: every edge of yes, no and open, the pooled spread, Holm, and few seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mnemo.papers.experiment import Budget, CellResult, Results
from mnemo.papers.grid import ACCURACY, BPC, PPL, Grid, Measure, Row
from mnemo.papers.intervals import Comparison, Pair, Spread, decide, holm, pooled, t_quantile, within
from mnemo.papers.judge import (
    DELTA,
    AsGood,
    Better,
    Claim,
    Every,
    Exceeds,
    Gain,
    Observed,
    Outcome,
    Reaches,
    Within,
    at_most_worse,
    far_below,
    gain_interval,
    judge,
    solves,
    undecided,
)
from mnemo.report.findings import Verdict

SPREAD = (0.001, -0.001, 0.0)
"""Deviations of three seeds: their standard deviation is 0.001."""


def row(key: str, num_seeds: int = 3) -> Row:
    return Row(
        key=key, name=key, label=f"row {key}", seeds=range(1, num_seeds + 1), settings=lambda seed: {"seed": seed}
    )


def grid(*keys: str, num_seeds: int = 3, measure: Measure = BPC) -> Grid:
    return Grid(rows=[row(key, num_seeds) for key in keys], measure=measure)


def made_up(of: Grid, runs: Mapping[str, Sequence[float | None]], budget: Budget = "small") -> Results:
    """Test losses, or accuracies, of the first seeds of each row."""
    cells = []
    for key, values in runs.items():
        found = of.row(key)
        assert found is not None
        for seed, value in enumerate(values, 1):
            stored: dict[str, Any] = {"scores": {"test": {"loss": value}}, "character_accuracy": value}
            cell = found.cell(seed)
            cells.append(CellResult(cell=cell, values=stored, seconds=1.0, hardware="none", versions={}))
    return Results(budget=budget, cells=cells)


def around(mean: float, deviations: Sequence[float] = SPREAD) -> list[float]:
    return [mean + deviation for deviation in deviations]


def judged(of: Grid, runs: Mapping[str, Sequence[float | None]], *claims: Claim, budget: Budget = "small") -> list[Any]:
    return [verdict.holds for verdict in judge(of, made_up(of, runs, budget), claims)]


def one(of: Grid, runs: Mapping[str, Sequence[float | None]], claim: Claim, budget: Budget = "small") -> Verdict:
    (found,) = judge(of, made_up(of, runs, budget), [claim])
    return found


@pytest.mark.parametrize(
    ("df", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (6, 2.4469), (10, 2.2281), (29, 2.0452)],
)
def test_quantiles_of_students_t(df: int, expected: float) -> None:
    assert t_quantile(df) == pytest.approx(expected, abs=5e-5)
    assert within(t_quantile(df), df) == pytest.approx(0.95, abs=1e-12)


def test_students_t_at_other_levels_and_many_degrees() -> None:
    assert t_quantile(4, 0.01) == pytest.approx(4.6041, abs=5e-5)
    assert t_quantile(7, 0.001) == pytest.approx(5.4079, abs=5e-5)
    assert t_quantile(5000) == pytest.approx(1.9604, abs=5e-5)
    assert within(0.0, 3) == 0 and within(1e9, 3) == pytest.approx(1.0)


def test_the_spread_is_pooled_over_distinct_pairs_with_the_sum_of_their_degrees() -> None:
    first = Pair("a", "b", "nats", (0.1, 0.2, 0.3))
    second = Pair("a", "c", "nats", (1.0, 1.4))
    backwards = Pair("b", "a", "nats", (-0.1, -0.2, -0.3))
    other = Pair("a", "b", "accuracy", (0.0, 1.0))
    single = Pair("a", "d", "nats", (7.0,))
    found = pooled([first, second, backwards, first, other, single])
    assert found["nats"].df == 3 and found["nats"].deviation == pytest.approx(math.sqrt((0.02 + 0.08) / 3))
    assert found["accuracy"].df == 1 and found["accuracy"].deviation == pytest.approx(math.sqrt(0.5))


def test_an_interval_has_the_width_of_the_pooled_spread_and_its_own_number_of_seeds() -> None:
    spread = Spread(0.2, 4)
    assert spread.half_width(4) == pytest.approx(2.7764 * 0.1, abs=1e-4)
    assert spread.half_width(1) == pytest.approx(2.7764 * 0.2, abs=1e-4)
    assert math.isinf(Spread(math.nan, 0).half_width(1))
    assert spread.p_value(spread.half_width(3), 3) == pytest.approx(0.05)
    assert Spread(math.nan, 0).p_value(9.0, 1) == 1.0
    assert Spread(0.0, 2).p_value(1e-9, 2) == 0.0 and Spread(0.0, 2).p_value(0.0, 2) == 1.0


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.01, 0.9]) == pytest.approx([1.0, 0.03, 1.0])
    assert holm([]) == [] and holm([0.2]) == [0.2]


HALF_WIDTH = t_quantile(2) * 0.001 / math.sqrt(3)
"""Of the interval of a single pair whose gains deviate by SPREAD: 0.0025."""


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (0.0031, True),  # the interval lies above 0 and the mean above 0.3%
        (0.0029, None),  # significant, but below 0.3% of the loss
        (0.003 - HALF_WIDTH * 0.99, None),  # the upper bound reaches 0.3%
        (0.003 - HALF_WIDTH * 1.01, False),
        (-0.1, False),
    ],
)
def test_better(gain: float, expected: bool | None) -> None:
    """The loss of b is 1, so that 0.3% of it are 0.003."""
    runs = {"a": around(1 - gain), "b": [1.0, 1.0, 1.0]}
    found = one(grid("a", "b"), runs, Better("a is better.", "b", "a", "b"))
    assert found.holds is expected and found.claim == "a is better." and "preliminary" not in found.ours


def test_better_needs_an_interval_above_zero() -> None:
    wide = [20 * deviation for deviation in SPREAD]
    assert judged(grid("a", "b"), {"a": around(0.98, wide), "b": [1.0] * 3}, Better("", "", "a", "b")) == [None]


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds differ by far more than the rows, but alike."""
    seeds = [0.0, 0.3, -0.2]
    runs = {"a": [0.99 + each for each in seeds], "b": [1 + each + 0.0001 * index for index, each in enumerate(seeds)]}
    assert judged(grid("a", "b"), runs, Better("", "", "a", "b")) == [True]
    assert judged(grid("a", "b"), {"a": runs["a"], "b": runs["b"][::-1]}, Better("", "", "a", "b")) == [None]


def test_the_unit_of_a_verdict_is_nats_whatever_is_shown() -> None:
    runs = {"a": around(4.50), "b": [4.52] * 3}
    shown = [one(grid("a", "b", measure=measure), runs, Better("", "", "a", "b")).ours for measure in (BPC, PPL)]
    assert all("gain 0.0200 (0.0175 to 0.0225) nats" in each for each in shown)
    assert "row b 6.5210 ± 0.0000 bpc" in shown[0] and "row b 91.84 ± 0.00 ppl" in shown[1]


ALL_AND_NONE = {"all": [1.0] * 3, "none": [1.1] * 3}
"""The gain is 0.1: half of it may be lost."""
AS_GOOD = AsGood("", "", "few", "all", Gain("all", "none"))


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        (-0.3, True),
        (0.05 - HALF_WIDTH, True),
        (0.05 - HALF_WIDTH / 4, None),
        (0.05 + HALF_WIDTH / 4, None),
        (0.05 + HALF_WIDTH, False),
    ],
)
def test_as_good(lost: float, expected: bool | None) -> None:
    """Two pairs are pooled, of which one does not vary: the interval is half as wide as that of one pair."""
    runs = {"few": around(1 + lost), **ALL_AND_NONE}
    found = one(grid("few", "all", "none"), runs, AS_GOOD)
    assert found.holds is expected and "a loss of 0.0500 is allowed" in found.ours


@pytest.mark.parametrize("gain", [0.0, -0.1, 0.002])
def test_nothing_is_as_good_as_a_memory_without_a_clear_gain(gain: float) -> None:
    runs = {"few": around(0.5), "all": [1.0] * 3, "none": around(1 + gain)}
    found = one(grid("few", "all", "none"), runs, AS_GOOD)
    assert found.holds is None and "no clear gain of row all over row none" in found.ours


def test_one_gain_exceeds_another() -> None:
    runs = {"a": around(1.0), "b": [1.2] * 3, "c": [1.0] * 3, "d": [1.1] * 3}
    larger, smaller = Gain("a", "b"), Gain("c", "d")
    of = grid("a", "b", "c", "d")
    assert judged(of, runs, Exceeds("", "", larger, smaller)) == [True]
    assert judged(of, runs, Exceeds("", "", smaller, larger)) == [False]
    lacking = one(of, {key: runs[key] for key in "abd"}, Exceeds("", "", larger, smaller))
    assert lacking.holds is None and lacking.ours == "not measured yet: row c"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ((0.70, 0.72, 0.71), (1.0, 1.0, 1.0), True),
        ((0.91, 0.92, 0.90), (1.0, 1.0, 1.0), None),  # lower for certain, but not by 0.1
        ((0.5, 1.0, 0.9), (1.0, 1.0, 1.0), None),
        ((0.99, 1.0, 1.0), (1.0, 1.0, 1.0), False),
        ((1.0, 1.0, 1.0), (0.3, 0.31, 0.3), False),
    ],
)
def test_far_below(low: Sequence[float], high: Sequence[float], expected: bool | None) -> None:
    runs = {"xl": low, "rmt": high}
    assert judged(grid("xl", "rmt", measure=ACCURACY), runs, far_below("", "", "xl", "rmt")) == [expected]


def test_solves() -> None:
    of, claim = grid("a", "b", measure=ACCURACY), solves("", "", "a", "b")
    assert judged(of, {"a": [0.99, 1.0, 1.0], "b": [1.0] * 3}, claim) == [True]
    assert judged(of, {"a": [0.9899, 1.0, 1.0], "b": [1.0] * 3}, claim) == [False]
    assert judged(of, {"a": [1.0] * 3}, claim) == [None]
    missing = one(of, {"a": [1.0] * 3, "b": [1.0, 1.0]}, claim)
    assert missing.holds is None and "runs are missing; preliminary, n = 2" in missing.ours
    assert judged(of, {"a": [1.0] * 3, "b": [0.5]}, claim) == [False]


def test_every_run_within_a_range() -> None:
    of, claim = grid("a", measure=ACCURACY), Within("", "", ("a",), 0.05, 0.15)
    assert judged(of, {"a": [0.05, 0.1, 0.15]}, claim) == [True]
    assert judged(of, {"a": [0.1, 0.1, 0.16]}, claim) == [False]
    assert judged(of, {"a": [0.1, 0.04]}, claim) == [False]


@pytest.mark.parametrize(("extra", "expected"), [(-0.005, True), (0.005, True), (0.0101, None), (0.02, False)])
def test_at_most_worse_by_an_allowance(extra: float, expected: bool | None) -> None:
    runs = {"a": around(0.9 - extra), "b": [0.9] * 3}
    claim = at_most_worse("", "", "a", "b", 0.01, ACCURACY)
    assert judged(grid("a", "b", measure=ACCURACY), runs, claim) == [expected]


def test_a_claim_of_several_parts() -> None:
    runs = {"a": around(1.0), "b": [1.1] * 3, "c": [1.2] * 3, "d": around(1.0), "e": [0.9] * 3}
    of = grid(*runs)

    def every(*worse: str) -> Every:
        return Every("all of them", "", tuple(Better("", "", "a", key) for key in worse))

    assert judged(of, runs, every("b", "c")) == [True]
    assert judged(of, runs, every("b", "c", "e")) == [False]
    assert judged(of, {key: runs[key] for key in "abc"}, every("b", "c", "d")) == [None]
    found = one(of, runs, every("b", "c", "e"))
    assert found.ours.startswith("2 of 3 comparisons hold; row a") and "row e" in found.ours


def test_a_claim_of_several_parts_says_if_none_of_them_is_measured() -> None:
    of = grid("a", "b", "c")
    parts = (Better("", "", "a", "b"), Better("", "", "a", "b", PPL), Within("", "", ("c",), 0.0))
    found = one(of, {}, Every("all of them", "", parts))
    assert found.holds is None and found.brief == "none of 3 comparisons is measured"
    assert found.ours == "none of 3 comparisons is measured; not measured yet: row a, row b"
    apart = one(of, {"a": [1.0], "b": [None, 1.0]}, Every("all of them", "", parts[:2]))
    assert apart.ours == "none of 2 comparisons is measured; no seed is common to all rows"
    begun = one(of, {"c": [1.0, 1.0]}, Every("all of them", "", parts))
    assert begun.ours.startswith("0 of 3 comparisons hold; not measured yet: row a, row b")


def test_holm_leaves_a_comparison_open_that_would_be_clear_alone() -> None:
    """The p-value of the first comparison is below 0.05, but not below 0.05 / 11."""
    keys, wide = [f"other{index}" for index in range(10)], [2.5 * each for each in SPREAD]
    runs = {"a": around(1 - 0.0034, wide), "b": [1.0] * 3} | {key: around(1.0, wide) for key in keys}
    claims = [Better("", "", "a", "b"), *(Better("", "", key, "b", needed=0.0) for key in keys)]
    found = judge(grid(*runs), made_up(grid(*runs), runs), claims)[0]
    assert found.holds is None and found.ours.endswith("open after the correction for several comparisons")


def test_the_same_question_counts_once_in_the_family() -> None:
    pair = Pair("a", "b", "nats", (0.01, 0.011, 0.012))
    asked = Comparison(pair, 0.003)
    assert decide([asked, asked, asked]) == decide([asked])


@pytest.mark.parametrize(("num_seeds", "expected"), [(1, None), (2, True), (3, True)])
def test_fewer_than_three_seeds_are_preliminary(num_seeds: int, expected: bool | None) -> None:
    runs = {"a": around(0.9)[:num_seeds], "b": [1.0] * num_seeds}
    found = one(grid("a", "b", num_seeds=num_seeds), runs, Better("", "", "a", "b"))
    assert found.holds is expected
    assert found.ours.endswith(f"; preliminary, n = {num_seeds}") == (num_seeds < 3)


def test_one_seed_has_no_spread_but_may_use_that_of_other_pairs() -> None:
    runs = {"a": [0.9], "b": around(1.0), "c": [1.1] * 3}
    of, claim = grid("a", "b", "c"), Better("", "", "a", "b")
    alone = one(of, runs, claim)
    assert alone.holds is None and "the spread over seeds is unknown; preliminary, n = 1" in alone.ours
    assert judged(of, runs, claim, Better("", "", "b", "c")) == [True, True]


def test_rows_without_results_leave_claims_open_with_the_reason() -> None:
    of = grid("a", "b")
    assert one(of, {"a": [1.0]}, Better("", "", "a", "b")).ours == "not measured yet: row b"
    assert one(of, {}, Better("", "", "a", "large")).ours == "this budget does not train: large"
    apart = made_up(of, {"a": [1.0], "b": [None, 1.0]})
    (found,) = judge(of, apart, [Better("", "", "a", "b")])
    assert found.holds is None and found.ours == "no seed is common to all rows"
    infinite = one(of, {"a": [math.inf] * 3, "b": [1.0] * 3}, Better("", "", "a", "b"))
    assert infinite.holds is None and infinite.ours == "not measured yet: row a"


def test_self_tests_decides_nothing() -> None:
    runs = {"a": around(0.9), "b": [1.0] * 3}
    found = one(grid("a", "b"), runs, Better("", "", "a", "b"), budget="self-test")
    assert found.holds is None and found.ours.endswith("shows that the code runs, says nothing about the claim")


def test_reaching_a_published_value() -> None:
    of = grid("a", measure=PPL)
    for loss, expected in ((math.log(20.19), True), (math.log(20.21), False)):
        assert judged(of, {"a": [loss] * 3}, Reaches("", "20", "a", 20.0)) == [expected]
    assert judged(of, {}, Reaches("", "20", "a", 20.0)) == [None]


def test_observations() -> None:
    def observed(outcome: Outcome | None) -> Verdict:
        return one(grid(), {}, Observed("It is so.", "1.0", lambda results: outcome))

    def expected(ours: str, holds: bool | None) -> Verdict:
        return Verdict(claim="It is so.", paper="1.0", ours=ours, holds=holds, brief=ours)

    assert observed(None) == expected("not measured yet", None)
    for holds in (True, False, None):
        assert observed(Outcome("0.9", holds)) == expected("0.9", holds)
    tested = observed(Outcome("0.9", True, 1, "gain 0.1"))
    assert tested.ours == "0.9; gain 0.1; preliminary, n = 1" and tested.brief == "0.9 (1 seed)"
    assert observed(Outcome("0.9", True, 3)).brief == "0.9 (3 seeds)"
    assert one(grid(), {}, undecided("It is so.", "1.0", "too small")) == observed(Outcome("too small", None))


def test_cells_of_a_grid_come_seed_by_seed_between_the_first_and_the_last_ones() -> None:
    text, speed = row("text").cell(7), row("speed").cell(9)
    reading = replace(row("a", 2), after=(text.name,))
    cells = Grid(rows=[reading, row("b", 1)], first=[text], last=[speed]).cells
    assert [cell.name for cell in cells] == ["text-seed7", "a-seed1", "b-seed1", "a-seed2", "speed-seed9"]
    assert cells[3].settings == cells[3].labels == {"seed": 2} and cells[3].after == ("text-seed7",)


def test_the_share_that_counts_is_that_of_the_rule() -> None:
    assert DELTA == 0.003


def test_the_margin_of_a_comparison_is_a_share_of_the_worse_loss_with_the_interval_of_the_rule() -> None:
    of, runs = grid("a", "b"), {"a": [0.9, 0.88, 0.86], "b": [1.0, 1.0, 1.0]}
    claim = Better("", "", "a", "b")
    margin = one(of, runs, claim).margin
    assert margin is not None and margin.mean == pytest.approx(0.12) and margin.loss == 1.0
    half = t_quantile(2) * 0.02 / math.sqrt(3)
    assert margin.shares == pytest.approx((0.12, 0.12 - half, 0.12 + half))
    assert gain_interval(of, made_up(of, runs), [claim], "a", "b") == pytest.approx(margin.shares)
    assert gain_interval(of, made_up(of, {"a": [0.9]}), [claim], "a", "b") is None
    single = one(of, {"a": [0.9], "b": [1.0]}, claim).margin
    assert single is not None and single.shares == (pytest.approx(0.1), None, None)
    assert gain_interval(of, made_up(of, {"a": [0.9], "b": [1.0]}), [claim], "a", "b") is None
