"""Algorithmic tasks: what samples look like, how they fall into segments, and that models train on them."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.recorders import Rerun
from helpers.tasks import EVERY_TASK, FEW, MODELS, TASKS, tiny
from helpers.tolerances import assert_close

from mnemo.cli import main
from mnemo.config import from_json, to_json
from mnemo.data.streams import one_epoch
from mnemo.data.tasks import (
    AnyTask,
    Copy,
    MultiQuery,
    Passkey,
    Quadratic,
    Retrieval,
    Reverse,
    TaskStream,
    quadratic,
    samples,
    segments,
    texts,
)
from mnemo.data.tasks.quadratic import ALPHABET
from mnemo.errors import MnemoError
from mnemo.memory.state import leaves
from mnemo.model import Model
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.recipes.rmt_tasks import PRESETS
from mnemo.training import create_run, train
from mnemo.training.data import open_data, why_uneven
from mnemo.training.engine import Engine
from mnemo.training.optimizers import build_optimizer
from mnemo.training.update_input import UpdateInput, next_batches
from mnemo.training.weight_update import fresh_states, segment_loss, update


def recipe(task: AnyTask, segment: int, kind: str = "tokens", **changes: Any) -> Recipe:
    settings = {"steps": 3, "batch": 4, "segment": segment, "log_every": 1, "eval_every": 2, "checkpoint_every": 2}
    bptt = {"bptt": task.num_segments(segment) - 1, "bptt_window": "tumbling"}
    return Recipe(
        model=tiny(task, kind),
        data=DataConfig(task=task),
        train=TrainConfig(**{**settings, **bptt, **changes}),
        evaluation=EvalConfig(batch=5),
    )


@EVERY_TASK
def test_splits_have_their_sizes_and_repeat_from_the_seed(task: AnyTask) -> None:
    found = texts(task)
    assert {split: rows.shape for split, rows in found.items()} == {
        split: (count, task.num_tokens + 1) for split, count in FEW.items()
    }
    texts.cache_clear()
    again, other = texts(task), texts(replace(task, seed=1))
    assert all((found[split] == again[split]).all() for split in found)
    assert (found["test"] != other["test"]).any()
    assert max(int(rows.max()) for rows in found.values()) < task.vocab_size


@EVERY_TASK
def test_targets_are_the_next_tokens_and_only_answers_count(task: AnyTask) -> None:
    ((tokens, targets),) = samples(task, "test", 100)
    shifted = targets[:, :-1]
    assert ((shifted == tokens[:, 1:]) | (shifted == -1)).all()
    assert ((targets >= 0) == task.predicted).all() and task.predicted.any() and not task.predicted[0]


def test_published_sizes() -> None:
    short = {"train": 100_000, "valid": 5_000, "test": 10_000}
    for task, tokens, symbols in ((Copy(), 72, 12), (Reverse(), 48, 12), (Retrieval(), 10, 37)):
        assert (task.num_tokens, task.vocab_size) == (tokens, symbols)
        assert {split: len(rows) for split, rows in texts(task).items()} == short
    equations = Quadratic()
    assert (equations.num_tokens, equations.vocab_size) == (180, 24)
    assert (equations.train, equations.valid, equations.test) == (100_000, 10_000, 20_000)


def test_copy_and_reverse() -> None:
    for row in texts(Copy(symbols=6, **FEW))["train"].tolist():
        shown = row[:6]
        assert row == [*shown, 1, *shown, *shown] and set(shown) <= set(range(2, 12))
    for row in texts(Reverse(symbols=6, **FEW))["train"].tolist():
        assert row == [*row[:6], 1, *reversed(row[:6])]
    assert set(texts(Copy())["test"][:, 0].tolist()) == set(range(2, 12))


def test_retrieval_asks_for_one_of_four_pairs() -> None:
    asked = set()
    for row in texts(Retrieval())["test"][:200].tolist():
        keys, values, (key, start, value) = row[:8:2], row[1:8:2], row[8:]
        assert len(set(keys)) == len(set(values)) == 4 and min(keys) >= 11 and max(values) <= 9
        assert start == 10 and values[keys.index(key)] == value
        asked.add(keys.index(key))
    assert asked == {0, 1, 2, 3}


def test_every_query_is_about_a_pair() -> None:
    task = MultiQuery(pairs=4, queries=3, keys=6, values=5, **FEW)
    for row in texts(task)["train"].tolist():
        pairs = dict(zip(row[:8:2], row[1:8:2], strict=True))
        asked = row[9::2]
        assert len(pairs) == 4 and len(set(asked)) == 3 and row[8] == 1
        assert row[10::2] == [pairs[key] for key in asked]
    assert np.flatnonzero(task.predicted).tolist() == [9, 11, 13]


def test_a_passkey_is_somewhere_in_the_noise() -> None:
    places = set()
    for row in texts(Passkey(length=20, digits=3, **FEW))["train"].tolist():
        begin = row.index(2)
        assert row[begin + 1 : begin + 4] == row[-3:] and row[-4] == 1
        noise = row[:begin] + row[begin + 4 : -4]
        assert min(noise) >= 13 and all(3 <= digit < 13 for digit in row[-3:])
        places.add(begin)
    assert min(places) == 0 and max(places) == 13
    assert texts(Passkey(length=5000, train=2, valid=1, test=1))["train"].shape == (2, 5001)


def written(row: np.ndarray) -> list[str]:
    characters = "_?" + ALPHABET
    return ["".join(characters[symbol] for symbol in row[part : part + 30]).rstrip("_") for part in range(0, 180, 30)]


def coefficients(equation: str) -> tuple[int, int, int]:
    """Of x^2, x and 1 in an equation ... = 0."""
    square, linear, constant = (
        re.search(pattern, equation) for pattern in (r"(-?\d*)\*?x\^2", r"([+-]\d*)\*?x(?!\^)", r"([+-]\d+)=0")
    )
    ones = {"": "1", "+": "1", "-": "-1"}
    a, b, c = (int(ones.get(found[1], found[1])) if found else 0 for found in (square, linear, constant))
    return a, b, c


@pytest.mark.parametrize(
    ("factor", "b", "c", "written"),
    [
        (-4, -98, 552, "-4*x^2+392*x-2208=0"),
        (1, 0, -9, "x^2-9=0"),
        (-1, -1, 0, "-x^2+x=0"),
        (1, -1, 0, "x^2-x=0"),
        (1, 0, 0, "x^2=0"),
        (2, 1, 1, "2*x^2+2*x+2=0"),
        (1, 2, 1, "x^2+2*x+1=0"),
        (-1, 2, 1, "-x^2-2*x-1=0"),
    ],
)
def test_equations_are_written_as_in_the_notebook(factor: int, b: int, c: int, written: str) -> None:
    """Expected values were written by the authors' `get_monome`."""
    assert quadratic._equation(factor, b, c) == written


