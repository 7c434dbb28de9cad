"""The training loop against one that is written out by hand, and everything that can stop it."""

from __future__ import annotations

import io
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.marks import few
from helpers.tolerances import assert_close
from helpers.toy_runs import exact, metrics, recipe, run, scored_as, toy

from mnemo.cli.watching import watching
from mnemo.data.corpus import Corpus
from mnemo.data.prepare import prepare
from mnemo.data.streams import read_on
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import evaluate
from mnemo.memory import XL, Plan
from mnemo.model import Model
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.recipes.recipe import AverageConfig, DataConfig, OptimizerConfig, Recipe, ScheduleConfig
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import weights
from mnemo.storage.run_folder import open_run
from mnemo.storage.run_header import load_header
from mnemo.training import Diverged, Status, Unwatched, create_run, precision, train, training_log
from mnemo.training.data import open_data
from mnemo.training.optimizers import learning_rate

NO_MEMORY = Plan(long=XL(length=0))


def records(folder: Path, split: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in metrics(folder).splitlines()]
    assert not lines or lines[0].pop("format_version") == 1
    return [line for line in lines if line["split"] == split]


def float64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def by_hand(of: Recipe) -> tuple[Model, list[float], list[float]]:
    """The same training in a few plain lines, in float64: the model, and losses and gradient norms of every step."""
    config = of.train
    torch.manual_seed(config.seed)
    model = Model(of.model).double().train()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    stream = open_data(of).stream
    cursor, state, losses, norms = stream.start(), None, [], []
    for step in range(config.steps):
        batch, cursor = read_on(stream, cursor)
        if cursor["step"] == 1:
            state = None
        out, state = model(batch.tokens, state, lengths=batch.lengths)
        loss = model.loss(out, batch.targets)[batch.targets >= 0].mean()
        optimizer.zero_grad()
        (loss + sum(out.aux.values())).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= min(1.0, 0.25 / (float(gradients.norm()) + 1e-6))
        optimizer.param_groups[0]["lr"] = learning_rate(config.schedule, config.optimizer.lr, step, config.steps)
        optimizer.step()
        losses.append(loss.item())
        norms.append(gradients.norm().item())
    return model, losses, norms


SAME: dict[str, dict[str, Any]] = {
    "several epochs": {"steps": 40},
    "penalties": {"model": {"dropout": DropoutConfig(), "activation_penalty": 0.5, "temporal_penalty": 0.3}},
    "parts of the batch": {"accumulate": 2},
    "context": {"model": {"dropout": DropoutConfig(), "memory": NO_MEMORY}, "context": 5},
    "warm-up": {"schedule": ScheduleConfig(kind="linear", warmup=3)},
    "published": {"schedule": ScheduleConfig(warmup=3, published=True)},
}


@pytest.mark.parametrize("name", few(SAME, lambda name: name in ("parts of the batch", "context", "warm-up")))
def test_training_is_the_plain_loop(name: str, tmp_path: Path) -> None:
    wanted = recipe(**exact(log_every=1, optimizer=OptimizerConfig(lr=0.01), **SAME[name]))
    model, losses, norms = by_hand(wanted)
    run(tmp_path / "run", of=wanted)
    found = records(tmp_path / "run", "train")
    assert [line["step"] for line in found] == list(range(1, wanted.train.steps + 1))
    for column, expected in (("loss", losses), ("grad_norm", norms)):
        assert_close(float64([line[column] for line in found]), float64(expected))
    trained = open_run(tmp_path / "run", "last", "cpu").model
    for parameter, expected in zip(trained.parameters(), model.parameters(), strict=True):
        assert_close(parameter, expected)


