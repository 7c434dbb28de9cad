"""Compiled layers of models with an associative memory, and what is left out of its reads and writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.real_models import llama_with_filled_memory, tiny_llama
from torch._dynamo.utils import counters

from mnemo.hf import add_memory
from mnemo.hf.memory_tokens.compiled_layers import compile_layers
from mnemo.memory import Associative
from mnemo.memory.associative import modules
from mnemo.memory.protocol import full_precision

IGNORED = -100


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by importing torch.compile
def test_compiled_layers_keep_their_hooks() -> None:
    model: Any = add_memory(tiny_llama(), tokens=4, segment=64, bptt=None, kind="associative")
    tokens = torch.arange(5, 133)[None]
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        compile_layers(model)
        with torch.compiler.set_stance("force_eager"):
            torch.testing.assert_close(model(input_ids=tokens).logits, expected)


def loss_gradients_and_memory(model: Any, **inputs: Any) -> tuple[Any, dict[str, Any], Any]:
    loss = model(**inputs, return_memory=False).loss
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    with torch.no_grad():
        return loss, gradients, model(input_ids=inputs["input_ids"], return_logits=False).memory


@pytest.mark.parametrize("bounded", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile looks at it
def test_the_compiled_model_has_the_same_loss_gradients_and_memory(bounded: bool, monkeypatch: Any) -> None:
    """With one graph for all layers. The graphs run uncompiled here: compiling takes minutes on a CPU."""
    compiled = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, dynamic: compiled(function, dynamic=dynamic, backend="eager")
    )
    torch._dynamo.reset()
    counters.clear()
    ids = torch.randint(5, 2000, (2, 96), generator=torch.Generator().manual_seed(1))
    labels = torch.where(torch.arange(96) >= 92, ids, IGNORED)
    expected = loss_gradients_and_memory(llama_with_filled_memory(bounded), input_ids=ids, labels=labels)
    model = llama_with_filled_memory(bounded)
    compile_layers(model)
    found = loss_gradients_and_memory(model, input_ids=ids, labels=labels)
    # First, middle and last segments in training; first and later segments without gradient.
    assert counters["stats"]["unique_graphs"] == 5 and not counters["graph_break"]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.thorough), pytest.param("cuda", marks=pytest.mark.gpu)]
)
@pytest.mark.filterwarnings("ignore")  # of compilers
def test_compiled_layers_compute_what_uncompiled_ones_do(device: str) -> None:
    """With the real compiler. In bfloat16 roundings differ, but not their distance from single precision."""
    torch._dynamo.reset()
    ids = torch.randint(5, 2000, (4, 128), generator=torch.Generator().manual_seed(1)).to(device)
    labels = torch.where(torch.arange(128, device=device) >= 96, ids, IGNORED)

    def numbers(compiling: bool, narrow: bool) -> torch.Tensor:
        """Loss, gradients and memory as one vector, each part divided by its size in `expected`."""
        model = llama_with_filled_memory(True).float().to(device)
        if compiling:
            compile_layers(model)
        with torch.autocast(device, torch.bfloat16, enabled=narrow):
            loss, gradients, memory = loss_gradients_and_memory(model, input_ids=ids, labels=labels)
        parts = [loss[None], *gradients.values(), *(part for layer in memory for part in layer)]
        sizes.extend(float(part.norm()) for part in parts if len(sizes) < len(parts))
        return torch.cat([part.detach().flatten() / size for part, size in zip(parts, sizes, strict=True)])

    sizes: list[float] = []
    expected = numbers(compiling=False, narrow=False)
    assert float((numbers(compiling=True, narrow=False) - expected).abs().max()) < 1e-4
    rounding = float((numbers(compiling=False, narrow=True) - expected).norm())
    assert float((numbers(compiling=True, narrow=True) - expected).norm()) < 1.5 * rounding


@pytest.mark.parametrize("device", ["cuda", pytest.param("cpu", marks=pytest.mark.thorough)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_one_graph_serves_the_memories_of_all_layers(device: str, monkeypatch: Any) -> None:
    """Without a break, also where PyTorch cannot trace whether a device has autocast, as in version 2.11 on a GPU."""
    monkeypatch.setattr(torch.amp, "is_autocast_available", torch.compiler.disable(torch.amp.is_autocast_available))
    monkeypatch.setattr(modules, "full_precision", lambda _: full_precision(torch.device(device)))
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    layers = [modules.AssociativeMemory(Associative(key_dim=16, bounded=True), 32) for _ in range(10)]
    rows, x = torch.randn(2, 4, 32), torch.randn(2, 20, 32)
    names = ("write_first", "write", "add_read")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=device == "cpu"):
        for layer in layers:
            torch.nn.init.normal_(layer.value.weight)
            first, write, read = (
                torch.compile(getattr(layer, name), backend="aot_eager", dynamic=False, fullgraph=True)
                for name in names
            )
            before = layer.write_first(rows)
            found = first(rows), write(rows, before), read(x, before)
            assert all(tensor.dtype == torch.float32 for tensor in (*found[0], *found[1]))
            torch.testing.assert_close(found, (before, layer.write(rows, before), layer.add_read(x, before)))
    assert counters["stats"]["unique_graphs"] == len(names) and not counters["graph_break"]


def test_segments_that_no_other_reads_are_not_written() -> None:
    """The loss, its gradients and a memory that continues from an explicit empty one are those of the whole work."""
    model = llama_with_filled_memory(False)
    ids = torch.randint(5, 2000, (3, 96), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :40] = 0  # this row begins in the second segment, with an empty memory
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, IGNORED)}
    results = []
    for options in ({"memory": model.memory_tokens.init(3).inner}, {}, {"return_memory": False}):
        model.zero_grad()
        out = model(**inputs, **options)
        out.loss.backward()
        results.append((out.loss, {name: weight.grad.clone() for name, weight in model.named_parameters()}, out.memory))
    assert results[2][2] is None
    for loss, gradients, memory in results[1:]:
        torch.testing.assert_close(loss, results[0][0])
        torch.testing.assert_close(gradients, results[0][1])
        if memory is not None:
            torch.testing.assert_close(memory, results[0][2])
