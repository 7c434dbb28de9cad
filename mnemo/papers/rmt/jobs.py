"""Jobs of RMT's experiments: a task learned in stages or as a pilot decides, a language model that may fail."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from mnemo.bench.timing import allocated
from mnemo.config import from_json
from mnemo.data.tasks import TaskSplit
from mnemo.errors import one_line
from mnemo.evaluation.task_accuracy import answer
from mnemo.memory.state import leaves, nbytes
from mnemo.model import Model
from mnemo.papers.jobs import Place, begin_run, job, train_and_score, train_here
from mnemo.papers.rmt.maps import attention_maps
from mnemo.recipes.recipe import Recipe
from mnemo.report.runs import read_run
from mnemo.storage.run_folder import open_run
from mnemo.training import Diverged

OUT_OF_MEMORY, DIVERGED, FINISHED = "out of memory", "diverged", "finished"


@job("rmt-task")
def learn_in_stages(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Train a model on one task after the other, each with the weights of the one before; score it on the last."""
    stages = [from_json(Recipe, stage, f"stage {number}") for number, stage in enumerate(settings["stages"], 1)]
    source, steps = None, []
    for number, stage in enumerate(stages[:-1], 1):
        here = replace(place, folder=place.folder / f"stage-{number}")
        steps.append(_trained(stage, here, source, f"stage {number} of {len(stages)}")["steps"])
        source = here.run
    values = _trained(stages[-1], place, source, f"stage {len(stages)} of {len(stages)}")
    values |= {"stages": [*steps, values["steps"]], **_answers(stages[-1], place)}
    return values | {"maps": _maps(stages[-1], place)} if settings["maps"] else values


@job("rmt-pilot")
def learn_at_once(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Train a model on one task. Scored on validation samples, because it is for a choice."""
    recipe = from_json(Recipe, settings["recipe"], "recipe")
    return _trained(recipe, place, None) | _answers(recipe, place, "valid")


def _one_way(settings: dict[str, Any]) -> Any:
    """The recipes of one way. A model trains in one of the two, and both take as many steps."""
    return settings["in stages"]


@job("rmt-task-after-pilot", trains=_one_way)
def learn_as_decided(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """As `rmt-task`: at once if the pilot has solved enough in this way, else in stages."""
    solved = place.values(settings["pilot"])["answer_accuracy"]
    way = "at once" if solved >= settings["enough"] else "in stages"
    return learn_in_stages(settings[way], place) | {"way": way}


def _trained(recipe: Recipe, place: Place, source: Path | None, name: str = "training") -> dict[str, Any]:
    begin_run(recipe, place, source)
    return train_here(recipe, place, name)


def _answers(recipe: Recipe, place: Place, split: TaskSplit = "test") -> dict[str, Any]:
    """Accuracies over all samples of a split."""
    assert recipe.data.task is not None
    model = open_run(place.run, "best", place.device).model
    score = answer(model, recipe.data.task, segment=recipe.train.segment, split=split, progress=place.progress)
    return {
        "character_accuracy": score.character_accuracy,
        "answer_accuracy": score.answer_accuracy,
        "samples": score.samples,
        "by_position": [round(share, 4) for share in score.by_position],
    }


def _maps(recipe: Recipe, place: Place) -> dict[str, Any]:
    assert recipe.data.task is not None
    model = open_run(place.run, "best", place.device).model
    return attention_maps(model, recipe.data.task, recipe.train.segment)


@job("rmt-language")
def train_or_fail(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """As `train`, with the size of the state. A run that diverges or does not fit into memory is a result."""
    recipe = from_json(Recipe, settings["recipe"], "recipe")
    scores = {"test": {"split": "test", **asdict(recipe.test), "limit": settings["limit"]}}
    try:
        values = train_and_score({"recipe": settings["recipe"], "scores": scores}, place)
    except Diverged as error:
        return _failed(DIVERGED, error, place)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        return _failed(OUT_OF_MEMORY, error, place)
    model = open_run(place.run, "best", place.device).model
    sizes = state_sizes(model) | {"reading_bytes": reading_bytes(model, recipe.train.segment, recipe.test.batch)}
    return values | {"outcome": FINISHED} | sizes


def _failed(outcome: str, error: Exception, place: Place) -> dict[str, Any]:
    """Values of a run that ended early."""
    steps = [metric.step for metric in read_run(place.run, "run").train]
    place.monitor.note(f"{outcome}: kept as the result of this run")
    return {"outcome": outcome, "message": one_line(error), "failed_at": max(steps, default=0)}


def state_sizes(model: Model) -> dict[str, int]:
    """Vectors and bytes of the state of one text."""
    state, dim = model.init(1), model.config.dim
    parts = [leaf for _, leaf in leaves(state) if leaf.is_floating_point() and leaf.shape[-1] == dim]
    return {"state_vectors": sum(part.numel() // dim for part in parts), "state_bytes": nbytes(state)}


@torch.no_grad()
def reading_bytes(model: Model, segment: int, batch: int) -> int | None:
    """Peak of GPU memory while a batch of texts is read, weights included; None on a CPU."""
    device = model.device
    if device.type != "cuda":
        return None
    model.eval()
    allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    state: Any = None
    for _ in range(4):
        tokens = torch.randint(model.config.vocab_size, (batch, segment), device=device)
        out, state = model(tokens, state)
        model.loss(out, tokens)
    return torch.cuda.max_memory_allocated(device)
