"""The overview of all results: docs/RESULTS.md is current, numbers come from files, no headline is a failed budget."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mnemo import cli
from mnemo.papers import every_experiment, find_experiment
from mnemo.papers.evidence import Evidence
from mnemo.papers.experiment import Budget, Results
from mnemo.papers.headlines import FINDING, HOLDS, ROWS, Claimed, Headline, Source, headlines
from mnemo.papers.main_figures import PAIRINGS, PLAN_SOURCES, MainFigure, main_figures
from mnemo.papers.overview import overview_markdown, site, write_index
from mnemo.papers.pages import SOURCE, measured_on, texts
from mnemo.papers.records import score_in_words, training_seconds
from mnemo.papers.store import Found
from mnemo.report.findings import Verdict

ROOT = Path(__file__).parents[2]
SOURCES = [source for row in ROWS if isinstance(row, Claimed) for source in row.sources]


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return Evidence([ROOT / "results"], ROOT / "docs" / "measurements")


@pytest.fixture(scope="module")
def rows(evidence: Evidence) -> list[Headline]:
    return headlines(evidence)


@pytest.fixture(scope="module")
def figures(evidence: Evidence) -> list[MainFigure]:
    return main_figures(evidence)


def test_the_file_of_the_repository_is_current() -> None:
    """`mnemo reproduce --out results --overview docs/RESULTS.md` writes it again."""
    assert overview_markdown(ROOT / "results", ROOT / "docs") == (ROOT / "docs" / "RESULTS.md").read_text()


def test_links_to_experiments_have_targets() -> None:
    targets = set(re.findall(r'<a id="([\w-]+)">', (ROOT / "docs" / "RESULTS.md").read_text()))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    linked = {target for page in pages for target in re.findall(r"RESULTS\.md#([\w-]+)", page.read_text())}
    assert linked and linked <= targets


def test_about_a_dozen_headlines_and_none_is_a_failure_of_budget(rows: list[Headline]) -> None:
    assert 10 <= len(rows) <= 16
    assert {row.verdict for row in rows} == {HOLDS, FINDING}
    assert all(all(row) for row in rows)


def test_numbers_of_headlines_are_those_of_the_measurements(rows: list[Headline]) -> None:
    shown = {row.page: row for row in rows}
    run = json.loads((ROOT / "docs" / "measurements" / "h200-enwik8.json").read_text())
    seconds = " to ".join(f"{each:.0f}" for each in training_seconds(run))
    assert shown["speedrun.md"].ours == (
        f"{score_in_words(run)} bpc with 38M parameters after {seconds} s of training on one H200 (2 seeds)"
    )
    files = json.loads((ROOT / "docs" / "measurements" / "parity.json").read_text())["files"]
    assert shown["published-defects.md"].ours.startswith(f"46 of {len(files)} files, worst error 5e-12; 2 refused")
    assert "(44 times; 42 if" in shown["speed.md"].ours and "(43 times; 26 if" in shown["speed.md"].ours
    assert "1.3612 ± 0.0022" in shown["gpu-xl"].ours and "(3 seeds)" in shown["gpu-xl"].ours


def test_parity_was_measured_with_every_reference_file_of_the_tests() -> None:
    """`mnemo parity FOLDERS --json` has the errors; the tests hold a few of the files, and compare them again."""
    measured = json.loads((ROOT / "docs" / "measurements" / "parity.json").read_text())
    listed = {each["file"]: each for each in measured["files"]}
    golden = ROOT / "tests" / "golden"
    kept = [
        path for name in ("armt", "lamemo", "rmt", "transformer-xl") for path in (golden / name).glob("*.safetensors")
    ]
    assert len(kept) > 10 and {f"{path.parent.name}/{path.name}" for path in kept} <= listed.keys()
    assert all(each["error"] < measured["tolerance"] for each in listed.values() if each["status"] == "passed")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: f"{source.experiment}: {source.claim[:20]}")
def test_claims_of_headlines_are_claims_of_their_experiments(source: Source) -> None:
    experiment = find_experiment(source.experiment)
    known = [verdict.claim for verdict in experiment.verdicts(Results(budget=source.budget, cells=[]))]
    assert source.claim in known


def test_headlines_say_what_they_were_measured_on(evidence: Evidence) -> None:
    """Where that is another text than the paper's, in the words of the experiments' own table."""
    for source in SOURCES:
        results = evidence.results(source.experiment, source.budget)
        found = "" if results is None else measured_on(find_experiment(source.experiment), results)
        assert found in source.data, source
    songs = [source for source in SOURCES if source.budget == "laptop" and source.experiment != "laptop-rmt"]
    assert songs and all("claim, measured on songs" in source.data for source in songs)


def test_a_claim_that_does_not_hold_makes_no_headline(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"first": False, "second": None, "third": True}

    def verdict(self: Evidence, name: str, budget: str, claim: str) -> Verdict | None:
        return Verdict(claim=claim, paper="1", ours="2; gain 1", brief="2", holds=answers[name])

    monkeypatch.setattr(Evidence, "verdict", verdict)
    sources = [Source(name, "small", "C.", "novels") for name in answers]
    nothing = Evidence([])
    assert Claimed("S.", tuple(sources[:2]))(nothing) is None
    assert Claimed("S.", tuple(sources))(nothing) == Headline("S.", "novels", "1", "2", HOLDS, "third")


def test_every_paper_has_a_figure_with_its_values_and_ours(figures: list[MainFigure]) -> None:
    papers = {experiment.paper for experiment in every_experiment().values()} - {"Further experiments"}
    assert papers < {each.paper for each in figures}
    assert len({each.figure.slug for each in figures}) == len(figures)
    for each in figures:
        source = each.figure.numbers.headers.index("source")
        assert {row[source] for row in each.figure.numbers.rows} == {"ours", "published"}, each.figure.slug


def partial_figures(evidence: Evidence, *kept: tuple[str, Budget], cells: int | None = None) -> dict[str, str]:
    """Captions of the main figures if only these experiments have results, or the first cells of them."""
    known: dict[tuple[str, Budget], Found] = {}
    for name, budget in kept:
        found = evidence.found(name, budget)
        assert found is not None
        known[name, budget] = replace(found, results=replace(found.results, cells=found.results.cells[:cells]))
    return {each.figure.slug: each.figure.caption for each in main_figures(Evidence([], known=known))}


def test_captions_name_only_what_is_measured(evidence: Evidence) -> None:
    words = partial_figures(evidence, ("long-wikitext103", "small"))["few-long-memories"]
    assert "2 of 12 here (WikiText-2: 2 seeds)" in words
    assert "2 of 12 here. " in partial_figures(evidence, ("gpu-long-range", "gpu"), cells=1)["few-long-memories"]
    assert "novels" not in partial_figures(evidence, ("gpu-lamemo", "gpu"))["look-ahead"]
    assert "novels' models have no dropout" in partial_figures(evidence, ("lamemo-novels", "small"))["look-ahead"]


def test_figures_show_the_stored_numbers(figures: list[MainFigure]) -> None:
    shown = {each.figure.slug: each.figure.numbers.rows for each in figures}
    assert ("Transformer-XL", "published", 3800, 1874, None, None) in shown["evaluation-speed"]
    assert ("copy", "Transformer-XL", "published", 9, 0.278, pytest.approx(0.157), pytest.approx(0.399)) in shown[
        "accuracy-by-segments"
    ]
    assert ("speedrun-enwik8", "ours", 38.052044, pytest.approx(1.05325), None, None) in shown["enwik8-by-size"]
    few = {tuple(row[:3]): row[3:] for row in shown["few-long-memories"]}
    bits, words = (few[source.heading, "the last sixth", "ours"] for source in PLAN_SOURCES)
    loss = 1.2947 * math.log(2)  # of long memories in all layers; the verdict says: gain 0.0084 (0.0038 to 0.0131)
    assert bits == pytest.approx([-100 * each / loss for each in (0.0084, 0.0131, 0.0038)], abs=6e-3)
    # The verdict says: gain -0.0079 (-0.0137 to -0.0021) nats.
    assert words == pytest.approx([100 * math.expm1(each) for each in (0.0079, 0.0021, 0.0137)], abs=6e-3)
    (ahead,) = [row for row in shown["look-ahead"] if row[0] == "novels, memory 128"]
    loss = 1.7220 * math.log(2)  # of Transformer-XL, in nats; the verdict says: gain -0.0382 (-0.0481 to -0.0283)
    assert ahead[2:] == pytest.approx([100 * each / loss for each in (-0.0382, -0.0481, -0.0283)], abs=6e-3)
    (tokens,) = [row for row in shown["tokens-on-text"] if row[:2] == ("RMT, 10 tokens", "ours")]
    loss = 1.7239 * math.log(2)  # without memory; the verdict says: gain 0.0783 (0.0706 to 0.0860)
    assert tokens[2:] == pytest.approx([100 * each / loss for each in (0.0783, 0.0706, 0.0860)], abs=6e-3)
    quoted = pytest.approx(100 * (1 - 1.241 / 1.402))
    assert ("RMT, 5 tokens", "published", quoted, None, None) in shown["tokens-on-text"]
    (recurrent,) = [row for row in shown["recurrence-on-text"] if row[:2] == ("Transformer-XL, memory 512", "ours")]
    loss = 1.5671 * math.log(2)  # of Al-Rfou's transformer; the verdict says: gain 0.1427 (0.1388 to 0.1466)
    assert recurrent[2:] == pytest.approx([100 * each / loss for each in (0.1427, 0.1388, 0.1466)], abs=6e-3)
    quoted = pytest.approx(100 * (1 - 1.06 / 1.11))
    assert ("Transformer-XL, memory 512", "published", quoted, None, None) in shown["recurrence-on-text"]
    lines = {(panel, line, source): row for panel, line, source, *row in shown["longer-memories"] if row[0] == 640}
    assert lines["novels, no dropout", "LaMemo", "published"] == [640, 5.008, None, None]
    dropped = lines["enwik8, with dropout", "LaMemo", "ours"]
    assert dropped == pytest.approx([640, 1.4412, 1.4343, 1.4451], abs=5e-5)


def test_longer_memories_are_shown_without_incomplete_results_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = Evidence([ROOT / "results"], ROOT / "docs" / "measurements")
    results = evidence.results("gpu-lamemo", "gpu")
    assert results is not None
    part = Found(replace(results, cells=results.cells[:1]), ())
    whole = evidence.found
    monkeypatch.setattr(evidence, "found", lambda name, budget: part if name == "gpu-lamemo" else whole(name, budget))
    (shown,) = [each.figure for each in main_figures(evidence) if each.figure.slug == "longer-memories"]
    assert {row[0] for row in shown.numbers.rows} == {"LaMemo", "Transformer-XL"}
    assert "dropout it does not break" not in shown.caption


@pytest.mark.parametrize("pairing", PAIRINGS, ids=lambda pairing: pairing.experiment)
def test_pairings_are_claims_of_their_experiments(pairing: tuple[str, str, str, str]) -> None:
    _, name, budget, claim = pairing
    assert claim in [each.claim for each in find_experiment(name).verdicts(Results(budget=budget, cells=[]))]  # type: ignore[arg-type]


def test_nothing_is_shown_without_results(tmp_path: Path) -> None:
    nothing = Evidence([tmp_path], tmp_path)
    assert headlines(nothing) == [] and main_figures(nothing) == []
    assert overview_markdown(tmp_path, tmp_path) is None
    with pytest.raises(KeyError, match="It is so"):
        Evidence([ROOT / "results"]).verdict("xl-ptb", "small", "It is so.")


@pytest.mark.parametrize("kept", [slice(0, 1), slice(1, 3), slice(-1, None)], ids=["first", "next two", "last"])
def test_interrupted_experiments_can_be_shown(kept: slice) -> None:
    class Some(Evidence):
        def _load(self, name: str, budget: Budget) -> Found | None:
            found = super()._load(name, budget)
            some = None if found is None else replace(found.results, cells=found.results.cells[kept])
            return None if found is None or some is None else replace(found, results=some)

    some = Some([ROOT / "results"], ROOT / "docs" / "measurements")
    assert headlines(some) and main_figures(some)


def test_pages_of_the_site(tmp_path: Path) -> None:
    for name in ("xl-evaluation-speed/small", "laptop-rmt/laptop"):
        shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    shutil.copytree(ROOT / "docs" / "measurements", tmp_path / "docs" / "measurements")
    made = site(tmp_path / "results", tmp_path / "docs")
    assert list(made.pages) == ["results/xl-evaluation-speed.md", "results/laptop-rmt.md"]
    text = made.pages["results/laptop-rmt.md"]
    assert text.startswith("# On a laptop: copying over many segments\n") and "Budget: laptop. Data: copy." in text
    files = {f"results/{target}" for target in re.findall(r"\]\((laptop-rmt/[^)]+)\)", text)}
    assert files and files <= made.files.keys()
    assert "](../../results/laptop-rmt/laptop/results.json)" in text
    order = ("## The papers' main claims", "<figure", "## Main numbers", "(results/laptop-rmt.md)", "<details>")
    at = [made.overview.index(words) for words in order]
    assert at == sorted(at) and '<a id="experiment-laptop-rmt"></a>' in made.overview
    drawn = {f"{target}" for target in re.findall(r"\]\((results/files/[^)]+)\)", made.overview)}
    assert "results/files/evaluation-speed.svg" in drawn and drawn <= made.files.keys()


def listed(index: Path) -> tuple[set[str], set[str]]:
    """Experiments and main figures of the index of a site."""
    targets = set(re.findall('href="([^"#]+)"', index.read_text()))
    pages = {target.removesuffix("/report.html") for target in targets if target.endswith("/report.html")}
    return pages, {Path(target).stem for target in targets if target.endswith(".svg")}


def test_the_index_is_about_the_pages_of_its_site_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that were made from other folders of results, as long as these are there."""
    first, second = (shutil.copytree(ROOT / "results", tmp_path / name, ignore=all_but_two) for name in "ab")
    index = tmp_path / "site" / "index.html"
    report = ["reproduce", "--report", "--site", str(index.parent)]
    assert cli.main([*report, "laptop-rmt", "--out", str(first)]) == 0
    assert listed(index) == ({"laptop-rmt/laptop"}, set())
    assert "copy a sequence over 9 segments" in index.read_text() and "sliding window" not in index.read_text()
    shutil.rmtree(second / "laptop-rmt")
    assert cli.main([*report, "xl-evaluation-speed", "--out", str(second)]) == 0
    assert listed(index) == ({"laptop-rmt/laptop", "xl-evaluation-speed/small"}, {"evaluation-speed"})
    assert "copy a sequence over 9 segments" in index.read_text() and "sliding window" in index.read_text()
    assert capsys.readouterr().out.count(f"index of all pages: {index}\n") == 2
    shutil.rmtree(first)
    assert cli.main([*report, "xl-evaluation-speed", "--out", str(second)]) == 0
    assert listed(index) == ({"xl-evaluation-speed/small"}, {"evaluation-speed"})


