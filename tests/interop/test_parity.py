"""Our numbers against reference files: those of the published code, and those of a literal rewriting of it."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import published_loop, published_xl
from helpers.tolerances import PARITY
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mnemo import cli
from mnemo.errors import MnemoError
from mnemo.interop.convert import transformer_xl as convert
from mnemo.interop.parity import segment_runner, transformer_xl
from mnemo.interop.parity.comparison import Parity, check, compare
from mnemo.interop.parity.reference import Reference, largest_error
from mnemo.interop.parity.reference_files import TOLERANCE
from mnemo.memory.xl import modules as xl
from mnemo.model.layers import modules as layers
from mnemo.model.positions import modules as positions

GOLDEN = Path(__file__).parents[1] / "golden" / "transformer-xl"
WITHOUT_MEMORY = {"mem_len": 0, "eval_mem_len": 0}


def reference_files() -> list[Path]:
    """Those of the tests, and those of the formats we know in the folder that MNEMO_GOLDEN names."""
    found = sorted(GOLDEN.glob("*.safetensors"))
    if "MNEMO_GOLDEN" in os.environ:
        found += sorted(path for path in Path(os.environ["MNEMO_GOLDEN"]).rglob("*.safetensors") if is_known(path))
    return found


def is_known(path: Path) -> bool:
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get("format", "").startswith("txl-golden-")


FILES = reference_files()


def golden(name: str) -> Path:
    (path,) = GOLDEN.glob(f"{name}_*.safetensors")
    return path


def assert_passed(result: Parity) -> None:
    assert (result.status, result.reason) == ("passed", ""), f"{result.worst}: {result.errors}"


def test_tolerance_is_the_suites() -> None:
    assert TOLERANCE == PARITY


def test_golden_files_are_all_there() -> None:
    names = ["01", "04b", "07d", "08b", "11", "14", "data", "hf", "train"]
    assert [path.name.split("_")[0] for path in sorted(GOLDEN.glob("*.safetensors"))] == names


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_published_numbers(path: Path) -> None:
    result = check(path)
    if result.status == "refused":
        assert result.reason.startswith("defect of the published code: ")
    else:
        assert_passed(result)


MODELS: dict[str, dict[str, Any]] = {
    "memory cut short, then longer": {
        "seg_lens": [4, 3, 4, 4, 2],
        "mem_len": 7,
        "resets": {"2": {"mem_len": 2}, "3": {"mem_len": 9}},
    },
    "memory off and on": {"seg_lens": [4] * 4, "resets": {"1": {"mem_len": 0}, "3": {"mem_len": 5}}},
    "starts without memory": {"mem_len": 0, "resets": {"1": {"mem_len": 3}}},
    "cut with same_length": {"seg_lens": [5] * 3, "mem_len": 8, "same_length": True, "resets": {"1": {"mem_len": 3}}},
    "clamp on and off": {"seg_lens": [4] * 4, "resets": {"1": {"clamp_len": 2}, "3": {"clamp_len": -1}}},
    "longer than a block": {"seg_lens": [140, 9], "mem_len": 135, "same_length": True, "clamp_len": 50, "n_layer": 1},
    "one row, one token": {"batch": 1, "seg_lens": [1, 1, 1], "mem_len": 1},
    "ext_len": {"ext_len": 2, "seg_lens": [4, 4, 4, 1], "mem_len": 6},
    "ext_len without memory": {"ext_len": 3, "mem_len": 0},
    "Shaw, odd width": {"attn_type": 1, "d_model": 7, "d_embed": 7, "n_head": 3, "d_head": 5},
    "Shaw, pre-norm, past the table": {"attn_type": 1, "pre_lnorm": True, "tgt_len": 2, "mem_len": 1, "clamp_len": 20},
    "sinusoids with clamp": {"attn_type": 2, "mem_len": 0, "clamp_len": 2, "seg_lens": [4, 3, 6], "d_head": 3},
    "learned positions": {"attn_type": 3, "mem_len": 0, "seg_lens": [4, 1, 3]},
    "one bin with a projection": {"div_val": 2, "tie_projs": [True]},
    "tied factor": {"d_embed": 6, "tie_projs": [True], "tie_weight": False},
    "list of ties too short": {"cutoffs": [4, 9], "div_val": 2, "tie_projs": [True]},
    "every other tie": {"cutoffs": [3, 6, 9], "d_embed": 12, "tie_projs": [True, False, True, False]},
    "narrow bins, untied": {"cutoffs": [5, 11], "div_val": 3, "d_embed": 10, "tie_weight": False},
    "one cutoff": {"cutoffs": [1], "pre_lnorm": True, "n_layer": 1},
}


@pytest.mark.parametrize("name", MODELS)
def test_other_models(name: str, tmp_path: Path) -> None:
    assert_passed(check(published_xl.write(tmp_path / "model.safetensors", **MODELS[name])))


def random_model(seed: int) -> dict[str, Any]:
    choice = random.Random(seed).choice
    cutoffs = choice([[], [3], [2, 5], [4, 6, 9]])
    return {
        "attn_type": choice([0, 0, 1]),
        "n_layer": choice([1, 2, 3]),
        "n_head": choice([1, 2, 3]),
        "d_head": choice([1, 3, 4]),
        "d_model": choice([4, 8, 10]),
        "d_embed": choice([8, 9]),
        "cutoffs": cutoffs,
        "div_val": choice([1, 2]),
        "tie_projs": [choice([True, False]) for _ in range(len(cutoffs) + 1)],
        "tie_weight": choice([True, False]),
        "pre_lnorm": choice([True, False]),
        "clamp_len": choice([-1, 0, 1, 4]),
        "same_length": choice([True, False]),
        "mem_len": choice([1, 4, 9]),
        "batch": choice([1, 3]),
        "seg_lens": [choice([1, 3, 6]) for _ in range(4)],
        "resets": {str(choice([1, 2])): {"mem_len": choice([2, 6]), "same_length": choice([True, False])}},
    }


@pytest.mark.parametrize("seed", range(12))
def test_random_models(seed: int, tmp_path: Path) -> None:
    assert_passed(check(published_xl.write(tmp_path / "model.safetensors", **random_model(seed))))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"untie_r": True, "same_length": True, "clamp_len": 3, "cutoffs": [5, 9], "div_val": 2},
        {"cutoffs": [5, 9], "tie_projs": [False, True, True], "d_embed": 6, "pre_lnorm": True},
        {"untie_r": True, "tie_weight": False, "seg_lens": [2, 5]},
    ],
)
def test_hugging_face_models(changes: dict[str, Any], zeros: bool, tmp_path: Path) -> None:
    path = published_xl.write_hugging_face(tmp_path / "hf.safetensors", zeros=zeros, **changes)
    result = check(path)
    assert_passed(result)
    assert {"losses", "memories", "gradients", "log_probs", "hf_losses"} <= result.errors.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduler": "constant", "batch": 5, "batch_chunk": 2, "steps": 5},
        {"scheduler": "dev_perf", "warmup": 1, "steps": 4, "pre_lnorm": True, "same_length": True},
        {"scheduler": "inv_sqrt", "warmup": 0, "steps": 4, "attn_type": 1, "clip": 0.01},
        {"eta_min": 1e-3, "cutoffs": [3, 12], "div_val": 2, "tie_projs": [False, True, False], "steps": 9},
        {"attn_type": 3, **WITHOUT_MEMORY, "steps": 4, "d_embed": 6},
    ],
)
def test_other_training_runs(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_passed(check(published_loop.write_training(tmp_path / "train.safetensors", **changes)))


def test_other_batches(tmp_path: Path) -> None:
    sizes = [(1, 1, 0, 40), (3, 4, 0, 90), (2, 5, 2, 97), (4, 3, 7, 120), (2, 30, 1, 63), (20, 3, 0, 30)]
    cases = [
        {"kind": kind, "bsz": batch, "bptt": length, "ext_len": extended, "n": count}
        for kind in ("ordered", "shuffled")
        for batch, length, extended, count in sizes
    ]
    assert_passed(check(published_loop.write_batches(tmp_path / "data.safetensors", cases)))


DEFECTS = {
    "accumulate": {"attn_type": 3, "resets": {"1": {"mem_len": 4}}, "mem_len": 0},
    "fails in its first segment": {"attn_type": 2},
    "not normalised": {"attn_type": 2, "mem_len": 0, "pre_lnorm": True},
    "masks every key": {"same_length": True, "resets": {"2": {"mem_len": 0}}},
}


@pytest.mark.parametrize("why", DEFECTS)
def test_defects_of_the_published_code_are_refused(why: str) -> None:
    config = {**published_xl.DEFAULTS, **DEFECTS[why], "n_segments": 3}
    result = compare(Reference("txl-golden-1", config, {}))
    assert result.status == "refused" and why in result.reason


def swap_u_and_v(patch: pytest.MonkeyPatch) -> None:
    right = convert._positions_tensor_map

    def swapped(model: Any) -> Any:
        tensor_map = right(model)
        return {**tensor_map, "r_w_bias": tensor_map["r_r_bias"], "r_r_bias": tensor_map["r_w_bias"]}

    patch.setattr(convert, "_positions_tensor_map", swapped)


def clusters_forward(patch: pytest.MonkeyPatch) -> None:
    right = convert._softmax_tensor_map
    patch.setattr(convert, "_softmax_tensor_map", lambda model, reverse_clusters: right(model, not reverse_clusters))


def no_clamp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_runner, "clamp_from_authors", lambda clamp_len: None)


def distances_one_more(patch: pytest.MonkeyPatch) -> None:
    right = positions.sinusoids
    patch.setattr(positions, "sinusoids", lambda num_keys, *rest: right(num_keys + 1, *rest)[:-1])


def gradient_through_memory(patch: pytest.MonkeyPatch) -> None:
    def attached(memory: Tensor, x: Tensor, lengths: Any) -> Tensor:
        return torch.cat([memory, x], 1)[:, x.shape[1] :]

    def differentiable(memory: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return torch.nn.functional.linear(torch.cat([memory, x], 1), weight).chunk(2, -1)

    patch.setattr(xl, "remember", attached)
    patch.setattr(layers, "project_after", differentiable)


def other_norm(patch: pytest.MonkeyPatch) -> None:
    patch_config(patch, norm_eps=1e-3)


def no_embedding_tie(patch: pytest.MonkeyPatch) -> None:
    right = convert._embedding
    patch.setattr(convert, "_embedding", lambda config, tie: right(config, not tie))


def longer_window(patch: pytest.MonkeyPatch) -> None:
    patch_config(patch, same_length=False)
    patch.setattr(segment_runner.SegmentRunner, "_set", lambda runner, setting: None)


def patch_config(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    right = transformer_xl.AUTHORS

    def config(theirs: Any) -> Any:
        return dataclasses.replace(right.config(theirs), **changes)

    patch.setattr(transformer_xl, "AUTHORS", dataclasses.replace(right, config=config))


@pytest.mark.parametrize(
    ("name", "mistake", "group"),
    [
        ("01", swap_u_and_v, "losses"),
        ("07d", clusters_forward, "losses"),
        ("14", no_clamp, "memories"),
        ("01", distances_one_more, "losses"),
        ("01", gradient_through_memory, "gradients"),
        ("11", other_norm, "memories"),
        ("01", no_embedding_tie, "gradients"),
        ("04b", longer_window, "losses"),
    ],
)
def test_mistakes_show(
    name: str, mistake: Callable[[pytest.MonkeyPatch], None], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    result = check(golden(name))
    assert result.status == "failed" and result.errors[group] > 1e-6


def shake(key: str, tensor: Tensor) -> Tensor:
    """A parameter a little changed as a whole, or another tensor in its middle element."""
    if key.startswith("param"):
        return tensor * 1.001
    shaken = tensor.clone()
    element = shaken.view(-1)[tensor.numel() // 2]
    element += (1 if element == 0 else -1) if tensor.dtype == torch.int64 else 1e-6
    return shaken


def goes_unnoticed(reference: Reference, key: str) -> bool:
    tensors = {**reference._tensors, key: shake(key, reference._tensors[key])}
    try:
        return compare(Reference(reference.kind, reference.config, tensors)).status != "failed"
    except MnemoError:
        return False


def tiny(**changes: Any) -> Callable[[Path], Path]:
    small = {
        "n_layer": 1,
        "seg_lens": [2, 3],
        "mem_len": 2,
        "cutoffs": [4, 9],
        "div_val": 2,
        "tie_projs": [False, True],
    }
    return lambda path: published_xl.write(path, **{**small, **changes})


@pytest.mark.parametrize(
    ("write", "which"),
    [
        (tiny(), ""),
        (tiny(attn_type=1, tgt_len=3), "/r_"),
        (tiny(attn_type=3, mem_len=0, tgt_len=3), "/r_"),
        (lambda path: published_xl.write_hugging_face(path, zeros=True, n_layer=1, seg_lens=[3], untie_r=True), ""),
        (lambda path: published_loop.write_training(path, n_layer=1, steps=2), ""),
        (lambda path: golden("data"), ""),
    ],
    ids=["relative", "shaw", "learned", "hugging face", "training", "data"],
)
def test_every_value_counts(write: Callable[[Path], Path], which: str, tmp_path: Path) -> None:
    reference = Reference.open(write(tmp_path / "tiny.safetensors"))
    assert compare(reference).status == "passed"
    keys = [key for key in reference._tensors if which in key]
    assert keys and [key for key in keys if goes_unnoticed(reference, key)] == []


def test_mean_loss_counts() -> None:
    reference = Reference.open(golden("01"))
    means = [mean + 1e-6 for mean in reference.config["mean_loss"]]
    result = compare(Reference(reference.kind, {**reference.config, "mean_loss": means}, reference._tensors))
    assert result.status == "failed" and result.worst.startswith("mean_loss")


def test_error_is_relative_to_large_values_only() -> None:
    assert largest_error(torch.tensor([0.5, 0.0]), torch.tensor([0.25, 0.0])) == 0.25
    assert largest_error(torch.tensor([5.0, 8.0]), torch.tensor([4.0, 8.0])) == 0.125
    assert largest_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert largest_error(torch.ones(2), torch.ones(1, 2)) == float("inf")


def damaged(
    changes: dict[str, Any] | None = None, *, drop: str = "", add: dict[str, Tensor] | None = None
) -> Reference:
    good = Reference.open(golden("01"))
    kept = {key: value for key, value in good._tensors.items() if key != drop}
    return Reference(good.kind, {**good.config, **(changes or {})}, {**kept, **(add or {})})


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda: damaged(add={"seg9/loss": torch.zeros(1)}), "no check uses 'seg9/loss'"),
        (lambda: damaged(add={"seg0/entropy": torch.zeros(1)}), "no check uses 'seg0/entropy'"),
        (lambda: damaged(drop="seg1/target"), "'seg1/target' is missing"),
        (lambda: damaged(drop="param/r_w_bias"), "parameter 'r_w_bias' is missing"),
        (lambda: damaged(add={"param/r_x_bias": torch.zeros(1).double()}), "did you mean 'r_w_bias'"),
        (lambda: damaged(add={"grad/r_x_bias": torch.zeros(1).double()}), "did you mean 'r_w_bias'"),
        (lambda: damaged(add={"param/r_w_bias": torch.zeros(1).double()}), "is [1], but its configuration says [2, 8]"),
        (lambda: damaged(add={"param/r_w_bias": torch.zeros(2, 8)}), "must be float64"),
        (lambda: damaged(add={"seg0/input": torch.zeros(6)}), "'seg0/input' does not hold rows of token ids"),
        (lambda: damaged({"n_head": None}), "configuration: "),
        (lambda: damaged({"cutoffs": [40]}), "configuration: cutoff 40"),
        (lambda: damaged({"attn_type": 7}), "attn_type 7"),
        (lambda: damaged({"n_segments": 5}), "n_segments 5"),
        (lambda: Reference("txl-golden-9", {}, {}), "unknown format 'txl-golden-9'; did you mean 'txl-golden-1'"),
        (lambda: Reference("txl-golden-data-1", {"cases": [{}]}, {}), "a case without"),
        (lambda: Reference("txl-golden-data-1", {"cases": []}, {}), "nothing to compare"),
    ],
)
def test_damaged_files_are_named(reference: Callable[[], Reference], message: str) -> None:
    with pytest.raises(MnemoError) as caught:
        compare(reference())
    assert message in str(caught.value)


def test_tied_parameters_must_agree() -> None:
    reference = Reference.open(golden("01"))
    name = "param/crit.out_layers.0.weight"
    tensors = {**reference._tensors, name: reference._tensors[name] + 1}
    with pytest.raises(MnemoError, match="are tied but differ"):
        compare(Reference(reference.kind, reference.config, tensors))


def test_verb_prints_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["parity", str(GOLDEN)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 + 9 + 1
    assert printed[2].split()[:2] == ["01_mem_eq_tgt.safetensors", "passed"]
    assert all(word in printed[2] for word in ("losses", "memories", "gradients"))
    assert printed[-1] == "9 passed; tolerance 1e-09"


def test_verb_fails_above_the_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["parity", "--tolerance", "1e-30", "--json", str(golden("01")), str(golden("data"))]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert [file["status"] for file in printed["files"]] == ["failed", "passed"]
    assert printed["passed"] is False and printed["files"][0]["errors"]["losses"] > 1e-30


def test_verb_says_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = golden("data").read_bytes()
    (tmp_path / "a_truncated.safetensors").write_bytes(whole[:-9])
    (tmp_path / "b_text.safetensors").write_text("not numbers at all")
    save_file({"x": torch.zeros(1)}, tmp_path / "c_nameless.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "d_plain.safetensors", {"format": "pt", "config": "{"})
    (tmp_path / "e_good.safetensors").write_bytes(whole)
    assert cli.main(["parity", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "1 passed" in printed.out
    (line,) = [line for line in printed.err.splitlines() if line.startswith("mnemo:")]
    for name, why in {
        "a_truncated": "not a complete safetensors file",
        "b_text": "not a complete safetensors file",
        "c_nameless": "has no format",
        "d_plain": "no configuration in JSON",
    }.items():
        assert f"{name}.safetensors: " in line and why in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a reference file"),
        (["no-such-file"], "no-such-file is not a file"),
        ([str(GOLDEN / "README.md")], "not a complete safetensors file"),
        ([str(GOLDEN), "--tolerance", "-1"], "must not be negative"),
    ],
)
def test_verb_refuses_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["parity", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_folder_without_files_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["parity", str(tmp_path)]) == 2
    assert "no safetensors file in this folder" in capsys.readouterr().err