def test_metrics_are_means_over_tokens(tmp_path: Path) -> None:
    """The last segment of an epoch is short, so a mean over steps would be another number."""
    wanted = recipe(**exact(steps=40, log_every=20, optimizer=OptimizerConfig(lr=0.01)))
    _, losses, _ = by_hand(wanted)
    stream, sizes = open_data(wanted).stream, []
    cursor = stream.start()
    for _ in range(40):
        batch, cursor = read_on(stream, cursor)
        sizes.append(batch.targets.numel())
    assert len(set(sizes)) > 1
    run(tmp_path / "run", of=wanted)
    found = records(tmp_path / "run", "train")
    for begin, line in zip((0, 20), found, strict=True):
        part = slice(begin, begin + 20)
        weighted = sum(loss * size for loss, size in zip(losses[part], sizes[part], strict=True)) / sum(sizes[part])
        assert line["loss"] == pytest.approx(weighted, rel=1e-10)
        assert line["tokens"] == sum(sizes[: begin + 20])


def test_half_loss_scores_the_last_half(tmp_path: Path) -> None:
    wanted = recipe(**exact(log_every=1, steps=1, loss="half"))
    run(tmp_path / "run", of=wanted)
    torch.manual_seed(wanted.train.seed)
    model = Model(wanted.model).double()
    batch, _ = read_on(open_data(wanted).stream, open_data(wanted).stream.start())
    out, _ = model(batch.tokens)
    (line,) = records(tmp_path / "run", "train")
    assert line["loss"] == pytest.approx(model.loss(out, batch.targets)[:, 4:].mean().item(), rel=1e-10)
    assert line["tokens"] == 3 * 4


def test_documents_reset_memories_and_are_scored_once(tmp_path: Path) -> None:
    wanted = recipe(**exact(data={"documents": "reset"}, log_every=1, steps=30, optimizer=OptimizerConfig(lr=0.0)))
    run(tmp_path / "run", of=wanted)
    torch.manual_seed(wanted.train.seed)
    model, stream = Model(wanted.model).double(), open_data(wanted).stream
    cursor, states, resets = stream.start(), [None] * 3, 0
    for line in records(tmp_path / "run", "train"):
        batch, cursor = read_on(stream, cursor)
        losses = []
        for row in range(3):
            if batch.starts is not None and batch.starts[row]:
                states[row], resets = None, resets + 1
            length = None if batch.lengths is None else batch.lengths[row : row + 1]
            out, states[row] = model(batch.tokens[row : row + 1], states[row], lengths=length)
            losses.append(model.loss(out, batch.targets[row : row + 1]).flatten())
        counted = int((batch.targets >= 0).sum())
        assert line["loss"] == pytest.approx(torch.cat(losses).sum().item() / counted, rel=1e-10)
    assert resets > 3


def test_segments_that_vary_take_the_learning_rate_along(tmp_path: Path) -> None:
    optimizer = OptimizerConfig(lr=0.01, scale_lr_by_length=True)
    wanted = recipe(vary_segment=True, log_every=1, optimizer=optimizer, schedule=ScheduleConfig(kind="constant"))
    run(tmp_path / "run", of=wanted)
    found = records(tmp_path / "run", "train")
    tokens = [0, *(line["tokens"] for line in found)]
    lengths = [(after - before) / 3 for before, after in zip(tokens, tokens[1:], strict=False)]
    assert len(set(lengths)) > 3
    assert [line["lr"] for line in found] == pytest.approx([0.01 * length / 8 for length in lengths])


class Shown(Unwatched):
    def __init__(self) -> None:
        self.units: list[str] = []
        self.steps: list[tuple[int, bool]] = []

    def started(self, unit: str) -> None:
        self.units.append(unit)

    def trained(self, status: Status) -> None:
        assert status.tokens_per_second > 0 and 0 <= status.seconds_left < 60
        self.steps.append((status.step, status.loss is not None))


