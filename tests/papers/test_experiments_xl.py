"""The experiments of the Transformer-XL paper: their grids, their verdicts on made-up results, and every self-test."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mnemo.config import from_json
from mnemo.data.corpus import Corpus
from mnemo.data.prepare import load
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.papers.experiment import PAPER_BUDGETS, Budget, Cell, CellResult, Experiment, Results, Verdict
from mnemo.papers.jobs import JOBS
from mnemo.papers.runner import run_here
from mnemo.papers.xl import (
    EXPERIMENTS,
    ablation,
    attention,
    context_length,
    equal_memory,
    evaluation_speed,
)
from mnemo.papers.xl.ablation import STANDARD, VARIANTS
from mnemo.papers.xl.recipes import self_test
from mnemo.papers.xl.sentences import write_shuffled
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.transformer_xl import everywhere

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
TRAINED: dict[str, Any] = {"parameters": 4e7, "curve": [[1, 3.0], [2, 2.5]]}
Values = Callable[[Cell], dict[str, Any] | None]


def made_up(name: str, values: Values, budget: Budget = "small") -> Results:
    """Results of a grid whose cells give these values; None for a cell that is not measured yet."""
    cells = [(cell, values(cell)) for cell in BY_NAME[name].cells(budget)]
    found = [
        CellResult(cell=cell, values=given, seconds=1.0, hardware="made up", versions={})
        for cell, given in cells
        if given is not None
    ]
    return Results(budget=budget, cells=found)


def holds(name: str, values: Values, budget: Budget = "small") -> list[bool | None]:
    return [verdict.holds for verdict in BY_NAME[name].verdicts(made_up(name, values, budget))]


def shows(experiment: Experiment, results: Results) -> list[Verdict]:
    """Make all tables, figures and samples, and return the verdicts."""
    for table in experiment.tables(results):
        assert all(len(row) == len(table.headers) for row in table.rows), table.title
    figures = experiment.figures(results)
    assert len({figure.slug for figure in figures}) == len(figures)
    experiment.samples(results)
    return experiment.verdicts(results)


def test_every_table_and_figure_of_the_paper_is_covered() -> None:
    covered = {item for experiment in EXPERIMENTS for item in experiment.covers}
    assert {f"Table {i}" for i in range(1, 9)} | {f"Figure {i}" for i in range(3, 8)} <= covered


@pytest.mark.parametrize("budget", PAPER_BUDGETS)
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_grids_are_plain_data_in_an_order_that_can_be_run(experiment: Experiment, budget: Budget) -> None:
    cells, done = experiment.cells(budget), set()
    assert cells
    for cell in cells:
        assert cell.name not in done and set(cell.after) <= done and cell.job in JOBS
        assert json.loads(json.dumps(cell.settings)) == cell.settings
        done.add(cell.name)


@pytest.mark.parametrize("budget", PAPER_BUDGETS)
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_nothing_is_decided_before_anything_is_measured(experiment: Experiment, budget: Budget) -> None:
    verdicts = shows(experiment, Results(budget=budget, cells=[]))
    assert verdicts and all(verdict.holds is None for verdict in verdicts)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_models_of_a_small_grid_are_equally_large(experiment: Experiment) -> None:
    """But for depths that are compared."""
    sizes = {}
    for cell in experiment.cells("small"):
        if "recipe" in cell.settings and cell.labels.get("seed", 1) == 1:
            config = from_json(Recipe, cell.settings["recipe"]).model
            with torch.device("meta"):
                sizes[cell.name] = sum(weight.numel() for weight in Model(config).parameters())
    if experiment.name != "xl-enwik8" and sizes:
        assert max(sizes.values()) <= 1.09 * min(sizes.values()), sizes


def search(initial: float, best: float, length: int, trained: int = 128, start: int = 256) -> dict[str, Any]:
    """Values of a search for the best length, from perplexities."""
    return {
        "initial": {"attention": start, "loss": math.log(initial)},
        "best": {"attention": 1024, "loss": math.log(best)},
        "shortest": {"attention": length, "loss": math.log(best)},
        "tried": [[start, math.log(initial)], [2 * start, math.log(best)], [1024, math.log(best)]],
        "trained": trained,
    }


def table5(**changed: tuple[float, float, int] | None) -> Values:
    """The paper's own numbers."""
    rows = {row.name: (row.initial, row.best, row.length) for row in (*VARIANTS, STANDARD)} | changed

    def values(cell: Cell) -> dict[str, Any] | None:
        row = rows[cell.labels["row"]]
        return TRAINED if cell.labels["part"] == "training" else None if row is None else search(*row)

    return values


