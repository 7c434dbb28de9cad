"""The report's page: complete, self-contained, escaped, and there whatever the state of the run folders."""

from __future__ import annotations

import csv
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.marks import few
from helpers.page_reader import EVIL, read_page
from helpers.run_folders import make_run, recipe, score, write_json, write_lines, write_result

from mnemo import cli
from mnemo.errors import MnemoError
from mnemo.memory import Plan
from mnemo.memory.compressive import Compressive
from mnemo.memory.lookahead import Lookahead
from mnemo.memory.memory_tokens import MemoryTokens
from mnemo.memory.recurrent import LSTM
from mnemo.memory.xl import XL
from mnemo.report.page_template import Headline
from mnemo.report.run_figures import accuracies, grouped
from mnemo.report.run_page import write_report
from mnemo.report.runs import Run, read_runs, short_names


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs of a task and one of bytes that was evaluated in every way."""
    folder = tmp_path / "runs"
    with_memory = make_run(folder / "with-memory", recipe(64), unit="symbol", corpus="recall", floor=0.02)
    without = make_run(folder / "without-memory", recipe(0), unit="symbol", corpus="recall", floor=2.0)
    byte_run = make_run(folder / "bytes", recipe(512, 12, num_long=3))
    lengths = (0, 32, 64, 128, 256, 512)
    write_result(byte_run, "sweep", kind="sweep", scores=[score(m, 1.5 + 0.2 * math.exp(-m / 90)) for m in lengths])
    by_position = [1.5 + 1 / (1 + at) for at in range(64)]
    write_result(byte_run, "positions", kind="positions", score=score(64, 1.5, by_position=by_position))
    write_result(byte_run, "test", kind="score", score=score(256, 1.55) | {"split": "test"})
    write_result(byte_run, "sample", kind="sample", prompt="def ", texts=["read(self):\n    return 1 < 2"], seed=3)
    return [with_memory, without, byte_run]


def test_the_page_shows_everything(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert write_report(runs, out, title="A title", lead="What this is.") == []
    page = read_page(out)
    for words in (
        "A title",
        "What this is.",
        "with-memory",
        "without-memory",
        "64 in all 4 layers",
        "512 in 3 of 12 layers (interleaved), else 128",
        "Learning curves: recall",
        "Best validation loss: recall",
        "What memory is worth: python",
        "Loss by position in the segment: python",
        "Memory plans",
        "return 1 < 2",
        "model.memory.long.length",
        "torch 2.13.0",
        f"{(1.5 + 0.05 + 4 * math.exp(-5)) / math.log(2):.3f} bpc",
        f"test {1.55 / math.log(2):.3f} bpc",
    ):
        assert words in page.text, words


def test_rollbacks_are_listed(runs: list[Path], tmp_path: Path) -> None:
    events = [
        {"bad_step": 36, "back_to": 30, "cause": "the loss is nan <b>", "rate_factor": 0.5, "slower_until": 536},
        {"bad_step": "?", "back_to": 30, "rate_factor": 0.25},
        {"bad_step": 40, "back_to": 30, "rate_factor": 0.25, "slower_until": "?"},
    ]
    with (runs[0] / "metrics.jsonl").open("a") as file:
        for event in events:
            file.write(json.dumps({"step": 30, "split": "event", "event": "rollback", **event}) + "\n")
        file.write(json.dumps({"step": 30, "split": "event", "event": "other"}) + "\n")
    out = tmp_path / "page.html"
    assert write_report(runs, out) == []
    page = read_page(out)
    expected = "the loss is nan <b>: back to step 30, batches up to step 36 passed over, at 0.5 times the learning rate"
    assert f"with-memory: {expected} until step 536" in page.text
    assert "with-memory: divergence: back to step 30, batches up to step 40 passed over" in page.text
    assert "?" not in page.text and "skipped" not in page.text


def test_the_page_needs_nothing_else(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    write_report(runs, out)
    page, html = read_page(out), out.read_text(encoding="utf-8")
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not page.values("src") and not page.values("style")
    assert not any(name.startswith("on") for found in page.attributes for name in found)
    assert all(link.startswith(("#", "page-files/")) for link in page.values("href"))
    assert set(re.findall(r"https?://[^\s\"']*", html)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in html and set(re.findall(r"url\((.)", html)) == {"#"}


def test_every_picture_has_words_and_files(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    write_report(runs, out)
    page = read_page(out)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    labels = [name for value in page.values("aria-labelledby") for name in value.split()]
    assert labels and set(labels) <= set(ids)
    assert page.values("role").count("img") == page.tags.count("figure") == 9
    targets = [link for link in page.values("href") if not link.startswith("#")]
    assert len(targets) == 19 and all((tmp_path / target).is_file() for target in targets)
    assert {link[1:] for link in page.values("href") if link.startswith("#")} <= set(ids)


def test_losses_by_position_of_one_memory_length_are_lines_of_their_own(runs: list[Path], tmp_path: Path) -> None:
    losses = [2.0] * 64
    others = {
        "segment": {"score": score(64, 1.6, by_position=losses[:32]) | {"segment": 32}},
        "test": {"score": score(64, 1.7, by_position=losses) | {"split": "test"}},
        "off": {"score": score(0, 1.8, by_position=losses), "no_memory": True},
        "batch1": {"score": score(64, 1.5, by_position=losses)},  # of the same conditions as one that is there
    }
    for name, content in others.items():
        write_result(runs[2], f"positions-{name}", kind="positions", **content)
    second = make_run(tmp_path / "second", recipe())
    write_result(second, "positions", kind="positions", score=score(64, 1.6, by_position=losses))
    write_report([runs[2], second], tmp_path / "page.html")
    figure = (tmp_path / "page-files" / "positions-0-python.svg").read_text(encoding="utf-8")
    for label in (
        "bytes, valid split, memory 64, segment 64",
        "bytes, valid split, memory 64, segment 32",
        "bytes, test split, memory 64, segment 64",
        "bytes, valid split, segment 64, no memory",
        "second, valid split, memory 64, segment 64",
    ):
        assert label in figure
    with (tmp_path / "page-files" / "positions-0-python.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 4 * 64 + 32


def test_figures_stand_alone(runs: list[Path], tmp_path: Path) -> None:
    write_report(runs, tmp_path / "page.html")
    pictures = list((tmp_path / "page-files").glob("*.svg"))
    assert len(pictures) == 10
    for path in pictures:
        text = path.read_text(encoding="utf-8")
        assert "var(" not in text
        root = ElementTree.fromstring(text)
        titles = [element.text for element in root if element.tag.endswith(("title", "desc"))]
        assert len(titles) == 2 and all(titles)


def test_numbers_next_to_the_page_are_the_run_s(runs: list[Path], tmp_path: Path) -> None:
    write_report(runs[2:], tmp_path / "page.html")
    with (tmp_path / "page-files" / "learning-0-python.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    metrics = [json.loads(line) for line in (runs[2] / "metrics.jsonl").read_text().splitlines()]
    assert [(row["split"], int(row["step"]), float(row["nats"])) for row in rows] == [
        (metric["split"], metric["step"], metric["loss"]) for metric in metrics
    ]
    assert all(math.isclose(float(row["bpc"]) * math.log(2), float(row["nats"])) for row in rows)


def test_words_are_reported_as_perplexity(tmp_path: Path) -> None:
    run = make_run(tmp_path / "words", recipe(), unit="word", corpus="wikitext-2", floor=4.0)
    write_report([run], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    loss = 4.0 + 0.05 + 4 * math.exp(-5)
    assert f"{math.exp(loss):.2f} ppl" in page.text and "perplexity per word" in page.text


@pytest.mark.parametrize(
    ("memory", "tokens", "words", "caption"),
    [
        (Plan(long=XL(length=0)), None, "none", "No memory"),
        (Plan(long=XL(length=0)), 10, "10 memory tokens", "10 memory tokens around every segment."),
        (Plan(long=XL(length=64)), 10, "64 in all 4 layers, 10 memory tokens", "Reaches 256 tokens back"),
        (Plan(long=XL(length=64), num_long=1), None, "64 in 1 of 4 layers (interleaved), else 128", "448 tokens"),
        (Plan(long=XL(length=64), num_long=0), None, "128 in all 4 layers", "Reaches 512 tokens back"),
        (Plan(long=Lookahead(length=32)), None, "Lookahead 32 in all 4 layers", "4 × Lookahead."),
        (
            Plan(long=Compressive(length=64), short=XL(length=8), num_long=2, arrangement="last"),
            None,
            "Compressive 64 in 2 of 4 layers (last), else 8",
            "2 × XL and 2 × Compressive. Dotted, not to scale: 512 compressed slots of 4 rows.",
        ),
        (
            Plan(long=LSTM(), short=XL(length=8), num_long=2, arrangement="first"),
            None,
            "LSTM in 2 of 4 layers (first), else 8",
            "2 × LSTM and 2 × XL. Dotted, not to scale: LSTM state.",
        ),
    ],
)
def test_every_plan_has_words(memory: Plan, tokens: int | None, words: str, caption: str, tmp_path: Path) -> None:
    base = recipe()
    model = replace(base.model, memory=memory, tokens=None if tokens is None else MemoryTokens(num=tokens))
    run = make_run(tmp_path / "run", replace(base, model=model))
    assert write_report([run], tmp_path / "page.html") == []
    page = read_page(tmp_path / "page.html")
    assert f"{words}segment 64" in page.text and caption in page.text


def test_everything_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "<i>run&"
    run = make_run(folder, recipe(), corpus=EVIL)
    header = json.loads((run / "recipe.json").read_text())
    write_json(run / "recipe.json", header | {"preset": EVIL, "torch_version": EVIL, EVIL: EVIL})
    write_result(run, "sample", kind="sample", prompt=EVIL, texts=[EVIL, "</pre>"], temperature=EVIL)
    write_result(run, EVIL[:8], kind=EVIL)
    out = tmp_path / "page.html"
    write_report([run], out, title=EVIL, lead=EVIL)
    page = read_page(out)
    assert "script" not in page.tags and "i" not in page.tags
    assert page.text.count("<script>alert('x')</script>&\"␀") >= 8
    assert "\x00" not in out.read_text(encoding="utf-8") and "</pre>" in page.text
    for path in (tmp_path / "page-files").glob("*.svg"):
        ElementTree.fromstring(path.read_text(encoding="utf-8"))


BROKEN = {
    "missing": None,
    "empty": b"",
    "truncated": b'{"recipe": {"model": {"dim"',
    "list": b"[1, 2]\n",
    "binary": bytes(range(256)),
    "other": b'{"step": "a", "split": 3, "loss": null, "seconds": true, "recipe": 7, "corpus": [], "kind": "sweep"}\n',
    "deep": b"[" * 100_000,
}


DAMAGED = [
    (name, damage)
    for name in ("recipe.json", "metrics.jsonl", "timing.jsonl", "results/sweep.json")
    for damage in BROKEN
]


@pytest.mark.parametrize(
    ("name", "damage"),
    few(DAMAGED, lambda name, damage: damage == "truncated" or (name, damage) == ("recipe.json", "missing")),
)
def test_a_broken_file_is_named_and_the_rest_shown(name: str, damage: str, runs: list[Path], tmp_path: Path) -> None:
    path, content = runs[2] / name, BROKEN[damage]
    path.unlink() if content is None else path.write_bytes(content)
    notes = write_report(runs, tmp_path / "page.html")
    if damage == "missing" and name.startswith("results"):
        assert notes == []
    elif damage == "empty" and name.endswith("jsonl"):
        assert notes == [f"bytes: {name} is empty"]
    else:
        assert notes and all(note.startswith("bytes: ") and Path(name).name in note for note in notes)
    page = read_page(tmp_path / "page.html")
    assert all(note in page.text for note in notes)
    assert all((tmp_path / link).is_file() for link in page.values("href") if not link.startswith("#"))
    assert "Learning curves: recall" in page.text and "bytes" in page.text


@pytest.mark.parametrize("change", [{"num_layers": 0}, {"dim": 2**70}, {"dim": "wide"}, {"novelty": 1}])
def test_a_recipe_that_cannot_be_built_leaves_the_curves(change: dict[str, object], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    header = json.loads((run / "recipe.json").read_text())
    header["recipe"]["model"].update(change)
    write_json(run / "recipe.json", header)
    (note,) = write_report([run], tmp_path / "page.html")
    assert note.startswith("run: recipe.json: ") and note.endswith("; size and plan are left out")
    page = read_page(tmp_path / "page.html")
    assert "Learning curves: python" in page.text and "Memory plans" not in page.text


def test_an_unreadable_file_is_named(runs: list[Path], tmp_path: Path) -> None:
    (runs[0] / "timing.jsonl").unlink()
    (runs[0] / "timing.jsonl").mkdir()
    (note,) = write_report(runs, tmp_path / "page.html")
    assert note.startswith("with-memory: timing.jsonl is a folder")


def test_losses_that_are_not_numbers_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    losses = [2.0, math.nan, math.inf, 1e308, 0.0, -1.0]
    write_lines(run / "metrics.jsonl", [{"step": i, "split": "valid", "loss": loss} for i, loss in enumerate(losses)])
    notes = write_report([run], tmp_path / "page.html")
    assert [note.partition(":")[2] for note in notes] == [
        " metrics.jsonl, line 2: the valid loss of step 1 is nan; not drawn",
        " metrics.jsonl, line 3: the valid loss of step 2 is inf; not drawn",
    ]
    svg = re.findall(r"<svg.*?</svg>", (tmp_path / "page.html").read_text(encoding="utf-8"), re.DOTALL)
    assert not any(re.search(r"\b(nan|inf)\b", drawing.partition("</desc>")[2]) for drawing in svg)


UNITS = ("byte", "word", "symbol", "nothing known")
POINTS: dict[str, list[dict[str, object]]] = {
    "none": [],
    "zero": [{"step": 0, "split": "valid", "loss": 0.0}],
    "one": [{"step": 5, "split": "train", "loss": 2.0}],
    "many": [{"step": step, "split": "valid", "loss": 2.0} for step in range(300)],
    "far apart": [{"step": 10**12, "split": "train", "loss": 1e-12}, {"step": 1, "split": "train", "loss": 700.0}],
}
DRAWN = [(points, unit) for points in POINTS for unit in UNITS]


@pytest.mark.parametrize(("points", "unit"), few(DRAWN, lambda points, unit: unit == "byte" or points == "far apart"))
def test_any_number_of_points_can_be_drawn(points: str, unit: str, tmp_path: Path) -> None:
    metrics = POINTS[points]
    run = make_run(tmp_path / "run", recipe(), unit=unit)
    write_lines(run / "metrics.jsonl", [*metrics, {"step": 1, "split": "valid", "loss": 1.0}])
    assert write_report([run, make_run(tmp_path / "other", recipe(), unit=unit)], tmp_path / "page.html") == []
    assert "Learning curves" in read_page(tmp_path / "page.html").text


def test_a_run_before_its_first_step_has_a_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    for name in ("metrics.jsonl", "timing.jsonl"):
        (run / name).unlink()
    notes = write_report([run], tmp_path / "page.html")
    assert notes == ["run: metrics.jsonl is missing", "run: timing.jsonl is missing"]
    page = read_page(tmp_path / "page.html")
    assert "Memory plans" in page.text and "Learning curves" not in page.text
    assert all((tmp_path / link).is_file() for link in page.values("href") if not link.startswith("#"))


def test_names_may_be_long_and_foreign(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, recipe(), corpus=name) for name in ("x" * 200, "x" * 201, "память", "記憶")]
    assert write_report(folders, tmp_path / "page.html") == []
    page = read_page(tmp_path / "page.html")
    assert "память" in page.text and len(page.values("id")) == len(set(page.values("id")))


def test_many_runs_stay_distinct(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"group-{i % 2}" / f"run-{i // 2}", recipe(8 * i)) for i in range(20)]
    write_report(folders, tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    assert "20 runs side by side" in page.text and "group-1/run-9" in page.text
    assert {"7,4", "2,4"} <= set(page.values("stroke-dasharray"))
    assert len(page.values("id")) == len(set(page.values("id")))


def test_an_older_report_s_figures_go(runs: list[Path], tmp_path: Path) -> None:
    out, files = tmp_path / "page.html", tmp_path / "page-files"
    write_report(runs, out)
    (files / "mine.txt").write_text("not the report's")
    write_report(runs[:1], out)
    expected = {"overview", "learning-0-recall", "plan-0-with-memory"}
    assert {path.stem for path in files.iterdir()} == {*expected, "index", "mine"}


@pytest.mark.parametrize("listed", [None, "all", [7, None, [], "..", "../kept.txt", "kept.txt"]])
def test_a_strange_list_of_figures_removes_nothing(listed: object, runs: list[Path], tmp_path: Path) -> None:
    files = tmp_path / "page-files"
    files.mkdir()
    for path in (files / "kept.txt", tmp_path / "kept.txt"):
        path.touch()
    write_json(files / "index.json", {"files": listed})
    write_report(runs[:1], tmp_path / "page.html")
    assert (files / "kept.txt").exists() and (tmp_path / "kept.txt").exists()


def test_the_same_runs_give_the_same_page(runs: list[Path], tmp_path: Path) -> None:
    pages = []
    for name in ("a", "b"):
        write_report(runs, tmp_path / name / "page.html")
        html = (tmp_path / name / "page.html").read_text(encoding="utf-8")
        pages.append(re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", html))
    assert pages[0] == pages[1]


def test_command_line(runs: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(runs[0].parent.parent)
    assert cli.main(["report", "bytes"]) == 0
    assert capsys.readouterr().out == "runs/bytes/report.html\n"
    assert cli.main(["report", "bytes", str(runs[1]), "runs/bytes/report.html"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "runs/report.html\n"
    assert re.fullmatch(r"mnemo: left out: .*report\.html is a file, not a run folder\n", captured.err)
    assert "is a file, not a run folder" in read_page(Path("runs/report.html")).text
    assert cli.main(["report", "runs"]) == 0
    assert capsys.readouterr() == ("runs/report.html\n", "")
    assert "3 runs side by side" in read_page(Path("runs/report.html")).text
    assert cli.main(["report", "bytes", "--out", "new/x.html", "--title", "Mine"]) == 0
    assert "Mine" in read_page(Path("new/x.html")).text


def test_the_page_of_a_folder_of_runs_stays(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the one that `mnemo demo` has made."""
    monkeypatch.chdir(runs[0].parent.parent)
    own = Path("runs/demo/report.html")
    make_run(own.parent / "memory", recipe(8))
    own.write_text("the demo")
    assert cli.main(["report", "runs/demo"]) == 0
    assert capsys.readouterr().out == "runs/report.html\n"
    assert own.read_text() == "the demo" and "memory" in read_page(Path("runs/report.html")).text


