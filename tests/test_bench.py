from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tolerances import assert_close

from mnemo.bench import CASES, Case, Comparison, Timing, compare, find_cases
from mnemo.bench import cases as cases_module
from mnemo.bench.published import PublishedModel, relative_shift
from mnemo.bench.timing import take_turns
from mnemo.cli import main
from mnemo.data.progress import silent
from mnemo.errors import CheckFailed, MnemoError
from mnemo.memory import XL, Plan
from mnemo.model import InitConfig, Model, ModelConfig
from mnemo.positions import Relative

CPU = torch.device("cpu")
TINY: dict[str, Any] = dict(
    segment=6, memory=10, batch=2, num_layers=2, dim=16, num_heads=2, head_dim=8, inner_dim=24, vocab_size=13
)


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def random_pair(memory: int, **changes: Any) -> tuple[Model, PublishedModel]:
    model = Model(
        ModelConfig(
            vocab_size=13,
            num_layers=3,
            dim=16,
            num_heads=2,
            head_dim=6,
            inner_dim=24,
            memory=Plan(long=XL(length=memory)),
            init=InitConfig(std=0.4),
            **changes,
        )
    )
    return model, PublishedModel.of(model, memory)


@pytest.mark.parametrize(
    ("memory", "changes"),
    [
        (7, {}),
        (3, {}),
        (7, {"same_length": True}),
        (9, {"positions": Relative(clamp=4)}),
        (9, {"positions": Relative(clamp=4), "same_length": True}),
    ],
    ids=["longer than the segment", "shorter", "same length", "clamped", "both"],
)
def test_the_published_formulation_is_the_same_model(memory: int, changes: dict[str, Any], float64: None) -> None:
    """Losses and all gradients over segments that fill the memory, the last one short."""
    model, published = random_pair(memory, **changes)
    state, memories = None, None
    for length in (4, 4, 4, 2):
        tokens, targets = torch.randint(13, (2, 2, length))
        out, state = model(tokens, state)
        losses = model.loss(out, targets)
        theirs, memories = published(tokens.t(), targets.t(), memories)
        assert_close(theirs.t(), losses)
        model.zero_grad()
        published.zero_grad()
        losses.square().sum().backward()
        theirs.square().sum().backward()
    assert memories is not None and len(memories) == 4
    assert_same_gradients(model, published)


def assert_same_gradients(model: Model, published: PublishedModel) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
        expected = dict(PublishedModel.of(model, 0).named_parameters())
    for name, parameter in published.named_parameters():
        assert parameter.grad is not None
        assert_close(parameter.grad, expected[name].detach())


def test_the_shift_moves_every_row_to_its_distance() -> None:
    raw = torch.arange(12.0).view(3, 4, 1, 1)
    shifted = relative_shift(raw)[..., 0, 0]
    for query in range(3):
        for key in range(query + 2):
            assert shifted[query, key] == raw[query, key + 2 - query, 0, 0]


@pytest.mark.parametrize("name", CASES)
def test_every_case_passes_its_check(name: str) -> None:
    assert cases_module.check(CASES[name], CPU) < cases_module.EXACT


def test_nothing_is_timed_when_the_formulations_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemo.bench.published.relative_shift", lambda scores: scores)
    monkeypatch.setattr("mnemo.bench.take_turns", lambda *_, **__: pytest.fail("timed"))
    with pytest.raises(CheckFailed, match="no speed is reported"):
        compare([CASES["eval"]], device=CPU)


def test_contenders_read_the_same_text() -> None:
    case = replace(CASES["eval"], **TINY)
    ours, theirs = cases_module.contenders(case, *cases_module.build(case, CPU)).values()
    for _ in range(5):
        assert_close(ours(), theirs())


def test_contenders_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    ticks = iter(range(100))
    with silent("") as bar:
        timings = take_turns(
            {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
            repeats=2,
            warmup=1,
            device=CPU,
            bar=bar,
            clock=lambda: float(next(ticks)),
        )
    assert calls == ["a", "b"] * 3
    assert timings["a"].seconds == (1.0, 1.0)


def test_a_comparison_is_by_medians() -> None:
    result = Comparison(
        case=CASES["train"], error=0.0, mnemo=Timing((1.0, 2.0, 9.0)), published=Timing((4.0, 5.0, 99.0))
    )
    assert result.ratio == 2.5 and result.holds
    assert not replace(result, published=Timing((3.0,))).holds
    assert not result.steady and replace(result, mnemo=Timing((1.0, 1.1)), published=Timing((4.0,))).steady
    data = result.to_json()
    assert data["mnemo"]["tokens_per_second"] == 4 * 256 / 2 and data["required"] == 2.0


def test_the_promised_shapes_are_measured() -> None:
    train, score = CASES["train"], CASES["eval"]
    assert (train.segment, train.memory, train.batch, train.required) == (256, 256, 4, 2.0)
    assert (score.segment, score.memory, score.batch, score.required) == (64, 2048, 4, 5.0)
    for case in (train, score):
        assert (case.num_layers, case.dim, case.num_heads, case.head_dim, case.inner_dim) == (6, 256, 8, 32, 1024)


@pytest.fixture
def tiny_cases(monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    tiny = {name: replace(case, **TINY, required=0.0) for name, case in CASES.items()}
    for name, case in tiny.items():
        monkeypatch.setitem(CASES, name, case)
    return tiny


def test_bench_prints_a_table_and_json(tiny_cases: dict[str, Case], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--repeats", "2", "--threads", "1", "--require"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in tiny_cases)
    assert main(["bench", "--what", "eval", "--repeats", "3", "--threads", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (case,) = data["cases"]
    assert case["case"] == "eval" and len(case["mnemo"]["seconds"]) == 3 and case["ratio"] > 0
    assert data["machine"]["threads"] == 1


def test_bench_can_require_the_speed(
    tiny_cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CASES, "eval", replace(tiny_cases["eval"], required=1e9))
    assert main(["bench", "--what", "eval", "--repeats", "1", "--threads", "1", "--require"]) == 1
    assert "slower than required: eval" in capsys.readouterr().err


def test_the_number_of_threads_is_put_back(tiny_cases: dict[str, Case]) -> None:
    before = torch.get_num_threads()
    compare([tiny_cases["eval"]], device=CPU, threads=before + 1, repeats=1)
    assert torch.get_num_threads() == before


def test_wrong_cases_are_one_line() -> None:
    assert [case.name for case in find_cases("eval, train")] == ["eval", "train"]
    with pytest.raises(MnemoError, match="did you mean 'train'"):
        find_cases("trian")
    with pytest.raises(MnemoError):
        find_cases(",")
    with pytest.raises(MnemoError):
        compare([CASES["eval"]], device=CPU, repeats=0)


def test_the_cost_of_looking_ahead_is_measured_at_every_length() -> None:
    from mnemo.bench.lookahead import measure_overhead

    case = replace(CASES["train"], segment=4, batch=1, num_layers=2, dim=16, num_heads=2, head_dim=8, inner_dim=16)
    rows = measure_overhead((4, 8), repeats=1, case=case)
    assert [row.memory for row in rows] == [4, 8]
    assert all(min(row.xl, row.lookahead, row.refresh, row.naive) > 0 for row in rows)
