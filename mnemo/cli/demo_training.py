"""The models that `mnemo demo` trains: one small model with and without memory on a task that needs it, every kind of
memory on a shorter task, and a byte model."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from mnemo import __version__
from mnemo.data.streams import one_epoch
from mnemo.data.tasks import RecallStream
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json
from mnemo.memory import LSTM, QRNN, XL, AnyMemory, Compressive, Infinite, Lookahead, MemoryTokens, Plan
from mnemo.model import InitConfig, Model, ModelConfig
from mnemo.model.positions import NoPositions, Relative
from mnemo.progress import ShowProgress
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.storage.run_folder import open_run
from mnemo.training import Data, Monitor, Outcome, Scored, create_run, train

RECALL_SEGMENT = 34
RECALL_RUNS = {"with-memory": RECALL_SEGMENT, "without-memory": 0}
"""Names of the runs and their memory lengths."""
SHORT_SEGMENT = 6
SHORT_SYMBOLS = 4
BYTES = "bytes"
PRESET = "tiny-bytes"
MARKER = "demo.json"
"""File that marks a folder of the demo, which the next demo may replace."""
NUM_SYMBOLS = 16
RECALL_TEST_SEED = 1


@dataclass(frozen=True, kw_only=True)
class DemoSize:
    """Amount of work. Steps are cut only if the time is too short; all models of one comparison are cut alike."""

    recall_steps: int = 200
    """Steps of the model with memory and of the one without."""
    short_steps: int = 200
    """Steps of every kind of memory on the short task."""
    byte_steps: int = 500
    byte_eval_every: int = 100
    sweep: tuple[int, ...] = (0, 32, 64, 128, 256, 512)
    symbols: int = 20_000
    """Symbols of the validation set for every score."""
    sample: int = 500
    """Bytes to write."""


FULL = DemoSize()
QUICK = DemoSize(
    recall_steps=20, short_steps=3, byte_steps=12, byte_eval_every=6, sweep=(0, 64), symbols=2000, sample=40
)


def create_demo_folder(out: Path) -> None:
    """Create an empty folder; replace one of an earlier demo, and refuse any other."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not (out / MARKER).is_file():
            raise MnemoError(f"{out} exists and was not made by mnemo demo: choose another folder with --out")
        load_json(out / MARKER)
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / MARKER, {"mnemo_version": __version__})


def recall_recipe(memory: int, size: DemoSize) -> Recipe:
    """With wide initial weights and pre-norm, the model learns the rule within about eighty steps."""
    return Recipe(
        model=ModelConfig(
            vocab_size=NUM_SYMBOLS + 2,
            num_layers=2,
            dim=64,
            num_heads=2,
            head_dim=32,
            inner_dim=128,
            norm="pre",
            memory=Plan(long=XL(length=memory)),
            init=InitConfig(std=0.1),
        ),
        data=DataConfig(corpus="recall"),
        train=TrainConfig(
            steps=size.recall_steps,
            batch=32,
            segment=RECALL_SEGMENT,
            optimizer=OptimizerConfig(lr=2e-3),
            schedule=ScheduleConfig(warmup=50),
            log_every=5,
            eval_every=min(10, size.recall_steps),
            checkpoint_every=size.recall_steps,
            keep=1,
            device="cpu",
        ),
    )


def _short_memories() -> dict[str, AnyMemory]:
    """Memories of one segment: in one part, or half in slots and half in compressed or continuous form."""
    half = SHORT_SEGMENT // 2
    return {
        "transformer-xl": XL(length=SHORT_SEGMENT),
        "lookahead": Lookahead(length=SHORT_SEGMENT),
        "compressive": Compressive(length=half, compressed=half, ratio=2),
        "infinite": Infinite(length=half, block=half, basis=16, samples=16, widths=(0.05, 0.1)),
        "memory-tokens": XL(length=0),
        "lstm": LSTM(),
        "qrnn": QRNN(),
        "no-memory": XL(length=0),
    }


SHORT_RECALL_RUNS = tuple(_short_memories())
"""Names of the runs on the short task, one for every kind of memory and one without."""


def short_recall_recipe(name: str, size: DemoSize) -> Recipe:
    """Memory tokens learn from the next segment, so their gradient goes back one segment."""
    memory = _short_memories()[name]
    tokens = MemoryTokens(num=SHORT_SYMBOLS, std=0.5) if name == "memory-tokens" else None
    return Recipe(
        model=ModelConfig(
            vocab_size=SHORT_SYMBOLS + 2,
            num_layers=2,
            dim=48,
            inner_dim=96,
            norm="pre",
            final_norm=True,
            memory=Plan(long=memory),
            positions=NoPositions() if isinstance(memory, (LSTM, QRNN)) else Relative(),
            tokens=tokens,
            init=InitConfig(std=0.1),
        ),
        data=DataConfig(corpus="short recall"),
        train=TrainConfig(
            steps=size.short_steps,
            batch=16,
            segment=SHORT_SEGMENT,
            optimizer=OptimizerConfig(lr=3e-3, clip=1.0),
            schedule=ScheduleConfig(kind="constant"),
            bptt=1 if tokens else 0,
            log_every=5,
            eval_every=min(20, size.short_steps),
            checkpoint_every=size.short_steps,
            keep=1,
            device="cpu",
        ),
    )