def test_equations_are_solved() -> None:
    with_roots = 0
    for row in texts(Quadratic(train=1000, valid=10, test=10))["train"]:
        problem, canonic, discriminant, low, high, answer = written(row)
        factor, multiple_of_b, multiple_of_c = coefficients(problem)
        one, b, c = coefficients(canonic)
        assert one == 1 and 1 <= abs(factor) <= 10 and (multiple_of_b, multiple_of_c) == (factor * b, factor * c)
        if not answer:
            assert discriminant == f"D={abs(b)}^2-4*1*{c}={b * b - 4 * c}" and b * b < 4 * c and low == high == ""
            continue
        with_roots += 1
        roots = sorted({int(low.split("=")[-1]), int(high.split("=")[-1])})
        assert answer == ",".join(map(str, roots)) and discriminant.endswith(f"={roots[-1] - roots[0]}^2")
        assert all(root * root + b * root + c == 0 and abs(root) < 100 for root in roots)
        assert low == f"x=({-b}-{roots[-1] - roots[0]})/2={roots[0]}"
    assert 700 < with_roots < 850


def test_no_equation_comes_twice() -> None:
    rows = np.concatenate(list(texts(Quadratic(train=3000, valid=200, test=200)).values()))
    assert len(np.unique(rows[:, :30], axis=0)) == len(rows)


