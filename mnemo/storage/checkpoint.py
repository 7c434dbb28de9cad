"""Run folders and checkpoints: safetensors for tensors, JSON for the rest, nothing that could run code.

    runs/NAME/recipe.json                     what the run depends on
    runs/NAME/checkpoints/step-00000200/      weights, training (optimizer, averages, generators), memory: .safetensors
                                              progress.json: everything else, and the sizes of the other files
                                              (several processes: shard-*.safetensors, with the same tensors)
    runs/NAME/best.json                       the step with the lowest validation loss

A checkpoint is written under another name, flushed to the disk and then renamed: where a name exists, it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mnemo import __version__
from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError, one_line, shorten, unknown
from mnemo.files.safe_load import is_count, open_own, read_object, require, tensors_problem
from mnemo.memory.state import Start, State
from mnemo.model import Model, ModelConfig
from mnemo.recipes.recipe import Recipe
from mnemo.storage import sharded as shards

try:
    import fcntl
except ImportError:  # not on Windows, where two processes are not kept apart
    fcntl = None

TOKENIZER = "tokenizer.json"
"""Beside a run's recipe: how its text was cut into tokens."""
FORMAT_VERSION = 1
RUNS = Path("runs")
RECIPE, BEST, PROGRESS, CHECKPOINTS = "recipe.json", "best.json", "progress.json", "checkpoints"
EXPORT = "export.json"
"""In the folder of an exported model: the step of its weights, which lie beside it."""
PREFIX, PARTIAL = "step-", ".tmp-"
PARTS = ("weights", "training", "memory")

Tensors = Mapping[str, Tensor]
STARTS: tuple[Start, ...] = get_args(Start)


@dataclass(frozen=True, kw_only=True)
class RunHeader:
    """What recipe.json holds."""

    recipe: Recipe
    corpus: dict[str, Any]
    """name, unit, vocab_size and fingerprint of the corpus"""
    preset: str | None = None
    source: dict[str, Any] | None = None
    """path and step of the run that the first weights came from; `starts_from`, where they were not trained here"""

    @property
    def start(self) -> Start:
        return (self.source or {}).get("starts_from", "empty")


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    progress: dict[str, Any]

    @property
    def step(self) -> int:
        return self.progress["step"]

    @property
    def num_ranks(self) -> int:
        """How many processes wrote it"""
        return self.progress.get("ranks", 1)

    @property
    def is_sharded(self) -> bool:
        return "ranks" in self.progress

    def file(self, part: str) -> Path:
        return self.path if self.is_sharded else self.path / f"{part}.safetensors"

    def layout(self, part: str) -> dict[str, shards.Stored]:
        return {name: stored for name, stored in shards.layout(self.path).items() if part_of(name) == part}

    def tensors(self, part: str, prefix: str = "") -> dict[str, Tensor]:
        """A part's tensors whose names begin with `prefix`."""
        if not self.is_sharded:
            return read_tensors(self.file(part), prefix)
        wanted = {name: stored for name, stored in self.layout(part).items() if name.startswith(prefix)}
        return shards.read(self.path, wanted)


def part_of(name: str) -> str:
    """Which part of a checkpoint a tensor belongs to."""
    first, slash, _ = name.partition("/")
    if first.isdecimal():
        return "memory"
    return "training" if slash and first in ("optimizer", "average", "rng") else "weights"


@dataclass(frozen=True)
class LoadedRun:
    path: Path
    recipe: Recipe
    model: Model
    step: int
    corpus: dict[str, Any]
    start: Start
    """Empty, but for converted weights whose own code starts from zeros."""

    def first_state(self, batch: int, lengths: int | None = None, cached: bool = False) -> State:
        """What a text begins with, of so many slots in the long-range layers; as configured when left out."""
        return (self.model.zeros if self.start == "zeros" else self.model.init)(batch, lengths, cached)


