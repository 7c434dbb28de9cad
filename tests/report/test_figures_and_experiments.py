"""Figures from plain numbers, and the pages about experiments: complete, escaped, self-contained, at any state."""

from __future__ import annotations

import base64
import csv
import io
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from helpers.page_reader import EVIL, read_page

from mnemo.report import plots, style
from mnemo.report.experiment_markdown import experiment_markdown, folded, verdict_table
from mnemo.report.experiment_page import ExperimentPage, tally, write_experiment, write_overview
from mnemo.report.figure import Figure
from mnemo.report.files import csv_text
from mnemo.report.findings import Sample, Table, Verdict
from mnemo.report.heat_map import BLACK
from mnemo.report.plots import Line
from mnemo.report.svg import standalone

LINES = [
    Line("RMT", [(1, 1.0), (2, 0.99), (4, 0.96)], [0.98, 0.97, 0.9], [1.0, 1.0, 0.99]),
    Line("Transformer-XL", [(1, 0.9), (2, 0.5), (4, 0.3)]),
]
GRID = [[0.1, 0.9, 0.3], [0.5, None, 0.02]]
PLANS = {"all": [64, 64, 64], "last": [8, 8, 64]}
VERDICTS = [
    Verdict(claim="It learns.", paper="1.0", ours="0.99 ± 0.01 (2 seeds)", holds=True),
    Verdict(claim="It is fast.", paper="3 ms", ours="9 ms", holds=False),
    Verdict(claim="It scales.", paper="yes", ours="2 of 9 cells", holds=None),
]


def lines(content: Sequence[Line] = LINES, slug: str = "lines") -> Figure:
    return plots.line_figure(slug, "Accuracy", "By segments.", content, x_label="segments", y_label="accuracy")


def heat(grid: Sequence[Sequence[float | None]], logarithmic: bool = False, **labels: list[str]) -> Figure:
    return plots.heat_figure(
        "heat",
        "Attention",
        "By head.",
        grid,
        x_label="distance",
        y_label="head",
        logarithmic=logarithmic,
        marked=frozenset({1, 7}),
        row_labels=labels.get("rows"),
        column_labels=labels.get("columns"),
    )


def every_figure() -> list[Figure]:
    return [
        lines(),
        plots.bar_figure("bars", "Best", "Lower.", [("one", 1.5), ("two", -0.5), ("three", None)], unit="bpc"),
        heat(GRID),
        plots.arrangement_figure("plans", "Plans", "To scale.", PLANS, 16),
    ]


def experiment(name: str = "rmt-copy", **changes: object) -> ExperimentPage:
    content: dict[str, object] = {
        "title": "Copy over segments",
        "paper": "Recurrent Memory Transformer",
        "covers": ("Figure 4", "Figure 7"),
        "claim": "Memory tokens carry a sequence over segments.",
        "budget": "small",
        "verdicts": VERDICTS,
        "tables": [
            Table("Accuracy", ("model", "seed", "accuracy"), [("RMT", 1, 0.98765), ("MT", 2, None)], "Test set.")
        ],
        "figures": every_figure(),
        "samples": [Sample("RMT", "abc\n  def", "repetition 0.3"), Sample("MT", "abc abc")],
        "notes": ("Fewer steps.",),
        "facts": [("Hardware", "a GPU"), ("Cells", "7 of 9")],
        "problems": ["cells/x.json is not valid JSON"],
    }
    return ExperimentPage(name=name, **(content | changes))  # type: ignore[arg-type]


def read_csv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_formulas_in_csv_files_are_text() -> None:
    cells = ["=1+1", "+cmd", "-x", "@SUM(A1)", "-1.5", "+2e3", "-inf", -3.5, 4, "a=b", "'quoted"]
    (row,) = list(csv.reader(io.StringIO(csv_text(["=head"] * len(cells), [cells]))))[1:]
    harmless = ["'=1+1", "'+cmd", "'-x", "'@SUM(A1)"]
    assert row == [*harmless, "-1.5", "+2e3", "-inf", "-3.5", "4", "a=b", "'quoted"]
    assert csv_text(["=head"], []) == "'=head\n"


