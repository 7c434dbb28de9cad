"""The stages of a row: measure its speed, train for the declared time, score valid in every way and test in the best.

Each stage is written as soon as it is known. A row that was interrupted continues with its next stage, and its training
from the last checkpoint.
"""

from __future__ import annotations

import gc
import math
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mnemo.bench.alternatives import gated_delta
from mnemo.bench.alternatives.compile_variants import compile_variants_at_once
from mnemo.bench.alternatives.delta_reference import Checked, require_right_kernels
from mnemo.bench.alternatives.few_warps import use_few_warps
from mnemo.bench.alternatives.recipes import TINY_SYMBOLS, for_training, reading_of, recipe_of, register
from mnemo.bench.alternatives.results import RowFile
from mnemo.bench.alternatives.rows import Reading, Row
from mnemo.bench.comparison import machine
from mnemo.bench.gpu_table.card import card_state, git_commit
from mnemo.bench.timing import reset_peak
from mnemo.config import to_json
from mnemo.data.prepare import load
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import score_split
from mnemo.evaluation.score import Score
from mnemo.evaluation.settings import EvaluationSettings
from mnemo.files.json_file import load_lines
from mnemo.recipes.recipe import Recipe
from mnemo.storage.run_folder import open_run
from mnemo.storage.run_header import METRICS, load_header
from mnemo.storage.weights import pick_device
from mnemo.training.create_and_train import create_run, train
from mnemo.training.data import Data, open_data
from mnemo.training.monitor import Forwarding, Monitor
from mnemo.training.precision import autocast, state_dtype
from mnemo.training.training_log import TIMING, settled_speed, training_seconds
from mnemo.units import bits

PROBE_STEPS, TINY_PROBE_STEPS = 300, 6
"""Updates that measure the speed of a row."""
PROBE_LINES = 6
"""Intervals of the probe; the first two do not count."""
LINES, EVALUATIONS = 150, 6
"""Lines of metrics and validations of the training."""
SPEED_STAGES = ("kernels", "probe", "steps")
"""Stages that measure the speed, after a check of a library's kernels."""
VALID_SYMBOLS = 1_000_000
"""Symbols of valid that the ways to read are compared on."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all rows of a table have in common."""

    folder: Path
    """Of the results and runs."""
    device: str
    seconds: float
    """Training time."""
    miniature: bool = False
    commit: str | None = None
    only_speed: bool = False
    """Measure the speed of rows and set their numbers of steps, and leave the rest to a later call."""
    few_warps: bool = False
    """Leave out variants of a library's kernels that compilers have broken on some GPUs."""


def measure_row(row: Row, conditions: Conditions, monitor: Monitor) -> dict[str, Any]:
    """Measure what is still missing of a row; the result is also in its file."""
    device = pick_device(conditions.device)
    if row.kind == "delta":
        gated_delta.require_library(device)
        if conditions.few_warps:
            _leave_out_warps(monitor)
        compile_variants_at_once()
    register()
    conditions.folder.mkdir(parents=True, exist_ok=True)
    about = _about(conditions, device) | ({"few_warps": conditions.few_warps} if row.kind == "delta" else {})
    file = RowFile(conditions.folder, row, about)
    measurement = Measurement(row, conditions, device, file, Noted(monitor))
    for stage, measured in measurement.stages().items():
        if not file.has(stage) and (stage in SPEED_STAGES or not conditions.only_speed):
            monitor.note(f"row {row.name}: {stage}")
            file.add(stage, measured())
    return file.found


def _leave_out_warps(monitor: Monitor) -> None:
    changed = use_few_warps()
    if not changed:
        raise MnemoError(f"--few-warps: no kernel of {gated_delta.LIBRARY} has variants that could be left out")
    monitor.note(f"kernels with fewer warps: {len(changed)}")