def test_a_run_that_does_not_exist_is_refused_beside_one_that_does(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, empty = tmp_path / "page.html", tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)  # without the runs of a demo
    assert cli.main(["report", str(runs[0]), "nowhere", "--out", str(page)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "mnemo: error: no run 'nowhere': there are none in runs\n"
    assert not page.exists()


@pytest.mark.parametrize(
    ("names", "words"),
    [([], "at least one run"), (["nowhere"], "no run 'nowhere'"), (["."], "is not a run folder")],
)
def test_without_a_run_there_is_no_page(
    names: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *names]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_no_runs_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match="no run given"):
        write_report([], tmp_path / "page.html")


def test_names_are_the_shortest_that_differ() -> None:
    paths = [Path("/a/x/run"), Path("/a/y/run"), Path("/a/other")]
    assert short_names(paths) == ["x/run", "y/run", "other"]


def test_a_kind_of_memory_has_one_colour_in_the_page(runs: list[Path], tmp_path: Path) -> None:
    tokens = replace(recipe(0).model, tokens=MemoryTokens(num=4))
    more = make_run(tmp_path / "tokens", replace(recipe(0), model=tokens), unit="symbol", corpus="recall")
    found, _ = read_runs([*runs, more])
    assert [run.color for run in found] == [0, 1, 0, 2]


def test_runs_of_one_kind_side_by_side_have_different_colours(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name, recipe(64)) for name in ("a", "b")]
    found, _ = read_runs([*paths, make_run(tmp_path / "c", recipe(0))])
    assert [run.color for run in found] == [0, 1, 2]


