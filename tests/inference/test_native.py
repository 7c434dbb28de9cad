"""What a GPU computes, natively, is what the CPU computes: every mechanism through every loop, and every operation.

Options of models have their own files. Everything here is skipped without a CUDA device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import decode_kernels as decode_checks
from helpers import inference_runners as inference
from helpers import training_paths as training
from helpers.mechanisms import MECHANISMS
from helpers.model_options import SMALL
from helpers.models import random_model, random_tokens
from helpers.option_places import NATIVE, Place, full_precision
from helpers.tolerances import MUON, assert_close, relative_error
from torch import Tensor

from mnemo.data.corpus import Split
from mnemo.evaluation.perplexity import evaluate
from mnemo.inference.generation import generate
from mnemo.memory import XL, Plan
from mnemo.memory.state import leaves
from mnemo.model import Model, ModelConfig
from mnemo.ops import Causal, KeyLimit, relative_attention
from mnemo.ops.cross_entropy import linear_cross_entropy
from mnemo.ops.cuda import decode_kernels
from mnemo.ops.projection import project_after
from mnemo.recipes.recipe import EvalConfig, OptimizerConfig
from mnemo.training.muon import orthogonal
from mnemo.training.optimizers import build_optimizer

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures(full_precision.__name__)]
SEGMENT = 4
SINGLE: Place = NATIVE[0].values[0]  # type: ignore[assignment]
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)


def mechanism(name: str) -> ModelConfig:
    changes = dict(MECHANISMS[name])
    memory = changes.get("memory", 5)
    return replace(SMALL, **{**changes, "memory": Plan(long=XL(length=memory)) if isinstance(memory, int) else memory})


@every_mechanism
def test_inference_runners(name: str) -> None:
    assert inference.wrong(mechanism(name), SINGLE, tuple(inference.RUNNERS)) == []


@every_mechanism
def test_training_paths(name: str) -> None:
    assert training.wrong(mechanism(name), SINGLE, training.PATHS) == []


@every_mechanism
def test_training_kernels(name: str) -> None:
    config = mechanism(name)
    if training.draws(config):
        assert training.wrong(config, SINGLE, training.PATHS) == []
    else:
        assert training.in_kernels(config, SINGLE) == []


@every_mechanism
def test_recorded_updates(name: str) -> None:
    config = mechanism(name)
    if training.draws(config):
        pytest.skip("a recorded step draws other random numbers")
    found, expected = training.recorded_and_plain(config, SINGLE)
    assert training.differences("recorded", found, expected, SINGLE.dtype) == []


@every_mechanism
def test_evaluation(name: str) -> None:
    ids = np.random.default_rng(0).integers(0, 23, 150).astype(np.uint8)
    split, config = Split("test", ids, None, 150, 0, 0), EvalConfig(batch=2)
    here, there = (
        evaluate(random_model(**MECHANISMS[name]).to(device), split, config, segment=SEGMENT)
        for device in ("cpu", "cuda")
    )
    assert there.tokens == here.tokens and there.loss == pytest.approx(here.loss, rel=1e-9)


@every_mechanism
def test_generation(name: str) -> None:
    texts = []
    for device in ("cpu", "cuda"):
        model = random_model(**MECHANISMS[name]).to(device)
        prompts = [random_tokens(1, length, seed=length)[0] for length in (1, SEGMENT, 9)]
        texts.append(generate(model, prompts, num_tokens=11, segment=SEGMENT, seed=3, top_k=7).tokens)
    assert torch.equal(texts[0], texts[1])


@every_mechanism
def test_states_move_between_devices(name: str) -> None:
    model, tokens = random_model(**MECHANISMS[name]), random_tokens(2, 3 * SEGMENT)
    with torch.no_grad():
        _, here = model(tokens[:, :SEGMENT])
        there = model.cuda()
        _, state = there(tokens[:, :SEGMENT].cuda())
    for (path, ours), (_, theirs) in zip(leaves(state), leaves(here), strict=True):
        assert ours.is_cuda, path
        assert_close(ours.cpu(), theirs)


MASKS: dict[str, Callable[[str], dict[str, Any]]] = {
    "causal": lambda device: {"mask": Causal()},
    "window": lambda device: {"mask": Causal(window=5)},
    "rows with less memory": lambda device: {"lengths": torch.tensor([9, 16], device=device)},
    "limited keys": lambda device: {"mask": KeyLimit(torch.tensor([3, 12], device=device))},
}
TABLES = ("ruw", "rub", "r", "b", "")


def attention(device: str, impl: Any, parts: str, see: dict[str, Any]) -> list[Tensor]:
    draw, queries, keys, size = torch.Generator().manual_seed(0), 9, 16, 8
    shapes = {"q": (2, 3, queries, size), "k": (2, 3, keys, size), "v": (2, 3, keys, size)}
    shapes |= {"r": (3, keys, size), "u": (3, size), "w": (3, size), "b": (3, keys)}
    made = {name: torch.randn(shapes[name], generator=draw, dtype=torch.float64) for name in "qkv" + parts}
    tensors = {name: tensor.to(device).requires_grad_() for name, tensor in made.items()}
    named = {"bias" if name == "b" else name: tensor for name, tensor in tensors.items()}
    out, lse = relative_attention(**named, offset=keys - queries, with_lse=True, impl=impl, **see)
    assert lse is not None
    found = torch.autograd.grad(out.square().sum() + lse.sum(), list(tensors.values()))
    return [tensor.detach().cpu() for tensor in (out, lse, *found)]


@pytest.mark.parametrize("parts", TABLES)
@pytest.mark.parametrize("name", MASKS)
def test_attention_in_plain_pytorch(name: str, parts: str) -> None:
    expected = attention("cpu", "reference", parts, MASKS[name]("cpu"))
    for impl in ("reference", "eager"):
        for found, wanted in zip(attention("cuda", impl, parts, MASKS[name]("cuda")), expected, strict=True):
            assert_close(found, wanted)


def test_decode_kernels() -> None:
    assert decode_kernels.supports(torch.zeros(1, device="cuda"))
    with torch.device("cuda"):
        decode_checks.check_attention()
        decode_checks.check_tilings()
        decode_checks.check_projections()
        decode_checks.check_projected_parts()
        decode_checks.check_embedding()
        decode_checks.check_choice()


def on_both(function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    """A function of float64 tensors of these shapes and its gradients, on the CPU and on the GPU."""
    draw = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    results = []
    for device in ("cpu", "cuda"):
        tensors = [tensor.to(device).requires_grad_() for tensor in given]
        out = function(*tensors)
        gradients = torch.autograd.grad(out.square().sum(), tensors, allow_unused=True)
        results.append([part.detach().cpu() for part in (out, *gradients) if part is not None])
    assert len(results[0]) == len(results[1]) > 1
    for found, expected in zip(results[1], results[0], strict=True):
        assert_close(found, expected)


def test_cross_entropy() -> None:
    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        targets = torch.arange(23, device=hidden.device) - 1
        return linear_cross_entropy(hidden, weight, bias, targets)

    on_both(loss, (23, 6), (40, 6), (40,))


def test_projection_of_memory_and_segment() -> None:
    def projected(memory: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return torch.cat(project_after(memory.detach(), x, weight), -1)

    on_both(projected, (2, 6, 4), (2, 3, 4), (10, 4))


def test_orthogonal_steps() -> None:
    """A GPU iterates in bfloat16, a CPU in the type of its argument."""
    matrices = torch.randn(3, 6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = orthogonal(matrices.cuda())
    assert found.dtype == torch.bfloat16
    assert relative_error(found.cpu().double(), orthogonal(matrices)) < MUON


def updated_on_both(kind: Any) -> list[Model]:
    """The same model after some updates on the CPU, and after those on the GPU."""
    models = [random_model().to(device).train() for device in ("cpu", "cuda")]
    for model in models:
        optimizer = build_optimizer(model, OptimizerConfig(kind=kind, lr=0.01, momentum=0.9, weight_decay=0.1))
        _updates(model, optimizer)
    return [model.cpu() for model in models]


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_optimizers(kind: Any) -> None:
    for on_cpu, on_gpu in zip(*(model.parameters() for model in updated_on_both(kind)), strict=True):
        assert_close(on_gpu.detach(), on_cpu.detach())


def test_muon() -> None:
    """Steps iterated in bfloat16 differ in directions that the gradient hardly has; they change the loss alike."""
    tokens = random_tokens(2, 5, seed=9)
    models = [random_model().train(), *updated_on_both("muon")]
    start, on_cpu, on_gpu = (model.loss(model(tokens)[0], tokens.flip(1)).mean().detach() for model in models)
    assert start > on_cpu
    assert relative_error(on_gpu - start, on_cpu - start) < MUON


def _updates(model: Model, optimizer: torch.optim.Optimizer) -> None:
    device = next(model.parameters()).device
    for seed in range(3):
        tokens = random_tokens(2, 5, seed=seed).to(device)
        optimizer.zero_grad()
        F.cross_entropy(model.logits(model(tokens)[0]).transpose(1, 2), tokens.flip(1)).backward()
        optimizer.step()