def test_smaller_roots_are_small_and_none_is_tested_with_the_published_task() -> None:
    easy = Quadratic(largest_root=10, train=1600, valid=200, test=200)
    rows = texts(easy)
    answers = [written(row)[-1] for row in rows["train"]]
    roots = [int(root) for answer in answers if answer for root in answer.split(",")]
    assert max(map(abs, roots)) == 9 and 0.1 < answers.count("") / len(answers) < 0.3
    drawn = np.concatenate(list(rows.values()))[:, :30]
    assert len(np.unique(drawn, axis=0)) == len(drawn)
    held_out = [texts(Quadratic())[split][:, :30] for split in ("valid", "test")]
    assert len(np.unique(np.concatenate([drawn, *held_out]), axis=0)) == len(drawn) + 30_000
    assert (easy.label, Quadratic().label) == ("quadratic-10", "quadratic")


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (Copy, {"symbols": 0}),
        (Copy, {"test": 0}),
        (Reverse, {"alphabet": 1}),
        (Retrieval, {"pairs": 11}),
        (MultiQuery, {"queries": 9}),
        (Passkey, {"length": 10}),
        (Quadratic, {"train": 400_000}),
        (Quadratic, {"largest_root": 1}),
        (Quadratic, {"largest_root": 101}),
        (Quadratic, {"largest_root": 10, "train": 3000}),
        (Copy, {"seed": -1}),
    ],
)
def test_sizes_that_make_no_task_are_refused(kind: type[Any], bad: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        kind(**bad)


@EVERY_TASK
@pytest.mark.parametrize("segment", [4, 5])
def test_segments_of_a_stream_are_equally_long_and_whole(task: AnyTask, segment: int) -> None:
    stream, count = TaskStream(task, 7, segment, seed=3), task.num_segments(segment)
    batches = list(one_epoch(stream))
    assert len(batches) == 40 // 7 * count
    rows = []
    for begin in range(0, len(batches), count):
        sample = batches[begin : begin + count]
        assert all(batch.tokens.shape == (7, segment) and batch.lengths is None for batch in sample)
        assert [batch.starts is not None for batch in sample] == [True] + [False] * (count - 1)
        tokens = torch.cat([batch.tokens for batch in sample], 1)
        targets = torch.cat([batch.targets for batch in sample], 1)
        assert (targets[:, task.num_tokens :] == -1).all() and (tokens[:, task.num_tokens :] == 0).all()
        assert ((targets[:, : task.num_tokens] >= 0).numpy() == task.predicted).all()
        rows += tokens[:, : task.num_tokens].tolist()
    known = {tuple(row) for row in texts(task)["train"][:, :-1].tolist()}
    assert len({tuple(row) for row in rows}) >= 34 and {tuple(row) for row in rows} <= known


def test_a_stream_goes_on_from_its_cursor_in_another_order_every_epoch() -> None:
    stream, cursor, seen = TaskStream(TASKS[0], 10, 6, seed=3), {"epoch": 0, "step": 0}, []
    for _ in range(26):
        batch, following = stream.read(dict(cursor))
        again, _ = TaskStream(TASKS[0], 10, 6, seed=3).read(dict(cursor))
        if batch is None or again is None:
            assert batch is again is None
        else:
            assert torch.equal(batch.tokens, again.tokens) and torch.equal(batch.targets, again.targets)
            seen.append((cursor["epoch"], batch.tokens))
        cursor = following
    assert [epoch for epoch, _ in seen] == [0] * 12 + [1] * 12
    assert not torch.equal(seen[0][1], seen[12][1])
    with pytest.raises(MnemoError, match="does not belong"):
        stream.read({"epoch": 0, "step": 13})
    with pytest.raises(MnemoError, match="do not fill"):
        TaskStream(TASKS[0], 41, 6)


def test_memory_may_leak_as_published() -> None:
    assert all(batch.starts is None for batch in one_epoch(TaskStream(TASKS[0], 10, 6, leak=True)))


def test_the_memory_that_leaks_has_no_padding() -> None:
    task, plan = TASKS[0], recipe(TASKS[0], 5, "xl")
    last = task.num_tokens % 5
    assert last
    model = Model(plan.model).double()
    given = short = None
    for number, batch in zip(range(8), one_epoch(TaskStream(task, 4, 5, leak=True)), strict=False):
        is_last = number % task.num_segments(5) == task.num_segments(5) - 1
        _, given = model(batch.tokens, given, lengths=batch.lengths)
        _, short = model(batch.tokens[:, :last] if is_last else batch.tokens, short)
        assert (batch.lengths is not None) == is_last
        for (_, leaf), (_, other) in zip(leaves(given), leaves(short), strict=True):
            assert_close(leaf, other)
    leaking = replace(plan, data=replace(plan.data, leak=True))
    assert why_uneven(leaking) is not None and why_uneven(plan) is None
    assert why_uneven(replace(leaking, train=replace(plan.train, segment=6))) is None


def test_a_filled_up_segment_has_the_losses_of_the_shorter_one() -> None:
    """4, 4 and 2 tokens of retrieval, read in 3 segments of 4."""
    task = TASKS[2]
    torch.manual_seed(0)
    model = Model(tiny(task)).double()
    ((tokens, targets),) = samples(task, "test", 8)
    states: list[Any] = [None, None]
    losses = [torch.zeros(8).double(), torch.zeros(8).double()]
    for part, (filled, scored) in enumerate(segments(tokens, targets, 4)):
        plain = slice(4 * part, min(4 * part + 4, 10))
        cuts = ((filled, scored), (torch.from_numpy(tokens[:, plain]), torch.from_numpy(targets[:, plain])))
        for form, (inputs, wanted) in enumerate(cuts):
            out, states[form] = model(inputs, states[form])
            losses[form] = losses[form] + model.loss(out, wanted).sum(1)
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("kind", MODELS)
def test_one_update_covers_all_segments_of_a_sample(kind: str, tmp_path: Path) -> None:
    """For every memory: the loss is the mean over all answers, and gradients are those of one backward pass."""
    task = TASKS[0]
    plan = recipe(task, 6, kind, precision="fp64")
    data, model = open_data(plan), Model(plan.model).double()
    batches, _, cursor = next_batches(data.stream, data.stream.start(), (), plan.train)
    assert len(batches) == 3 and cursor["step"] == 3
    optimizer = build_optimizer(model, replace(plan.train.optimizer, kind="sgd", lr=0.0))
    done = update(model, optimizer, UpdateInput.of(batches, 0, plan.train), fresh_states(model, 4, 1), clip=None)
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    state, losses = None, []
    for batch in batches:
        out, state = model(batch.tokens, state)
        losses.append(model.loss(out, batch.targets).sum())
    loss = torch.stack(losses).sum() / (4 * 12)
    loss.backward()
    torch.testing.assert_close(done.loss, loss.detach())
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad)
    create_run(plan, tmp_path / "run")
    outcome = train(tmp_path / "run")
    assert outcome.step == 3 and outcome.best is not None and outcome.best.loss < math.log(task.vocab_size) + 1