def test_the_headline_comes_first_and_its_figure_once(runs: list[Path], tmp_path: Path) -> None:
    for path, share in zip(runs, (1.0, 0.0625), strict=False):
        write_result(path, "score", kind="score", score=score(64, 1.0) | {"accuracy": share})

    def headline(found: Sequence[Run]) -> Headline:
        return Headline("With memory: all right", accuracies(grouped(found)[0]), ("Steps were cut.",))

    out = tmp_path / "page.html"
    write_report(runs, out, title="A title", headline=headline)
    html = out.read_text(encoding="utf-8")
    assert html.index("<h1>With memory: all right</h1>") < html.index("Steps were cut.") < html.index("<figure")
    assert html.index("<figure") < html.index('<p class="lead">')
    assert html.count("Right answers: recall</title>") == 1
    assert (tmp_path / "page-files" / "accuracy-0-recall.svg").is_file()


def test_cards_word_better_as_better_and_ties_as_ties(tmp_path: Path) -> None:
    losses = {"a": 1.0, "b": 1.002, "c": 1.5}
    paths = [make_run(tmp_path / name, recipe(64), floor=loss) for name, loss in losses.items()]
    write_result(paths[0], "sweep", kind="sweep", scores=[score(0, 2.0), score(64, 1.5)])
    write_report(paths, tmp_path / "page.html")
    text = read_page(tmp_path / "page.html").text
    assert "2 runs alike: a, b; c reaches" in text
    assert f"With memory{0.5 / math.log(2):.3f} bpc better" in text and "−" not in text


