"""Charts of published and measured values: marks are where their numbers say, hollow if they are quoted."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from mnemo.report.figure import Figure
from mnemo.report.quoted_charts import Mark, MarkRow, PanelChart, Trace, panel_figure, row_figure
from mnemo.report.svg import standalone

TRACES = [
    Trace(label="RMT", marks=[Mark(1, 1.0), Mark(3, 0.9, 0.8, 1.0)], color=0, quoted=True),
    Trace(label="RMT", marks=[Mark(1, 1.0), Mark(3, 0.7), Mark(9, 0.5, 0.4, 0.6)], color=0, shown="memory tokens"),
]
ROWS = [
    MarkRow(
        label="first", marks={True: Mark(2.0, 0), False: Mark(-1.0, 0, -2.0, 0.5)}, shown="+2 / -1", heading="text"
    ),
    MarkRow(label="second", marks={False: Mark(4.0, 0)}, shown="+4"),
]


def panels() -> Figure:
    chart = PanelChart(panels={"copy": TRACES, "reverse": TRACES}, x_label="segments", y_label="accuracy", level=0.1)
    return panel_figure("panels", "Accuracy", "By segments.", chart)


def rows() -> Figure:
    return row_figure(
        "rows", "Gains", "Of two.", ROWS, x_label="% above", better="left is better", values="paper / ours"
    )


def places(figure: Figure) -> dict[str, tuple[float, float]]:
    """Where the marks are, by their words."""
    uses = (each for each in ElementTree.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}use") if len(each))
    return {str(use[0].text): (float(use.attrib["x"]), float(use.attrib["y"])) for use in uses}


def test_marks_of_a_panel_are_where_their_numbers_say() -> None:
    chart = PanelChart(panels={"": TRACES}, x_label="segments", y_label="accuracy")
    found = places(panel_figure("one", "t", "c", chart))
    (x1, y1), (x3, y3), (x9, y9) = (found[f"RMT, ours: {value}"] for value in ("1.000", "0.700", "0.500"))
    assert (x9 - x1) / (x3 - x1) == pytest.approx(4, abs=0.02)
    assert (y9 - y1) / (y3 - y1) == pytest.approx(5 / 3, abs=0.02)
    assert found["RMT, published: 0.900"][0] == x3 and y1 < found["RMT, published: 0.900"][1] < y3


def test_marks_of_rows_are_on_one_axis_and_published_ones_above_ours() -> None:
    found = places(rows())
    (two, above), (minus, below), (four, last) = (
        found[words] for words in ("first, published: 2", "first, ours: -1", "second, ours: 4")
    )
    assert (four - minus) / (two - minus) == pytest.approx(5 / 3, abs=0.02)
    assert above < below < last


@pytest.mark.parametrize("figure", [panels(), rows()], ids=lambda figure: figure.slug)
def test_published_marks_are_hollow_and_all_colours_follow_the_page(figure: Figure) -> None:
    assert set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+)"', figure.svg)) == set()
    assert 'fill="var(--card)"' in figure.svg and "var(" not in standalone(figure.svg)
    assert ">measured with Mnemo<" in figure.svg and ">published<" in figure.svg
    assert figure.svg == {"panels": panels, "rows": rows}[figure.slug]().svg


def test_every_value_is_in_the_numbers_and_in_the_words() -> None:
    figure = panels()
    assert figure.numbers.headers == ("panel", "line", "source", "segments", "accuracy", "lowest", "highest")
    assert ("copy", "RMT", "published", 3, 0.9, 0.8, 1.0) in figure.numbers.rows and len(figure.numbers.rows) == 10
    assert "reverse, RMT (ours): 1.000 at 1, 0.700 at 3, 0.500 at 9." in figure.description
    assert ("first", "ours", -1.0, -2.0, 0.5) in rows().numbers.rows
    assert "first: +2 / -1; second: +4." in rows().description
    assert ">memory tokens<" in figure.svg and ">paper / ours<" in rows().svg


def test_rows_with_the_same_label_are_told_apart_by_their_headings() -> None:
    figure = row_figure("rows", "Gains", "", [*ROWS, replace(ROWS[0], heading="words")], x_label="%", better="left")
    assert figure.numbers.headers == ("group", "row", "source", "%", "lowest", "highest")
    assert [row[:3] for row in figure.numbers.rows] == [
        ("text", "first", "published"),
        ("text", "first", "ours"),
        ("text", "second", "ours"),
        ("words", "first", "published"),
        ("words", "first", "ours"),
    ]
    assert "text, second: +4; words, first: +2 / -1." in figure.description
    assert {"text, first, ours: -1", "words, first, ours: -1"} < set(places(figure))


def test_rows_with_the_same_label_and_heading_are_refused() -> None:
    with pytest.raises(ValueError, match="need headings"):
        row_figure("rows", "Gains", "", [*ROWS, ROWS[1]], x_label="%", better="left")