def drawn(figure: Figure) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(figure.svg).iter())


def tips(figure: Figure) -> list[str]:
    """The words of the marks of a figure, without its own title."""
    return [element.text or "" for element in drawn(figure) if element.tag.endswith("title")][1:]


def corners(path: str) -> list[tuple[float, float]]:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def places(figure: Figure) -> list[tuple[float, float]]:
    """Where the markers with a tip are."""
    marks = (element for element in drawn(figure) if element.tag.endswith("use") and len(element))
    return [(float(mark.attrib["x"]), float(mark.attrib["y"])) for mark in marks]


def painted(figure: Figure, color: str) -> list[list[tuple[float, float]]]:
    """Corners of the areas of that colour."""
    paths = (element.attrib for element in drawn(figure) if element.tag.endswith("path"))
    return [corners(path["d"]) for path in paths if path.get("fill") == f"var(--{color})"]


def widths(areas: list[list[tuple[float, float]]]) -> list[float]:
    return [max(x for x, _ in area) - min(x for x, _ in area) for area in areas]


def bands(figure: Figure) -> list[list[tuple[float, float]]]:
    """Corners of the areas around lines, which are drawn from a definition."""
    elements = drawn(figure)
    defined = {element.attrib["id"]: element.attrib.get("d", "") for element in elements if "id" in element.attrib}
    uses = [element.attrib for element in elements if element.attrib.get("fill-opacity") == "0.18"]
    return [[(x, y + float(use["y"])) for x, y in corners(defined[use["href"][1:]])] for use in uses]


def shades(figure: Figure, mode: str = "light") -> list[list[int | None]]:
    """The shades of a heat map's cells in one mode, from its image; None for a cell without a value."""
    colors = style.LIGHT if mode == "light" else style.DARK
    numbers = {colors[f"h{shade}"]: shade for shade in range(style.NUM_SHADES)}
    (image,) = (element for element in drawn(figure) if element.attrib.get("class") == mode)
    data = base64.b64decode(image.attrib["href"].removeprefix("data:image/png;base64,"))
    pixels = np.rint(matplotlib.image.imread(io.BytesIO(data)) * 255).astype(int).tolist()
    return [[numbers[f"#{bytes(rgb).hex()}"] if alpha else None for *rgb, alpha in row] for row in pixels]


def assert_on_one_scale(values: Sequence[float], at: Sequence[float]) -> None:
    """Places that depend on the values by one straight line."""
    low, high = min(zip(values, at, strict=True)), max(zip(values, at, strict=True))
    slope = (high[1] - low[1]) / (high[0] - low[0])
    assert all(abs(low[1] + slope * (value - low[0]) - place) < 0.2 for value, place in zip(values, at, strict=True))


def test_lines_and_bands_stand_where_their_numbers_say() -> None:
    figure = lines()
    assert figure.numbers.headers == ("line", "segments", "accuracy", "lowest", "highest")
    rows = {row[:2]: row[2:] for row in figure.numbers.rows}
    assert rows["RMT", 4] == (0.96, 0.9, 0.99) and rows["Transformer-XL", 2] == (0.5, None, None)
    last_first = [point for line in LINES for point in line.points[::-1]]
    assert_on_one_scale([float(x) for x, _ in last_first], [x for x, _ in places(figure)])
    (band,) = bands(figure)
    ys = [y for _, y in last_first if y is not None]
    assert_on_one_scale(ys, [y for _, y in places(figure)])
    at = dict(zip(ys, (y for _, y in places(figure)), strict=True))
    assert max(y for _, y in band) == pytest.approx(at[0.9], abs=0.2)  # the lowest edge is a value of the other line
    assert min(y for _, y in band) == pytest.approx(at[1.0], abs=0.2)


def test_twelve_lines_differ_without_their_colours() -> None:
    figure = lines([Line(f"line {at}", [(1, at), (2, at + 1)]) for at in range(12)])
    strokes = [element.attrib for element in drawn(figure) if element.attrib.get("stroke-width") == "2"]
    dashes = [stroke.get("stroke-dasharray") for stroke in strokes][-12:]
    marks = [element.attrib["href"] for element in drawn(figure) if element.tag.endswith("use") and len(element)]
    shapes = [mark for mark in marks[::2]]
    assert len(dashes) == len(shapes) == 12 and len(set(zip(dashes, shapes, strict=True))) == 12