def test_equal_shares_of_right_answers_have_no_winner(tmp_path: Path) -> None:
    shares = {"a": 0.996, "b": 1.0, "c": 0.25}
    for name, share in shares.items():
        run = make_run(tmp_path / name, recipe(64), unit="symbol", corpus="recall")
        write_result(run, "score", kind="score", score=score(64, 1.0) | {"accuracy": share})
    write_report([tmp_path / name for name in shares], tmp_path / "page.html")
    assert "Right answers on recall100%2 runs alike: a, b; c 25%" in re.sub(
        r"\s*\n\s*", "", read_page(tmp_path / "page.html").text
    ).replace("100% ", "100%")


def test_memory_tokens_are_in_the_picture_of_the_plan(tmp_path: Path) -> None:
    model = replace(recipe(0).model, tokens=MemoryTokens(num=10))
    run = make_run(tmp_path / "run", replace(recipe(0), model=model))
    write_report([run], tmp_path / "page.html")
    picture = (tmp_path / "page-files" / "plan-0-run.svg").read_text(encoding="utf-8")
    assert "tokens read" in picture and "tokens written" in picture and "<pattern" in picture
    assert "10 memory tokens before the segment, 10 after it" in picture
    plain = make_run(tmp_path / "plain", recipe(0))
    write_report([plain], tmp_path / "other.html")
    assert "tokens read" not in (tmp_path / "other-files" / "plan-0-plain.svg").read_text(encoding="utf-8")
