"""List, remove and rename runs.

    mnemo runs                          list the runs in ./runs, the last one at the end
    mnemo runs remove NAME...           remove runs, after a question (--yes: without)
    mnemo runs rename NAME NEW_NAME     rename a run

Only folders that training, `mnemo convert` or `mnemo export` has written are removed or renamed, and only if no process
trains in them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from mnemo.cli import console
from mnemo.cli.run_arguments import format_loss
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.lazy import LazyModule
from mnemo.recipes.option_types import Several
from mnemo.storage.run_header import CHECKPOINTS, RECIPE, RUN_NAME, RUNS, TOKENIZER, find_run

if TYPE_CHECKING:
    from mnemo.storage import run_folder
    from mnemo.training import run_states
    from mnemo.training.run_states import RunState
else:
    run_folder, run_states = LazyModule("mnemo.storage.run_folder"), LazyModule("mnemo.training.run_states")

Action = Literal["list", "remove", "rename"]


@dataclass(frozen=True, kw_only=True)
class Args:
    action: Annotated[Action, tyro.conf.Positional] = "list"
    """What to do."""
    names: Annotated[Several[str], tyro.conf.Positional] = ()
    """Names or folders of runs; for rename, a run and its new name."""
    runs: Path = RUNS
    """Folder of runs."""
    yes: bool = False
    """Remove without a question."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    if args.action == "remove":
        return _remove(args)
    return _rename(args) if args.action == "rename" else _list(args)


def _list(args: Args) -> int:
    if args.names:
        raise MnemoError(f"unexpected argument '{args.names[0]}': mnemo runs lists all runs in {args.runs}")
    found = run_states.run_states(args.runs)
    if args.json:
        from mnemo.report.run_record import run_record

        console.print_json([run_record(state) for state in found])
    elif found:
        console.table(map(_row, found), ("run", "state", "steps", "best", "memory", "size", "written"))
    else:
        print(f"there are no runs in {args.runs}; mnemo train mybook.txt starts one")
    for state in found:
        if state.note:
            print(f"{state.name}: {state.note}", file=sys.stderr)
    return 0


def _row(run: RunState) -> list[str]:
    recipe = None if run.header is None else run.header.recipe
    best = "-" if run.best is None else format_loss(run.best.loss, _unit(run))
    planned = "" if recipe is None or run.state in ("converted", "exported") else f" of {recipe.train.steps:,}"
    written = datetime.fromtimestamp(run.written).strftime("%Y-%m-%d %H:%M")
    size = f"{run.num_bytes / 1e6:,.1f} MB"
    return [run.name, _state_words(run), f"{run.step:,}{planned}", best, _memory(run) or "-", size, written]


def _state_words(run: RunState) -> str:
    return f"{run.state} at step {run.step:,}" if run.state in ("stopped", "diverged") else run.state


def _memory(run: RunState) -> str | None:
    from mnemo.report.run_summary import plan_words

    return None if run.header is None else plan_words(run.header.recipe.model)


def _unit(run: RunState) -> str:
    return "" if run.header is None else str(run.header.corpus.get("unit"))


def _remove(args: Args) -> int:
    if not args.names:
        raise MnemoError("name the runs to remove: mnemo runs remove NAME...")
    folders = [_own_run(name, args.runs) for name in dict.fromkeys(args.names)]
    removed = [str(folder) for folder in folders if args.yes or _confirmed(folder)]
    for folder in map(Path, removed):
        with run_folder.locked(folder):
            folder.unlink() if folder.is_symlink() else atomic.remove_folder(folder)
    _report({"removed": removed}, [f"removed {folder}" for folder in removed], args.json)
    return 0


def _own_run(name: str, runs: Path) -> Path:
    """The folder of a run; a folder that Mnemo has not written is refused, even if it holds a recipe.json."""
    folder = find_run(name, runs)
    if not ((folder / CHECKPOINTS).is_dir() or (folder / TOKENIZER).is_file() or _has_header(folder)):
        raise MnemoError(f"{folder} is not a run: its {RECIPE} is not Mnemo's")
    return folder


def _has_header(folder: Path) -> bool:
    return run_states.state_of(folder, folder.name).state != "damaged"


def _confirmed(folder: Path) -> bool:
    if not sys.stdin.isatty():
        raise MnemoError(f"{folder} is removed only after a question, and there is no terminal to ask on: add --yes")
    found = run_states.state_of(folder, folder.name)
    question = f"remove {folder} ({_state_words(found)}, {found.num_bytes / 1e6:,.1f} MB)? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _rename(args: Args) -> int:
    if len(args.names) != 2:
        raise MnemoError("name a run and its new name: mnemo runs rename NAME NEW_NAME")
    name, new = args.names
    if not re.fullmatch(RUN_NAME, new):
        raise MnemoError(f"'{new}' cannot be a run's name: use letters, digits, '.', '_' and '-'")
    folder = _own_run(name, args.runs)
    target = folder.with_name(new)
    if target.exists():
        raise MnemoError(f"{target} exists: choose another name, or remove it first")
    with run_folder.locked(folder):
        folder.rename(target)
        atomic.sync(target.parent)
    _report({"renamed": str(folder), "to": str(target)}, [f"renamed {folder} to {target}"], args.json)
    return 0


def _report(record: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    if as_json:
        console.print_json(record)
        return
    for line in lines:
        print(line)
