"""The report's axes, number formats and colours."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemo.report import scales, style, svg
from mnemo.report.charts import thinned
from mnemo.report.heat import words_on
from mnemo.report.plots import Line, line_figure

values = st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=20)


@given(values, st.booleans())
def test_a_linear_axis_holds_its_values_and_ticks(numbers: list[float], zero: bool) -> None:
    numbers = [abs(number) for number in numbers] if zero else numbers
    axis = scales.linear(numbers, 300.0, 20.0, zero=zero)
    assert all(20 - 1e-6 <= axis.place(value) <= 300 + 1e-6 for value in (*numbers, *axis.ticks))
    assert len(axis.ticks) <= 12
    labels = scales.tick_labels(axis.ticks)
    assert len(set(labels)) == len(labels)


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=20))
def test_a_logarithmic_axis_holds_its_values_and_ticks(numbers: list[float]) -> None:
    axis = scales.logarithmic(numbers, 300.0, 20.0)
    assert all(20 - 1e-6 <= axis.place(value) <= 300 + 1e-6 for value in (*numbers, *axis.ticks))
    assert len(scales.tick_labels(axis.ticks)) == len(axis.ticks) > 0


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=30))
def test_a_doubling_axis_keeps_order_and_room(lengths: list[int]) -> None:
    axis = scales.doubling(lengths, 40.0, 470.0)
    places = [axis.place(value) for value in sorted(set(lengths))]
    assert places == sorted(places) and all(40 - 1e-6 <= place <= 470 + 1e-6 for place in places)
    assert max(lengths) in axis.ticks
    gaps = [axis.place(b) - axis.place(a) for a, b in itertools.pairwise(axis.ticks)]
    assert all(gap >= 34 - 1e-6 for gap in gaps)


def test_round_ticks() -> None:
    assert scales.round_ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert scales.tick_labels([0.0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert scales.tick_labels([0.0, 2500.0, 5000.0]) == ["0", "2,500", "5,000"]
    assert scales.tick_labels([0.0, 50_000.0, 100_000.0]) == ["0", "50k", "100k"]


def test_ticks_of_many_decades_leave_room() -> None:
    axis = scales.logarithmic([1e-6, 1.0], 300.0, 20.0)
    assert scales.tick_labels(axis.ticks) == ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]
    wide = scales.logarithmic([1e-30, 1e30], 300.0, 20.0)
    assert 3 <= len(wide.ticks) <= 9


def test_numbers_read_well() -> None:
    assert [scales.number(value) for value in (0.12345, 12.345, 123.45, 12345.6, math.inf, None)] == [
        "0.123",
        "12.35",
        "123.5",
        "12,346",
        "∞",
        "–",
    ]
    assert [scales.amount(value) for value in (7, 999, 999_990, 1234, 12_345, 41_055_744, 1e10, None)] == [
        "7",
        "999",
        "1.00M",
        "1.23k",
        "12.3k",
        "41.1M",
        "10.0G",
        "–",
    ]
    assert [scales.plain(value) for value in (3.0, 0.25, 1024, 0.00012, -1e-7, 12.345, 1e-300)] == [
        "3",
        "0.250",
        "1,024",
        "0.00012",
        "-1e-7",
        "12.35",
        "1e-300",
    ]
    assert [scales.duration(value) for value in (7.6, 125, 12000, None)] == ["8 s", "2 min 05 s", "3 h 20 min", "–"]


def test_long_lines_are_averaged() -> None:
    points = [(float(i), float(i % 2)) for i in range(1000)]
    short = thinned(points, 240)
    assert len(short) == 200 and short[0] == (2.0, 0.4)
    assert thinned(points[:240], 240) == points[:240]


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colors", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_colors_can_be_seen(colors: dict[str, str]) -> None:
    grounds = ("page", "card", "sunk")
    for text, ground in itertools.product(("ink", "muted", "accent"), grounds):
        assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    assert contrast(colors["warn"], colors["warnbg"]) >= 4.5
    for answer, ground in itertools.product(("good", "bad", "warn"), grounds):
        assert contrast(colors[answer], colors[ground]) >= 4.5, (answer, ground)
    for index, ground in itertools.product(range(style.NUM_COLORS), grounds):
        assert contrast(colors[f"c{index}"], colors[ground]) >= 3, (index, ground)


@pytest.mark.parametrize("colors", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_shades_go_one_way_and_words_on_them_can_be_read(colors: dict[str, str]) -> None:
    shades = [colors[f"h{index}"] for index in range(style.NUM_SHADES)]
    steps = [contrast(shade, colors["card"]) for shade in shades]
    assert steps == sorted(steps) and len(set(steps)) == style.NUM_SHADES
    inks = {"label": colors["ink"], "on-dense": colors["card"], "on-middle": "#000000"}
    assert all(contrast(inks[words_on(index)], shade) >= 4.5 for index, shade in enumerate(shades))


def test_counts_have_whole_ticks() -> None:
    lines = [Line("a", [(3, 0.5), (6, 0.75)])]
    figure = line_figure("s", "t", "c", lines, x_label="segments", y_label="accuracy", x_from_least=True)
    assert ">4<" in figure.svg and ">3.5<" not in figure.svg and ">4.0<" not in figure.svg
    halves = [Line("a", [(3, 0.5), (4.5, 0.75)])]
    assert ">3.4<" in line_figure("s", "t", "c", halves, x_label="hours", y_label="accuracy", x_from_least=True).svg


def test_the_last_label_of_an_axis_is_not_cut_off() -> None:
    lines = [Line("a", [(0.0, 1.0), (3000.0, 2.0)])]
    figure = line_figure("s", "t", "c", lines, x_label="step", y_label="loss")
    (at,) = re.findall(r'<text x="([\d.]+)"[^>]*>3,000<', figure.svg)
    assert float(at) + 5 * svg.WIDE_CHAR / 2 <= svg.WIDTH
