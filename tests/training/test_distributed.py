"""Several processes give what one gives, with gloo on the CPU in float64."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ranks
from helpers.monitors import Signaller
from helpers.tolerances import TOLERANCES
from helpers.toy_runs import losses, recipe, run

from mnemo.memory import XL, Associative, Compressive, Infinite, Lookahead, MemoryTokens, Plan, WriteTokens
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.recipes.recipe import AverageConfig, OptimizerConfig, Recipe
from mnemo.training import create_run, train
from mnemo.training.processes import Ranks, joined


def of(memory: Any = XL(length=6), model: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    settings = {"steps": 2, "batch": 5, "log_every": 1, "eval_every": 2, "checkpoint_every": 2}
    settings |= {"precision": "fp64", "device": "cpu"}
    sizes = {"memory": Plan(long=memory), "dropout": DropoutConfig(), **(model or {})}
    return recipe(sizes, **{**settings, **changes})


TOKENS = {"model": {"tokens": MemoryTokens(num=2)}, "bptt": 2}
MEMORIES: dict[str, dict[str, Any]] = {
    "xl": {},
    "look-ahead": {"memory": Lookahead(length=6)},
    "tokens": {**TOKENS, "bptt_window": "tumbling"},
    "tokens-sliding": TOKENS,
    "associative": {"memory": Associative(key_dim=8), "model": {"tokens": WriteTokens(num=2)}, "bptt": 2},
}
AGAIN = {f"{name}-again": {**options, "bptt_memory": "checkpoint"} for name, options in MEMORIES.items()}
"""Segments are computed again in the backward pass."""

OTHERS: dict[str, dict[str, Any]] = {
    "look-ahead-unused": {"memory": Lookahead(length=6), "model": {"num_layers": 1}},
    "compressive": {"memory": Compressive(length=6, compressed=2, ratio=2)},
    "average": {"average": AverageConfig(start=1)},
    "infinite": {"memory": Infinite(length=2, basis=4, block=4, samples=4, gate="layer"), "model": {"num_layers": 1}},
    "parts": {"accumulate": 2, "bptt_memory": "checkpoint"},
    "adaptive": {
        "model": {"embedding": EmbeddingConfig(cutoffs=(2, 4), div_val=2), "num_layers": 1},
        "segment": 2,
        "optimizer": OptimizerConfig(lr=0.05),
    },
    "sgd": {"optimizer": OptimizerConfig(kind="sgd", lr=0.1, momentum=0.9)},
    "documents-clip": {"data": {"documents": "reset"}, "optimizer": OptimizerConfig(clip=1e-3, kind="adamw")},
}
CASES = {name: of(**options) for name, options in {**MEMORIES, **OTHERS, **AGAIN}.items()}


def train_all(folder: Path, kind: str, cases: dict[str, Recipe]) -> None:
    with joined("cpu", 60) as world:
        for name, wanted in cases.items():
            path = folder / f"{name}-{kind}"
            world.main(lambda wanted=wanted, path=path: str(create_run(wanted, path)))
            train(path, world=world)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[float]]:
    """Losses of a case in one process, which trains it when they are first wanted."""
    folder = tmp_path_factory.mktemp("alone")

    def losses_of(name: str) -> list[float]:
        if not (folder / name).exists():
            run(folder / name, of=CASES[name])
        return losses(folder / name)

    return losses_of


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "kind"), [(2, "ddp"), (2, "fsdp"), (4, "ddp"), (4, "fsdp")])
def test_losses_equal_those_of_one_process(
    size: int, kind: Any, alone: Callable[[str], list[float]], tmp_path: Path
) -> None:
    names = {*MEMORIES, *OTHERS, "tokens-sliding-again"} if size == 2 else {*MEMORIES, *AGAIN, "adaptive"}
    check_losses(size, kind, sorted(names), alone, tmp_path)


def test_losses_of_two_processes_equal_those_of_one(alone: Callable[[str], list[float]], tmp_path: Path) -> None:
    names = ["adaptive", "infinite", "look-ahead-unused", "tokens", "documents-clip", "sgd"]
    check_losses(2, "ddp", names, alone, tmp_path)


def test_losses_with_weights_divided_equal_those_of_one_process(
    alone: Callable[[str], list[float]], tmp_path: Path
) -> None:
    check_losses(2, "fsdp", ["associative", "average", "compressive", "tokens-sliding-again", "sgd"], alone, tmp_path)


def check_losses(size: int, kind: Any, names: list[str], alone: Callable[[str], list[float]], tmp_path: Path) -> None:
    chosen = [name for name in names if (kind, name) != ("fsdp", "infinite")]  # FSDP refuses the unbounded memory
    spread = {name: replace(CASES[name], train=replace(CASES[name].train, parallel=kind)) for name in chosen}
    ranks.run(size, train_all, tmp_path, kind, spread)
    tolerance = TOLERANCES[torch.float64]
    for name in chosen:
        assert losses(tmp_path / f"{name}-{kind}") == pytest.approx(
            alone(name), rel=tolerance.rtol, abs=tolerance.atol
        ), name


def as_one_rank(folder: Path, device: str, backend: str, cases: dict[str, Recipe]) -> None:
    """A job of one process that goes the way of several, and stops and resumes once."""
    warnings.filterwarnings("ignore", "attention runs in plain PyTorch")  # no kernel computes in float64
    torch.distributed.init_process_group(backend)
    world = Ranks(60)
    for name, wanted in cases.items():
        create_run(replace(wanted, train=replace(wanted.train, device=device)), folder / name)
        train(folder / name, monitor=Signaller(signal.SIGTERM, step=1), world=world)
        assert train(folder / name, world=world).step == wanted.train.steps
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("device", "backend"),
    [pytest.param("cpu", "gloo", marks=pytest.mark.thorough), pytest.param("cuda", "nccl", marks=pytest.mark.gpu)],
)
def test_a_job_of_one_process(device: str, backend: str, alone: Callable[[str], list[float]], tmp_path: Path) -> None:
    """On a GPU, this is how DDP, FSDP, NCCL and their checkpoints are tested where there is only one."""
    names, kinds = ("xl", "tokens", "adaptive"), ("ddp", "fsdp")
    cases = {f"{n}-{k}": replace(CASES[n], train=replace(CASES[n].train, parallel=k)) for n in names for k in kinds}  # type: ignore[arg-type]
    ranks.run(1, as_one_rank, tmp_path, device, backend, cases)
    tolerance = TOLERANCES[torch.float64]
    for case in cases:
        expected = alone(case.rpartition("-")[0])
        assert losses(tmp_path / case) == pytest.approx(expected, rel=tolerance.rtol, abs=tolerance.atol), case
