from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tolerances import assert_close

from mnemo import ops
from mnemo.bench import attention_op, comparison, timed_steps
from mnemo.bench.attention_op import Shape, check_operation, measure_operations
from mnemo.bench.cases import CASES, CPU_CASES, GPU_CASES, REQUIRED_IN_FP32, SECTIONS, Case, find_cases
from mnemo.bench.comparison import compare
from mnemo.bench.narrow_cases import narrow_cases, narrow_obstacle
from mnemo.bench.published_memories import shift_ahead
from mnemo.bench.published_xl import PublishedModel, relative_shift
from mnemo.bench.results import Comparison, Measured, long_range
from mnemo.bench.timed_steps import (
    EXACT,
    NARROW,
    build_model,
    builders,
    check,
    check_narrow,
    our_step,
    published_of,
    published_step,
)
from mnemo.bench.timing import Timing, take_turns
from mnemo.cli import main
from mnemo.errors import CheckFailed, MnemoError
from mnemo.memory import XL, Plan
from mnemo.model import InitConfig, Model, ModelConfig
from mnemo.model.positions import Relative
from mnemo.progress import silent
from mnemo.training.optimizers import build_optimizer

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


def test_the_look_ahead_shift_moves_every_row_to_its_distance() -> None:
    raw = torch.arange(16.0).view(4, 4, 1, 1)
    shifted = shift_ahead(raw)[..., 0, 0]
    for query in range(4):
        for key in range(query, 4):
            assert shifted[query, key] == raw[query, key - query, 0, 0]


def test_the_published_formulation_takes_a_plan(float64: None) -> None:
    model = Model(replace(random_pair(7)[0].config, memory=Plan(long=XL(length=7), short=XL(length=2), num_long=1)))
    published = PublishedModel.of(model, (2, 2, 7))
    state, memories = None, None
    for _ in range(3):
        tokens, targets = torch.randint(13, (2, 2, 4))
        out, state = model(tokens, state)
        theirs, memories = published(tokens.t(), targets.t(), memories)
        assert_close(theirs.t(), model.loss(out, targets))


@pytest.mark.parametrize("name", ["train", "eval", "generate", "xl-24-plan", "lamemo", "rmt"])
def test_every_kind_of_case_passes_its_check(name: str) -> None:
    assert check(CASES[name], CPU) < EXACT