def test_rows_begin_anew_with_every_sample() -> None:
    task, plan = TASKS[0], recipe(TASKS[0], 6)
    model, stream = Model(plan.model).double(), TaskStream(task, 4, 6)
    batches = list(one_epoch(stream))[3:6]
    torch.manual_seed(1)
    used = fresh_states(model, 4, 1)[0]._replace(
        memory=torch.randn(4, 3, 8).double(), started=torch.ones(4, dtype=torch.int64)
    )
    losses = [segment_loss(model, batches[0], state)[-1].memory for state in (used, fresh_states(model, 4, 1)[0])]
    assert torch.equal(*losses)


@pytest.mark.parametrize("kind", ["xl", "tokens"])
def test_updates_of_samples_are_recorded(kind: str) -> None:
    task, results = TASKS[0], []
    plan = recipe(task, 6, kind, compile=False, precision="fp64").train
    for recorder in (None, Rerun()):
        torch.manual_seed(0)
        model = Model(tiny(task, kind)).double()
        engine = Engine(model, build_optimizer(model, plan.optimizer), plan, recorder=recorder)
        stream, states = TaskStream(task, 4, 6), fresh_states(model, 4, 1)
        cursor, losses = stream.start(), []
        for _ in range(3):
            batches, _, cursor = next_batches(stream, cursor, (), plan)
            done = engine.update(UpdateInput.of(batches, 0, plan), states, 1e-2)
            states = done.states
            losses.append(float(done.loss))
        assert (engine._recorded is not None) == (recorder is not None)
        results.append(losses)
    assert results[0] == pytest.approx(results[1], abs=1e-8)


def test_a_run_on_a_task_goes_on_exactly(tmp_path: Path) -> None:
    plan = recipe(TASKS[0], 6, steps=14, keep=9)  # more than an epoch
    for name in ("whole", "cut"):
        create_run(plan, tmp_path / name)
        train(tmp_path / name)
    for step in (10, 12, 14):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / f"step-{step:08}")
    train(tmp_path / "cut")
    whole, cut = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut"))
    assert whole == cut and whole.count(b"\n") > 14


def test_a_goal_ends_a_run(tmp_path: Path) -> None:
    create_run(recipe(TASKS[0], 6, steps=50, goal=10.0), tmp_path / "run")
    assert train(tmp_path / "run").step == 2