def test_a_figure_that_is_higher_than_wide_stands_beside_two(tmp_path: Path) -> None:
    high = plots.arrangement_figure("high", "Plans", "", {f"plan {at}": [8] * 12 for at in range(9)}, 16)
    page = write_experiment(experiment(figures=[high, lines()]), tmp_path).read_text(encoding="utf-8")
    assert [css for css in re.findall(r'<figure class="([^"]*)"', page)] == ["card high", "card"]


def test_bars_are_as_long_as_their_numbers_say() -> None:
    figure = every_figure()[1]
    assert figure.numbers.rows == (("one", 1.5), ("two", -0.5), ("three", None))
    one, two = [*painted(figure, "c0"), *painted(figure, "c1")]
    assert widths([one])[0] == pytest.approx(3 * widths([two])[0], rel=0.01) and not painted(figure, "c2")
    assert min(x for x, _ in one) == pytest.approx(max(x for x, _ in two), abs=0.1)
    assert "no value" in figure.svg and "-0.500 bpc" in figure.svg


def test_shades_follow_the_numbers() -> None:
    figure = heat(GRID)
    assert figure.numbers.headers == ("head / distance", "1", "2", "3")
    assert figure.numbers.rows == (("1", 0.1, 0.9, 0.3), ("2", 0.5, None, 0.02))
    found = shades(figure)
    assert found == shades(figure, "dark") and found[1][1] is None
    pairs = [pair for values, row in zip(GRID, found, strict=True) for pair in zip(values, row, strict=True)]
    by_value = [shade for _, shade in sorted((value, shade) for value, shade in pairs if value and shade is not None)]
    assert len(by_value) == 5 and by_value == sorted(by_value)
    assert (by_value[0], by_value[-1]) == (0, style.NUM_SHADES - 1)
    outlines = [element for element in drawn(figure) if element.attrib.get("stroke") == "var(--c1)"]
    assert len(outlines) == 1 and "Outlined: 2." in figure.description
    assert "no value" in figure.svg and "<pattern" in figure.svg


def test_arrangements_say_every_layer() -> None:
    figure = plots.arrangement_figure("plans", "Plans", "", PLANS | {"none": [0, 0, 0]}, 16)
    assert figure.numbers.rows[3:6] == (("last", 1, 8), ("last", 2, 8), ("last", 3, 64))
    assert "all: 64, 64, 64. last: 8, 8, 64. none: 0, 0, 0." in figure.description
    found = widths(painted(figure, "c0"))
    assert len(found) == 6 and found[0] == pytest.approx(8 * found[3], rel=0.02) and max(found) < 1.01 * found[0]


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize(
    "grid",
    [
        [],
        [[]],
        [[3.0]],
        [[None]],
        [[math.nan, math.inf]],
        [[2.0] * 4] * 3,
        [[0.0] * 4] * 3,
        [[-1.0, 0.0, 1e-30, 1.0]],
        [[1.0], [2.0, 3.0]],
        [[math.sin(row * column) for column in range(700)] for row in range(40)],
        [[1e14, -1e14]],
    ],
)
def test_any_grid_can_be_drawn(grid: list[list[float | None]], logarithmic: bool) -> None:
    figure = heat(grid, logarithmic)
    assert len(figure.numbers.rows) == len(grid)
    ElementTree.fromstring(standalone(figure.svg))
    assert not re.search(r"\b(nan|inf)\b", figure.svg)
    assert len(figure.svg) < 200_000


