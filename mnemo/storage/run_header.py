"""Find a run by its name and load its recipe.json, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mnemo.config import from_json
from mnemo.data.known_corpora import CORPORA, PYTHON
from mnemo.errors import MnemoError, unknown
from mnemo.files.json_file import load_json
from mnemo.files.safe_load import is_count, kind_of, require
from mnemo.memory.configuration import Decoding, Start
from mnemo.memory.own import require_imports
from mnemo.recipes.memories import memory_kind
from mnemo.recipes.presets import LISTING, PRESETS, is_preset
from mnemo.recipes.presets import preset as recipe_of
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.tied_lengths import settle_inherited_test
from mnemo.storage.overrides import OVERRIDES, Override, RateCourse, load_overrides, overridden
from mnemo.storage.run_identity import RECIPE
from mnemo.storage.shipped import DEFAULT, shipped_model

RUNS = Path("runs")
RUN_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
"""Pattern of names that a new run can have."""
TOKENIZER, BEST, METRICS = "tokenizer.json", "best.json", "metrics.jsonl"
EXPORT = "export.json"
"""In the folder of an exported model: the run and step of its weights."""
CHECKPOINTS, STEP_PREFIX = "checkpoints", "step-"
TRANSFORMERS = "config.json"
"""In the folder of a model of transformers."""
Which = Literal["best", "last"]
STARTS: tuple[Start, ...] = get_args(Start)
DECODINGS: tuple[Decoding, ...] = get_args(Decoding)


@dataclass(frozen=True, kw_only=True)
class RunHeader:
    """The content of recipe.json, and the changes of overrides.json."""

    recipe: Recipe
    """With all changes so far."""
    corpus: dict[str, Any]
    """Name, unit, vocab_size and fingerprint of the corpus."""
    preset: str | None = None
    source: dict[str, Any] | None = None
    """Path and step of the run that the first weights came from; `starts_from` and `decoding` for converted
    weights."""
    overrides: tuple[Override, ...] = ()
    """Changes on resume, oldest first."""
    run_id: str | None = None
    """Random id that the checkpoints repeat; None for a run of an earlier version, and for a new one."""
    checksums: dict[str, str] | None = None
    """Checksum of the tokenizer's file; None for a run of an earlier version, and for a new one."""

    @property
    def course(self) -> RateCourse | None:
        """The present course of the learning rate; None for the recipe's schedule."""
        return self.overrides[-1].course if self.overrides else None

    @property
    def start(self) -> Start:
        return (self.source or {}).get("starts_from", "empty")

    @property
    def decoding(self) -> Decoding:
        return (self.source or {}).get("decoding", "segments")


def find_run(run: str | Path, runs: Path = RUNS) -> Path:
    """The folder of a run, given its path, its name under `runs`, or that of a model that comes with the package."""
    for path in (runs / run, Path(run)):
        if (path / RECIPE).is_file():
            return path
    if not Path(run).is_dir() and (model := shipped_model(str(run))) is not None:
        return model
    raise no_run(str(run), runs)


def no_run(name: str, runs: Path = RUNS) -> MnemoError:
    """An error that says what a name is instead of a run, or suggests similar names."""
    known = named_runs(runs)
    below = [path for other, path in known.items() if other.startswith(f"{Path(name).as_posix()}/")]
    inside = [*run_folders(Path(name)), *below, *_cells(Path(name)), *_cells(runs / name)]
    if inside:
        return MnemoError(f"{name} is a folder of runs, not a run: name one of them, such as {inside[0]}")
    folder = next((each for each in (Path(name), runs / name) if each.is_dir()), None)
    if folder is not None and (folder / TRANSFORMERS).is_file():
        return MnemoError(
            f"{folder} is a model of transformers, not a run: import mnemo.hf, and load it with transformers"
        )
    if folder is not None and (folder / CHECKPOINTS).is_dir():
        return MnemoError(f"{folder} is a damaged run: it has no {RECIPE}")
    if Path(name).is_dir():
        hint = f"mnemo train {name} trains on a folder of texts, other verbs take a single one"
        return MnemoError(f"{name} is not a run: it has no {RECIPE}; {hint}")
    if Path(name).is_file():
        return MnemoError(f"{name} is a file, not a run: name the run first; mnemo train {name} trains on a text")
    if Path(name).exists():
        return MnemoError(f"{name} is {kind_of(Path(name))}, not a run")
    if Path(name).is_relative_to(runs):
        name = Path(name).relative_to(runs).as_posix()
    if is_preset(name) and name not in known:
        return MnemoError(f"'{name}' is a preset, not a run: mnemo train {name} trains it")
    if name in CORPORA or name == PYTHON:
        return MnemoError(f"'{name}' is a corpus, not a run: mnemo train {name} trains on it")
    return unknown("run", name, known) if known else MnemoError(f"no run '{name}': there are none in {runs}")