def all_but_two(folder: str, names: list[str]) -> set[str]:
    """For `copytree`: experiments that are left out."""
    return set(names) - {"laptop-rmt", "xl-evaluation-speed"} if Path(folder) == ROOT / "results" else set()


def test_an_index_lists_pages_of_earlier_versions(tmp_path: Path) -> None:
    """They do not say where their results are: in the folder of the command."""
    index, out = tmp_path / "index.html", ROOT / "results"
    for name in ("laptop-rmt", "rmt-copy"):
        assert cli.main(["reproduce", name, "--report", "--out", str(out), "--site", str(tmp_path)]) == 0
    (tmp_path / "rmt-copy" / "small" / SOURCE).unlink()
    write_index(out, tmp_path)
    assert listed(index)[0] == {"laptop-rmt/laptop", "rmt-copy/small"}


def test_data_of_cells() -> None:
    small, paper = (find_experiment("rmt-language-model").cells(budget) for budget in ("small", "paper"))
    assert (texts(small), texts(paper)) == ("novels", "WikiText-103, enwik8")
    assert texts(find_experiment("laptop-xl").cells("laptop")) == "songs"
    assert texts(find_experiment("rmt-half-memory").cells("small")) == "copy, reverse"
    assert texts(find_experiment("lamemo-flops").cells("small")) == ""
    assert texts([]) == ""