def _about(conditions: Conditions, device: torch.device) -> dict[str, Any]:
    return {
        "seconds_aimed": conditions.seconds,
        "miniature": conditions.miniature,
        "machine": machine(device, torch.get_num_threads()),
        "commit": conditions.commit or git_commit(),
        "libraries": {name: _version(name) for name in ("flash-linear-attention", "fla-core", "transformers")},
        "card": card_state(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class RowStopped(MnemoError):
    """A signal has stopped the training of a row, which is saved."""

    def __init__(self, row: Row, signal: int) -> None:
        super().__init__(f"row {row.name} was stopped by signal {signal}: the same command continues it")
        self.signal = signal


class Noted(Forwarding):
    """A monitor that keeps the notes of a run."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__(monitor)
        self.notes = list[str]()

    def note(self, line: str) -> None:
        self.notes.append(line)
        super().note(line)


class Measurement:
    def __init__(self, row: Row, conditions: Conditions, device: torch.device, file: RowFile, monitor: Noted) -> None:
        self.row, self.conditions, self.device, self.file, self.monitor = row, conditions, device, file, monitor
        self.recipe = recipe_of(row, str(device), miniature=conditions.miniature)
        self.symbols = self.recipe.train.batch * self.recipe.train.segment
        self.run = conditions.folder / row.name

    def stages(self) -> dict[str, Any]:
        """The stages by their names in the file, in order."""
        first = {"kernels": self.kernels} if self.row.kind == "delta" else {}
        return {
            **first,
            "probe": self.probe,
            "steps": self.steps,
            "training": self.training,
            "valid": self.valid,
            "test": self.test,
        }

    def kernels(self) -> dict[str, float]:
        """Errors of the library's kernels, at the sizes of the row."""
        memory, train = self.recipe.model.memory.long, self.recipe.train
        assert isinstance(memory, gated_delta.GatedDelta)
        how = autocast(train.precision, self.device)
        sizes = self.recipe.model.dim, train.batch, train.segment
        dtype = state_dtype(train.precision) or torch.float32
        try:
            errors = require_right_kernels(Checked(memory, *sizes, self.device, dtype, how))
        except MnemoError as error:
            if self.conditions.few_warps:
                raise
            raise MnemoError(f"{error}; if the compiler breaks them, --few-warps may help") from error
        self._free()
        return errors

    def probe(self) -> dict[str, Any]:
        """Train for a short while without evaluation: symbols per second, and the memory that an update needs."""
        steps = TINY_PROBE_STEPS if self.conditions.miniature else PROBE_STEPS
        folder = self.conditions.folder / f"{self.row.name}-probe"
        shutil.rmtree(folder, ignore_errors=True)
        reset_peak(self.device)
        self._train(for_training(self.recipe, steps, lines=PROBE_LINES), folder, validated=False)
        speed = settled_speed(folder / TIMING)
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        shutil.rmtree(folder)
        self._free()
        return {"steps": steps, "symbols_per_second": speed, "peak_bytes": peak}

    def steps(self) -> int:
        """The updates that fill the declared time at the measured speed."""
        rate = self.file.found["probe"]["symbols_per_second"]
        return max(1, math.floor(self.conditions.seconds * rate / self.symbols))

    def training(self) -> dict[str, Any]:
        steps = self.file.found["steps"]
        recipe = for_training(self.recipe, steps, lines=LINES, evaluations=EVALUATIONS)
        self.monitor.notes.clear()
        self._train(recipe, self.run, validated=True)
        seconds, lines = training_seconds(self.run / TIMING, self.symbols), load_lines(self.run / TIMING)
        losses = [line for line in load_lines(self.run / METRICS) if line.get("split") == "valid"]
        return {
            "seconds": seconds,
            "symbols": steps * self.symbols,
            "symbols_per_second": steps * self.symbols / seconds,
            "seconds_in_all": lines[-1]["seconds"],
            "notes": list(self.monitor.notes),
            "valid_curve": {str(line["step"]): bits(line["loss"]) for line in losses},
            "recipe": to_json(recipe),
        }

    def _train(self, recipe: Recipe, folder: Path, *, validated: bool) -> None:
        """Train a run to its end, from its last checkpoint if it has one."""
        data = open_data(recipe, self.monitor.show)
        if not folder.exists():
            create_run(recipe, folder, data=data, monitor=self.monitor)
        elif load_header(folder).recipe.train != recipe.train:
            raise MnemoError(f"{folder} was started with other settings: remove it to measure the row again")
        outcome = train(folder, data=data if validated else _unscored(data), monitor=self.monitor)
        if outcome.signal is not None:
            raise RowStopped(self.row, outcome.signal)

    def _free(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def valid(self) -> list[dict[str, Any]]:
        """The beginning of valid, read in every way of the row."""
        return [self._scored("valid", reading) for reading in self.row.readings]

    def test(self) -> dict[str, Any]:
        """The whole test set, read in the way that is best on valid."""
        best = min(self.file.found["valid"], key=lambda score: score["bpc"])["reading"]
        return self._scored("test", next(reading for reading in self.row.readings if reading.name == best))

    def _scored(self, split: str, reading: Reading) -> dict[str, Any]:
        run, scaled = open_run(self.run, "last", self.device), reading_of(reading, self.conditions.miniature)
        limit = VALID_SYMBOLS if split == "valid" else None
        limit = TINY_SYMBOLS if self.conditions.miniature else limit
        settings = EvaluationSettings(batch=1, segment=scaled.segment, context=scaled.context, limit=limit)
        text = load(run.recipe.data.corpus).split(split)
        with autocast(run.recipe.train.precision, self.device):
            (score,) = score_split(run.model, text, settings, progress=self.monitor.show)
        if not math.isfinite(score.loss):
            raise MnemoError(f"row {self.row.name}: the loss on {split} is not finite")
        self._free()
        return _score_json(reading, score)


def _score_json(reading: Reading, score: Score) -> dict[str, Any]:
    return {
        "reading": reading.name,
        "bpc": score.bits_per_token,
        "symbols": score.tokens,
        "symbols_per_second": score.tokens / score.seconds,
        "segment": score.segment,
        "context": score.context,
        "memory": score.memory,
    }


def _unscored(data: Data) -> Data:
    """The same data without validation."""
    return replace(data, score=None)