def test_large_grids_keep_their_peaks() -> None:
    grid = [[0.0] * 1000 for _ in range(300)]
    grid[155][777] = 1.0
    figure = heat(grid)
    found = shades(figure)
    assert sum(shade == style.NUM_SHADES - 1 for row in found for shade in row) == 1
    assert found[155 // 3][777 // 8] == style.NUM_SHADES - 1
    assert len(figure.numbers.rows) == 300 and figure.numbers.rows[155][778] == 1.0


def test_labels_must_fit_the_grid() -> None:
    figure = heat([[1.0, 2.0]], rows=["L1"], columns=["a", "b"])
    assert figure.numbers.rows == (("L1", 1.0, 2.0),) and all(f">{words}<" in figure.svg for words in ("L1", "a", "b"))
    with pytest.raises(ValueError, match="2 columns has 1 labels"):
        heat([[1.0, 2.0]], columns=["a"])


@pytest.mark.parametrize("figure", every_figure(), ids=lambda figure: figure.slug)
def test_figures_are_plain_svg_whose_colours_follow_the_page(figure: Figure) -> None:
    """Text is text; nothing of Matplotlib's style sheet, fonts, links and date is left."""
    assert "<text" in figure.svg and "var(--" in figure.svg
    assert not re.search(r"<style|<metadata|xlink|style=|font-family|DejaVu", figure.svg)
    assert set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+)"', figure.svg)) <= {BLACK}
    assert re.findall(r"var\(", standalone(figure.svg)) == []


def test_figures_are_drawn_alike_twice() -> None:
    assert [figure.svg for figure in every_figure()] == [figure.svg for figure in every_figure()]


EMPTY: list[Callable[[], Figure]] = [
    lambda: lines([]),
    lambda: lines([Line("a", [])]),
    lambda: lines([Line("a", [(1, None), (2, math.nan)])]),
    lambda: plots.bar_figure("bars", "t", "c", [], unit="s"),
    lambda: heat([]),
    lambda: plots.arrangement_figure("plans", "t", "c", {}, 4),
    lambda: plots.arrangement_figure("plans", "t", "c", {"a": []}, 4),
]


@pytest.mark.parametrize("draw", EMPTY)
def test_nothing_to_show_is_said(draw: Callable[[], Figure]) -> None:
    figure = draw()
    assert "nothing measured yet" in figure.svg
    ElementTree.fromstring(standalone(figure.svg))


@pytest.mark.parametrize("points", [[(0, 0.0)], [(5, 2.0)], [(-3, 1.0), (3, 1.0)], [(100, 1.0), (101, 1e-12)]])
@pytest.mark.parametrize("x_kind", ["linear", "doubling"])
@pytest.mark.parametrize("y_logarithmic", [False, True])
def test_any_line_can_be_drawn(points: list[tuple[float, float]], x_kind: str, y_logarithmic: bool) -> None:
    figure = plots.line_figure(
        "line",
        "t",
        "c",
        [Line("a", points)],
        x_label="x",
        y_label="y",
        x_kind="doubling" if x_kind == "doubling" else "linear",
        y_logarithmic=y_logarithmic,
        reference=("level", 0.5),
        y_max=1.5,
    )
    assert all(30 <= x <= 480 for x, _ in places(figure))
    assert "level" in figure.svg and len(tips(figure)) == sum(y <= 1.5 for _, y in points)


def test_a_level_is_drawn_where_its_value_says_and_named() -> None:
    content = [Line("a", [(0, 0.0), (2, 1.0)])]
    figure = plots.line_figure("level", "t", "c", content, x_label="x", y_label="y", reference=("guessing", 0.5))
    dotted = [element for element in drawn(figure) if element.attrib.get("stroke-width") == "1.2"]
    heights = [{y for _, y in corners(element.attrib["d"])} for element in dotted]
    middle = sum(y for _, y in places(figure)) / 2
    assert ">guessing<" in figure.svg and any(
        max(found) == min(found) == pytest.approx(middle, abs=0.2) for found in heights
    )


def test_a_missing_value_leaves_the_rest() -> None:
    figure = lines([Line("a", [(1, 1.0), (2, None), (3, 2.0)], [0.5, None, None], [1.5, None, math.nan])])
    assert len(places(figure)) == 2
    assert figure.numbers.rows == (("a", 1, 1.0, 0.5, 1.5), ("a", 2, None, None, None), ("a", 3, 2.0, None, None))