def byte_recipe(size: DemoSize) -> Recipe:
    recipe = preset(PRESET)
    return replace(
        recipe,
        train=replace(
            recipe.train,
            steps=size.byte_steps,
            eval_every=min(size.byte_eval_every, size.byte_steps),
            checkpoint_every=size.byte_steps,
        ),
        evaluation=EvalConfig(batch=10, limit=size.symbols),
    )


def recall_data(recipe: Recipe) -> Data:
    """An endless stream to train on, and a fixed one for validation."""
    config = recipe.train
    info = {
        "name": recipe.data.corpus,
        "unit": "symbol",
        "vocab_size": recipe.model.vocab_size,
        "chance_loss": math.log(_num_symbols(recipe)),
    }
    stream = RecallStream(config.batch, config.segment, num_symbols=_num_symbols(recipe), seed=0)

    def score(model: Model, show: ShowProgress) -> Scored:
        return score_recall(model, recipe).scored

    return Data(info, stream, score)


def _num_symbols(recipe: Recipe) -> int:
    """The vocabulary without the task's two marks."""
    return recipe.model.vocab_size - 2


@dataclass(frozen=True)
class RecallScore:
    scored: Scored
    accuracy: float
    """Share of symbols whose most likely prediction is right."""


@torch.no_grad()
def score_recall(model: Model, recipe: Recipe) -> RecallScore:
    """Loss and accuracy on sequences that are not used in training."""
    config = recipe.train
    symbols = _num_symbols(recipe)
    stream = RecallStream(config.batch, config.segment, num_symbols=symbols, steps=9, seed=RECALL_TEST_SEED)
    was_training = model.training
    model.eval()
    state = model.init(config.batch)
    nats, right, tokens = 0.0, 0, 0
    for batch in one_epoch(stream):
        out, state = model(batch.tokens, state, starts=batch.starts)
        nats += float(model.loss(out, batch.targets).double().sum())
        right += int((model.logits(out).argmax(-1) == batch.targets).sum())
        tokens += int((batch.targets >= 0).sum())
    model.train(was_training)
    return RecallScore(Scored(nats / tokens, tokens), right / tokens)


def train_task(folder: Path, recipe: Recipe, monitor: Monitor) -> Outcome:
    """Train on one of the two tasks; a finished run is scored."""
    data = recall_data(recipe)
    create_run(recipe, folder, data=data, monitor=monitor)
    outcome = train(folder, data=data, monitor=monitor)
    if outcome.finished:
        _save_recall(folder, recipe)
    return outcome


def _save_recall(folder: Path, recipe: Recipe) -> None:
    opened = open_run(folder, device="cpu")
    recalled = score_recall(opened.model, recipe)
    lengths = recipe.model.memory.lengths(recipe.model.num_layers)
    score = {
        "split": "new symbols",
        "loss": recalled.scored.loss,
        "tokens": recalled.scored.tokens,
        "accuracy": recalled.accuracy,
        "memory": max(lengths),
        "segment": recipe.train.segment,
    }
    (folder / "results").mkdir()
    write_json(folder / "results" / "score.json", {"kind": "score", "step": opened.step, "score": score})


def train_bytes(folder: Path, recipe: Recipe, monitor: Monitor) -> Outcome:
    create_run(recipe, folder, preset=PRESET, monitor=monitor)
    return train(folder, monitor=monitor)


@dataclass(frozen=True)
class Comparison:
    """Models that are trained for the same number of steps, so that their results can be compared."""

    about: str
    steps_field: str
    """The number of steps in `DemoSize`."""
    recipes: dict[str, Callable[[DemoSize], Recipe]]
    """By the name of the run."""
    train: Callable[[Path, Recipe, Monitor], Outcome]

    def steps(self, size: DemoSize) -> int:
        return getattr(size, self.steps_field)

    def with_steps(self, size: DemoSize, steps: int) -> DemoSize:
        return replace(size, **{self.steps_field: steps})


RECALL = Comparison(
    "the model with memory and the one without",
    "recall_steps",
    {name: partial(recall_recipe, memory) for name, memory in RECALL_RUNS.items()},
    train_task,
)
SHORT_RECALL = Comparison(
    "every kind of memory on the short task",
    "short_steps",
    {name: partial(short_recall_recipe, name) for name in SHORT_RECALL_RUNS},
    train_task,
)
BYTE_MODEL = Comparison("the byte model", "byte_steps", {BYTES: byte_recipe}, train_bytes)
