"""Everything that the next step depends on, to and from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mnemo.data.streams import Cursor
from mnemo.errors import MnemoError, one_line
from mnemo.memory.state import State, leaves, tree_map
from mnemo.model import Model
from mnemo.storage import sharded as shards
from mnemo.storage.checkpoint import Checkpoint
from mnemo.storage.weights import check_like
from mnemo.training.distributed import Rows
from mnemo.training.optimizers import Average, Plateau
from mnemo.training.processes import AnyWorld
from mnemo.training.validate import check_progress

_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})
MOMENTS: dict[type, frozenset[str]] = {torch.optim.Adam: _ADAM, torch.optim.AdamW: _ADAM}
"""What these keep of a parameter; others may keep what they like."""


class Best(NamedTuple):
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands, besides its tensors."""

    cursor: Cursor
    """The next batch"""
    past: tuple[Cursor, ...] = ()
    """Batches that the next update reads again, before the next one; the memory is the one before them"""
    step: int = 0
    """Updates done"""
    tokens: int = 0
    """Targets trained on"""
    seconds: float = 0.0
    """Time since the start, in all processes"""
    interval: tuple[tuple[float, int], ...] = ()
    """Loss and number of targets of every step since the last line of metrics"""
    plateau: Plateau = field(default_factory=Plateau)
    best: Best | None = None
    stale: int = 0
    """Evaluations since the best"""
    evaluated: int = 0
    """The last step that was evaluated"""
    skipped: int = 0
    """Updates that were left out because their numbers were not usable"""
    in_a_row: int = 0
    """How many of these were the last ones"""
    usual_loss: float | None = None
    """Of recent steps, where spikes are watched for"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any], path: Path) -> Progress:
        check_progress(data, path)
        try:
            known = {name: data[name] for name in Progress.__dataclass_fields__ if name in data or name not in NEWER}
            known["past"] = tuple(data["past"])
            known["interval"] = tuple((float(loss), int(count)) for loss, count in data["interval"])
            known["plateau"] = Plateau(**data["plateau"])
            known["best"] = None if data["best"] is None else Best(*data["best"])
            return Progress(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise MnemoError(f"{path} is damaged: {error}") from None


NEWER = {"skipped", "in_a_row", "usual_loss"}
"""Fields that older checkpoints do not have"""


def training_tensors(
    model: Model, optimizer: torch.optim.Optimizer, average: Average | None, rank: int = 0
) -> dict[str, Tensor]:
    """Optimizer moments, averaged weights and this process's random generators, by name."""
    tensors = {_generator("cpu", rank): torch.get_rng_state()}
    device = next(model.parameters()).device
    if device.type == "cuda":
        tensors[_generator("cuda", rank)] = torch.cuda.get_rng_state(device)
    for name, parameter in model.named_parameters():
        moments = optimizer.state.get(parameter, {})
        tensors |= {f"optimizer/{name}/{key}": value for key, value in moments.items() if isinstance(value, Tensor)}
    names = [name for name, _ in model.named_parameters()]
    averages = average.values if average else []
    return tensors | {f"average/{name}": value for name, value in zip(names, averages, strict=False)}


def restore_training(
    tensors: Mapping[str, Tensor],
    model: Model,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    average_count: int,
    path: Path,
    rank: int | None = 0,
) -> None:
    """`rank`: whose generators to restore; None leaves them as they are."""
    _restore_optimizer(tensors, model, optimizer, path)
    if average is not None and average_count:
        average.restore([_like(tensors, f"average/{n}", p, path) for n, p in model.named_parameters()], average_count)
    if rank is None:
        return
    _set_generator(tensors, rank, path)
    device, on_gpu = next(model.parameters()).device, _generator("cuda", rank)
    if device.type == "cuda" and on_gpu in tensors:
        torch.cuda.set_rng_state(tensors[on_gpu], device)


def _set_generator(tensors: Mapping[str, Tensor], rank: int, path: Path) -> None:
    name = _generator("cpu", rank)
    generator = _named(tensors, name, path)
    check_like(generator, torch.get_rng_state(), name, path)
    try:
        torch.set_rng_state(generator)
    except RuntimeError as error:
        raise MnemoError(f"{path} is damaged: '{name}' is no random generator's state ({one_line(error)})") from None


def _generator(kind: str, rank: int) -> str:
    return f"rng/{kind}.{rank}" if rank else f"rng/{kind}"


