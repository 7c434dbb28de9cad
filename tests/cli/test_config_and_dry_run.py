"""`mnemo train --config FILE` and `--dry-run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.tiny_runs import sample_text, tiny_run

from mnemo import cli
from mnemo.model import memory_limits
from mnemo.recipes.config_file import apply_config, load_config
from mnemo.storage.run_header import load_header

TINY = "[model]\nnum_layers = 1\ndim = 16\nnum_heads = 2\nhead_dim = 8\ninner_dim = 16\nmemory.long.length = 8\n"
TRAINING = "[train]\nsteps = 2\nbatch = 2\nsegment = 8\ndevice = 'cpu'\n[evaluation]\nbatch = 2\n[test]\nbatch = 2\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_run()  # its corpus
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(f"{TINY}[data]\ncorpus = 'tiny-bytes'\n{TRAINING}")
    (tmp_path / "book.txt").write_text(sample_text(), encoding="utf-8")
    return tmp_path


def train(*argv: str) -> None:
    assert cli.main(["train", *argv]) == 0


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["train", *argv]) == 2
    return capsys.readouterr().err


def test_a_file_describes_the_whole_run(capsys: pytest.CaptureFixture[str]) -> None:
    train("--config", "my.toml")
    recipe = load_header(Path("runs/my-1")).recipe
    assert (recipe.model.dim, recipe.train.steps, recipe.model.memory.long.length) == (16, 2, 8)
    train("--config", "runs/my-1/recipe.json", "--name", "again")
    assert load_header(Path("runs/again")).recipe == recipe


def test_preset_then_file_then_flags() -> None:
    argv = ["tiny-bytes", "--config", "my.toml", "--train.steps", "1", "--model.memory.long.length", "4"]
    train(*argv, "--name", "a")
    recipe = load_header(Path("runs/a")).recipe
    assert (recipe.train.steps, recipe.train.batch, recipe.train.schedule.warmup) == (1, 2, 50)
    assert recipe.model.memory.long.length == 4 and recipe.test.memory is None


def test_a_file_names_its_preset_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.yaml").write_text("preset: tiny-bytes\nmemory: rmt\ntrain.steps: 3\n")
    train("--config", "small.yaml", "--dry-run")
    text = capsys.readouterr().out
    assert "# memory: 10 memory tokens" in text and "# training: 3 steps of 16 x 64 tokens, 3,072 tokens" in text


def test_a_dry_run_is_a_configuration_and_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    train("--config", "my.toml", "--dry-run", "--train.steps", "1")
    text = capsys.readouterr().out
    for part in (
        "1 layer of width 16",
        "1 step of 2 x 8 tokens",
        "times the text",
        "checkpoints: about",
        " MB in training",
    ):
        assert part in text
    assert not Path("runs").exists()
    Path("whole.toml").write_text(text)
    train("--config", "whole.toml", "--dry-run")
    assert capsys.readouterr().out == text
    train("--config", "whole.toml", "--name", "done")
    assert load_header(Path("runs/done")).recipe == apply_config(None, load_config(Path("whole.toml")))


def test_a_dry_run_on_own_text(capsys: pytest.CaptureFixture[str]) -> None:
    train("book.txt", "--config", "my.toml", "--dry-run", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["steps"] == 2 and found["facts"]["epochs"] > 0
    assert found["recipe"]["data"]["corpus"].startswith("book-")  # not that of the file
    Path("part.toml").write_text("data.corpus = 'tiny-bytes'\ntrain.steps = 3\n")
    train("book.txt", "--config", "part.toml", "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out)["recipe"]["data"]["corpus"].startswith("book-")
    train("book.txt", "--train.steps", "3", "--dry-run")
    text = capsys.readouterr().out
    assert "mnemo train book.txt --config FILE" in text and "corpus: book-" in text


@pytest.mark.parametrize(
    "options",
    [
        "--train.optimizer.kind adam",
        "--train.optimizer.kind muon",
        "--train.batch 32 --model.memory.long.length 512",
        "--train.optimizer.kind muon --train.average average --train.average.start 1",
        "--memory rmt",
        "--memory compressive",
        "--memory armt --train.steps 2",  # before the second step, weights that write the memory have no moments
    ],
)
def test_a_dry_run_knows_the_size_of_a_checkpoint(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["tiny-bytes", "--data", "book.txt", "--train.steps", "1", "--train.device", "cpu", *options.split()]
    train(*argv, "--dry-run", "--json")
    said = json.loads(capsys.readouterr().out)["facts"]["checkpoint_bytes"]
    train(*argv, "--name", "real")
    last = max(Path("runs/real/checkpoints").iterdir())
    real = sum(file.stat().st_size for file in last.iterdir())
    assert said == pytest.approx(real, rel=0.02)


def machine_lines(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    train(*argv, "--dry-run")
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("# machine: ")]


def test_a_dry_run_says_if_the_device_has_too_little_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train("--config", "my.toml", "--dry-run", "--json")
    needed = json.loads(capsys.readouterr().out)["facts"]["training_bytes"]
    monkeypatch.setattr(memory_limits, "memory_bytes", lambda device: needed + 1)
    assert machine_lines(capsys, "--config", "my.toml") == []
    monkeypatch.setattr(memory_limits, "memory_bytes", lambda device: needed // 2)
    (line,) = machine_lines(capsys, "--config", "my.toml")
    assert f"this machine has {needed / 2e6:,.1f} MB of memory: too little" in line and "--train.accumulate" in line


@pytest.mark.parametrize(
    ("options", "fast_bf16", "words"),
    [
        ("my.toml", False, None),
        ("my.toml --train.precision bf16", True, None),
        ("my.toml --train.precision bf16", False, "bf16 is slow on this processor; --train.precision fp32 is faster"),
        ("my.toml --train.steps 1000000000000", False, "meant for a GPU: a few cores, which compute 100 GFLOP/s, take"),
    ],
)
def test_a_dry_run_says_if_a_recipe_is_slow_here(
    options: str,
    fast_bf16: bool,
    words: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("mnemo.cli.dry_run.has_bf16_products", lambda: fast_bf16)
    lines = machine_lines(capsys, "--config", *options.split())
    assert lines == [] if words is None else (len(lines) == 1 and words in lines[0])


@pytest.mark.parametrize(
    ("corpus", "line"),
    [
        ("novels", "corpus 'novels' is not prepared; run: mnemo prepare novels"),
        ("enwik8", "corpus 'enwik8' is not prepared; run: mnemo prepare enwik8"),
        ("./nosuch", "'./nosuch' is not the folder of a prepared corpus: it has no header.json"),
        ("python", "corpus: python, prepared when training starts"),
    ],
)
def test_a_dry_run_says_how_to_prepare_the_corpus(
    corpus: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MNEMO_DATA", "nothing")
    train("tiny-bytes", "--data.corpus", corpus, "--dry-run")
    assert f"# {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("keep", "words"), [("1", "the best and the last one"), ("2", "the best and the last 2")])
def test_a_dry_run_says_which_checkpoints_are_kept(keep: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    train("--config", "my.toml", "--train.keep", keep, "--dry-run")
    assert f" MB for {words}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--config", "nosuch.toml"], "nosuch.toml"),
        (["--config", "book.txt"], "suffix .toml, .yaml, .yml or .json"),
        (["--config", "."], "is a folder"),
        (["tiny-bytes", "--config", "bad.toml"], "unknown name 'train.lr'; did you mean 'train.optimizer.lr'?"),
        (["--config", "part.toml"], "part.toml does not say what to train"),
        (["--config", "typo.toml"], "did you mean 'tiny-bytes'"),
    ],
)
def test_mistakes(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.toml").write_text("train.lr = 1\n")
    Path("part.toml").write_text("train.steps = 1\n")
    Path("typo.toml").write_text("preset = 'tiny-byte'\n")
    line = complaint(capsys, *argv)
    assert said in line and line.count("\n") == 1
