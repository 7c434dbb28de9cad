"""Typical mistakes, and the one line that answers each: wrong order, wrong kind of name, options of other programs."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny_runs import sample_text, tiny_run
from safetensors.torch import save_file

from mnemo import cli
from mnemo.cli import VERBS
from mnemo.cli.meanings import SAME, unknown_option

MISTAKES = {
    # options of other programs
    "train tiny-bytes --train.lr 1e-3": "did you mean '--train.optimizer.lr'?",
    "train tiny-bytes --lr 1e-3": "did you mean '--train.optimizer.lr'?",
    "train tiny-bytes --learning_rate 1": "did you mean '--train.optimizer.lr'?",
    "train tiny-bytes --steps 5": "did you mean '--train.steps'?",
    "train tiny-bytes --batch 5": "did you mean '--train.batch'?",
    "train tiny-bytes --batch-size 5": "did you mean '--train.batch'?",
    "train tiny-bytes --seed 5": "did you mean '--train.seed'?",
    "train tiny-bytes --epochs 3": "did you mean '--train.steps'? Training is counted in steps; --dry-run shows",
    "train tiny-bytes --layers 3": "did you mean '--model.num-layers'?",
    "train tiny-bytes --bf16": "did you mean '--train.precision bf16'?",
    "train tiny-bytes --dataset book.txt": "did you mean '--data'?",
    "train tiny-bytes --train.stesp 3": "did you mean '--train.steps'?",
    "train tiny-bytes --imprt x.py": "did you mean '--import'?",
    "eval done --batch-size 3": "did you mean '--batch'?",
    "generate done --max-new-tokens 3": "did you mean '--tokens'?",
    "read done book.txt --output x": "did you mean '--save'?",
    "export done --ouput x": "did you mean '--out'?",
    "sweep book.txt --lr 1": "did you mean '--train.optimizer.lr'?",
    # values of the wrong type
    "train tiny-bytes --train.steps abc": "--train.steps needs a whole number, not 'abc'",
    "train tiny-bytes --train.steps=abc": "--train.steps needs a whole number, not 'abc'",
    "train tiny-bytes --train.steps 3.5": "--train.steps needs a whole number, not '3.5'",
    "train tiny-bytes --train.steps": "--train.steps needs a whole number after it",
    "train tiny-bytes --train.optimizer.lr abc": "--train.optimizer.lr needs a number, not 'abc'",
    "train tiny-bytes --train.optimizer.lr nan": "train.optimizer.lr: nan is not finite",
    "train tiny-bytes --train.optimizer.clip inf": "train.optimizer.clip: expected a number or none, found inf",
    "train tiny-bytes --train.optimizer.clip abc": "--train.optimizer.clip needs a number or None, not 'abc'",
    "train tiny-bytes --train.optimizer.betas a b": "--train.optimizer.betas needs numbers, not 'a b'",
    "train tiny-bytes --test.memory long": "--test.memory needs a whole number or None, not 'long'",
    "train tiny-bytes --data.leak maybe": "--data.leak is a switch without a value (--data.no-leak: the opposite)",
    "train tiny-bytes --train.precision fp8": "'fp8' is not one of bf16, fp16, fp32, fp64",
    "train tiny-bytes --train.compile later": "'later' is not one of False, True, layers",
    "train tiny-bytes --train.average 3": "known: average, none",
    "train tiny-bytes --model.embedding.tie-projections maybe": "'maybe' is not one of False, True",
    "train tiny-bytes --config --dry-run": "--config needs a TOML, YAML or JSON file after it",
    "eval done --memory abc": "--memory needs a whole number, not 'abc'",
    "generate done --temperature hot": "--temperature needs a number, not 'hot'",
    "generate done --top-k many": "--top-k needs a whole number, not 'many'",
    "analyse done --limit all": "--limit needs a whole number, not 'all'",
    "sweep book.txt --seeds few": "--seeds needs a whole number, not 'few'",
    "estimate tiny-bytes --tflops fast": "--tflops needs a number, not 'fast'",
    # wrong order
    "train --train.steps 3 tiny-bytes": "name 'tiny-bytes' before the options",
    "train --train.steps 3 book.txt": "name 'book.txt' before the options",
    "read book.txt done": "name the run before the text: mnemo read done book.txt",
    "analyse book.txt done": "name the run before the text: mnemo analyse done book.txt",
    "generate 'Once upon a time'": "mnemo generate --prompt 'Once upon a time'",
    # another kind of name
    "train done": "'done' is a run: mnemo train --resume done continues it",
    "train runs/done": "runs/done is a run: mnemo train --resume runs/done continues it",
    "train text8": "'text8' is a corpus that is not prepared; run: mnemo prepare text8; mnemo train --list text8 shows",
    "train nosuch.txt": "there is no file or folder 'nosuch.txt'",
    "train dangling.txt": "and no prepared corpus of that name: the link leads to 'gone.txt'",
    "train tiny-byte": "did you mean 'tiny-bytes'",
    "train --resume tiny-bytes": "'tiny-bytes' is a preset, not a run: mnemo train tiny-bytes trains it",
    "train --resume don": "unknown run 'don'; did you mean 'done'?",
    "eval tiny-bytes": "'tiny-bytes' is a preset, not a run",
    "eval book.txt": "book.txt is a file, not a run",
    "eval runs": "runs is a folder of runs, not a run: name one of them, such as runs/done",
    "eval empty": "empty is not a run: it has no recipe.json; mnemo train empty trains on a folder of texts",
    "eval tuned": "tuned is a model of transformers, not a run: import mnemo.hf, and load it with transformers",
    "eval broken": "runs/broken is a damaged run: it has no recipe.json",
    "eval /dev/null": "/dev/null is a device, not a run",
    "eval runs/don": "unknown run 'don'; did you mean 'done'?",
    "eval python": "'python' is a corpus, not a run: mnemo train python trains on it",
    "eval done --split tset": "'tset' is not one of test, train, valid",
    "eval done extra": "unexpected argument 'extra'",
    "generate don": "did you mean 'done'?",
    "generate tiny-bytes": "'tiny-bytes' is a preset, not a run",
    "generate done --prompt-file empty": "empty is not a file but a folder: name a single text",
    "generate done --memory nosuch": "nosuch is missing",
    "generate done --memory book.txt": "not a memory file; make one with: mnemo read",
    "generate done --memory empty": "not a memory file; make one with: mnemo read",
    "read done book.txt --save book.txt": "book.txt exists and is not a memory file: choose another path with --save",
    "read done book.txt --save other.safetensors": "other.safetensors exists and is not a memory file",
    "read done book.txt --save empty": "empty exists and is not a memory file",
    "read done book.txt --save nowhere/x": "nowhere is not a folder",
    "read done empty": "empty is not a file but a folder: name a single text; mnemo train takes folders",
    "read /dev/null": "/dev/null is not a file but a device: - takes a text from a pipe",
    "read done nosuch.txt": "nosuch.txt is not a file",
    "analyse done python": "python is not a file",
    "analyse nosuch.txt": "nosuch.txt is not a file",
    "analyse /dev/null": "/dev/null is not a file but a device: - takes a text from a pipe",
    "analyse pipe": "pipe is not a file but a pipe: - takes a text from a pipe",
    "analyse empty": "empty is not a run: it has no recipe.json; mnemo train empty trains on a folder of texts",
    "read done book.txt --limit 3": "unknown option '--limit'; known: ",
    "train tiny-bytes --config nosuch.toml": "nosuch.toml: there is no such configuration file",
    "chat tiny-bytes": "'tiny-bytes' is a preset, not a run",
    "chat book.txt": "book.txt is a file, not a run",
    "chat done --memory book.txt": "not a memory file; make one with: mnemo read",
    "watch tiny-bytes": "'tiny-bytes' is a preset, not a run",
    "watch don": "did you mean 'done'?",
    "export tiny-bytes": "'tiny-bytes' is a preset, not a run",
    "export book.txt": "book.txt is a file, not a run",
    "info book.txt": "unknown preset or run 'book.txt'",
    "info tiny-byte": "did you mean 'tiny-bytes'",
    "estimate nosuch": "unknown preset or run 'nosuch'",
    "report book.txt": "book.txt is a file, not a run folder",
    "report done --out book.txt": "book.txt exists and is not a page of HTML: choose another path with --out",
    "report done --out empty": "empty exists and is not a page of HTML",
    "report empty": "is not a run folder",
    "report nosuch": "unknown run 'nosuch'; known: done",
    "report done runs/don": "unknown run 'don'; did you mean 'done'?",
    "report tiny-bytes": "'tiny-bytes' is a preset, not a run",
    "report /dev/null": "/dev/null is a device, not a run folder",
    "runs nosuch": "'nosuch' is not one of list, remove, rename",
    "runs remove don": "did you mean 'done'?",
    "prepare book.txt": "mnemo prepare NAME --from book.txt",
    "prepare enwik": "did you mean 'enwik8'?",
    "convert book.txt out": "book.txt is not a file of weights",
    "convert": "missing SOURCE, DEST",
    "reproduce rmt-cpy": "did you mean 'rmt-copy'",
    "parity nosuch": "nosuch",
    "verify nosuch": "nosuch",
    "bench --waht x": "did you mean '--what'?",
    "demo x": "unexpected argument 'x'",
    "tran book.txt": "did you mean 'train'?",
    "sweep done --memory none,xl": "'done' is a run",
    "serve book.txt": "book.txt is a file, not a run",
    "studio tiny-bytes": "'tiny-bytes' is a preset, not a run",
    "sweep tiny-bytes --memory '' --dry-run": "name two memories or more, separated by commas: --memory none,xl",
    "sweep tiny-bytes --memory= --dry-run": "name two memories or more, separated by commas: --memory none,xl",
    "train tiny-bytes --memory '' --dry-run": "unknown memory ''; known: armt, ",
    "tune": "missing MODEL",
    "tune model --stages a": "'a' is no stage: write a number of segments, such as 4",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(tiny_run(), tmp_path / "runs" / "done")
    (tmp_path / "empty").mkdir()
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "config.json").write_text("{}")
    (tmp_path / "runs" / "broken" / "checkpoints").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling.txt").symlink_to("gone.txt")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "book.txt").write_text(sample_text(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_answered(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split(command)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert MISTAKES[command] in line
    assert not any(
        leak in line for leak in ("literal", "NoneType", "Traceback", "<class", "Errno", "could not convert")
    )


def test_every_verb_is_in_the_table() -> None:
    assert set(VERBS) <= {command.split()[0] for command in MISTAKES}


@pytest.mark.parametrize("verb", VERBS)
def test_positional_arguments_are_not_suggested_as_options(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--zzzz"]) == 2
    assert not {"--run,", "--text,", "--names,"} & set(capsys.readouterr().err.split())


def test_meanings_lead_to_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "tiny-bytes", "--help"]) == 0
    text = capsys.readouterr().out
    wanted = {use.partition(" ")[0] for uses in SAME.values() for use in uses}
    for verb in ("generate", "eval", "export", "read", "sweep", "reproduce"):
        assert cli.main([verb, *(["tiny-bytes"] if verb == "sweep" else []), "--help"]) == 0
        text += capsys.readouterr().out
    assert [name for name in wanted if name not in text] == []


def test_a_far_fetched_option_is_not_suggested() -> None:
    assert str(unknown_option("--zzzz", ["--run", "--out"])) == "unknown option '--zzzz'; known: --out, --run"


def test_an_export_has_the_option_of_the_other_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "done", "--out", "one"]) == 0
    assert cli.main(["export", "done", "--output", "two"]) == 0
    assert Path("one/recipe.json").is_file() and Path("two/recipe.json").is_file()
