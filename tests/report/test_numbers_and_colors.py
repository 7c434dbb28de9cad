"""The report's axes, number formats and colours."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Annotation

from mnemo.report import charts, number_text, style
from mnemo.report.charts import LayerMemory, thinned
from mnemo.report.heat_map import BLACK, text_color
from mnemo.report.plots import Line, line_figure

values = st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=20)


@given(values)
def test_an_axis_holds_its_values_and_has_few_ticks(numbers: list[float]) -> None:
    low, high = charts.limits(np.array(numbers))
    assert low <= min(numbers) and max(numbers) <= high and low < high
    ticks = charts.round_ticks(low, high)
    labels = number_text.tick_labels(ticks)
    assert len(ticks) <= 9 and all(low <= tick <= high for tick in ticks) and len(set(labels)) == len(labels)


@given(st.floats(1e-6, 1e12), st.floats(1.05, 1e9))
def test_a_logarithmic_axis_has_some_ticks(low: float, ratio: float) -> None:
    ticks = charts._ratio_ticks(low, low * ratio)
    assert 2 <= len(ticks) <= 9 and all(low <= tick <= low * ratio for tick in ticks)


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=30))
def test_ticks_of_lengths_are_lengths_that_do_not_touch(lengths: list[int]) -> None:
    axes = charts.new_axes(charts.new_canvas(100), 0, 0, 480, 100)
    charts._scale_doubling(axes, np.array(lengths, dtype=float))
    ticks = axes.get_xticks().tolist()
    places = [(axes.transScale + axes.transLimits).transform((tick, 1.0))[0] for tick in ticks]
    assert set(ticks) <= set(lengths) and ticks[-1] == max(lengths)
    assert all(b - a >= charts.TICK_DISTANCE - 1e-6 for a, b in itertools.pairwise(places))


@pytest.mark.parametrize(
    ("memory", "segment", "tokens"),
    [(0, 128, (0, 0)), (256, 8, (10, 0)), (1000, 1010, (1, 1)), (0, 64, (0, 4)), (10**6, 10, (10, 10)), (0, 9, (9, 9))],
)
@pytest.mark.parametrize("besides", ["", "LSTM state"])
def test_names_below_a_plan_are_inside_and_apart(
    memory: int, segment: int, tokens: tuple[int, int], besides: str
) -> None:
    canvas = charts.draw_plans({"run": [LayerMemory("XL", memory, True, besides)]}, segment, 0, tokens).canvas
    named = {"memory": memory, "tokens read": tokens[0], "segment": segment, "tokens written": tokens[1]}
    below = [text for text in canvas.axes[0].texts if isinstance(text, Annotation) and text.xyann[1] == -19]
    shown = [name for text in below for name in text.get_text().split(", ") if name]
    assert shown == [name for name, length in named.items() if length]
    boxes = sorted((text.get_window_extent() for text in below), key=lambda box: box.x0)
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert boxes[0].x0 >= 0 and boxes[-1].x1 <= canvas.bbox.x1 + 1


def test_tick_labels() -> None:
    assert charts.round_ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert number_text.tick_labels([0.0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert number_text.tick_labels([0.0, 2500.0, 5000.0]) == ["0", "2,500", "5,000"]
    assert number_text.tick_labels([0.0, 50_000.0, 100_000.0]) == ["0", "50k", "100k"]
    assert number_text.tick_labels([512.0, 65_536.0, 50_000_000.0]) == ["512", "65.5k", "50.0M"]
    assert number_text.tick_labels([512.0, 2048.0, 131_072.0]) == ["512", "2.05k", "131k"]


def test_ticks_of_many_decades_leave_room() -> None:
    ticks = charts._ratio_ticks(1e-6, 1.0)
    assert number_text.tick_labels(ticks) == ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]
    assert 3 <= len(charts._ratio_ticks(1e-30, 1e30)) <= 9


def test_numbers_read_well() -> None:
    assert [number_text.number(value) for value in (0.12345, 12.345, 123.45, 12345.6, math.inf, None)] == [
        "0.123",
        "12.35",
        "123.5",
        "12,346",
        "∞",
        "–",
    ]
    assert [number_text.amount(value) for value in (7, 999, 999_990, 1234, 12_345, 41_055_744, 1e10, None)] == [
        "7",
        "999",
        "1.00M",
        "1.23k",
        "12.3k",
        "41.1M",
        "10.0G",
        "–",
    ]
    assert [number_text.plain(value) for value in (3.0, 0.25, 1024, 0.00012, -1e-7, 12.345, 1e-300)] == [
        "3",
        "0.250",
        "1,024",
        "0.00012",
        "-1e-7",
        "12.35",
        "1e-300",
    ]
    assert [number_text.duration(value) for value in (7.6, 125, 12000, None)] == [
        "8 s",
        "2 min 05 s",
        "3 h 20 min",
        "–",
    ]


def test_long_lines_are_averaged() -> None:
    points = np.array([(i, i % 2) for i in range(1000)], dtype=float)
    short = thinned(points, 240)
    assert len(short) == 200 and short[0].tolist() == [2.0, 0.4]
    assert (thinned(points[:240], 240) == points[:240]).all()
    assert thinned(points[:481], 240)[-1].tolist() == [480.0, 0.0]


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
    inks = {style.LIGHT["ink"]: colors["ink"], style.LIGHT["card"]: colors["card"], BLACK: BLACK}
    assert all(contrast(inks[text_color(index)], shade) >= 4.5 for index, shade in enumerate(shades))


def test_every_colour_names_one_variable() -> None:
    assert len(set(style.LIGHT.values())) == len(style.LIGHT) and style.LIGHT.keys() == style.DARK.keys()


def test_counts_have_whole_ticks() -> None:
    lines = [Line("a", [(3, 0.5), (6, 0.75)])]
    figure = line_figure("s", "t", "c", lines, x_label="segments", y_label="accuracy", x_from_least=True)
    assert ">4<" in figure.svg and ">3.5<" not in figure.svg and ">4.0<" not in figure.svg
    halves = [Line("a", [(3, 0.5), (4.5, 0.75)])]
    assert ">3.5<" in line_figure("s", "t", "c", halves, x_label="hours", y_label="accuracy", x_from_least=True).svg


def test_the_last_label_of_an_axis_is_not_cut_off() -> None:
    lines = [Line("a", [(0.0, 1.0), (3000.0, 2.0)])]
    figure = line_figure("s", "t", "c", lines, x_label="step", y_label="loss")
    (at,) = re.findall(r'<text [^>]*x="([\d.]+)"[^>]*>3,000<', figure.svg)
    assert float(at) + 5 * charts.CHAR_WIDTH / 2 <= charts.WIDTH + 3


def test_text_between_dollars_is_no_mathematics() -> None:
    lines = [Line("$a^2$ and \\$", [(0.0, 0.0), (3.0, 2.0)])]
    figure = line_figure("s", "t", "c", lines, x_label="$x_1$", y_label="$y$ and $z$")
    assert all(f">{words}<" in figure.svg for words in ("$a^2$ and \\$", "$x_1$", "$y$ and $z$"))


@pytest.mark.parametrize(
    ("values", "logarithmic", "words"),
    [
        ((2.5, 3.0), False, "loss (axis does not start at 0)"),
        ((0.0, 3.0), False, "loss"),
        ((-1.0, 3.0), False, "loss"),
        ((2.5, 300.0), True, "loss (logarithmic axis)"),
    ],
)
def test_a_vertical_axis_says_where_it_starts(values: tuple[float, float], logarithmic: bool, words: str) -> None:
    lines = [Line("a", list(enumerate(values)))]
    figure = line_figure("s", "t", "c", lines, x_label="x", y_label="loss", y_logarithmic=logarithmic)
    assert f">{words}<" in figure.svg


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100%"),
        (0.9996, "99.9%"),
        (0.996, "99.6%"),
        (0.0625, "6%"),
        (0.004, "0.4%"),
        (0.0001, "0.1%"),
        (0.0, "0%"),
    ],
)
def test_everything_and_nothing_are_not_rounded_to(share: float, text: str) -> None:
    assert number_text.percent(share) == text
