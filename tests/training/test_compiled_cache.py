"""Compiled layers can be stored in torch's cache: a single operation that it refuses makes every process trace anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.marks import FURTHER
from helpers.models import random_model
from torch import Tensor
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, check_node_safe

from mnemo.data.streams import Batch
from mnemo.model.positions import Relative, Rotary
from mnemo.ops import using
from mnemo.ops.projection import compute_dtype, project_rows
from mnemo.training.compiled_loss import CompiledLoss

pytest.importorskip("triton")


def project_as_on_a_gpu(memory: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(x)
    return project_rows(memory.detach().to(dtype), x.to(dtype), weight.to(dtype))[:2]


@pytest.mark.native
@pytest.mark.parametrize("positions", [Relative(), pytest.param(Rotary(), marks=FURTHER)])
@pytest.mark.filterwarnings("default")  # torch warns of itself while it compiles
def test_no_operation_of_a_compiled_layer_keeps_it_out_of_the_cache(
    positions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr("mnemo.model.layers.modules.project_after", project_as_on_a_gpu)
    refused: list[str] = []

    def examine(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        for node in graph.graph.nodes:
            try:
                check_node_safe(node)
            except BypassAOTAutogradCache as error:
                refused.append(str(error))
        return graph

    model = random_model(memory=5, positions=positions, norm="pre", norm_kind="rms", qk_norm=True, head_gate=True)
    model = model.float().to("cuda" if torch.cuda.is_available() else "cpu")
    backend: Any = examine
    loss = CompiledLoss(model, length=4, recompute=False, note=pytest.fail, backend=backend, by_layer=True)
    device = next(model.parameters()).device
    tokens = torch.zeros(2, 4, dtype=torch.int64, device=device)
    # The interpreter multiplies no bf16.
    with using("fused"), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        nll, *_ = loss(model, Batch(tokens, tokens), model.init(2))
    assert nll is not None and refused == []