def test_a_plateau_lowers_the_rate(tmp_path: Path) -> None:
    schedule = ScheduleConfig(kind="plateau", factor=0.5, patience=0)
    still = OptimizerConfig(kind="sgd", lr=1e-30)
    create_run(recipe(TASKS[0], 6, steps=7, schedule=schedule, optimizer=still), tmp_path / "run")
    train(tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"lr": 1e-30' in lines and '"lr": 5e-31' in lines


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"bptt": 1}, "--train.bptt 2 --train.bptt-window tumbling"),
        ({"bptt_window": "sliding"}, "--train.bptt 2 --train.bptt-window tumbling"),
        ({"context": 2}, "--train.context is for texts"),
        ({"loss": "half"}, "--train.loss half is for texts"),
    ],
)
def test_recipes_that_cut_samples_apart_are_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match=match):
        create_run(recipe(TASKS[0], 6, **changes), tmp_path / "run")


def test_only_caches_leak(tmp_path: Path) -> None:
    plan = recipe(TASKS[0], 6, "tokens")
    with pytest.raises(MnemoError, match="--data.leak is for caches"):
        create_run(replace(plan, data=replace(plan.data, leak=True)), tmp_path / "run")


@EVERY_TASK
def test_a_recipe_with_a_task_goes_through_json(task: AnyTask) -> None:
    plan = recipe(task, 5)
    assert from_json(Recipe, to_json(plan)) == plan


@pytest.mark.parametrize("name", PRESETS)
def test_a_task_preset_is_what_its_name_says(name: str) -> None:
    plan = preset(name)
    task, parts = plan.data.task, name.split("-")
    assert task is not None and task.label.partition("-")[0] == parts[1].rstrip("0123456789")
    assert plan.train.segment == int(parts[2].removeprefix("seg"))
    assert plan.train.bptt == task.num_segments(plan.train.segment) - 1 and plan.train.bptt_window == "tumbling"
    memory = parts[3] if len(parts) > 3 else ""
    tokens, length = plan.model.tokens, plan.model.memory.lengths(plan.model.num_layers)[0]
    assert memory == (f"m{'' if tokens.write else 't'}{tokens.num}" if tokens else f"xl{length}" if length else "")
    with torch.device("meta"):
        Model(plan.model)
    assert preset(f"{name}@published").data.leak == memory.startswith("xl")


def test_task_presets_have_the_published_sizes() -> None:
    def count(name: str) -> int:
        with torch.device("meta"):
            return sum(weight.numel() for weight in Model(preset(name).model).parameters())

    assert count("rmt-copy-seg24") == 923_148 and count("rmt-copy-seg24-m24") == 923_148 + 24 * 128
    assert count("rmt-quadratic-seg30-m30") == count("rmt-quadratic-seg180") + 30 * 128


def test_a_task_is_chosen_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = "--data.task.train 40 --data.task.valid 8 --data.task.test 6 --train.steps 2 --train.batch 4".split()
    small = "--model.num-layers 1 --model.dim 8 --model.num-heads 1 --model.head-dim 8 --model.inner-dim 8".split()
    assert main(["train", "rmt-retrieval-seg5-m5", "--name", "small", *sizes, *small]) == 0
    capsys.readouterr()
    assert main(["eval", "small"]) == 0
    assert "retrieval-4  test   2 x 5     6 " in capsys.readouterr().out
    assert (tmp_path / "runs" / "small" / "results" / "answers-test.json").exists()
    assert main(["eval", "small", "--split", "valid", "--published", "--limit", "3", "--json"]) == 0
    assert '"samples": 3' in capsys.readouterr().out
    other = "--data.task passkey --data.task.length 60 --train.segment 20 --train.bptt 2".split()
    assert main(["train", "rmt-retrieval-seg5-m5", "--name", "other", *sizes, *small, *other]) == 0
    capsys.readouterr()
    assert main(["eval", "other"]) == 0
    assert "passkey-60  test   3 x 20    6 " in capsys.readouterr().out
    assert main(["report", "runs/small", "--out", "page.html"]) == 0
    page, notes = (tmp_path / "page.html").read_text(), capsys.readouterr().err
    assert "of symbols right" in page and "measured as published" in page and "left out" not in notes
    assert main(["eval", "small", "--no-memory"]) == 2
    assert "--no-memory is for texts" in capsys.readouterr().err