def _cells(folder: Path) -> list[Path]:
    """The runs of a sweep."""
    return sorted(path.parent for path in folder.glob(f"cells/*/run/{RECIPE}"))


def run_folders(runs: Path = RUNS) -> list[Path]:
    """Every run under `runs`, sorted by name; hidden folders are unfinished ones."""
    return sorted(path.parent for path in runs.glob(f"*/{RECIPE}") if not path.parent.name.startswith("."))


def named_runs(runs: Path = RUNS) -> dict[str, Path]:
    """The folder of every run under a folder of runs, and one level deeper, by its path in there."""
    folders = (runs, *_folders_of_runs(runs))
    return {path.relative_to(runs).as_posix(): path for folder in folders for path in run_folders(folder)}


def _folders_of_runs(runs: Path) -> list[Path]:
    folders = (path for path in runs.glob("*") if path.is_dir() and not path.name.startswith("."))
    return [path for path in folders if not (path / RECIPE).is_file()]


def last_run(runs: Path = RUNS) -> Path:
    """The folder under `runs` in which training has written last; only runs with a checkpoint count.

    Runs one level deeper are used only by name: those of `mnemo demo` are tiny.
    """
    trained = [path for path in run_folders(runs) if _is_trained(path)]
    if not trained:
        raise MnemoError(f"{no_trained_run(runs)}: train one (mnemo train mybook.txt), or name its folder")
    return max(trained, key=last_written)


def no_trained_run(runs: Path = RUNS) -> str:
    """Say that `last_run` finds nothing, and how to use trained runs one level deeper if there are any."""
    deeper = next((name for name, path in named_runs(runs).items() if path.parent != runs and _is_trained(path)), None)
    only_named = "" if deeper is None else f" itself (those in its folders must be named, such as {deeper})"
    return f"there is no trained run in {runs}{only_named}"


def default_run(runs: Path = RUNS) -> Path:
    """The run that was trained last; if there is none, a model that comes with the package."""
    try:
        return last_run(runs)
    except MnemoError:
        if (model := shipped_model(DEFAULT)) is None:
            raise
        return model


def _is_trained(run: Path) -> bool:
    return (run / EXPORT).is_file() or any((run / CHECKPOINTS).glob(f"{STEP_PREFIX}*"))


def last_written(run: Path) -> float:
    """When training last wrote to a run, in seconds since the epoch; results of other verbs do not count."""
    names = (RECIPE, BEST, EXPORT, METRICS, CHECKPOINTS)
    return max((run / name).stat().st_mtime for name in names if (run / name).exists())


def load_header(folder: Path) -> RunHeader:
    path = folder / RECIPE
    data = load_json(path)
    if not isinstance(data.get("corpus"), dict):
        raise MnemoError(f"{path} is damaged: it does not describe the corpus")
    require_imports(data.get("imports"), str(folder))
    recipe = from_json(Recipe, data.get("recipe"), f"{path}: recipe")
    preset, source = data.get("preset"), data.get("source")
    known = source is None or (isinstance(source, dict) and isinstance(source.get("run"), str | None))
    require(
        {
            "preset": preset is None or isinstance(preset, str),
            "run_id": isinstance(data.get("run_id"), str | None),
            "checksums": isinstance(data.get("checksums"), dict | None),
            "source": known and (source is None or is_count(source.get("step", 0))),
            "source.starts_from": not isinstance(source, dict) or source.get("starts_from", "empty") in STARTS,
            "source.decoding": not isinstance(source, dict) or source.get("decoding", "segments") in DECODINGS,
        },
        path,
    )
    if "settled_lengths" not in data and preset is not None and is_preset(preset):
        # Early files keep the preset's test length even if the memory was overridden.
        recipe = settle_inherited_test(recipe, recipe_of(preset))
    overrides = load_overrides(folder)
    for override in overrides:
        recipe = overridden(recipe, override.changes, str(folder / OVERRIDES))
    return RunHeader(
        recipe=recipe,
        corpus=data["corpus"],
        preset=preset,
        source=source,
        overrides=overrides,
        run_id=data.get("run_id"),
        checksums=data.get("checksums"),
    )


def find_recipe(name: str) -> Recipe:
    """The recipe of a preset, or of a run by name or folder; presets take precedence, names of memories come last."""
    if is_preset(name):
        return recipe_of(name)
    try:
        return load_header(find_run(name)).recipe
    except MnemoError:
        if (RUNS / name).exists() or "/" in name or name.startswith("."):
            raise
    if memory_kind(name) is not None:
        return recipe_of(name)
    raise unknown("preset or run", name, [*PRESETS, *named_runs()], LISTING)


def find_overrides(name: str) -> tuple[Override, ...]:
    """Changes of a run's recipe on resume, for a name as in `find_recipe`; none for a preset."""
    if is_preset(name) or (memory_kind(name) is not None and not (RUNS / name).exists()):
        return ()
    return load_header(find_run(name)).overrides