def test_a_band_has_two_edges_of_the_line_s_length() -> None:
    with pytest.raises(ValueError, match="both its edges"):
        Line("a", [(1, 1.0)], low=[0.5])
    with pytest.raises(ValueError, match="1 points but 2 values"):
        Line("a", [(1, 1.0)], low=[0.5, 1], high=[1, 2])


def test_seeds_become_means_with_bands() -> None:
    results = [
        ("b", 2, 1.0),
        ("a", 2, 3.0),
        ("a", 1, 1.0),
        ("a", 2, 5.0),
        ("a", 2, None),
        ("a", 9, math.nan),
        ("c", 1, None),
    ]
    b, a, c = plots.lines_over_seeds(results)
    assert (b, c) == (Line("b", [(2, 1.0)]), Line("c", []))
    assert a == Line("a", [(1, 1.0), (2, 4.0)], [1.0, 3.0], [1.0, 5.0])
    assert plots.lines_over_seeds([]) == []
    one_seed = lines(plots.lines_over_seeds([("a", x, x / 2) for x in range(3)]))
    assert not bands(one_seed) and len(one_seed.numbers.headers) == 3


def test_the_page_shows_everything_verdicts_first(tmp_path: Path) -> None:
    path = write_experiment(experiment(), tmp_path, overview="../index.html")
    assert path == tmp_path / "report.html"
    page = read_page(path)
    shown = page.text.rpartition("}\n")[2]  # what follows the style sheet
    order = (
        "Copy over segments",
        "Memory tokens carry",
        "Recurrent Memory Transformer",
        "Figure 4, Figure 7",
        "small",
        "cells/x.json is not valid JSON",
        "1 of 3 claims holds, 1 does not at this budget, 1 is open.",
        "It learns.",
        "✓ yes",
        "✗ no",
        "? open",
        "Test set.",
        "0.9877",
        "By segments.",
        "abc\n  def",
        "Fewer steps.",
        "7 of 9",
        "All experiments",
    )
    at = [shown.index(words) for words in order]
    assert at == sorted(at)


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    first = write_experiment(experiment(), tmp_path / "a")
    second = write_overview([(experiment(), "a/report.html")], tmp_path / "index.html")
    for path, start in ((first, "report-files/"), (second, "a/report.html")):
        page, html = read_page(path), path.read_text(encoding="utf-8")
        assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
        assert not page.values("src") and not page.values("style")
        assert not any(name.startswith("on") for found in page.attributes for name in found)
        links = [link for link in page.values("href") if not link.startswith(("#", "data:image/png;base64,"))]
        assert links and all(link.startswith(start) and (path.parent / link).is_file() for link in links)
        assert set(re.findall(r"https?://[^\s\"']*", html)) <= {"http://www.w3.org/2000/svg"}
        assert "@import" not in html and set(re.findall(r"url\((.)", html)) <= {"#"}
        ids = page.values("id")
        assert len(ids) == len(set(ids))
        named = [name for value in page.values("aria-labelledby") for name in value.split()]
        inside = [link[1:] for link in page.values("href") if link.startswith("#")]
        assert inside and {*named, *inside, *re.findall(r"url\(#([^)]+)\)", html)} <= set(ids)


def test_every_figure_and_table_is_a_file(tmp_path: Path) -> None:
    content = experiment()
    write_experiment(content, tmp_path)
    for figure in content.figures:
        rows = read_csv(tmp_path / "report-files" / f"{figure.slug}.csv")
        expected = [["" if cell is None else str(cell) for cell in row] for row in figure.numbers.rows]
        assert rows == [list(figure.numbers.headers), *expected]
        text = (tmp_path / "report-files" / f"{figure.slug}.svg").read_text(encoding="utf-8")
        assert "var(" not in text and len(ElementTree.fromstring(text).findall("{*}desc")) == 1
    assert read_csv(tmp_path / "report-files" / "table-1-accuracy.csv")[1] == ["RMT", "1", "0.98765"]


