"""`mnemo train`: presets with any field overridden, and one line for everything that is wrong."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_runs import metrics, toy

from mnemo import cli
from mnemo.cli import overrides, watching
from mnemo.cli.run_arguments import format_loss
from mnemo.cli.train import NewRun
from mnemo.data import corpus as corpora
from mnemo.errors import MnemoError
from mnemo.model import ModelConfig
from mnemo.model.positions import Relative, Rotary, Shaw, Sinusoidal
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import AverageConfig, Recipe
from mnemo.storage.run_folder import open_run
from mnemo.storage.run_header import load_header
from mnemo.training import Status

TINY = [
    *("--data.corpus", "toy", "--train.steps", "6", "--train.batch", "2", "--train.segment", "4"),
    *("--train.log-every", "2", "--train.eval-every", "3", "--evaluation.batch", "2", "--model.num-layers", "1"),
    *("--model.dim", "8", "--model.num-heads", "1", "--model.head-dim", "4", "--model.inner-dim", "8"),
]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy()
    monkeypatch.chdir(tmp_path)


def parse(*argv: str, recipe: Recipe | None = None) -> Recipe:
    default = NewRun(recipe=recipe or Recipe(model=ModelConfig()))
    return overrides.parse(NewRun, default, argv, prog="mnemo train x", description="").recipe


def complaint(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    """The one line that a wrong command line gets."""
    assert cli.main(["train", *argv]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("mnemo: ") and err.count("\n") == 1, err
    return err


def test_any_field_is_a_flag() -> None:
    found = parse("--model.memory.long.length", "256", "--train.optimizer.betas", "0.8", "0.9", "--model.same-length")
    assert found.model.memory.long.length == 256
    assert found.train.optimizer.betas == (0.8, 0.9)
    assert found.model.same_length
    assert parse("--train.schedule.min_lr=0.5", "--evaluation.limit", "7").evaluation.limit == 7
    assert parse("--train.optimizer.clip", "None").train.optimizer.clip is None
    assert parse() == Recipe(model=ModelConfig())


def test_kinds_are_chosen_by_name() -> None:
    assert parse().model.positions == Relative()
    assert parse("--model.positions", "rotary").model.positions == Rotary()
    assert parse("--model.positions.base", "50", "--model.positions=rotary").model.positions == Rotary(base=50)
    assert parse("--model.positions", "shaw", "--model.positions.distances", "9").model.positions == Shaw(distances=9)


def test_kinds_share_the_fields_that_they_have_in_common() -> None:
    clamped = Recipe(model=ModelConfig(positions=Relative(clamp=5)))
    assert parse("--model.positions", "relative", recipe=clamped).model.positions == Relative(clamp=5)
    assert parse("--model.positions", "shaw", recipe=clamped).model.positions == Shaw(clamp=5)


def test_a_kind_is_checked_together_with_the_rest() -> None:
    found = parse("--model.positions", "sinusoidal", "--model.memory.long.length", "0")
    assert found.model.positions == Sinusoidal()
    with pytest.raises(MnemoError, match="Sinusoidal positions are absolute"):
        parse("--model.positions", "sinusoidal")


def test_what_is_left_out_can_be_switched_on_and_off() -> None:
    assert parse().train.average is None
    found = parse("--train.average.start", "5", "--train.average.lr", "0.1")
    assert found.train.average == AverageConfig(start=5, lr=0.1)
    assert parse("--train.average", "none", recipe=found).train.average is None
    with pytest.raises(MnemoError, match="--train.average.start"):
        parse("--train.average.lr", "0.1")


def test_wrong_overrides_get_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    bad = {
        ("--train.stepz", "5"): "unknown option '--train.stepz'; did you mean '--train.steps'?",
        ("--model.memory.long.lenght", "5"): "did you mean '--model.memory.long.length'?",
        ("--train.steps", "five"): "--train.steps needs a whole number, not 'five'",
        ("--train.steps", "0"): "--train.steps = 0 must be positive",
        ("--train.precision", "fp8"): "fp8",
        ("--model.positions", "rotaty"): "unknown value for --model.positions 'rotaty'; did you mean 'rotary'?",
        ("--model.positions",): "--model.positions needs a value",
        ("--model.dropout.input", "1.5"): "dropout input = 1.5 is not in [0, 1)",
        ("stray",): "unexpected argument 'stray'",
        ("--name", "a/b"): "'a/b' cannot be a run's name",
        ("--name", ".."): "'..' cannot be a run's name",
        ("--from", "nowhere"): "no run 'nowhere'",
        ("--track", "excel"): "excel",
    }
    for argv, line in bad.items():
        assert line in complaint(capsys, "tiny-bytes", *argv)
    assert "unknown preset 'tiny-byte'; did you mean 'tiny-bytes' or" in complaint(capsys, "tiny-byte")
    assert "name a preset or your text" in complaint(capsys, "--train.steps", "5")
    assert "no run 'nowhere'" in complaint(capsys, "--resume", "nowhere")
    assert "no run 'nowhere'" in complaint(capsys, "--resume", "nowhere", "--train.steps", "5")
    assert "--resume needs the name or folder of a run" in complaint(capsys, "--resume", "--train.steps", "5")
    assert not Path("runs").exists()


def test_help_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    expected = ("mybook.txt", "--resume RUN", "--from RUN", "--list", "128 + the signal", "--train.steps 100")
    assert all(word in text for word in expected)
    assert cli.main(["train", "tiny-bytes", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Transformer-XL, bytes of Python's standard library" in text
    assert "--model.positions {relative,shaw,sinusoidal,learned,rotary" in text
    assert "--train.average {average,none} (now: none)" in text
    assert "Number of updates. (default: 1000)" in text
    for flag in overrides.known_flags(NewRun(recipe=preset("tiny-bytes"))):
        assert flag in text or flag in ("--train.average", "--model.tokens")


def test_a_run_from_start_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "tiny-bytes", *TINY]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == ["next: mnemo eval runs/tiny-bytes-1"]
    assert out.startswith("best: ") and " bpc on valid, after step 6 of 6" in out
    lines = err.splitlines()
    assert lines[0] == "vocabulary: 6 as in the corpus, not the recipe's 256"
    assert lines[2] == "memory: 64 slots in every layer (XL)"
    assert lines[5] == "validation: segment 4, memory as in training"
    assert lines[7].startswith("step: ") and lines[8] == "run: runs/tiny-bytes-1"
    assert lines[9].startswith("step 2/6  ") and lines[9].endswith(" left") and " tokens/s  " in lines[9]
    assert any(line.startswith("step 3: valid ") and line.endswith("bpc, the best so far") for line in lines)
    assert load_header(Path("runs/tiny-bytes-1")).preset == "tiny-bytes"
    assert cli.main(["train", "tiny-bytes@published", *TINY, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["run"], result["step"], result["best"]["step"]) == ("runs/tiny-bytes-published-1", 6, 6)
    assert cli.main(["train", "--resume", "tiny-bytes-1"]) == 0
    assert "continuing after step 6" in capsys.readouterr().err
    assert "runs/tiny-bytes-1 exists" in complaint(capsys, "tiny-bytes", *TINY, "--name", "tiny-bytes-1")


def test_a_run_without_its_checkpoints_says_that_it_begins_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "tiny-bytes", *TINY, "--name", "lost"]) == 0
    assert "begins again" not in capsys.readouterr().err
    shutil.rmtree("runs/lost/checkpoints")
    assert cli.main(["train", "--resume", "lost"]) == 0
    assert "runs/lost has no checkpoint: training begins again at step 0" in capsys.readouterr().err


def test_a_new_run_from_the_weights_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "tiny-bytes", *TINY, "--name", "first", "--runs", "elsewhere"]) == 0
    again = ["train", "--from", "first", "--runs", "elsewhere", "--train.optimizer.lr", "0", "--train.steps", "3"]
    assert cli.main([*again, "--name", "second"]) == 0
    first, second = open_run("elsewhere/first"), open_run("elsewhere/second")
    assert second.model.fingerprint() == first.model.fingerprint()
    assert second.recipe.train.steps == 3 and second.recipe.train.batch == 2
    capsys.readouterr()
    wrong = complaint(capsys, "tiny-bytes", *TINY, "--from", "elsewhere/first", "--model.dim", "16")
    assert "elsewhere/first/checkpoints/step-00000006/weights.safetensors is of another configuration" in wrong


def test_a_signal_gives_its_exit_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = watching._Lines.trained

    def kill(lines: Any, status: Status) -> None:
        plain(lines, status)
        if status.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(watching._Lines, "trained", kill)
    assert cli.main(["train", "tiny-bytes", *TINY, "--name", "x"]) == 143
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "stopped and saved after step 4; resume with: mnemo train --resume runs/x"


def test_a_run_that_ends_at_its_goal_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "tiny-bytes", *TINY, "--name", "goal", "--train.goal", "100"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "ended" in line]
    assert len(lines) == 1 and lines[0].startswith("ended after step 3 of 6: the validation loss of ")


def test_a_diverging_run_ends_with_one_line_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*TINY, "--train.optimizer.kind", "sgd", "--train.optimizer.lr", "1e30", "--train.optimizer.clip", "None"]
    assert cli.main(["train", "tiny-bytes", *argv, "--train.schedule.warmup", "0", "--model.norm", "pre"]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("mnemo: check failed: the loss is nan at step 2; training stops")


def test_metrics_go_to_a_tracker_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    service = types.ModuleType("wandb")
    service.init = lambda **options: calls.append(options)  # type: ignore[attr-defined]
    service.log = lambda values, step: calls.append((step, values))  # type: ignore[attr-defined]
    service.finish = lambda: calls.append("finished")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", service)
    assert cli.main(["train", "tiny-bytes", *TINY, "--track", "wandb", "--name", "x"]) == 0
    start, *logged, end = calls
    assert (start["project"], start["name"], start["resume"], end) == ("mnemo", "x", "allow", "finished")
    assert start["id"] and start["config"]["train"]["steps"] == 6
    lines = [json.loads(line) for line in metrics(Path("runs/x")).splitlines()]
    assert [(step, values.get("train/loss", values.get("valid/loss"))) for step, values in logged] == [
        (line["step"], line["loss"]) for line in lines
    ]
    assert cli.main(["train", "--resume", "x", "--track", "wandb"]) == 0
    assert calls[-2]["id"] == start["id"]
    monkeypatch.setitem(sys.modules, "trackio", None)
    capsys.readouterr()
    assert cli.main(["train", "--resume", "x", "--track", "trackio"]) == 2
    assert "pip install '.[track]'" in capsys.readouterr().err


def test_losses_are_bits_or_perplexities() -> None:
    assert format_loss(0.6931471805599453, "byte") == "1.0000 bpc"
    assert format_loss(0.6931471805599453, "symbol") == "1.0000 bpc"
    assert format_loss(0.6931471805599453, "word") == "2.00 ppl"
    status = Status(1200, 4000, 2.0, 2.5e-4, 12345.6, 125.0)
    assert watching.format_status(status, "char") == (
        "1,200/4,000  2.8854 bpc  lr 2.50e-04  12,346 tokens/s  2m05s left"
    )
    between = status._replace(loss=None)
    assert watching.format_status(between, "char") == "1,200/4,000  lr 2.50e-04  12,346 tokens/s  2m05s left"


def test_a_terminal_gets_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with watching.watching(stream) as watcher:
        watcher.started("byte")
        watcher.note("run: [runs/x]")
        watcher.trained(Status(5, 10, 1.0, 0.1, 100.0, 3.0))
        with watcher.show("scoring valid", 4, unit="tokens") as bar:
            bar.advance(2)
        watcher.evaluated(5, 1.0, True)
    text = stream.getvalue()
    assert "run: [runs/x]" in text and "5/10  1.4427 bpc" in text and "step 5: valid 1.4427 bpc" in text


def test_slow_work_off_a_terminal_prints_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with watching.watching(stream) as watcher, watcher.show("scoring valid", 40, unit="tokens") as bar:
        for _ in range(4):
            now[0] += 6.0
            bar.advance(10)
    assert stream.getvalue().splitlines() == [
        "scoring valid: 20/40 tokens (50%)",
        "scoring valid: 40/40 tokens (100%)",
    ]


def test_the_corpus_is_asked_for_where_it_is_not_prepared(capsys: pytest.CaptureFixture[str]) -> None:
    assert not corpora.find("wikitext-103")
    assert "mnemo prepare wikitext-103" in complaint(capsys, "wikitext103-base", "--name", "x")
    assert not Path("runs").exists()


def test_memory_tokens_that_outgrow_a_segment_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model.tokens", "memory-tokens", "--model.tokens.num", "1000")
    assert "1000 memory tokens are more than the 64 tokens of a segment" in complaint(capsys, "tiny-bytes", *options)
