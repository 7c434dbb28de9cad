"""Graphs of one step against the model, with the state in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hf_backbones import CAUSAL, tokens
from helpers.hf_models import SEGMENT, hf_model
from helpers.mechanisms import MECHANISMS
from helpers.models import random_tokens, read
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.hf import add_memory, export_onnx, export_step, step_state


def follow(step: Any, state: dict[str, Tensor], ids: Tensor, width: int) -> Tensor:
    pieces = []
    for part in ids.split(width, 1):
        logits, state = step(part, state)
        pieces.append(logits)
    return torch.cat(pieces, 1)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("xl-plan", None),
        pytest.param("xl", 1, marks=pytest.mark.thorough),
        pytest.param("rmt-with-cache", None, marks=pytest.mark.thorough),
        pytest.param("armt-previous-segment", None, marks=pytest.mark.thorough),
        pytest.param("compressive", None, marks=pytest.mark.thorough),
    ],
)
def test_an_exported_step_reads_on_from_its_own_state(name: str, tokens: int | None) -> None:
    model, ids = hf_model(**MECHANISMS[name]), random_tokens(2, 12)
    step = export_step(model, batch=2, tokens=tokens).module()
    width = tokens or SEGMENT
    with torch.no_grad():
        found = follow(step, step_state(model, 2), ids, width)
    assert_close(found, read(model.model, ids, width)[0])


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        pytest.param("gpt2", {"mask": "block"}, marks=pytest.mark.thorough),
        pytest.param("llama", {"start": "overlap"}, marks=pytest.mark.thorough),
        pytest.param("llama", {"kind": "associative"}, marks=pytest.mark.thorough),
    ],
    ids=["llama", "gpt2-block", "overlap", "associative"],
)
def test_an_exported_segment_of_a_model_with_memory(family: str, options: dict[str, Any]) -> None:
    model: Any = add_memory(CAUSAL[family]().eval(), tokens=3, segment=5, **options)
    step, x = export_step(model, batch=2).module(), tokens(2, 15)
    with torch.no_grad():
        assert_close(follow(step, step_state(model, 2), x, 5), model(input_ids=x).logits)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_an_onnx_segment_of_a_model_with_memory(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model: Any = add_memory(CAUSAL["llama"]().eval(), tokens=3, segment=5)
    session = onnxruntime.InferenceSession(str(export_onnx(model, tmp_path / "step.onnx", batch=2)))
    x = tokens(2, 15)
    assert_close(follow(run_onnx(session), step_state(model, 2), x, 5), model(input_ids=x).logits.detach())


def test_models_without_memory_are_refused() -> None:
    with pytest.raises(MnemoError, match="a LlamaForCausalLM cannot be exported"):
        export_step(CAUSAL["llama"]())


def run_onnx(session: Any) -> Any:
    names = [node.name for node in session.get_outputs()]
    wanted = {node.name for node in session.get_inputs()}

    def step(tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        given = {"tokens": tokens.numpy()} | {f"state.{name}": leaf.numpy() for name, leaf in state.items()}
        used = {name: leaf for name, leaf in given.items() if name in wanted}
        results = dict(zip(names, map(torch.from_numpy, session.run(None, used)), strict=True))
        return results.pop("logits"), {name.removeprefix("next."): leaf for name, leaf in results.items()}

    return step


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_an_onnx_step_reads_on_from_its_own_state(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, ids = hf_model(dtype=torch.float32, num_layers=2), random_tokens(2, 12)
    session = onnxruntime.InferenceSession(str(export_onnx(model, tmp_path / "step.onnx", batch=2)))
    assert_close(follow(run_onnx(session), step_state(model, 2), ids, SEGMENT), read(model.model, ids, SEGMENT)[0])


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(MnemoError, match="at least one token of one row, not 0 of 1"):
        export_step(hf_model(), tokens=0)