def test_a_page_without_anything_is_a_page(tmp_path: Path) -> None:
    bare = ExperimentPage(name="x", title="X", paper="P", covers=(), claim="C.", budget="self-test")
    page = read_page(write_experiment(bare, tmp_path))
    assert "No verdict yet." in page.text and "Covers" not in page.text and "figure" not in page.tags
    assert "0 experiments: no verdict yet." in read_page(write_overview([], tmp_path / "index.html")).text
    assert "No verdict yet." in experiment_markdown(bare, "x.json", "x").text


def test_an_earlier_page_s_figures_go(tmp_path: Path) -> None:
    write_experiment(experiment(), tmp_path)
    (tmp_path / "report-files" / "mine.svg").touch()
    write_experiment(experiment(figures=[lines()], tables=()), tmp_path)
    assert {path.name for path in (tmp_path / "report-files").iterdir()} == {
        "index.json",
        "lines.csv",
        "lines.svg",
        "mine.svg",
    }


def test_two_figures_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="called 'lines'"):
        write_experiment(experiment(figures=[lines(), lines(slug="Lines!")]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_rows_must_fit_their_table() -> None:
    with pytest.raises(ValueError, match="'t': every row needs 2 cells"):
        Table("t", ("a", "b"), [(1, 2), (1,)])


def evil_experiment() -> ExperimentPage:
    figures = [
        plots.line_figure(
            EVIL, EVIL, EVIL, [Line(EVIL, [(1, 1.0)])], x_label=EVIL, y_label=EVIL, reference=(EVIL, 1.0)
        ),
        plots.bar_figure("b", EVIL, EVIL, [(EVIL, 1.0)], unit=EVIL),
        plots.heat_figure(
            "h", EVIL, EVIL, [[1.0]], x_label=EVIL, y_label=EVIL, row_labels=[EVIL], column_labels=[EVIL]
        ),
        plots.arrangement_figure("a", EVIL, EVIL, {EVIL: [1]}, 1),
    ]
    return ExperimentPage(
        name=EVIL,
        title=EVIL,
        paper=EVIL,
        covers=(EVIL,),
        claim=EVIL,
        budget=EVIL,
        verdicts=[Verdict(claim=EVIL, paper=EVIL, ours=EVIL, holds=True)],
        tables=[Table(EVIL, (EVIL, EVIL), [(EVIL, EVIL)], EVIL)],
        figures=figures,
        samples=[Sample(EVIL, EVIL + "</pre>", EVIL)],
        notes=(EVIL,),
        facts=[(EVIL, EVIL)],
        problems=[EVIL],
    )


def test_everything_is_escaped(tmp_path: Path) -> None:
    content = evil_experiment()
    paths = [
        write_experiment(content, tmp_path),
        write_overview([(content, f"{EVIL[:8]}/x.html")], tmp_path / "i.html"),
    ]
    for path, least in zip(paths, (30, 8), strict=True):
        page = read_page(path)
        assert "script" not in page.tags and page.text.count("<script>alert('x')</script>&\"␀") >= least
        assert "\x00" not in path.read_text(encoding="utf-8")
    for path in (tmp_path / "report-files").glob("*.svg"):
        ElementTree.fromstring(path.read_text(encoding="utf-8"))


def test_the_overview_lists_experiments_by_paper(tmp_path: Path) -> None:
    pages = [
        (experiment("rmt-copy"), "rmt-copy/report.html"),
        (experiment("xl-ptb", title="Penn Treebank", paper="Transformer-XL", problems=()), "xl ptb/report.html"),
        (experiment("rmt-quad", title="Equations", verdicts=VERDICTS[:1]), "rmt-quad/report.html"),
    ]
    page = read_page(write_overview(pages, tmp_path / "index.html"))
    assert "3 experiments: 3 of 7 claims hold, 2 do not at this budget, 2 are open." in page.text
    assert page.text.index("Equations") < page.text.index("Penn Treebank")
    assert page.text.count("Recurrent Memory Transformer") == 2
    assert [link for link in page.values("href") if "/" in link] == [
        "rmt-copy/report.html",
        "rmt-quad/report.html",
        "xl%20ptb/report.html",
    ]
    assert "rmt-copy: cells/x.json is not valid JSON" in page.text


def test_no_line_ends_before_a_deviation(tmp_path: Path) -> None:
    table = Table("Bits", ("model", "bpc"), [("RMT", "1.72 ± 0.01")])
    page = write_experiment(experiment(tables=[table]), tmp_path).read_text(encoding="utf-8")
    assert "1.72\u00a0±\u00a00.01" in page and "0.99\u00a0±\u00a00.01" in page and " ± " not in page


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        ([], "no verdict yet"),
        ([True], "1 of 1 claims holds"),
        ([True, True], "2 of 2 claims hold"),
        ([False], "0 of 1 claims hold, 1 does not at this budget"),
        ([None, None, False, False], "0 of 4 claims hold, 2 do not at this budget, 2 are open"),
    ],
)
def test_verdicts_are_counted(holds: list[bool | None], words: str) -> None:
    assert tally([Verdict(claim="", paper="", ours="", holds=one) for one in holds]) == words


