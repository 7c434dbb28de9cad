"""`mnemo estimate`: every number against one computed by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.doc_pages import ROOT

from mnemo import cli
from mnemo.bench.cases import CASES
from mnemo.bench.gpu_table.work import Training, work_of
from mnemo.cli.estimate import bench_efficiency
from mnemo.cost.flops import flops_per_token
from mnemo.cost.gpu_specs import ASSUMED, GPUS, Efficiency, Gpu, changed, find_gpu
from mnemo.cost.measured_shares import H200, NARROW, Measured, expected_efficiency
from mnemo.cost.model_cost import describe
from mnemo.cost.training_cost import (
    Estimate,
    Machine,
    activation_bytes,
    checkpoint_interval,
    estimate,
    failures_per_day,
    lost_share,
    saved_bytes,
    state_row_bytes,
)
from mnemo.errors import MnemoError
from mnemo.memory import XL, Plan
from mnemo.model import Model, ModelConfig
from mnemo.model.shapes import shape_model
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import AverageConfig, OptimizerConfig, Recipe, TrainConfig
from mnemo.units import duration_text, energy_text

MODEL = ModelConfig(
    vocab_size=256, num_layers=2, dim=16, num_heads=2, head_dim=8, inner_dim=32, memory=Plan(long=XL(length=8))
)
RECIPE = Recipe(model=MODEL, train=TrainConfig(batch=8, segment=4, steps=100))
GPU = Gpu(
    name="toy",
    memory=1e9,
    half=2e12,
    single=1e12,
    double=5e11,
    bandwidth=1e11,
    watts=100,
    link=1e10,
    source="made up",
)


def machine(gpus: int = 1, **changes: object) -> Machine:
    return replace(
        Machine(gpu=GPU, gpus=gpus, per_node=2, network=1e9, efficiency=Efficiency(0.5, "made up")),
        **changes,  # type: ignore[arg-type]
    )


def found(gpus: int = 1, recipe: Recipe = RECIPE, **changes: object) -> Estimate:
    return estimate("toy", recipe, machine(gpus, **changes))


def test_one_gpu_by_hand() -> None:
    one, info = found(), describe("toy", RECIPE)
    (layout,) = one.layouts
    count = info.parameters.total
    memory = layout.memory
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * count, 4 * count, 8 * count)
    assert memory.state == 8 * 2 * 8 * 16 * 4  # rows, layers, slots, width, bytes
    assert memory.logits == 3 * 4 * 8 * 4 * 256  # copies, bytes, rows, tokens, symbols
    assert memory.gathered == layout.sent == layout.seconds_sending == 0
    assert one.compute_seconds == info.training_step * 8 * 4 / (0.5 * 1e12)
    assert one.tokens == 100 * 8 * 4
    assert one.days(layout) == pytest.approx(100 * one.compute_seconds / 86400, rel=1e-12)
    assert one.kilowatt_hours(layout) == pytest.approx(100 * one.compute_seconds / 3600 * 0.1, rel=1e-12)
    assert one.chosen is layout


def test_windows_that_do_not_overlap_are_read_whole_at_every_step() -> None:
    tumbling = replace(RECIPE, train=replace(RECIPE.train, bptt=3, bptt_window="tumbling"))
    sliding = replace(RECIPE, train=replace(RECIPE.train, bptt=3, bptt_window="sliding"))
    assert found(recipe=tumbling).tokens == 4 * 100 * 8 * 4
    assert found(recipe=sliding).tokens == 100 * 8 * 4


def test_an_update_sums_gradients_once_and_gathers_weights_for_every_segment_and_part() -> None:
    window = replace(RECIPE, train=replace(RECIPE.train, bptt=3, bptt_window="tumbling"))
    whole, one = found(2, recipe=window), found(2)
    (ddp, fsdp), (one_ddp, one_fsdp) = whole.layouts, one.layouts
    assert whole.compute_seconds == pytest.approx(4 * one.compute_seconds, rel=1e-12)
    assert (ddp.sent, fsdp.sent) == (one_ddp.sent, 4 * one_fsdp.sent)
    seconds = 100 * (whole.compute_seconds + ddp.seconds_sending)
    assert whole.days(ddp) == pytest.approx(seconds / 86400, rel=1e-12)
    parts = found(2, recipe=replace(window, train=replace(window.train, accumulate=2)))
    assert [layout.sent for layout in parts.layouts] == [ddp.sent, fsdp.sent * 5 / 3]


def test_layouts_divide_and_send_by_hand() -> None:
    two, count = found(2), describe("toy", RECIPE).parameters.total
    ddp, fsdp = two.layouts
    assert (two.rows, ddp.memory.state) == (4, found().layouts[0].memory.state / 2)
    assert (ddp.memory.weights, fsdp.memory.weights) == (4 * count, 2 * count)
    assert fsdp.memory.optimizer == 4 * count and fsdp.memory.activations == ddp.memory.activations
    assert fsdp.memory.gathered == 2 * count / 2 * 4
    assert (ddp.sent, fsdp.sent) == (4 * count, 6 * count)  # 2 and 3 times one half of 4 bytes a weight
    assert ddp.seconds_sending == 4 * count / 1e10
    assert two.step_seconds(ddp) == two.compute_seconds + ddp.seconds_sending
    assert two.compute_seconds == found().compute_seconds / 2


def test_across_nodes_the_network_sets_the_pace() -> None:
    ddp, _ = found(4).layouts
    assert ddp.seconds_sending == pytest.approx(ddp.sent / 1e9, rel=1e-12)
    assert found(4, per_node=4).layouts[0].seconds_sending == pytest.approx(ddp.sent / 1e10, rel=1e-12)


def test_half_precision_keeps_whole_weights_and_a_copy() -> None:
    half = found(recipe=replace(RECIPE, train=replace(RECIPE.train, precision="bf16")))
    count = half.parameters
    assert half.layouts[0].memory.weights == 6 * count and half.layouts[0].memory.gradients == 4 * count
    assert half.compute_seconds == found().compute_seconds / 2


def test_what_the_optimizer_keeps() -> None:
    def kept(**changes: object) -> float:
        train = replace(RECIPE.train, **changes)  # type: ignore[arg-type]
        return found(recipe=replace(RECIPE, train=train)).layouts[0].memory.optimizer / found().parameters

    assert kept(optimizer=OptimizerConfig(kind="sgd")) == 0
    assert kept(optimizer=OptimizerConfig(kind="sgd", momentum=0.9)) == 4
    assert kept(average=AverageConfig(start=1)) == 12


def test_muon_keeps_one_momentum_of_a_matrix() -> None:
    muon = found(recipe=replace(RECIPE, train=replace(RECIPE.train, optimizer=OptimizerConfig(kind="muon"))))
    of_layer = 4 * 16 * 16 + 2 * 16 * 32 + 16 * 16  # attention, feed-forward, positions
    assert muon.layouts[0].memory.optimizer == 8 * muon.parameters - 4 * 2 * of_layer


def test_activations_are_those_that_autograd_keeps() -> None:
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        held.append(tensor)
        return tensor

    held: list[torch.Tensor] = []
    model = Model(MODEL).train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(1, 4, dtype=torch.int64), model.init(1))
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    real = sum(size for place, size in kept.items() if place not in weights)
    assert saved_bytes(MODEL, 4, torch.float32) == real > 0
    assert saved_bytes(MODEL, 4, torch.float64) > 1.5 * real
    assert activation_bytes(MODEL, RECIPE.train, 6) == 6 * real
    assert activation_bytes(MODEL, replace(RECIPE.train, accumulate=2), 6) == 3 * real


def test_what_does_not_fit_is_said() -> None:
    small = replace(GPU, memory=found().layouts[0].memory.total * 0.99)
    assert found(gpu=small).chosen is None
    chosen = found(2, gpu=replace(GPU, memory=sum_of_fsdp() / 0.92 + 1)).chosen
    assert chosen is not None and chosen.layout == "fsdp2"


def sum_of_fsdp() -> float:
    return found(2).layouts[1].memory.total


def test_the_gpu_with_most_rows_counts() -> None:
    three = found(3)
    assert three.rows == 3 and three.compute_seconds == pytest.approx(found().compute_seconds * 3 / 8, rel=1e-12)
    assert three.layouts[0].memory.state == 3 * three.state_row
    assert three.tokens_per_second(three.layouts[0]) == pytest.approx(
        8 * 4 / (three.compute_seconds + three.layouts[0].seconds_sending), rel=1e-12
    )


def test_every_gpu_needs_a_row_of_each_part() -> None:
    with pytest.raises(MnemoError, match="^8 rows are too few for 9 GPUs: each needs one or more$"):
        found(9)
    with pytest.raises(MnemoError, match="^8 rows are too few for 5 GPUs in 2 parts: each needs one or more$"):
        found(5, recipe=replace(RECIPE, train=replace(RECIPE.train, accumulate=2)))


def test_state_is_as_large_as_the_type_it_is_kept_in() -> None:
    info = describe("toy", RECIPE)
    assert state_row_bytes(MODEL, "fp32") == info.total_bytes(info.state_bytes) == 2 * 8 * 16 * 4
    sizes = [state_row_bytes(MODEL, precision) for precision in ("bf16", "fp16", "fp64")]
    assert sizes == [2 * 8 * 16 * 2, 2 * 8 * 16 * 2, 2 * 8 * 16 * 8]


def test_verb_divides_rows_unevenly_and_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["estimate", "enwik8-base", "--gpus", "8"]
    assert cli.main(argv) == 0
    assert "2 to 3 rows on a GPU; the numbers below are of one with 3" in capsys.readouterr().out
    kept = []
    for parts in ("1", "2"):
        assert cli.main([*argv, "--gpus", "2", "--accumulate", parts, "--batch", "24", "--json"]) == 0
        kept.append(json.loads(capsys.readouterr().out)["layouts"][0]["memory"]["activations"])
    assert kept[0] == 2 * kept[1]


def test_failures_by_hand() -> None:
    failures = failures_per_day(1000, 24_000)
    assert failures == 1.0
    interval = checkpoint_interval(43.2, failures)
    assert interval == pytest.approx(math.sqrt(2 * 43.2 * 86400), rel=1e-12)
    assert lost_share(43.2, interval, failures) == pytest.approx(43.2 / interval + interval / 2 / 86400, rel=1e-12)


def test_efficiency_from_a_benchmark(tmp_path: Path) -> None:
    case = CASES["train"]
    with torch.device("meta"):
        model = Model(case.config())
    flops = 3 * flops_per_token(model, [case.memory] * case.num_layers, segment=case.segment, batch=case.batch).total
    path = tmp_path / "bench.json"
    cases = [{"case": "train", "mnemo": {"tokens_per_second": 0.25 * 1e12 / flops}}, {"case": "eval"}, 7]
    path.write_text(json.dumps({"machine": {"name": "toy"}, "cases": cases}))
    share, source = bench_efficiency(path, GPU, "fp32")
    assert share == pytest.approx(0.25, rel=1e-12) and "toy" in source
    for broken in ({}, {"cases": [{"case": "train", "mnemo": {"tokens_per_second": "fast"}}]}, {"cases": 3}):
        path.write_text(json.dumps(broken))
        with pytest.raises(MnemoError, match="holds no training case"):
            bench_efficiency(path, GPU, "fp32")
    cases[0]["mnemo"]["tokens_per_second"] *= 100  # type: ignore[index]
    path.write_text(json.dumps({"cases": cases}))
    with pytest.raises(MnemoError, match="impossible"):
        bench_efficiency(path, GPU, "fp32")


def test_gpus_are_found_or_made() -> None:
    assert find_gpu("a100").peak("bf16") == 312e12 and find_gpu("a100").peak("fp32") == 19.5e12
    mine = changed(GPUS["h200"], memory=100, tflops=None, watts=500, link=None)
    assert (mine.memory, mine.watts, mine.half) == (100e9, 500, 989e12)
    assert all(gpu.source and gpu.half >= gpu.single >= gpu.double for gpu in GPUS.values())


@cache
def measured_share(row: str) -> tuple[float, float, ModelConfig]:
    """Tokens/s of a row of the GPU table, the share of the peak that they are, and its model."""
    table = json.loads((ROOT / "docs" / "measurements" / "h200-table.json").read_text(encoding="utf-8"))
    rate = next(found["goals"]["rate"]["value"] for found in table["rows"] if found["row"] == row)
    work = work_of(row, torch.device("cpu"), miniature=False)
    assert isinstance(work, Training)
    lengths = work.model.memory.lengths(work.model.num_layers)
    segment, batch = work.config.segment, work.config.batch
    flops = 3 * flops_per_token(shape_model(work.model), lengths, segment=segment, batch=batch).total
    return rate, rate * flops / GPUS["h200"].half, work.model


@pytest.mark.parametrize("known", H200, ids=lambda known: known.row)
def test_the_shares_of_an_h200_are_those_of_the_present_measurement(known: Measured) -> None:
    rate, share, model = measured_share(known.row)
    assert known.share == round(share, 3) and f" {rate:,.0f} tokens/s" in known.what
    found = expected_efficiency(GPUS["h200"], "bf16", model)
    assert found.share == known.share and known.what in found.source
    assert f"{rate:,.0f}" in (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")


def test_what_is_not_measured_is_assumed() -> None:
    wide = replace(MODEL, dim=512)
    assert expected_efficiency(GPUS["h200"], "fp32", wide) == ASSUMED == expected_efficiency(GPUS["a100"], "bf16", wide)
    assert expected_efficiency(GPUS["h200"], "bf16", wide).share == H200[-1].share


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("wikitext103-large", "24x1024"),  # its width is aligned, and decides more than its adaptive softmax
        ("lamemo-wikitext103", "wikitext"),
        ("rmt-enwik8-seg128-m10-bptt1", "rmt"),
        ("lamemo-enwik8", "lamemo"),
        ("enwik8-base", "base"),
    ],
)
def test_the_most_similar_measured_model(name: str, row: str) -> None:
    (measured,) = (each for each in H200 if each.row == row)
    assert expected_efficiency(GPUS["h200"], "bf16", preset(name).model).share == measured.share


def test_narrow_models_are_said_to_be_slower(capsys: pytest.CaptureFixture[str]) -> None:
    assert {expected_efficiency(gpu, "bf16", MODEL) for gpu in GPUS.values()} == {NARROW}
    assert cli.main(["estimate", "tiny-bytes"]) == 0
    assert "models narrower than 410 reach less: times are lower limits" in capsys.readouterr().out


def test_the_shares_of_the_page_are_those_of_the_measurements() -> None:
    page = " ".join((ROOT / "docs" / "SCALE.md").read_text(encoding="utf-8").split())
    small, large = measured_share("base")[1], measured_share("24x1024")[1]
    assert f"are {small:.0%} of the peak for a small model (12 layers of 512) and {large:.0%} for 24 layers" in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.25 s"),
        (59, "59.0 s"),
        (1330, "22.2 min"),
        (3600, "1.00 h"),
        (86399, "24.0 h"),
        (86400, "1.00 days"),
        (1e7, "116 days"),
        (1e9, "11,574 days"),
    ],
)
def test_a_time_has_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_energy_has_the_unit_that_fits() -> None:
    assert [energy_text(hours) for hours in (0.04, 258.6, 1051, 35e6)] == [
        "0.04 Wh",
        "259 Wh",
        "1.05 kWh",
        "35,000 kWh",
    ]


def test_a_short_run_is_shown_in_minutes_and_watt_hours(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["estimate", "speedrun-novels", "--gpu", "h200"]
    assert cli.main([*argv, "--json"]) == 0
    (layout,) = json.loads(capsys.readouterr().out)["layouts"]
    assert 300 < 86400 * layout["days"] < 900 and layout["kilowatt_hours"] < 1
    assert cli.main(argv) == 0
    rows = {line[:15].strip(): line[15:].strip() for line in capsys.readouterr().out.splitlines()}
    assert rows["time to train"] == f"{1440 * layout['days']:.2f} min"
    assert rows["energy"] == f"{1000 * layout['kilowatt_hours']:.1f} Wh"


def test_verb_prints_and_answers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["estimate", "tiny-bytes", "--gpus", "2", "--tokens", "1e9", "--efficiency", "0.4"]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    assert "take ddp" in printed and "no layout sends any of it" in printed and "efficiency 0.4: as given" in printed
    assert cli.main([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["format_version"] == 1 and answer["fits"] == "ddp" and answer["tokens"] == 1e9
    assert [layout["layout"] for layout in answer["layouts"]] == ["ddp", "fsdp2"]
    assert answer["layouts"][0]["days"] > 0 and answer["failures"]["per_day"] == 2 * 24 / 50_000


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--gpu", "h20"], "did you mean 'h200'?"),
        (["--gpu", "custom", "--tflops", "3"], "--gpu custom needs --gpu-memory, --watts, --link too"),
        (["--gpus", "0"], "--gpus 0 must be positive"),
        (["--gpus", "4000"], "rows are too few for 4,000 GPUs: each needs one or more"),
        (["--accumulate", "0"], "--accumulate 0 must be positive"),
        (["--efficiency", "2"], "a share"),
        (["--tokens", "nan"], "--tokens nan must be positive"),
        (["--watts", "-1"], "--watts -1.0 must be positive"),
        (["--bench", "none.json"], "none.json is missing"),
        (["--efficiency", "0.1", "--bench", "x"], "cannot be combined"),
    ],
)
def test_verb_refuses_what_makes_no_sense(argv: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "tiny-bytes", *argv]) == 2
    assert why in capsys.readouterr().err


def test_a_gpu_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--gpu", "custom", "--gpu-memory", "10", "--tflops", "3", "--watts", "50", "--link", "5"]
    assert cli.main(["estimate", "tiny-bytes", *own, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"] == "custom"
