"""The tensors of a checkpoint: optimizer moments, averaged weights, random generators, memories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mnemo.errors import MnemoError, one_line
from mnemo.memory.state import State, leaves, tree_map
from mnemo.model import Model
from mnemo.storage import sharded as shards
from mnemo.storage.checkpoint import Checkpoint
from mnemo.storage.weights import check_like
from mnemo.training.distributed import Rows
from mnemo.training.optimizers import Average, NoAverage, add_momentum_buffers
from mnemo.training.processes import AnyWorld

_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})
MOMENTS: dict[type, frozenset[str]] = {torch.optim.Adam: _ADAM, torch.optim.AdamW: _ADAM}
"""Names of the tensors that these optimizers keep for a parameter; those of others are not checked."""


def training_tensors(
    model: Model, optimizer: torch.optim.Optimizer, average: Average | NoAverage, rank: int = 0
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
    return tensors | {f"average/{name}": value for name, value in zip(names, average.values, strict=False)}


def restore_training(
    tensors: Mapping[str, Tensor],
    model: Model,
    optimizer: torch.optim.Optimizer,
    average: Average | NoAverage,
    average_count: int,
    path: Path,
    rank: int | None = 0,
) -> None:
    """Restore what `training_tensors` saved. `rank`: whose random generators; None leaves them as they are."""
    _restore_optimizer(tensors, model, optimizer, path)
    if isinstance(average, Average):
        kept = model.named_parameters() if average_count else ()
        average.restore([_like(tensors, f"average/{n}", p, path) for n, p in kept], average_count)
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
    """Seed this process differently from all others, and from other steps."""
    mixed = np.random.SeedSequence([seed, world.size, world.rank, step]).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]) >> 1)


def whole_or_pieces(found: Checkpoint, part: str, model: Model) -> dict[str, Tensor]:
    """The tensors of a part; only this process's pieces of them if it holds pieces of the weights (FSDP)."""
    if type(next(model.parameters()).data) is Tensor:
        return found.tensors(part)
    weights = dict(model.named_parameters())

    def owner(name: str) -> Tensor | None:
        kind, _, rest = name.partition("/")
        known = {"optimizer": rest.rpartition("/")[0], "average": rest}
        return weights.get(known.get(kind, name))

    return shards.read(found.path, found.layout(part), owner)


def memory_of_rows(found: Checkpoint, rows: Rows, parts: int) -> dict[str, Tensor]:
    """The memories of some rows in `parts` parts, independent of the parts and processes that saved them."""
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
        raise MnemoError(f"{path} is of another optimizer: its moments have other names")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    if isinstance(optimizer, torch.optim.SGD):
        add_momentum_buffers(optimizer)  # checkpoints of 0.2.0 lack those without a gradient so far


def _step_count(tensor: Tensor, path: Path) -> Tensor:
    if tensor.numel() != 1 or not tensor.is_floating_point() or not bool(tensor.isfinite()) or float(tensor) < 0:
        raise MnemoError(f"{path} is damaged: an optimizer's step is no count")
    return tensor.clone()


def _named(tensors: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    if name not in tensors:
        raise MnemoError(f"{path} is of another configuration: it has no tensor '{name}'")
    return tensors[name]


def _like(tensors: Mapping[str, Tensor], name: str, expected: Tensor, path: Path) -> Tensor:
    """A copy on the device of `expected`, with aligned memory that does not belong to the file."""
    tensor = _named(tensors, name, path)
    check_like(tensor, expected, name, path)
    return tensor.to(expected.device, copy=True)


def memory_tensors(states: tuple[State, ...], first: int = 0) -> dict[str, Tensor]:
    """All leaves by part and name; `first` is the number of the first part, as other processes have those before."""
    return {f"{part}/{name}": leaf for part, state in enumerate(states, first) for name, leaf in leaves(state)}


def restore_memory(tensors: Mapping[str, Tensor], empty: tuple[State, ...], path: Path) -> tuple[State, ...]:
    """The saved states, with the structure of empty ones."""
    return tuple(_restore_state(tensors, state, f"{part}/", path) for part, state in enumerate(empty))


def _restore_state(tensors: Mapping[str, Tensor], empty: State, prefix: str, path: Path) -> State:
    found = iter([_like(tensors, prefix + name, leaf, path) for name, leaf in leaves(empty)])
    return tree_map(lambda _: next(found), empty)