def test_markdown_says_the_same() -> None:
    text, files = experiment_markdown(experiment(data="copy"), "../../results/rmt-copy/small/results.json", "rmt-copy")
    for words in (
        "# Copy over segments",
        "Recurrent Memory Transformer, Figure 4, Figure 7. Budget: small. Data: copy.",
        "1 of 3 claims holds, 1 does not at this budget, 1 is open.",
        "| It learns. | 1.0 | 0.99 ± 0.01 (2 seeds) | yes |",
        "| It scales. | yes | 2 of 9 cells | open |",
        "### Accuracy\n\n| model | seed | accuracy |\n| --- | ---: | ---: |\n| RMT | 1 | 0.9877 |\n",
        "\n| MT | 2 | – |\n",
        "Test set. [CSV](rmt-copy/table-1-accuracy.csv)",
        '### Accuracy\n\n<figure class="results"><svg',
        "By segments. [SVG](rmt-copy/lines.svg) · [CSV](rmt-copy/lines.csv)",
        "```text\nabc\n  def\n",
        "[All cells](../../results/rmt-copy/small/results.json)",
        "- Fewer steps.",
        "## Left out\n\n- cells/x.json is not valid JSON",
        "- Cells: 7 of 9",
    ):
        assert words in text, words
    assert {"rmt-copy/lines.svg", "rmt-copy/lines.csv", "rmt-copy/table-1-accuracy.csv"} <= files.keys()
    for figure in re.findall("<figure.*?</figure>", text, re.DOTALL):
        assert "\n" not in figure  # an HTML block of Markdown ends at an empty line
        ElementTree.fromstring(figure)


def test_colours_of_markdown_figures_follow_the_page() -> None:
    text = experiment_markdown(experiment(), "x.json", "x").text
    (css,) = re.findall("<style>.*</style>", text)
    used = set(re.findall(r"var\(--(\w+)\)", text))
    for colors in (style.LIGHT, style.DARK):
        assert all(f"--{name}:{colors[name]};" in css for name in used)
    assert 'body[data-theme="dark"] figure.results{' in css
    assert css.count("{") == css.count("}")


def test_markdown_folds_long_tables_and_escapes() -> None:
    listed = Table("Long", ("a",), [(at,) for at in range(40)])
    rough = Verdict(claim="a|b <i>_x_</i>\n*y* $z$ `w` [l](m)", paper="- 1", ours="2. & ~3~", holds=False)
    text, files = experiment_markdown(experiment(tables=[listed]), "x.json", "x")
    assert "<details>\n<summary>40 rows</summary>\n\n| a |" in text and "x/table-1-long.csv" in files
    row = r"| a\|b \<i\>\_x\_\</i\> \*y\* \$z\$ \`w\` \[l\](m) | \- 1 | 2\. \& \~3\~ | not at this budget |"
    assert row in verdict_table([rough])
    assert "<summary>a &lt;b&gt;</summary>" in folded("a <b>", "")
    evil = experiment_markdown(evil_experiment(), "x.json", "x").text
    outside = re.sub(
        "<figure.*?</figure>|<style>.*?</style>|^(`+)text.*?^\\1|`[^`\n]*`", "", evil, flags=re.DOTALL | re.MULTILINE
    )
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)\b)", outside) and "\x00" not in evil
