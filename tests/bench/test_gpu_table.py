from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ranks
from helpers.marks import few

from mnemo.bench.gpu_table import first_step, profile, work, worker
from mnemo.bench.gpu_table.card import describe, parse_state
from mnemo.bench.gpu_table.profile import (
    GAPS,
    REPLAYS,
    attention_flops,
    find_gpu_of,
    group_of,
    grouped,
    longest,
    markdown,
    put_together,
)
from mnemo.bench.gpu_table.rows import BELOW, PROFILED, ROWS, Goal, Row, find_rows, waves
from mnemo.bench.gpu_table.schedule import RowResult, measure_rows
from mnemo.bench.gpu_table.trace import Kernel, busy, kernels_of
from mnemo.bench.gpu_table.worker import RowFailed, RowProcess
from mnemo.cli import main
from mnemo.cost.gpu_specs import GPUS
from mnemo.errors import MnemoError
from mnemo.memory import XL, Plan
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import TrainConfig

CPU = torch.device("cpu")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of rows start fast: they are forked from one that has imported torch."""
    monkeypatch.setattr(worker, "get_context", lambda kind: ranks.parent())


def test_goals_say_what_is_reached() -> None:
    fast, brief = Goal("speed", "tokens/s", 100, 200), Goal("time", "ms", 2.0, 1.0)
    assert [fast.verdict(value) for value in (99, 100, 200)] == [BELOW, "must", "aim"]
    assert [brief.verdict(value) for value in (2.1, 2.0, 0.9)] == [BELOW, "must", "aim"]
    assert Goal("peak memory", "GiB").verdict(5.0) == ""


def test_every_row_has_a_measurement_and_the_required_numbers() -> None:
    assert set(ROWS) == set(work.CASE_ROWS) | set(work.OTHER_ROWS)
    assert (ROWS["base"].goals["rate"].must, ROWS["base"].goals["rate"].aim) == (800e3, 1e6)
    assert [goal.must for goal in ROWS["op"].goals.values()] == [0.44, 0.98, 0.245]
    assert (ROWS["24x1024"].goals["memory"].must, ROWS["start"].goals["warm"].must) == (17, 8)
    assert set(PROFILED) <= set(ROWS)


def test_rows_are_selected_by_name_in_the_table_s_order() -> None:
    assert [row.name for row in find_rows("lamemo, op")] == ["op", "lamemo"]
    assert len(find_rows(None)) == len(ROWS)
    with pytest.raises(MnemoError, match="did you mean 'lamemo'"):
        find_rows("lamem")
    with pytest.raises(MnemoError, match="at least one"):
        find_rows(",")


def test_rows_prepare_together_as_far_as_their_memory_fits() -> None:
    def names(gib: float) -> list[list[str]]:
        return [[row.name for row in wave] for wave in waves(find_rows("start,op,base,24x1024,generation"), gib)]

    assert names(1e9) == [["start"], ["op", "base", "24x1024", "generation"]]
    assert names(45) == [["start"], ["op", "base", "24x1024"], ["generation"]]
    assert names(1) == [["start"], ["op"], ["base"], ["24x1024"], ["generation"]]


def test_the_state_of_the_card_is_parsed() -> None:
    state = parse_state("NVIDIA H200, 580.95, 1980, 1980, 3201, 412.51, 700.00, 55, 1024\n")
    assert state["watts"] == 412.51 and state["driver"] == "580.95" and state["used_mib"] == 1024
    line = "NVIDIA H200, driver 580.95, 1980 of 1980 MHz, memory 3201 MHz, 413 of 700 W, 55 C"
    assert describe(state) == line
    assert "watts" not in parse_state("Card, 1.0, 5, 5, 5, [N/A], 700, 55, 1") and "unknown" in describe({})


@pytest.mark.parametrize(
    "name",
    few([name for name in ROWS if name != "start"], lambda name: name not in ("speedrun", "wikitext", "24x1024")),
)
def test_every_row_is_measured_in_miniature(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "UPDATES", 1)
    monkeypatch.setattr(work, "ROUNDS", 1)
    monkeypatch.setattr(work, "BATCHES", (1, 16))
    row = work.work_of(name, CPU, miniature=True)
    row.prepare()
    found = row.measure()
    assert found.values and set(found.values) <= set(ROWS[name].goals)
    assert all(value > 0 for value in found.values.values())
    assert (row.profile() is not None) == isinstance(row, (work.Training, work.Generation))


def test_the_time_to_the_first_step_is_measured_by_phase() -> None:
    found = first_step.first_step("cpu", miniature=True, begin=0.0)
    assert 0 < found["imported"] <= found["tested"] < found["built"] < found["first_step"]


def test_both_starts_use_the_same_new_cache_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    log = tmp_path / "log"
    script.write_text(
        f'#!/bin/sh\necho "$TRITON_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR" >> {log}\necho \'{{"first_step": 3}}\'\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert first_step.measure_start("cpu", True) == ({"first_step": 3}, {"first_step": 3})
    first, second = log.read_text().splitlines()
    assert first == second and "mnemo-start-" in first and not Path(first.split()[0]).exists()
    script.write_text("#!/bin/sh\necho 'RuntimeError: out of memory' >&2\nexit 1\n")
    with pytest.raises(MnemoError, match="the first step failed: RuntimeError: out of memory"):
        first_step.measure_start("cpu", True)


@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
def test_a_row_that_fails_does_not_stop_the_others() -> None:
    broken = Row(name="broken", goals={"rate": Goal("broken", "tokens/s", 1, 2)}, gib=1)
    bad, good = measure_rows([broken, ROWS["op"]], "cpu", gib=100, miniature=True)
    assert bad.failed == "MnemoError: row 'broken' has no measurement" and bad.table()[0][-1] == "failed"
    assert good.failed is None and set(good.values) == {"A", "B", "C"} and good.to_json()["goals"]["A"]["must"] == 0.44
    assert good.table()[0][-1] == "", "tiny models are compared with no goal"


@pytest.mark.usefixtures("forked")
def test_a_process_that_dies_is_reported() -> None:
    process = RowProcess(ROWS["op"], "cpu", miniature=True, profile=False, threads=1)
    process._process.kill()
    with pytest.raises(RowFailed, match="exit code -9"):
        process.wait_until_ready()
    process.close()


def test_the_command_prints_a_table_and_saves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.json"
    command = ["bench", "--gpu-table", "--what", "op", "--device", "cpu", "--commit", "abc", "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "commit abc" in printed and "operation, forward and backward, A" in printed and "tiny models" in printed
    saved = json.loads(out.read_text())
    assert saved["commit"] == "abc" and saved["miniature"] and saved["machine"]["torch"] == torch.__version__
    (row,) = saved["rows"]
    assert row["goals"]["B"]["value"] > 0 and row["details"]["errors"]["A"] < 1e-5
    assert main(["bench", "--gpu-table", "--what", "bose", "--device", "cpu"]) == 2


def test_what_is_below_its_must_is_named() -> None:
    slow = RowResult(row=ROWS["base"], values={"rate": 608e3, "memory": 6.0})
    assert slow.slow == [ROWS["base"].goals["rate"].what]
    assert RowResult(row=ROWS["base"], values={"rate": 900e3}).slow == []
    assert slow.table()[0] == ("Transformer-XL base, batch 22", "608,000 tokens/s", "800,000", "1,000,000", BELOW)


def kernel(name: str, begin: float = 0.0, duration: float = 1.0, **options: Any) -> Kernel:
    return Kernel(name=name, begin=begin, duration=duration, **options)


@pytest.mark.parametrize(
    ("name", "op", "group"),
    [
        ("forward_kernel", "mnemo::relative_attention", "attention forward"),
        ("key_value_kernel", "mnemo::relative_attention_backward", "attention backward: dk, dv"),
        ("product_kernel", "", "attention backward: dr, dq"),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "aten::mm", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_wmma>", "aten::addmm", "matrix products"),
        ("triton_per_fused_add_native_layer_norm_3", "", "norms, dropout, residuals, activations"),
        ("triton_poi_fused_native_dropout_relu_1", "", "norms, dropout, residuals, activations"),
        ("triton_red_fused__log_softmax_2", "", "softmax and loss"),
        (
            "void at::native::multi_tensor_apply_kernel<TensorListMetadata>",
            "aten::_fused_adam_",
            "optimizer and clipping",
        ),
        ("triton_poi_fused__to_copy_7", "", "copies and casts"),
        ("Memcpy DtoD (Device -> Device)", "", "copies and casts"),
        ("triton_poi_fused_embedding_0", "", "embedding"),
        ("some_kernel", "some::op", "other"),
    ],
)
def test_kernels_are_grouped_by_name(name: str, op: str, group: str) -> None:
    assert group_of(kernel(name, op=op)) == group


def test_products_of_an_optimizer_belong_to_it() -> None:
    assert group_of(kernel("nvjet_hsh", op="aten::baddbmm", in_optimizer=True)) == "optimizer and clipping"


EVENTS: list[dict[str, Any]] = [
    {"cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 2, "args": {
        "External id": 1, "Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}},
    {"cat": "cpu_op", "name": "aten::_fused_adam_", "ts": 31, "dur": 2, "args": {
        "External id": 2, "Input Dims": [[[8], [4, 2]], [[8], [4, 2]]], "Input type": ["TensorList", "TensorList"]}},
    {"cat": "user_annotation", "name": "Optimizer.step#Adam.step", "ts": 30, "dur": 10, "args": {"External id": 3}},
    {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 11, "dur": 1, "args": {"correlation": 7}},
    {"cat": "cuda_driver", "name": "cuLaunchKernelEx", "ts": 33, "dur": 1, "args": {"correlation": 8}},
    {"cat": "kernel", "name": "adam_kernel", "ts": 130, "dur": 4, "args": {"External id": 2, "correlation": 8}},
    {"cat": "kernel", "name": "nvjet_part", "ts": 100, "dur": 5, "args": {"External id": 1, "correlation": 7}},
    {"cat": "kernel", "name": "splitKreduce", "ts": 106, "dur": 5, "args": {"External id": 1, "correlation": 9}},
    {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 90, "dur": 1, "args": {"correlation": 10}},
    {"ph": "M", "name": "process_name"},
]  # fmt: skip


def test_kernels_are_read_from_a_trace_with_their_operations() -> None:
    copy, product, reduce, adam = kernels_of(EVENTS)
    assert (copy.name, copy.op, copy.bytes) == ("Memcpy HtoD", "", 0.0)
    assert (product.op, product.flops, product.bytes) == ("aten::mm", 2 * 64 * 32 * 16, 2 * (64 * 32 + 32 * 16))
    assert (reduce.op, reduce.flops) == ("aten::mm", 0.0), "an operation's work counts once"
    assert adam.in_optimizer and not product.in_optimizer and adam.bytes == 4 * 32
    assert busy(kernels_of(EVENTS)) == 15.0


def test_time_that_kernels_share_counts_once() -> None:
    assert busy([kernel("a", 0, 10), kernel("b", 2, 3), kernel("c", 8, 4), kernel("d", 20, 1)]) == 13


def test_groups_have_work_and_a_share_of_the_card_s_limit() -> None:
    h200 = GPUS["h200"]
    kernels = [
        kernel("nvjet", duration=200.0, op="aten::mm", flops=h200.half * 1e-4),
        kernel("triton_poi_fused_add", duration=100.0, bytes=h200.bandwidth * 25e-6),
        kernel("triton_poi_fused_add", duration=100.0, bytes=h200.bandwidth * 25e-6),
        kernel("key_value_kernel", duration=50.0),
    ]
    found = {group.name: group for group in grouped(kernels, h200.half * 5e-6, h200)}
    products, attention = found["matrix products"], found["attention backward: dk, dv"]
    norms = found["norms, dropout, residuals, activations"]
    assert products.limit == pytest.approx(0.5) and products.launches == 1
    assert norms.limit == pytest.approx(0.25) and norms.launches == 2 and norms.milliseconds == pytest.approx(0.2)
    assert attention.limit == pytest.approx(4 * 5e-6 / 50e-6)
    assert all(group.limit is None for group in grouped(kernels, 0.0, None))


def test_a_profile_has_the_gaps_of_replays_and_the_groups_of_the_plain_pass() -> None:
    plain = [kernel("nvjet", 0, 30.0, op="aten::mm"), kernel("forward_kernel", 100.0, 60.0)]
    replayed = [kernel("nvjet", 100.0 * n + 60.0 * k, 30.0) for n in range(REPLAYS) for k in (0, 1)]
    found = put_together("compiled", replayed, plain, 1e9, None)
    assert found.milliseconds == pytest.approx((100.0 * (REPLAYS - 1) + 90.0) / REPLAYS / 1e3)
    gaps = found.groups[-1]
    assert gaps.name == GAPS and gaps.milliseconds == pytest.approx(found.milliseconds - 0.06)
    hidden = put_together("compiled", replayed[:1], plain, 1e9, None)
    assert hidden.milliseconds == 0.16 and hidden.groups[-1].milliseconds == pytest.approx(0.07)
    assert "without the graph" in hidden.step and "without" not in found.step
    table = markdown(found.to_json())
    assert "| attention forward | 0.060 |" in table and "| step (compiled) |" in table


def test_a_profile_of_generated_tokens_counts_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [kernel("_attend_part", 0.0, 30.0), kernel("_add_norm", 30.0, 10.0)]
    two += [kernel("_attend_part", 60.0, 30.0), kernel("_project_row", 90.0, 10.0)]
    monkeypatch.setattr(profile, "traced", lambda *_: two)
    monkeypatch.setattr(profile, "find_gpu_of", lambda _: GPUS["h200"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    size = GPUS["h200"].bandwidth * 15e-6
    found = profile.profile_tokens(lambda: None, 2, size, size, torch.device("cuda"))
    attention = next(group for group in found.groups if group.name == "attention to the memory")
    assert attention.milliseconds == pytest.approx(0.03) and attention.launches == 1
    assert attention.limit == pytest.approx(0.5) and attention.megabytes == pytest.approx(size / 1e6)
    assert found.milliseconds == pytest.approx(0.05) and found.groups[-1].milliseconds == pytest.approx(0.01)
    table = markdown({"by_texts": {"16": found.to_json()}})
    assert "16 texts" in table and "| attention to the memory | 0.030 | 60% | 1 |" in table


def test_kernels_are_listed_longest_first() -> None:
    found = longest([kernel("a", duration=1.0), kernel("b", duration=5.0), kernel("a", duration=9.0)])
    assert [(row["kernel"], row["launches"], row["milliseconds"]) for row in found] == [("a", 2, 0.01), ("b", 1, 0.005)]


def test_attention_s_work_counts_visible_pairs_in_every_layer() -> None:
    model = ModelConfig(
        num_layers=2, num_heads=3, head_dim=5, memory=Plan(long=XL(length=7), short=XL(length=2), num_long=1)
    )
    pairs = sum(sum(row + 1 + memory for row in range(4)) for memory in (2, 7))
    assert attention_flops(model, TrainConfig(batch=6, segment=4)) == 2 * 5 * 3 * 6 * pairs


def test_a_card_is_found_by_its_driver_s_name() -> None:
    names = {"NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA GeForce RTX 4090": "rtx4090"}
    for name, known in names.items():
        found = find_gpu_of(name)
        assert found is not None and found.name == known
    assert find_gpu_of("NVIDIA H20") is None
