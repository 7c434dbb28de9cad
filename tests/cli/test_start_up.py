"""Help and the user's mistakes are answered without importing torch, which takes seconds."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mnemo.cli import VERBS

NOTHING, TEXT_LIBRARIES = "", "numpy"
HEAVY = ("torch", "numpy", "safetensors", "matplotlib", "rich", "transformers", "tokenizers", "datasets", "triton")
MISTAKES = {
    "mnemo nosuch": NOTHING,
    "mnemo train nosuch": TEXT_LIBRARIES,
    "mnemo train tiny-bytes --nosuch 1": NOTHING,
    "mnemo train tiny-bytes --train.steps abc": NOTHING,
    "mnemo train tiny-bytes --train.steps -1": NOTHING,
    "mnemo train tiny-bytes --model.memory.long nosuch": NOTHING,
    "mnemo train tiny-bytes --name a/b": NOTHING,
    "mnemo train --resume nosuch": NOTHING,
    "mnemo train tiny-bytes --lr 1": NOTHING,
    "mnemo train tiny-bytes --config nosuch.toml": NOTHING,
    "mnemo train tiny-bytes --config run/recipe.json --train.steps abc": NOTHING,
    "mnemo sweep nosuch": TEXT_LIBRARIES,
    "mnemo sweep tiny-bytes --memory none,nosuch": NOTHING,
    "mnemo sweep tiny-bytes --seeds 0": NOTHING,
    "mnemo eval run --import nosuch.py": NOTHING,
    "mnemo train --from nosuch": NOTHING,
    "mnemo train tiny-bytes --from nosuch": NOTHING,
    "mnemo train tiny-bytes --data.corpus nosuch": TEXT_LIBRARIES,
    "mnemo train --resume run": TEXT_LIBRARIES,
    "mnemo eval run": TEXT_LIBRARIES,
    "mnemo eval run --memory 1 --no-memory": NOTHING,
    "mnemo eval run --sweep-memory 0,x": NOTHING,
    "mnemo eval run --sweep-memory -1,2": NOTHING,
    "mnemo eval run --memory -1": NOTHING,
    "mnemo eval run --segment 0": NOTHING,
    "mnemo eval run --batch 0": NOTHING,
    "mnemo eval run --limit 0": NOTHING,
    "mnemo eval run --temperature nan": NOTHING,
    "mnemo generate run --prompt-file nosuch": NOTHING,
    "mnemo generate run --memory nosuch": NOTHING,
    "mnemo generate run --temperature -1": NOTHING,
    "mnemo chat run --memory nosuch": NOTHING,
    "mnemo chat run --temperature -1": NOTHING,
    "mnemo watch run --every 0": NOTHING,
    "mnemo serve run run": NOTHING,
    "mnemo serve run --host 0.0.0.0": NOTHING,
    "mnemo serve run --port 70000": NOTHING,
    "mnemo serve run --rows 0": NOTHING,
    "mnemo serve run --max-tokens 0": NOTHING,
    "mnemo read run nosuch": NOTHING,
    "mnemo analyse run nosuch": NOTHING,
    "mnemo analyse run empty.txt": NOTHING,
    "mnemo analyse run short.txt": TEXT_LIBRARIES,
    "mnemo analyse run short.txt --limit 9": NOTHING,
    "mnemo read run empty.txt": NOTHING,
    "mnemo generate run --prompt-file empty.txt": NOTHING,
    "mnemo info nosuch": NOTHING,
    "mnemo reproduce nosuch": NOTHING,
    "mnemo estimate tiny-bytes --gpu nosuch": NOTHING,
    "mnemo estimate tiny-bytes --bench nosuch": NOTHING,
    "mnemo bench --what nosuch": NOTHING,
    "mnemo bench --gpu-table --what nosuch": NOTHING,
    "mnemo bench --alternatives --what nosuch": NOTHING,
    "mnemo bench --alternatives --merge --runs nosuch": NOTHING,
    "mnemo bench --alternatives": TEXT_LIBRARIES,
    "mnemo prepare nosuch": TEXT_LIBRARIES,
    "mnemo verify nosuch": TEXT_LIBRARIES,
    "mnemo convert . out --memory -1": NOTHING,
    "mnemo tune model --stages a": NOTHING,
    "mnemo tune model --data nosuch": NOTHING,
    "mnemo serve nosuch": NOTHING,
    "mnemo studio nosuch": NOTHING,
    "mnemo studio --host 0.0.0.0": NOTHING,
}
"""Commands, and the heavy libraries that may be imported for their errors; `run` is a run whose corpus is missing,
`short.txt` a text shorter than a segment."""
ANSWERS = (
    "mnemo --help",
    "mnemo --version",
    "mnemo train tiny-bytes --help",
    "mnemo train --list",
    "mnemo info --list",
)

PROGRAM = """
import contextlib, io, json, sys

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name in HEAVY:
            imported.append(name)
            raise ImportError(f"{name} must not be imported here")