def test_rates_in_single_precision_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded steps on a GPU read them from there."""

    def with_tensors(*arguments: Any) -> torch.optim.Optimizer:
        optimizer = build_optimizer(*arguments)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32)
        return optimizer

    monkeypatch.setattr(timed_steps, "build_optimizer", with_tensors)
    assert check(CASES["lamemo"], CPU) < EXACT


@pytest.mark.thorough
def test_nothing_is_timed_when_the_formulations_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemo.bench.published_xl.relative_shift", lambda scores: scores)
    monkeypatch.setattr("mnemo.bench.comparison.take_turns", lambda *_, **__: pytest.fail("timed"))
    monkeypatch.setattr("mnemo.bench.comparison.check_operations", lambda *_: 0.0)
    with pytest.raises(CheckFailed, match="no speed is reported"):
        list(compare("eval", device=CPU))


def test_nothing_is_timed_when_the_operation_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = attention_op.relative_attention

    def wrong(q: torch.Tensor, *args: Any, **options: Any) -> Any:
        out, lse = right(q, *args, **options)
        return out + 1e-4 * q, lse

    monkeypatch.setattr(attention_op, "relative_attention", wrong)
    monkeypatch.setattr("mnemo.bench.comparison.take_turns", lambda *_, **__: pytest.fail("timed"))
    assert main(["bench", "--what", "eval", "--device", "cpu"]) == 1
    assert "relative attention is wrong" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train", "eval", "generate"])
def test_contenders_read_the_same_text(name: str) -> None:
    case = replace(CASES[name], **(TINY | {"segment": 1} if name == "generate" else TINY))
    model = build_model(case, CPU)
    published = published_of(case, model)
    ours, theirs = our_step(case, model, full=True), published_step(case, published, full=True)
    for _ in range(5):
        assert_close(ours(), theirs())


def test_half_precision_is_measured_against_two_published_variants() -> None:
    assert set(builders(CASES["eval-long"], CPU)) == {"mnemo", "published", "published, bf16 weights"}
    assert set(builders(CASES["xl-base"], CPU)) == {"mnemo", "published"}


@pytest.fixture
def bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemo.inference.narrow_weights.obstacle", lambda weights, device: None)


def test_a_cpu_with_products_in_bf16_is_measured_with_fewer_bits(bf16_products: None) -> None:
    assert list(builders(CASES["train"], CPU)) == ["mnemo", "mnemo, bf16", "published", "published, bf16"]
    assert list(builders(CASES["eval"], CPU)) == ["mnemo", "mnemo, bf16", "published", "published, bf16 weights"]
    narrow = ["mnemo, bf16 weights", "mnemo, int8 weights"]
    assert list(builders(CASES["generate"], CPU)) == ["mnemo", *narrow, "published", "published, bf16 weights"]


def test_a_cpu_without_products_in_bf16_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemo.inference.narrow_weights.obstacle", lambda weights, device: "too old")
    assert narrow_cases(CASES["eval"], CPU) == {} and check_narrow(CASES["eval"], CPU) is None
    sides = {"mnemo": measured(1.0), "published": measured(4.0)}
    result = replace(Comparison.of(CASES["eval"], 0.0, sides), not_narrow=narrow_obstacle(CASES["eval"], CPU))
    assert "not measured in bf16: too old" in result.verdict
    assert narrow_obstacle(CASES["eval-long"], CPU) is None


@pytest.mark.parametrize("name", [case.name for case in CPU_CASES])
def test_fewer_bits_are_checked_before_anything_is_timed(
    name: str, bf16_products: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = check_narrow(CASES[name], CPU)
    assert error is not None and EXACT < error <= NARROW["int8"]
    monkeypatch.setattr(timed_steps, "NARROW", dict.fromkeys(NARROW, error / 2))
    with pytest.raises(CheckFailed, match="no speed is reported"):
        check_narrow(CASES[name], CPU)


def test_the_fastest_option_must_reach_the_required_speed() -> None:
    sides = {"mnemo": measured(2.0), "mnemo, bf16": measured(1.0), "published": measured(4.4)}
    result = Comparison.of(replace(CASES["train"], required=4.0), 0.0, sides)
    assert result.multiples == {"mnemo": 2.2, "mnemo, bf16": 4.4} and result.holds
    assert "2.20 times as fast in fp32, 4.40 times as fast in bf16 (required of the fastest: 4.0" in result.verdict
    assert not replace(result, required=5.0).holds


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


def measured(*seconds: float, **options: Any) -> Measured:
    return Measured(timing=Timing(seconds), **{"tokens": 1024, **options})


def test_a_comparison_is_by_medians() -> None:
    sides = {"mnemo": measured(1.0, 2.0, 9.0), "published": measured(4.0, 5.0, 99.0)}
    result = Comparison.of(replace(CASES["train"], required=2.0), 0.0, sides)
    assert result.ratio == 2.5 and result.holds
    assert not replace(result, contenders=sides | {"published": measured(3.0)}).holds
    assert not result.steady
    assert replace(result, contenders={"mnemo": measured(1.0, 1.1), "published": measured(4.0)}).steady
    data = result.to_json()
    assert data["contenders"]["mnemo"]["tokens_per_second"] == 4 * 256 / 2 and data["required"] == 2.0


def test_unequal_calls_are_compared_by_token() -> None:
    sides = {"mnemo": measured(2.0, tokens=8), "published": measured(5.0, tokens=2)}
    assert Comparison.of(CASES["train"], 0.0, sides).ratio == 10.0


def test_what_few_long_layers_save_leaves_the_weights_out() -> None:
    def both(seconds: float, peak: int) -> dict[str, Measured]:
        return {"mnemo": measured(seconds, peak=peak, weights=100)}

    results = [
        Comparison.of(CASES["xl-24"], 0.0, both(3.0, 700)),
        Comparison.of(CASES["xl-24-plan"], 0.0, both(1.5, 300)),
    ]
    (saved,) = long_range(results)
    assert (saved.faster, saved.lighter) == (2.0, 3.0)
    assert long_range(results[:1]) == []


def test_the_promised_shapes_are_measured() -> None:
    train, score = CASES["train"], CASES["eval"]
    assert (train.segment, train.memory, train.batch, train.required) == (256, 256, 4, 4.0)
    assert (score.segment, score.memory, score.batch, score.required) == (64, 2048, 4, 8.0)
    for case in (train, score):
        assert (case.num_layers, case.dim, case.num_heads, case.head_dim, case.inner_dim) == (6, 256, 8, 32, 1024)
    base, long = CASES["xl-base"], CASES["eval-long"]
    assert (base.segment, base.memory, base.batch, base.dropout, base.attention_dropout) == (512, 512, 22, 0.1, 0.0)
    assert (long.segment, long.memory, long.batch, long.required) == (128, 3800, 16, 10.0)
    assert {case.section for case in GPU_CASES} == {case.section for case in CPU_CASES} == set(SECTIONS) - {"op"}


def test_the_operation_is_checked_and_measured() -> None:
    tiny = Shape(name="tiny", batch=2, heads=2, size=8, segment=5, memory=7)
    assert check_operation(tiny, CPU, torch.float32) < 1e-5


@pytest.fixture
def tiny_cases(monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    tiny = {case.name: replace(case, **TINY, required=0.0) for case in CPU_CASES}
    tiny["generate"] = replace(tiny["generate"], segment=1)
    for name, case in tiny.items():
        monkeypatch.setitem(CASES, name, case)
    monkeypatch.setattr(
        attention_op, "CPU_SHAPES", (Shape(name="tiny", batch=2, heads=2, size=8, segment=5, memory=7),)
    )
    return tiny


def test_both_passes_of_every_formulation_are_timed(tiny_cases: dict[str, Case]) -> None:
    forward, both = measure_operations(CPU, error=0.0, repeats=1)
    assert (forward.name, both.name) == ("op tiny forward", "op tiny forward+backward")
    assert set(both.contenders) == {"mnemo", "published", "limit"}


def test_bench_prints_a_table_and_json(
    tiny_cases: dict[str, Case], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--threads", "1", "--require", "--device", "cpu", "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in tiny_cases) and "op tiny forward" in table
    saved = json.loads(out.read_text())
    assert saved["format_version"] == 1 and len(saved["cases"]) == 2 + len(tiny_cases)
    assert "commit" in saved
    assert main(["bench", "--what", "eval", "--repeats", "3", "--threads", "1", "--json", "--device", "cpu"]) == 0
    data = json.loads(capsys.readouterr().out)
    (case,) = data["cases"]
    assert case["case"] == "eval" and len(case["contenders"]["mnemo"]["seconds"]) == 3 and case["ratio"] > 0
    assert data["machine"]["threads"] == 1


def test_bench_can_require_the_speed(
    tiny_cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CASES, "eval", replace(tiny_cases["eval"], required=1e9))
    command = ["bench", "--what", "eval", "--repeats", "1", "--threads", "1", "--require", "--device", "cpu"]
    assert main(command) == 1
    assert "slower than required: eval" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_number_of_threads_is_put_back(tiny_cases: dict[str, Case]) -> None:
    before = torch.get_num_threads()
    list(compare("eval", device=CPU, threads=before + 1, repeats=1))
    assert torch.get_num_threads() == before


def test_wrong_cases_are_one_line() -> None:
    assert find_cases("op, eval, training", CPU) == (True, [CASES["eval"], CASES["train"], CASES["train-dropout"]])
    with pytest.raises(MnemoError, match="did you mean 'train'"):
        find_cases("trian", CPU)
    with pytest.raises(MnemoError):
        find_cases(",", CPU)
    with pytest.raises(MnemoError):
        list(compare("eval", device=CPU, repeats=0))


def test_the_cost_of_looking_ahead_is_measured_at_every_length() -> None:
    from mnemo.bench.lookahead_cost import measure_overhead

    case = replace(CASES["train"], segment=4, batch=1, num_layers=2, dim=16, num_heads=2, head_dim=8, inner_dim=16)
    rows = measure_overhead(CPU, (4, 8), repeats=1, case=case)
    assert [row.memory for row in rows] == [4, 8]
    assert all(min(row.xl, row.lookahead, row.refresh, row.naive) > 0 for row in rows)


@pytest.mark.thorough
def test_loss_curves_of_fast_attention_and_of_its_equation_agree(tmp_path: Path) -> None:
    out = tmp_path / "curves.json"
    assert main(["bench", "--curves", "20", "--device", "cpu", "--out", str(out)]) == 0
    found = json.loads(out.read_text())["curves"]
    assert len(found["fast"]) == 2 and len(found["fast"][0]) == 20
    assert 0 < found["difference"] < 1e-4 < found["spread"] and found["agree"]
    assert main(["bench", "--curves", "0", "--device", "cpu"]) == 2


def test_attention_can_be_chosen_for_whole_models(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    real = ops.relative_attention_reference

    def reference(*args: Any, **kwargs: Any) -> Any:
        called.append("reference")
        return real(*args, **kwargs)

    monkeypatch.setattr(ops, "relative_attention_reference", reference)
    q = torch.randn(1, 1, 2, 4)
    with ops.using("reference"):
        ops.relative_attention(q, q, q, offset=0)
        ops.relative_attention(q, q, q, offset=0, impl="eager")
    ops.relative_attention(q, q, q, offset=0)
    assert called == ["reference"]


@pytest.mark.parametrize("obstacle", [None, "this processor has no products in bf16"])
def test_less_is_required_of_processors_without_bf16(obstacle: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, found in (("check", 0.0), ("check_narrow", None), ("_in_turns", {}), ("narrow_obstacle", obstacle)):
        monkeypatch.setattr(comparison, name, lambda *_, found=found: found)
    for case in CPU_CASES:
        required = comparison._compare(case, CPU, 1, silent).required
        assert required == (case.required if obstacle is None else REQUIRED_IN_FP32[case.name])