def seed_process(seed: int, world: AnyWorld, step: int) -> None:
    """Random numbers of this process's own; an uninterrupted single process goes on with those of the first weights."""
    mixed = np.random.SeedSequence([seed, world.size, world.rank, step]).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]) >> 1)


def whole_or_pieces(found: Checkpoint, part: str, model: Model) -> dict[str, Tensor]:
    """A part's tensors, in pieces where this process has pieces of the weights they belong to."""
    if type(next(model.parameters()).data) is Tensor:
        return found.tensors(part)
    weights = dict(model.named_parameters())

    def owner(name: str) -> Tensor | None:
        kind, _, rest = name.partition("/")
        known = {"optimizer": rest.rpartition("/")[0], "average": rest}
        return weights.get(known.get(kind, name))

    return shards.read(found.path, found.layout(part), owner)


def memory_of_rows(found: Checkpoint, rows: Rows, parts: int) -> dict[str, Tensor]:
    """The memories of some rows in so many parts, whichever parts and processes they were saved by."""
    whole = None if found.is_sharded else found.tensors("memory")
    stored = found.layout("memory") if whole is None else {}
    sizes = {name: tensor.shape[0] for name, tensor in (stored if whole is None else whole).items()}
    begins, wanted, ends = {}, {}, {}
    for name in sorted(sizes, key=lambda name: int(name.partition("/")[0])):
        leaf = name.partition("/")[2]
        begin, ends[leaf] = ends.get(leaf, 0), ends.get(leaf, 0) + sizes[name]
        if begin < rows.end and rows.begin < ends[leaf]:
            begins.setdefault(leaf, begin)
            wanted.setdefault(leaf, []).append(name)
    names = [name for pieces in wanted.values() for name in pieces]
    tensors = whole or shards.read(found.path, {name: stored[name] for name in names})
    own = {}
    for leaf, pieces in wanted.items():
        first = begins[leaf]
        joined = torch.cat([tensors[name] for name in pieces])[rows.begin - first : rows.end - first]
        own |= {f"{part}/{leaf}": piece for part, piece in enumerate(joined.tensor_split(parts))}
    return own


def _restore_optimizer(
    tensors: Mapping[str, Tensor], model: Model, optimizer: torch.optim.Optimizer, path: Path
) -> None:
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for index, parameter in enumerate(order):
        prefix = f"optimizer/{names[parameter]}/"
        keys = [name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]
        moments = {key: _step_count(tensors[prefix + key], path) for key in keys if key == "step"}
        moments |= {key: _like(tensors, prefix + key, parameter, path) for key in keys if key != "step"}
        if moments:
            state[index] = moments
    expected = MOMENTS.get(type(optimizer))
    if expected is not None and any(moments.keys() != expected for moments in state.values()):
        raise MnemoError(f"{path} is of another optimizer: its moments are not those that this one keeps")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _step_count(tensor: Tensor, path: Path) -> Tensor:
    if tensor.numel() != 1 or not tensor.is_floating_point() or not bool(tensor.isfinite()) or float(tensor) < 0:
        raise MnemoError(f"{path} is damaged: an optimizer's step is no count")
    return tensor.clone()


def _named(tensors: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    if name not in tensors:
        raise MnemoError(f"{path} is of another configuration: it has no tensor '{name}'")
    return tensors[name]


def _like(tensors: Mapping[str, Tensor], name: str, expected: Tensor, path: Path) -> Tensor:
    """A copy on the device of `expected`: aligned as training needs it, and free of the file."""
    tensor = _named(tensors, name, path)
    check_like(tensor, expected, name, path)
    return tensor.to(expected.device, copy=True)


def memory_tensors(states: tuple[State, ...], first: int = 0) -> dict[str, Tensor]:
    """`first`: the number of the first part, where other processes have those before."""
    return {f"{part}/{name}": leaf for part, state in enumerate(states, first) for name, leaf in leaves(state)}


def restore_memory(tensors: Mapping[str, Tensor], empty: tuple[State, ...], path: Path) -> tuple[State, ...]:
    """The states that were saved, in the form of empty ones."""
    return tuple(_restore_state(tensors, state, f"{part}/", path) for part, state in enumerate(empty))


def _restore_state(tensors: Mapping[str, Tensor], empty: State, prefix: str, path: Path) -> State:
    found = iter([_like(tensors, prefix + name, leaf, path) for name, leaf in leaves(empty)])
    return tree_map(lambda _: next(found), empty)