def test_ablation_holds_with_the_papers_numbers() -> None:
    results = made_up("xl-ablation", table5())
    assert [verdict.holds for verdict in shows(ablation.ABLATION, results)] == [True] * 7


def test_ablation_fails_where_the_numbers_say_so() -> None:
    assert holds("xl-ablation", table5(xl=(29.5, 29.1, 500)))[:4] == [False, False, False, True]
    near = {"al-rfou-half": (2.716, 2.716, 120)}
    verdict = ablation.ABLATION.verdicts(made_up("xl-ablation", table5(xl=(2.72, 2.711, 500), **near)))[3]
    assert verdict.holds is False and "1% of the perplexity" in verdict.claim
    assert holds("xl-ablation", table5(xl=(30.0, 29.9, 500)))[3] is True
    assert holds("xl-ablation", table5(xl=(30.0, 29.9, 500)), "paper")[3] is None  # one seed
    assert holds("xl-ablation", table5(shaw=(27.94, 27.5, 600)))[4:6] == [False, False]
    assert holds("xl-ablation", table5(xl=(27.02, 27.02, 256)))[4:] == [False, False, False]


def test_ablation_is_open_where_rows_are_missing() -> None:
    assert holds("xl-ablation", table5(shaw=None)) == [True, None, True, True, None, None, True]
    assert holds("xl-ablation", table5(xl=None)) == [None] * 7


def test_self_tests_decides_nothing_even_with_good_numbers() -> None:
    assert holds("xl-ablation", table5(), "self-test") == [None] * 7


def lengthened(perplexities: dict[int, float]) -> Values:
    """Of the standard model alone."""
    tried = [[length, math.log(ppl)] for length, ppl in perplexities.items()]
    return lambda cell: {"tried": tried} if cell.labels["part"] == "longer" else None


def test_the_standard_model_is_scored_at_the_papers_attention_lengths() -> None:
    (cell,) = (cell for cell in BY_NAME["xl-ablation"].cells("paper") if cell.labels["part"] == "longer")
    assert cell.settings["lengths"] == [300, 450, 640] and cell.after == ("xl-151m-seed1",)
    assert not [cell for cell in BY_NAME["xl-ablation"].cells("small") if cell.labels["part"] == "longer"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({300: 23.35, 450: 23.16, 640: 23.09}, True),
        ({300: 23.35, 450: 23.36, 640: 23.09}, False),
        ({300: 23.35, 450: 23.34, 640: 23.34}, False),
        ({300: 23.35}, None),
    ],
)
def test_longer_attention_is_to_lower_perplexity_every_time(found: dict[int, float], expected: bool | None) -> None:
    assert holds("xl-ablation", lengthened(found), "paper")[-1] is expected


def test_the_last_block_of_table_5_has_the_papers_rows_and_those_that_searches_tried() -> None:
    _, block = ablation.tables(made_up("xl-ablation", table5()))
    quoted = [(300, "1.00", 23.35), (450, "1.50", 23.16), (640, "2.13", 23.09)]
    ours = [(256, "1.00", "27.0200 ± 0.0000"), (512, "2.00", "26.7700 ± 0.0000")]
    assert [tuple(row[1:]) for row in block.rows] == [*quoted, *ours]


def table8(better: bool = True, length: int = 176) -> Values:
    with_memory = {pair.recurrent: pair.paper[0] for pair in equal_memory.PAIRS}
    fitted = {pair.fitted: pair.paper[1] for pair in equal_memory.PAIRS}

    def values(cell: Cell) -> dict[str, Any]:
        name = cell.labels["row"]
        row = (with_memory | fitted)[name]
        if cell.labels["part"] == "fit":
            return {"length": length, "reference_length": 128, "measured": True}
        best = row.best + (0 if better or name in fitted else 5)
        return TRAINED if cell.labels["part"] == "training" else search(row.initial, best, row.attention)

    return values


def test_equal_memory() -> None:
    results = made_up("xl-equal-memory", table8())
    assert [verdict.holds for verdict in shows(equal_memory.EQUAL_MEMORY, results)] == [True] * 3
    assert holds("xl-equal-memory", table8(better=False, length=128)) == [False] * 3
    only_lengths: Values = lambda cell: table8()(cell) if cell.labels["part"] == "fit" else None  # noqa: E731
    assert holds("xl-equal-memory", only_lengths) == [True, None, None]