HEAVY, commands = json.loads(sys.argv[1]), json.loads(sys.argv[2])
sys.meta_path.insert(0, Guard())
from mnemo.cli import main
for command in commands:
    imported, out, err = [], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command.split()[1:])
    print(json.dumps([command, imported, code, out.getvalue(), err.getvalue()]))
"""


class Answer(NamedTuple):
    imported: list[str]
    """Heavy libraries that were needed."""
    code: int
    out: str
    err: str


def arguments_of(verb: str) -> Any:
    """The class of a verb's arguments; None for `train`, whose arguments depend on the preset."""
    return getattr(importlib.import_module(VERBS[verb].module), "Args", None)


def wrong_names(verb: str) -> str:
    """A command in which each argument that is required, and the run, is the name of something that is missing."""
    fields = dataclasses.fields(arguments_of(verb))
    wanted = [f for f in fields if f.name == "run" or (f.default, f.default_factory) == (dataclasses.MISSING,) * 2]
    return f"mnemo {verb} " + " ".join("nosuch" for _ in wanted)


def needs_names(verb: str) -> bool:
    return arguments_of(verb) is not None and wrong_names(verb).endswith("nosuch")


def ask(commands: list[str], folder: Path, *, allowed: str = NOTHING) -> dict[str, Answer]:
    forbidden = [name for name in HEAVY if name != allowed]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "MNEMO_DATA": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(forbidden), json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = map(json.loads, done.stdout.splitlines())
    return {command: Answer(*rest) for command, *rest in found}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run whose corpus is not on this machine."""
    from mnemo.config import to_json
    from mnemo.recipes.presets import preset

    recipe = preset("tiny-bytes")
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, corpus="elsewhere"))
    (tmp_path / "run").mkdir()
    corpus = {"name": "elsewhere", "unit": "byte"}
    header = {"format_version": 1, "corpus": corpus, "recipe": to_json(recipe)}
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(header), encoding="utf-8")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("abc", encoding="utf-8")
    return tmp_path


def test_help_and_lists_need_no_heavy_library(folder: Path) -> None:
    commands = [*ANSWERS, *(f"mnemo {verb} --help" for verb in VERBS)]
    for command, answer in ask(commands, folder).items():
        assert (answer.imported, answer.code, answer.err) == ([], 0, ""), command
        assert answer.out
        wanted = 1 if command == "mnemo train tiny-bytes --help" else 0  # cutoffs of the model, which has no tyro types
        assert answer.out.count("(default: )") == wanted, command


def test_unknown_flags_need_no_heavy_library(folder: Path) -> None:
    for command, answer in ask([f"mnemo {verb} --nosuch" for verb in VERBS], folder).items():
        assert (answer.imported, answer.code, answer.err.count("\n")) == ([], 2, 1), (command, answer)


def test_names_that_are_wrong_need_no_heavy_library(folder: Path) -> None:
    commands = {wrong_names(verb) for verb in VERBS if needs_names(verb)} - set(MISTAKES)
    assert {"mnemo eval nosuch", "mnemo read nosuch", "mnemo convert nosuch nosuch"} <= commands
    for command, answer in ask(sorted(commands), folder).items():
        assert (answer.imported, answer.code, answer.err.count("\n")) == ([], 2, 1), (command, answer)
        assert "nosuch" in answer.err


@pytest.mark.parametrize("allowed", [NOTHING, TEXT_LIBRARIES])
def test_further_mistakes_are_answered_before_torch_is_imported(allowed: str, folder: Path) -> None:
    commands = [command for command, libraries in MISTAKES.items() if libraries == allowed]
    for command, answer in ask(commands, folder, allowed=allowed).items():
        assert (answer.imported, answer.code, answer.err.count("\n")) == ([], 2, 1), (command, answer)


def test_the_guard_sees_an_import(folder: Path) -> None:
    answer = ask(["mnemo info tiny-bytes"], folder)["mnemo info tiny-bytes"]
    assert "torch" in answer.imported and answer.code == 70
