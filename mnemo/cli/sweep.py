"""Compare memories: train one recipe with several memories and seeds on one text, and write a report with verdicts.

    mnemo sweep mybook.txt --memory none,xl,lamemo,rmt --seeds 3     on your own text
    mnemo sweep PRESET --memory none,xl [--train.steps 500]          a preset, or a prepared corpus
    mnemo sweep mybook.txt --memory none,xl --dry-run                list the runs and estimate the time
    mnemo sweep mybook.txt --help                                    list every option

All memories have the same recipe, text and seeds. The report (runs/sweep-NAME/report.html) has the learning curves, a
table of scores, and for every memory whether it is better than none: yes, not at this budget, or open, by the rule of
docs/experiments.md. Fewer than three seeds give a preliminary answer.

After an interruption, repeat the command: finished runs are kept, and an interrupted one continues from its checkpoint.
More memories or seeds can be added in the same way; another recipe needs another --name. Every run is a folder:
`mnemo generate runs/sweep-NAME/cells/xl-seed1111/run`. Values of the recipe are overridden as in `mnemo train`, also by
--config FILE.

--import FILE executes a Python file that defines a memory of your own, which --memory can name (docs/adding-memory.md).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mnemo.cli import overrides
from mnemo.cli.arguments import import_options
from mnemo.cli.run_arguments import require_corpus
from mnemo.cli.train_start import find_start, take_given
from mnemo.errors import MnemoError
from mnemo.recipes.memories import memory_name
from mnemo.recipes.recipe import Recipe
from mnemo.storage.run_header import RUN_NAME, RUNS

MOST_SEEDS = 100
DEFAULT = "none,xl,lamemo,rmt"


@dataclass(frozen=True, kw_only=True)
class Args:
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    memory: str = DEFAULT
    """Memories to compare, separated by commas: none, xl, long-range, lamemo, rmt, armt, mt, compressive, infinite."""
    seeds: int = 3
    """Number of seeds; the first is --train.seed."""
    name: str | None = None
    """Name of the sweep; if unset, that of the text or preset."""
    runs: Path = RUNS
    """Folder of runs; the sweep is in its folder sweep-NAME."""
    data: str | None = None
    """Your own text for a preset: a file, a folder, - for a pipe; or a prepared corpus."""
    encoding: str | None = None
    """Encoding of text files that are not UTF-8, such as latin-1; skip: leave them out."""
    binary: bool = False
    """Take the bytes of all files as they are, also of files that are not text."""
    config: Path | None = None
    """Values of the recipe in a TOML, YAML or JSON file; flags take precedence."""
    dry_run: bool = False
    """Train nothing: list the runs, and estimate their time."""
    json: bool = False
    """Print JSON."""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: mnemo sweep FILE|PRESET [options]\n\n" + (__doc__ or "").strip())
        return 0
    given, rest = take_given(argv)
    if given.source is not None:
        raise MnemoError("a sweep starts from new weights: --from is an option of mnemo train")
    memories = _memories(DEFAULT if given.memory is None else given.memory)
    with ExitStack() as stack:
        start = find_start(given._replace(memory=None), stack)
        default = Args(
            recipe=start.recipe,
            memory=",".join(memories),
            data=given.data,
            encoding=given.encoding,
            binary=given.binary,
            config=None if given.config is None else given.config.path,
        )
        prog = "mnemo sweep" if given.name is None else f"mnemo sweep {given.name}"
        args = overrides.parse(Args, default, rest, prog=prog, description=start.about)
        _check(args)
        if start.text is None:
            require_corpus(args.recipe.data.corpus)
        from mnemo.cli.sweep_run import sweep

        return sweep(args, memories, args.name or start.name, start.text, _command(argv))


def _command(argv: Sequence[str]) -> str:
    """What measures the same again."""
    return shlex.join(["mnemo", "sweep", *(word for word in argv if word != "--json"), *import_options()])


def _memories(words: str) -> list[str]:
    """The names of the memories, each once."""
    names = list(dict.fromkeys(memory_name(word) for word in words.split(",") if word.strip()))
    if len(names) < 2:
        raise MnemoError("name two memories or more, separated by commas: --memory none,xl")
    return names


def _check(args: Args) -> None:
    if not 1 <= args.seeds <= MOST_SEEDS:
        raise MnemoError(f"--seeds {args.seeds} must be between 1 and {MOST_SEEDS}")
    if args.name is not None and not re.fullmatch(RUN_NAME, args.name):
        raise MnemoError(f"'{args.name}' cannot be a sweep's name: use letters, digits, '.', '_' and '-'")
    if args.recipe.data.task is not None:
        raise MnemoError("a sweep compares memories on text, and this preset is a task: mnemo train PRESET trains it")