def open_run(
    run: str | Path, which: Literal["best", "last"] = "best", device: str | torch.device = "auto"
) -> LoadedRun:
    """A trained model as it was evaluated: with averaged weights where the run had begun to average them.

    `run`: a folder, or a name under `runs`. Before the first evaluation the last checkpoint counts as the best.
    """
    path = find_run(run)
    header = read_header(path)
    checkpoint = best_checkpoint(path) if which == "best" else last_checkpoint(path)
    if checkpoint is None:
        raise MnemoError(f"{path} has no whole checkpoint yet")
    with torch.device("meta"):
        model = build_model(header.recipe.model, header.recipe.train.precision)
    weights, path_of_weights = evaluated_weights(checkpoint), checkpoint.file("weights")
    check_weights(model, weights, path_of_weights)  # before there is room for a model of the recipe's size
    model.to_empty(device=pick_device(device))
    load_weights(model, weights, path_of_weights)
    return LoadedRun(path, header.recipe, model.eval(), checkpoint.step, header.corpus, header.start)


def find_run(run: str | Path, runs: Path = RUNS) -> Path:
    """The folder of a run that is given by path or by name."""
    for path in (runs / run, Path(run)):
        if (path / RECIPE).is_file():
            return path
    if Path(run).is_dir():
        raise MnemoError(f"{run} is not a run: it has no {RECIPE}")
    names = [path.parent.name for path in runs.glob(f"*/{RECIPE}") if not path.parent.name.startswith(".")]
    raise unknown("run", str(run), names) if names else MnemoError(f"no run '{run}': there are none in {runs}")


def pick_device(name: str | torch.device) -> torch.device:
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise MnemoError(f"device '{name}' cannot be used: {str(error).splitlines()[0]}") from None
    return device


def build_model(config: ModelConfig, precision: str) -> Model:
    """A model with fresh weights, in the type that they are trained in."""
    try:
        model = Model(config)
    except (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise MnemoError(f"model: {one_line(error)}") from None
    return model.double() if precision == "fp64" else model


def evaluated_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    weights = checkpoint.tensors("weights")
    if not checkpoint.progress["average_count"]:
        return weights
    averages = checkpoint.tensors("training", "average/")
    return weights | {name.removeprefix("average/"): tensor for name, tensor in averages.items()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Tensors, path: Path) -> None:
    """Copy weights into a model; every name, shape and type must be the model's own."""
    check_weights(model, weights, path)
    for name, tensor in model.state_dict().items():
        # Copying also puts the numbers at an aligned address, on which the last bit of a product can depend.
        tensor.copy_(weights[name])


def check_weights(model: nn.Module, weights: Tensors, path: Path) -> None:
    own = model.state_dict()
    for name in sorted(own.keys() ^ weights.keys()):
        relation = "has no" if name in own else "has an unexpected"
        raise MnemoError(f"{path} is of another configuration: it {relation} tensor '{name}'")
    for name, tensor in own.items():
        check_like(weights[name], tensor, name, path)


def check_like(tensor: Tensor, expected: Tensor, name: str, path: Path) -> None:
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        found, wanted = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (tensor, expected))
        raise MnemoError(f"{path} is of another configuration: '{name}' is {found}, the model has {wanted}")