def test_the_longest_length_that_fits_is_found() -> None:
    for limit in (4, 5, 176, 300, 511, 512, 9999):
        found = equal_memory.longest_fitting(lambda length, limit=limit: length <= limit, 128)
        assert found == min(512, limit // 4 * 4)
    with pytest.raises(MnemoError, match="not even"):
        equal_memory.longest_fitting(lambda length: False, 128)


def test_an_estimate_charges_for_memory() -> None:
    recipe = self_test()
    plain = replace(recipe, model=replace(recipe.model, memory=everywhere(0)))
    bytes_of = equal_memory.estimated_bytes
    assert bytes_of(plain) < bytes_of(recipe)
    assert bytes_of(plain) < bytes_of(equal_memory.with_segment(plain, 12))


def table6(lengths: dict[str, tuple[int, int, int]] | None = None, limit: int | None = 128) -> Values:
    members = {member.name: member.paper for group in context_length.GROUPS.values() for member in group}
    members |= lengths or {}

    def values(cell: Cell) -> dict[str, Any]:
        if cell.labels["part"] == "losses":
            reads = limit if cell.labels["model"] == "al-rfou-half" else None
            return {"perplexity": [[32, 9.0], [64, 8.0]], "sees_at_most": reads}
        if cell.labels["part"] == "training":
            return TRAINED
        names = [member.name for member in context_length.GROUPS[cell.labels["group"]]]
        found = {
            name: {
                str(share): {"length": length, "at_least": length >= 900}
                for share, length in zip(context_length.SHARES, members[name], strict=True)
            }
            for name in names
        }
        return {"lengths": found, "gains": {name: [[64, 0.5], [96, 0.1]] for name in names}}

    return values


def test_context_length_holds_with_the_papers_numbers() -> None:
    results = made_up("xl-context-length", table6())
    verdicts = shows(context_length.CONTEXT_LENGTH, results)
    assert [verdict.holds for verdict in verdicts] == [True] * 3
    assert "at least 900" in verdicts[0].ours and "80% longer than QRNN" in verdicts[0].ours
    assert "447% longer than Transformer" in verdicts[1].ours
    assert holds("xl-context-length", table6(), "paper") == [True] * 3


def test_a_shorter_context_is_called_shorter() -> None:
    assert context_length.ratios({"A": 96, "B": 64, "C": 128}) == "A 50% longer than B, 25% shorter than C"


def test_context_length_fails_and_is_open() -> None:
    assert holds("xl-context-length", table6({"qrnn": (964, 700, 500)}))[0] is False
    assert holds("xl-context-length", table6({"shaw": (400, 400, 564)}))[1] is False
    assert holds("xl-context-length", table6({"xl": (500, 600, 700)}))[2] is False
    one = lambda cell: table6()(cell) if cell.labels.get("group") != "ablated" else None  # noqa: E731
    assert holds("xl-context-length", one) == [True, None, None]


@pytest.mark.parametrize("length", [932, 900, 868])
def test_one_step_of_the_context_decides_nothing(length: int) -> None:
    results = made_up("xl-context-length", table6({"qrnn": (length, 400, 300)}))
    verdict = context_length.CONTEXT_LENGTH.verdicts(results)[0]
    assert verdict.holds is None and "below 64 tokens decide nothing" in verdict.ours
    flat = {"xl": (600, 600, 568)}
    assert holds("xl-context-length", table6(flat))[2] is None


def test_a_model_with_a_table_of_positions_uses_no_more_than_it_can_read() -> None:
    longer = {"al-rfou-half": (800, 800, 800)}
    assert holds("xl-context-length", table6(longer))[1] is True
    assert holds("xl-context-length", table6(longer, limit=None))[1] is False


def table7(ratios: dict[int, float]) -> Values:
    def values(cell: Cell) -> dict[str, Any] | None:
        ratio = ratios.get(cell.labels["attention"])
        if ratio is None:
            return None
        speed = ratio if cell.labels["kind"] == evaluation_speed.REUSE else 1.0
        tried = [{"batch": 16, "tokens_per_second": speed}, {"batch": 64, "tokens_per_second": None}]
        return {"batch": 16, "tokens_per_second": speed, "tried": tried}

    return values


def test_evaluation_speed() -> None:
    results = made_up("xl-evaluation-speed", table7(dict(evaluation_speed.PUBLISHED)))
    verdicts = shows(evaluation_speed.EVALUATION_SPEED, results)
    assert [verdict.holds for verdict in verdicts] == [True, True]
    assert "1,874" in verdicts[0].ours and "made up" in verdicts[0].ours
    assert holds("xl-evaluation-speed", table7({800: 400, 1800: 300, 2800: 200, 3800: 999})) == [False, False]
    assert holds("xl-evaluation-speed", table7({800: 400, 1800: 300})) == [None, None]
    assert holds("xl-evaluation-speed", table7({3800: 1200})) == [True, None]


def test_the_time_of_the_set_up_does_not_count() -> None:
    model, config = Model(self_test().model), {"attention": 8, "segment": 4}
    score = evaluation_speed.read_reusing(model, config, 2, 3)
    assert (score.tokens, score.memory, score.batch) == (2 * 3 * 4, 8, 2)
    taking = lambda setup, each: lambda n: replace(score, tokens=100 * n, seconds=setup + each * n)  # noqa: E731
    assert evaluation_speed.seconds_per_token(taking(5.0, 2.0), 2, 6) == pytest.approx(0.02)
    assert evaluation_speed.seconds_per_token(taking(9.0, -1.0), 2, 6) == pytest.approx(3 / 600)


def looked(near: float = 0.6, reach: float = 110.0, a: float = 0.99, b: float = 0.6, d: float = 0.8) -> Values:
    """Attention as the paper describes it."""

    def measures(evenness: float, far: float, near: float = 0.3) -> dict[str, float]:
        return {"near": near, "evenness": evenness, "from_whole": far}

    picture = {"layer": 0, "head": 1, "rows": [[0.1, 0.9]], "marked": [[False, True]], "targets": ["x"]}
    values = {
        "memory": 256,
        "measures": {
            "whole": measures(0.7, 0.0, near),
            "a": measures(a, 0.5),
            "b": measures(b, 0.2),
            "d": measures(d, 0.3),
        },
        "reach": [10.0, reach],
        "row_names": ["1.1", "1.2"],
        "wide": [1],
        "pictures": {name: [[0.5, 0.5], [0.1, 0.9]] for name in ("whole", "a", "b", "d")},
        "maps": [picture | {"context": ["a ", "b "]}],
    }
    return lambda cell: values if cell.labels["part"] == "attention" else TRAINED


def test_attention_verdicts() -> None:
    results = made_up("xl-attention", looked())
    assert [verdict.holds for verdict in shows(attention.XL_ATTENTION, results)] == [True] * 5
    assert attention.samples(results)[0].text == "a [b ]"
    assert holds("xl-attention", looked(near=0.15, reach=40, a=0.8, d=0.5)) == [False, False, False, True, False]
    assert holds("xl-attention", lambda cell: None) == [None] * 5


def test_measures_of_attention() -> None:
    even = torch.full((2, 20), 0.05, dtype=torch.float64)
    first = torch.zeros(2, 20, dtype=torch.float64)
    first[:, 0] = 1
    assert attention.measures(even, even) == pytest.approx({"near": 0.1, "evenness": 1.0, "from_whole": 0.0})
    assert attention.measures(first, even) == pytest.approx({"near": 1.0, "evenness": 0.0, "from_whole": 0.95})
    assert attention.reach(even).tolist() == pytest.approx([9.5, 9.5])
    assert attention.binned(even, 7) == [[pytest.approx(0.05)] * 6 + [pytest.approx(0.1 / 3)]] * 2


def scored(values: dict[str, float], unit: str) -> Values:
    """Trained models with these test scores."""

    def given(cell: Cell) -> dict[str, Any] | None:
        value = values.get(cell.labels.get("model", ""))
        if value is None:
            return None
        loss = math.log(value) if unit == "ppl" else value * math.log(2)
        return TRAINED | {"scores": {"test": {"loss": loss}}}

    return given


ENWIK8 = {"vanilla-12": 1.11, "vanilla-deep": 1.08, "xl-12": 1.06, "xl-18": 1.03, "xl-24": 0.99}


def test_enwik8_has_one_seed_which_decides_only_whether_published_values_are_reached() -> None:
    paper = made_up("xl-enwik8", scored(ENWIK8, "bpc"), "paper")
    verdicts = shows(BY_NAME["xl-enwik8"], paper)
    assert [verdict.holds for verdict in verdicts] == [None] * 4 + [True] * 5
    assert "n = 1" in verdicts[0].ours and "does not train: vanilla-deep" in verdicts[1].ours
    assert "64-layer" in verdicts[4].claim
    worse = scored(ENWIK8 | {"xl-12": 1.13}, "bpc")
    assert holds("xl-enwik8", worse, "paper")[4:] == [False, True, False, True, True]
    small = made_up("xl-enwik8", scored(ENWIK8, "bpc"))
    assert [verdict.holds for verdict in shows(BY_NAME["xl-enwik8"], small)] == [None] * 8
    assert holds("xl-enwik8", scored({"xl-12": 1.06}, "bpc"))[:4] == [None] * 4


@pytest.mark.parametrize(("value", "expected"), [(23.5, True), (29.9, False), (31.0, False)])
def test_a_quoted_lstm_must_be_beaten_clearly(value: float, expected: bool) -> None:
    results = made_up("xl-one-billion", scored({"xl": value}, "ppl"), "paper")
    verdict = BY_NAME["xl-one-billion"].verdicts(results)[2]
    assert verdict.holds is expected and "1.5%" in verdict.claim


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_cells_without_values_decide_nothing(experiment: Experiment) -> None:
    verdicts = shows(experiment, made_up(experiment.name, lambda cell: {}))
    assert {verdict.holds for verdict in verdicts} == {None}


@pytest.mark.parametrize(
    ("name", "decided", "good"),
    [
        ("xl-wikitext103", 3, {"xl-base": 24.0, "vanilla": 31.0, "qrnn": 33.0, "lstm": 48.7}),
        ("xl-one-billion", 1, {"xl": 23.5, "no-memory": 25.0, "lstm": 30.0}),
    ],
)
def test_words_at_two_seeds(name: str, decided: int, good: dict[str, float]) -> None:
    results = made_up(name, scored(good, "ppl"))
    assert [verdict.holds for verdict in shows(BY_NAME[name], results)][:decided] == [True] * decided
    turned = dict(zip(good, reversed(good.values()), strict=True))
    assert False in holds(name, scored(turned, "ppl"))


def test_models_that_a_budget_does_not_train_are_quoted_in_its_table() -> None:
    (table,) = BY_NAME["xl-wikitext103"].tables(made_up("xl-wikitext103", scored({"xl-base": 24.0}, "ppl")))
    rows = {str(row[0]): tuple(row[1:]) for row in table.rows}
    assert rows["Transformer-XL Large"] == ("-", "quoted, not run", "18.9")
    assert rows["Transformer-XL Standard"] == ("40M", "24.00 ± 0.00", "24.0")


def test_shuffled_lines_are_the_same_lines(tmp_path) -> None:
    corpus = load("python")
    counts = write_shuffled(corpus, tmp_path / "lines", longest=5000)
    shuffled = Corpus.open(tmp_path / "lines")
    split = shuffled.split("valid")
    assert split.documents is not None and len(split.documents) == counts["valid"] > 50
    end = corpus.tokenizer.encode("\n")[-1]
    ids = np.asarray(corpus.split("valid").ids[:5000])
    before = [tuple(line) for line in np.split(ids, np.flatnonzero(ids == end) + 1) if len(line) > 1]
    after = [tuple(line) for line in np.split(np.asarray(split.ids), split.documents[1:])]
    assert sorted(before) == sorted(after) and before != after


# Experiments that take long, and those whose code the self-tests of text8 and of the Penn Treebank cover.
FURTHER = (
    "xl-attention",
    "xl-ablation",
    "xl-context-length",
    "xl-equal-memory",
    "xl-wikitext103",
    "xl-enwik8",
    "xl-text8",
)


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(e, id=e.name, marks=pytest.mark.thorough if e.name in FURTHER else ()) for e in EXPERIMENTS],
)
def test_self_tests_runs_to_the_end(experiment: Experiment, tmp_path) -> None:
    ran = run_here(experiment, "self-test", tmp_path, device="cpu")
    assert ran.failures == () and ran.found.problems == () and not ran.interrupted
    assert [result.cell for result in ran.found.results.cells] == experiment.cells("self-test")
    assert all(verdict.holds is None for verdict in shows(experiment, ran.found.results))


def test_batches_that_the_machine_cannot_hold_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cell = evaluation_speed.cells("self-test")[0]
    few, many = (evaluation_speed.needed_bytes(cell.settings, batch) for batch in cell.settings["batches"])
    assert few == evaluation_speed.least_bytes(cell.settings) < many
    monkeypatch.setattr(evaluation_speed, "memory_bytes", lambda device: few)
    one = replace(BY_NAME["xl-evaluation-speed"], cells=lambda budget: [cell])
    (found,) = run_here(one, "self-test", tmp_path, device="cpu").found.results.cells
    assert [each["tokens_per_second"] is None for each in found.values["tried"]] == [False, True]
