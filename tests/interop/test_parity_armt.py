"""Our associative memory against reference files of the authors' module (ARMT)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.golden import GOLDEN

from mnemo.errors import MnemoError
from mnemo.interop.parity.comparison import check, compare
from mnemo.interop.parity.reference import Reference

FILES = sorted((GOLDEN / "armt").glob("*.safetensors"))
COMMITS = {"067fb1058277f9beb6c21b28b0e17a9a6e083cf2", "aa145de9f50c08778e2579a2130b3db0d379bce5"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_of_the_authors_module(path: Path) -> None:
    found = check(path)
    assert found.status == "passed", f"{found.worst}: {found.errors}"
    assert set(found.errors) == {"losses", "logits", "states", "gradients"}


def test_files_name_their_commit_and_cover_the_options() -> None:
    configs = [Reference.open(path).config for path in FILES]
    assert {config["commit"] for config in configs} == COMMITS
    options = {name for config in configs for name in config["options"]}
    assert options == {"correction", "use_denom", "n_heads", "gating", "num_mem_tokens"}


def opened(change: str) -> Reference:
    """The plain file with one field of the memory changed, or a tensor that differs."""
    reference = Reference.open(GOLDEN / "armt" / "plain.safetensors")
    config = dict(reference.config)
    tensors = dict(reference._tensors)
    if change in tensors:
        tensors[change] = tensors[change] + 1e-6
    else:
        model = dict(config["model"])
        model["memory"] = {**model["memory"], "long": {**model["memory"]["long"], change: False}}
        config["model"] = model
    return Reference(reference.kind, config, tensors)


@pytest.mark.parametrize(
    "change",
    ["correction", "unit_keys", "seg3/matrix.1", "seg2/normaliser.0", "grad/stages.0.memory.key.weight", "seg1/logits"],
)
def test_a_difference_is_found(change: str) -> None:
    assert compare(opened(change)).status == "failed"


def test_a_file_of_another_model_is_refused() -> None:
    reference = opened("correction")
    lacking = {name: tensor for name, tensor in reference._tensors.items() if name != "weights/memory_tokens.initial"}
    with pytest.raises(MnemoError, match="not those of the configuration"):
        compare(Reference(reference.kind, reference.config, lacking))
    narrow = {name: t.float() if name.startswith("weights/") else t for name, t in reference._tensors.items()}
    with pytest.raises(MnemoError, match="float64"):
        compare(Reference(reference.kind, reference.config, narrow))
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in reference._tensors.values())