def write_header(folder: Path, header: RunHeader, tokenizer: dict[str, Any] | None = None) -> None:
    """A new run folder, complete with its recipe and tokenizer or not there at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        partial.chmod(0o755)
        if tokenizer is not None:
            write_json(partial / TOKENIZER, {"tokenizer": tokenizer})
        write_json(
            partial / RECIPE,
            {
                "mnemo_version": __version__,
                "torch_version": torch.__version__,
                "preset": header.preset,
                "source": header.source,
                "corpus": header.corpus,
                "recipe": to_json(header.recipe),
            },
        )
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_header(folder: Path) -> RunHeader:
    path = folder / RECIPE
    data = read_json(path)
    if not isinstance(data.get("corpus"), dict):
        raise MnemoError(f"{path} is damaged: it does not describe the corpus")
    recipe = from_json(Recipe, data.get("recipe"), f"{path}: recipe")
    preset, source = data.get("preset"), data.get("source")
    known = source is None or (isinstance(source, dict) and isinstance(source.get("run"), str | None))
    require(
        {
            "preset": preset is None or isinstance(preset, str),
            "source": known and (source is None or is_count(source.get("step", 0))),
            "source.starts_from": not isinstance(source, dict) or source.get("starts_from", "empty") in STARTS,
        },
        path,
    )
    return RunHeader(recipe=recipe, corpus=data["corpus"], preset=preset, source=source)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a file at once, with its format version."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        partial.unlink(missing_ok=True)  # a link there would be written through
        with partial.open("x", encoding="utf-8") as file:
            json.dump({"format_version": FORMAT_VERSION, **data}, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    data = read_object(path)
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        found = shorten(str(version))
        raise MnemoError(f"{path} has format_version {found}; this version of mnemo reads {FORMAT_VERSION}")
    return data


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_checkpoint(folder: Path, progress: dict[str, Any], parts: Mapping[str, Tensors]) -> Path:
    """Write the checkpoint of `progress["step"]`; where that fails, earlier ones stay as they are."""
    target = checkpoint_path(folder, progress["step"])
    partial = begin_checkpoint(target)
    try:
        with saving(target):
            for part, tensors in parts.items():
                write_tensors(partial / f"{part}.safetensors", tensors)
        commit_checkpoint(partial, target, progress)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def begin_checkpoint(target: Path) -> Path:
    """The folder in which the files of a checkpoint are written before it takes its name."""
    with saving(target):
        target.parent.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=target.parent))
        partial.chmod(0o755)
        return partial


def commit_checkpoint(partial: Path, target: Path, progress: dict[str, Any]) -> None:
    """Complete a checkpoint whose tensors are on the disk, and give it its name."""
    with saving(target):
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        write_json(partial / PROGRESS, {**progress, "files": sizes})
        if target.exists():
            # Whole ones are never written twice, so this one is damaged.
            target.rename(_aside(target))
        partial.rename(target)
        sync_folder(target.parent)


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """A disk that is full or gone, in words."""
    try:
        yield
    except OSError as error:
        raise MnemoError(f"cannot save {path}: {error.strerror or error}; what was saved before stays whole") from None


def save_progress(checkpoint: Checkpoint, progress: dict[str, Any]) -> Checkpoint:
    """Replace what a checkpoint says besides its tensors, which are those of the same step."""
    kept = {name: checkpoint.progress[name] for name in ("files", "ranks") if name in checkpoint.progress}
    progress = {**progress, **kept}
    with saving(checkpoint.path):
        write_json(checkpoint.path / PROGRESS, progress)
    return Checkpoint(checkpoint.path, progress)


def _aside(path: Path) -> Path:
    """A name that no reader looks at, and that `remove_partial` removes."""
    return path.with_name(f"{PARTIAL}{path.name}")


def write_tensors(path: Path, tensors: Tensors) -> None:
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path, {"format": "pt", "format_version": str(FORMAT_VERSION)})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    path.chmod(0o644)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a safetensors file whose names begin with `prefix`."""
    problem = file_problem(path)
    if problem:
        raise MnemoError(f"{path} {problem}")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}
    except SafetensorError as error:
        raise MnemoError(f"{path} is not a readable safetensors file: {error}") from None


def file_problem(path: Path) -> str | None:
    """What is wrong with a safetensors file, from its size and header alone."""
    return tensors_problem(path)


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / CHECKPOINTS / f"{PREFIX}{step:08d}"


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint whose files are all there, in full length."""
    _refuse_outside(path / PROGRESS)
    progress = read_json(path / PROGRESS)
    sizes, ranks = progress.get("files"), progress.get("ranks", 0)
    require(
        {
            "step": is_count(progress.get("step")),
            "ranks": is_count(ranks),
            "files": isinstance(sizes, dict),
            "average_count": is_count(progress.get("average_count")),
        },
        path / PROGRESS,
    )
    assert isinstance(sizes, dict)
    for name in _tensor_files(path, sizes, ranks):
        file = path / name
        _refuse_outside(file)
        problem = file_problem(file)
        if problem is None and file.stat().st_size != sizes.get(file.name):
            problem = "is not the file that was saved"
        if problem:
            raise MnemoError(f"{file} {problem}")
    return Checkpoint(path, progress)


def _refuse_outside(file: Path) -> None:
    """A file may be a link to another of its run; whole folders may be links to other disks, as their owner likes."""
    if not file.is_symlink():
        return
    target, checkpoint = os.path.realpath(file), file.parent
    homes = (checkpoint, checkpoint.parent, checkpoint.parent.parent)
    if not any(Path(target).is_relative_to(os.path.realpath(home)) for home in homes):
        raise MnemoError(f"{file} is a link that leads out of its run, to {shorten(target, 300)}")


def _tensor_files(path: Path, sizes: dict[str, Any], ranks: int) -> list[str]:
    """Names of the files that must be there; of several processes also those that are, for a reader takes them all."""
    if not ranks:
        return [f"{part}.safetensors" for part in PARTS]
    if not sizes or any(Path(name).name != name for name in sizes):
        raise MnemoError(f"{path / PROGRESS} is damaged: it does not name the checkpoint's files")
    return sorted({*sizes, *(file.name for file in path.glob(f"*{shards.SUFFIX}"))})


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, whole or damaged, in ascending order."""
    names = (path.name.removeprefix(PREFIX) for path in (folder / CHECKPOINTS).glob(f"{PREFIX}*"))
    return sorted(int(name) for name in names if name.isdecimal())


