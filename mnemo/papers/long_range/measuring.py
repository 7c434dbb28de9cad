"""Time and memory of a training step: jobs whose cells run alone on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mnemo.bench.cases import Case
from mnemo.bench.timed_steps import Step, build_model, our_step, published_of, published_step
from mnemo.bench.timing import allocated, peak_over, reset_peak, take_turns
from mnemo.config import from_json, to_json
from mnemo.cost.training_cost import training_bytes
from mnemo.errors import MnemoError
from mnemo.model.memory_limits import require_room
from mnemo.papers.experiment import Cell
from mnemo.papers.jobs import Place, job, no_training
from mnemo.progress import Advance
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.training.training_speed import training_speed

Formulation = Literal["mnemo", "published"]
WARMUP = 2
"""Steps until an optimizer has its moments and an update is recorded."""
RESIDENT = 3
"""Numbers that stay for every weight: itself and Adam's two moments."""


def cases_of(settings: dict[str, Any]) -> list[Case]:
    return [replace(from_json(Case, settings["case"]), num_long=count) for count in settings["long"]]


def needed_bytes(settings: dict[str, Any]) -> int:
    """Of the first case, about, where attention keeps its scores."""
    case = cases_of(settings)[0]
    train = TrainConfig(batch=case.batch, segment=case.segment, precision=case.precision)
    return int(training_bytes(Recipe(model=case.config(), train=train)))


@job("long-profile", needs=needed_bytes)
def profile(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """One training step of the same model with different numbers of long-range layers, one after the other."""
    formulation, repeats = settings["formulation"], settings["repeats"]
    cases = cases_of(settings)
    require_room(needed_bytes(settings), place.device, f"a training step of {cases[0].num_layers} layers")
    found = []
    total = len(cases) * (WARMUP + repeats)
    with place.progress(f"profile {formulation}", total, unit="steps") as bar, enough_memory(cases[0]):
        for case in cases:
            found.append(_costs(case, formulation, place.device, repeats, bar))
    return {"plans": found}


def _costs(case: Case, formulation: Formulation, device: torch.device, repeats: int, bar: Advance) -> dict[str, Any]:
    working = working_bytes(replace(case, cuda_graph=False), formulation, device)
    _, step = _build(case, formulation, device)
    timed = take_turns({formulation: step}, repeats=repeats, warmup=WARMUP, device=device, bar=bar)[formulation]
    return {
        "long": case.num_long,
        "working_bytes": working,
        "seconds_per_token": timed.median / case.tokens,
        "seconds": list(timed.seconds),
    }


def _build(case: Case, formulation: Formulation, device: torch.device) -> tuple[nn.Module, Step]:
    model = build_model(case, device)
    if formulation == "mnemo":
        return model, our_step(case, model, full=True)
    plain = published_of(case, model)
    return plain, published_step(case, plain, full=True)


def working_bytes(case: Case, formulation: Formulation, device: torch.device) -> int:
    """Activations and state of a step at its peak: on a GPU all that is allocated less weights and moments; on a CPU
    the tensors that the backward pass needs, memories among them."""
    before = allocated(device)
    model, step = _build(case, formulation, device)
    if device.type != "cuda":
        return _saved_bytes(model, step)
    for _ in range(WARMUP):
        step()
    reset_peak(device)
    step()
    peak = peak_over(before, device)
    assert peak is not None
    return peak - RESIDENT * sum(parameter.nbytes for parameter in model.parameters())


def _saved_bytes(model: nn.Module, step: Step) -> int:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(size for where, size in sizes.items() if where not in weights)


@contextmanager
def enough_memory(case: Case) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise MnemoError(
            f"{case.num_layers} layers of width {case.dim} with a batch of {case.batch} and a memory of {case.memory} "
            "do not fit into the free memory of this GPU"
        ) from None


def timing_cell(
    name: str, recipes: Mapping[str, Recipe], *, updates: int, rounds: int, after: tuple[str, ...] = ()
) -> Cell:
    """Measures the training speed of recipes. Alone on the device, which other cells may share."""
    settings = {"recipes": {key: to_json(recipe) for key, recipe in recipes.items()}}
    return Cell(
        name=name,
        job="long-pace",
        settings={**settings, "updates": updates, "rounds": rounds},
        labels={"cell": name},
        after=after,
        alone=True,
    )


@job("long-pace", trains=no_training)
def paces(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Tokens per second of recipes, each alone and one after the other."""
    recipes = {name: from_json(Recipe, recipe) for name, recipe in settings["recipes"].items()}
    found = {}
    with place.progress("timing steps", len(recipes), unit="models") as bar:
        for name, recipe in recipes.items():
            train = replace(recipe.train, device=str(place.device))
            timed = training_speed(recipe.model, train, updates=settings["updates"], rounds=settings["rounds"])
            found[name] = {"tokens_per_second": timed.tokens_per_second, "peak_bytes": timed.peak_bytes}
            bar.advance()
    return {"paces": found}