def test_slow_steps_are_shown_before_a_line_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their loss, which would have to be fetched from the device; the metrics stay as they are. The first step
    may have compiled the model, and tells no speed."""
    wanted = recipe(log_every=4)
    run(tmp_path / "quick", of=wanted, monitor=(quick := Shown()))
    monkeypatch.setattr(training_log, "QUIET_SECONDS", -1.0)
    run(tmp_path / "slow", of=wanted, monitor=(slow := Shown()))
    steps = range(2, wanted.train.steps + 1)
    assert slow.steps == [(step, step % 4 == 0 or step == steps[-1]) for step in steps]
    assert quick.steps == [each for each in slow.steps if each[1]] and quick.units == ["char"]
    assert metrics(tmp_path / "slow") == metrics(tmp_path / "quick")


def test_the_speed_between_lines_leaves_out_compiling_and_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(training_log.time, "monotonic", lambda: now[0])
    clock = training_log.Clock(0.0, 0)

    def update(seconds: float, paused: float = 0.0) -> bool:
        with clock.pause():
            now[0] += paused
        now[0] += seconds
        clock.count(100)
        clock.end_update()
        return clock.is_quiet()

    assert not update(60.0)  # compiled: longer than a quiet time, but it tells no speed
    assert update(2.0) and clock.recent() == (50.0, 2.0)
    clock.show()
    assert not update(4.0, paused=500.0)  # an evaluation
    assert update(28.0) and clock.recent() == (200 / 32, 16.0)


@pytest.mark.parametrize("kind", ["uniform", "ema"])
def test_evaluation_sees_the_averaged_weights(kind: Any, tmp_path: Path) -> None:
    average = AverageConfig(start=6, kind=kind, decay=0.5)
    wanted = recipe(average=average, optimizer=OptimizerConfig(lr=0.1))
    run(tmp_path / "averaged", of=wanted)
    run(tmp_path / "plain", of=recipe(optimizer=OptimizerConfig(lr=0.1)))
    found, plain = records(tmp_path / "averaged", "valid"), records(tmp_path / "plain", "valid")
    assert records(tmp_path / "averaged", "train") == records(tmp_path / "plain", "train")
    assert found[0] == plain[0] and found[1]["loss"] != plain[1]["loss"]
    model = open_run(tmp_path / "averaged", "last", "cpu").model
    split = Corpus.open(toy()).split("valid")
    assert evaluate(model, split, wanted.evaluation, segment=8).loss == found[-1]["loss"]


def test_a_plateau_halves_the_rate(tmp_path: Path) -> None:
    schedule = ScheduleConfig(kind="plateau", patience=1)
    wanted = recipe(eval_every=2, log_every=1, schedule=schedule, optimizer=OptimizerConfig(lr=0.01))
    run(tmp_path / "run", of=wanted, data=scored_as([3.0, 3.0, 3.1, 2.0, 2.5, 2.5], wanted))
    rates = [line["lr"] for line in records(tmp_path / "run", "train")]
    assert rates == [0.01] * 6 + [0.005] * 6


def test_training_stops_early(tmp_path: Path) -> None:
    wanted = recipe(eval_every=2, patience=2)
    outcome = run(tmp_path / "run", of=wanted, data=scored_as([3.0, 2.0, 2.5, 2.0], wanted))
    assert (outcome.step, outcome.best, outcome.signal) == (8, (4, 2.0), None)
    assert outcome.early_end == "ended after step 8 of 12: no better validation loss in 2 evaluations"
    assert train(tmp_path / "run") == outcome


def test_the_last_step_is_evaluated_and_saved(tmp_path: Path) -> None:
    run(tmp_path / "run", of=recipe(steps=7, eval_every=5, checkpoint_every=4))
    assert [line["step"] for line in records(tmp_path / "run", "valid")] == [5, 7]
    assert checkpoints.checkpoint_steps(tmp_path / "run")[-1] == 7


def test_seeds(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(tmp_path / name, of=recipe(seed=seed))
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b") != metrics(tmp_path / "c")


def test_evaluation_leaves_training_alone(tmp_path: Path) -> None:
    run(tmp_path / "often", of=recipe(eval_every=1))
    run(tmp_path / "once", of=recipe(eval_every=100))
    assert records(tmp_path / "often", "train") == records(tmp_path / "once", "train")


def test_a_corpus_without_a_validation_set_is_trained_on_all_the_same(tmp_path: Path) -> None:
    data = replace(open_data(recipe()), score=None)
    outcome = run(tmp_path / "run", data=data)
    assert outcome.best is None and not records(tmp_path / "run", "valid")
    assert open_run(tmp_path / "run").step == 12


def test_compiled_code_is_used_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compiled(function: Any, **options: Any) -> Any:
        return lambda *args: calls.append(1) or function(*args)

    monkeypatch.setattr(torch, "compile", compiled)
    run(tmp_path / "compiled", of=recipe(compile=True))
    assert len(calls) == 12
    run(tmp_path / "plain")
    assert len(calls) == 12 and metrics(tmp_path / "compiled") == metrics(tmp_path / "plain")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16"])
def test_every_precision_trains_on_a_gpu(kind: Any, tmp_path: Path) -> None:
    wanted = recipe(precision=kind, steps=30, device="cuda", optimizer=OptimizerConfig(lr=0.01))
    run(tmp_path / "run", of=wanted)
    losses = [line["loss"] for line in records(tmp_path / "run", "train")]
    assert losses[-1] < losses[0] - 0.1
    model = open_run(tmp_path / "run", device="cuda").model
    assert {(tensor.dtype, tensor.device.type) for tensor in model.parameters()} == {(torch.float32, "cuda")}


def test_sentences(tmp_path: Path) -> None:
    prepare_words("lines")
    wanted = recipe()
    wanted = replace(wanted, data=DataConfig(corpus="lines", order="sentences"))
    run(tmp_path / "run", of=wanted)
    assert len(records(tmp_path / "run", "train")) == 6 and records(tmp_path / "run", "valid")
    with pytest.raises(MnemoError, match="shuffled sentences take no rotate"):
        create_run(replace(wanted, data=replace(wanted.data, rotate=True)), tmp_path / "other")


def prepare_words(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for split in ("train", "valid", "test"):
            (Path(folder) / f"{split}.txt").write_text("\0".join("the cat saw a dog today" for _ in range(100)))
        prepare(name, folder, "words")


@pytest.mark.parametrize("log_every", [1, 12])
def test_a_loss_that_is_not_finite_stops_training_and_names_its_step(log_every: int, tmp_path: Path) -> None:
    wanted = recipe(
        model={"norm": "pre"},
        log_every=log_every,
        eval_every=100,
        on_nan="stop",
        optimizer=OptimizerConfig(kind="sgd", lr=1e30, clip=None),
        schedule=ScheduleConfig(kind="constant", warmup=0),
    )
    with pytest.raises(Diverged) as error:
        run(tmp_path / "run", of=wanted)
    assert str(error.value).startswith("the loss is nan at step 2; training stops")
    assert "keeps the checkpoint of step 0" in str(error.value)
    assert open_run(tmp_path / "run").step == 0
    assert all(math.isfinite(line["loss"]) for line in records(tmp_path / "run", "train"))


def test_a_validation_loss_that_is_not_finite_is_no_best(tmp_path: Path) -> None:
    wanted = recipe(on_nan="stop")
    with pytest.raises(Diverged, match="the validation loss is nan at step 8; .* keeps the checkpoint of step 6"):
        run(tmp_path / "run", of=wanted, data=scored_as([3.0, math.nan], wanted))


def refused(folder: Path, **changes: Any) -> str:
    with pytest.raises(MnemoError) as error:
        create_run(recipe(**changes), folder)
    assert not folder.exists() and "\n" not in str(error.value)
    return str(error.value)


def test_recipes_that_cannot_be_trained_leave_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert "memory lengths must be 0" in refused(folder, context=3)
    assert "needs a CUDA device, not cpu" in refused(folder, precision="fp16", device="cpu")
    assert "too few for 3000 rows" in refused(folder, batch=3000)
    adaptive = EmbeddingConfig(cutoffs=(100,))
    assert "cutoff 100 is not below" in refused(folder, model={"vocab_size": 200, "embedding": adaptive})
    assert "cutoff 100 is not below" in refused(folder, model={"embedding": adaptive})
    assert "unknown device 'nowhere'; known: auto, cpu" in refused(folder, device="nowhere")
    with pytest.raises(MnemoError, match="too short for 10 rows of evaluation"):
        create_run(replace(recipe(), evaluation=replace(recipe().evaluation, batch=10, limit=15)), folder)
    with pytest.raises(MnemoError, match="corpus 'nowhere' is not prepared"):
        create_run(replace(recipe(), data=DataConfig(corpus="nowhere")), folder)
    assert not folder.exists()


class Notes(Unwatched):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def test_the_vocabulary_is_the_corpuss(tmp_path: Path) -> None:
    notes = Notes()
    create_run(recipe(model={"vocab_size": 99}), tmp_path / "run", monitor=notes)
    assert notes.lines == ["vocabulary: 6 as in the corpus, not the recipe's 99"]
    train(tmp_path / "run", monitor=notes)
    assert open_run(tmp_path / "run").recipe.model.vocab_size == 6
    assert "step: " in notes.lines[7]
    assert notes.lines[1].startswith("model: 2 layers of width 8, ")
    assert [*notes.lines[2:7], *notes.lines[8:]] == [
        "memory: 6 slots in every layer (XL)",
        "corpus: toy, vocabulary of 6 chars",
        "batch: 3 x 8 tokens; 12 steps",
        "validation: segment 8, memory as in training",
        f"device: {weights.pick_device('auto')}, fp32",
        f"run: {tmp_path / 'run'}",
    ]


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    run(tmp_path / "run")
    with pytest.raises(MnemoError, match="run exists: 'mnemo train --resume .*run' continues it"):
        create_run(recipe(), tmp_path / "run")
    (tmp_path / "empty").mkdir()
    create_run(recipe(), tmp_path / "empty")


def test_a_changed_corpus_is_noticed(tmp_path: Path) -> None:
    toy("changing")
    wanted = replace(recipe(), data=DataConfig(corpus="changing"))
    create_run(wanted, tmp_path / "run")
    toy.cache_clear()
    prepare_words("changing")
    with pytest.raises(MnemoError, match="corpus 'changing' has changed since"):
        train(tmp_path / "run")


def test_starting_from_another_run(tmp_path: Path) -> None:
    average = AverageConfig(start=2)
    run(tmp_path / "source", of=recipe(average=average))
    create_run(recipe(optimizer=OptimizerConfig(lr=0.0)), tmp_path / "tuned", source=tmp_path / "source")
    train(tmp_path / "tuned")
    source, tuned = open_run(tmp_path / "source"), open_run(tmp_path / "tuned", "last")
    assert tuned.step == 12 and load_header(tmp_path / "tuned").source == {
        "run": str((tmp_path / "source").resolve()),
        "step": source.step,
    }
    for name, tensor in source.model.state_dict().items():
        assert torch.equal(tensor, tuned.model.state_dict()[name])
    create_run(recipe(precision="fp64"), tmp_path / "double", source=tmp_path / "source")
    with pytest.raises(MnemoError, match="weights.safetensors is of another configuration"):
        create_run(recipe(model={"inner_dim": 20}), tmp_path / "other", source=tmp_path / "source")
    assert not (tmp_path / "other").exists()


class MonitorOf010:
    """Without `started`, and without lines between those of metrics."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        unwatched = Unwatched()
        self.note, self.evaluated, self.show = unwatched.note, unwatched.evaluated, unwatched.show

    def trained(self, status: Status) -> None:
        assert status.loss is not None
        self.losses.append(status.loss)


def test_monitors_of_0_1_0_work_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_log, "QUIET_SECONDS", 0.0)
    create_run(recipe(log_every=4), tmp_path / "run")
    monitor: Any = MonitorOf010()
    with pytest.warns(DeprecationWarning, match=r"MonitorOf010 has no method started\(unit\)") as warned:
        train(tmp_path / "run", monitor=monitor)
    assert [each.filename for each in warned] == [__file__]  # Python shows it to the caller only
    assert len(monitor.losses) == 3


def test_a_live_line_keeps_the_loss_that_was_known_last(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    with watching(stream) as watcher:
        watcher.started("byte")
        watcher.trained(Status(1, 9, math.log(2), 0.1, 1.0, 1.0))
        watcher.trained(Status(2, 9, None, 0.1, 1.0, 1.0))
    assert "2/9  1.0000 bpc" in stream.getvalue()


def test_a_processor_that_refuses_its_own_instructions_is_noticed() -> None:
    assert precision.survives("")
    assert not precision.survives("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