def exported(folder: Path) -> Checkpoint | None:
    """The weights of an exported model, where the folder is one."""
    if not (folder / EXPORT).is_file():
        return None
    data = read_json(folder / EXPORT)
    if type(data.get("step")) is not int:
        raise MnemoError(f"{folder / EXPORT} is damaged")
    return Checkpoint(folder, {"step": data["step"], "average_count": 0})


def export_run(run: Path, target: Path, which: Literal["best", "last"] = "best") -> Checkpoint:
    """One folder with a run's recipe, tokenizer and weights as they were evaluated, whoever trained them."""
    found = best_checkpoint(run) if which == "best" else last_checkpoint(run)
    if found is None:
        raise MnemoError(f"{run} has no whole checkpoint yet")
    if target.exists():
        raise MnemoError(f"{target} exists: --output names another folder")
    with saving(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=target.parent))
        try:
            partial.chmod(0o755)
            for name in (RECIPE, TOKENIZER):
                if (run / name).is_file():
                    shutil.copyfile(run / name, partial / name)
            write_tensors(partial / "weights.safetensors", evaluated_weights(found))
            write_json(partial / EXPORT, {"run": run.name, "step": found.step})
            partial.rename(target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return found


def last_checkpoint(folder: Path) -> Checkpoint | None:
    if (found := exported(folder)) is not None:
        return found
    steps = checkpoint_steps(folder)
    return _read_or_name_whole(folder, steps[-1]) if steps else None


def _read_or_name_whole(folder: Path, step: int) -> Checkpoint:
    """The checkpoint of a step; where it is damaged, the error names one that is whole, but does not take it."""
    try:
        return read_checkpoint(checkpoint_path(folder, step))
    except MnemoError as error:
        whole, newer = last_whole_checkpoint(folder)
        if whole is None:
            raise
        condition = " once newer ones are removed" if newer else ""
        raise MnemoError(f"{error}; step {whole.step} is whole: --which last takes it{condition}") from None


def last_whole_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be continued from, and what is wrong with newer ones."""
    problems = []
    for step in reversed(checkpoint_steps(folder)):
        try:
            return read_checkpoint(checkpoint_path(folder, step)), problems
        except MnemoError as error:
            problems.append(str(error))
    return None, problems


def write_best(folder: Path, step: int, loss: float) -> None:
    write_json(folder / BEST, {"step": step, "loss": loss})


def best_checkpoint(folder: Path) -> Checkpoint | None:
    if (found := exported(folder)) is not None:
        return found
    if not (folder / BEST).exists():
        return last_checkpoint(folder)
    step = read_json(folder / BEST).get("step")
    require({"step": is_count(step)}, folder / BEST)
    assert is_count(step)
    return _read_or_name_whole(folder, step)


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left behind."""
    for path in (folder / CHECKPOINTS).glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Remove all but the newest `keep` checkpoints and the best."""
    for step in checkpoint_steps(folder)[: -max(1, keep)]:
        if step != best:
            path = checkpoint_path(folder, step)
            # Renamed first: a kill in the middle leaves no half of a checkpoint under its name.
            path.rename(_aside(path))
            shutil.rmtree(_aside(path), ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in this folder; the lock ends with its process, however that ends."""
    with os.fdopen(open_own(folder / "lock"), "w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise MnemoError(f"{folder} is in use by another process") from None
        yield
