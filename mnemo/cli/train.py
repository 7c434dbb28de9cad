"""Train on your own text, or train a preset; resume a run, or start from its weights.

    mnemo train mybook.txt [overrides]              train on a text file, a folder of them, or - (a pipe)
    mnemo train mybook.txt --memory rmt             the same with another paper's memory
    mnemo train --list [WORD ...]                   list the presets in groups, or those that match (enwik8, rmt)
    mnemo train PRESET [--name NAME] [overrides]    start a run in runs/NAME
    mnemo train PRESET --help                       list every field that can be overridden
    mnemo train --resume RUN                        continue exactly after the last checkpoint of a run
    mnemo train --resume RUN [overrides]            the same with changes from there on, for example more steps
    mnemo train PRESET --from RUN [overrides]       start a new run from RUN's best weights (fine-tuning);
                                                    without PRESET, with RUN's own recipe
    mnemo train PRESET --data mybook.txt            a preset, or with --from a run, on your own text
    mnemo train [PRESET] --config my.toml           values of the recipe in a TOML, YAML or JSON file; flags win
    mnemo train PRESET --dry-run                    print the whole recipe and its size, and train nothing

A text becomes a corpus that is named after it and kept: a second run uses it again. The recipe for it is chosen by its
length and by the machine: minutes on a CPU, a larger model on a GPU.

On resume, training fields that do not belong to the saved state can change, and the run records when; --rates
(continue, rewarm, recompute) selects the course of the learning rate after a change of steps or schedule
(docs/resuming.md).

Overrides: --train.steps 100 --model.num-layers 6 --model.memory.long.length 256 --model.positions rotary

Memory of another paper: --memory rmt or --model.memory rmt (none, xl, long-range, lamemo, rmt, armt, mt, compressive,
infinite). The name of a memory is also a preset: `mnemo train rmt` trains tiny-bytes-rmt. Validation and `mnemo eval`
use the memory length of training, unless the preset's paper tests at another length and you leave its memory as it is,
or you set --test.memory.

RUN is a folder or a name in the folder of runs (--runs, default ./runs). Ctrl-C, SIGTERM, SIGQUIT, SIGUSR1 (the notice
of a scheduler) and SIGHUP (a closed terminal) finish the step, save, and print the command that resumes the run; the
exit code is 128 + the signal. A second Ctrl-C, SIGTERM or SIGQUIT stops at once. After a loss that is not finite or has
risen for long, the run goes back to a healthy checkpoint; after ten rollbacks it ends with exit code 1
(docs/divergence.md). --json prints the result as JSON.

Several GPUs or machines: torchrun --nproc-per-node 8 -m mnemo train PRESET --name NAME [overrides]. The rows of the
batch are divided between processes; --resume works with any number of them. With --max-restarts, torchrun restarts a
job that has failed, which then resumes from its last checkpoint.

--import FILE executes a Python file that defines a memory of your own, which --memory can name (docs/adding-memory.md).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mnemo.cli import EXIT_CHECK_FAILED, EXIT_USAGE, overrides
from mnemo.cli.arguments import import_options, refuse_unknown
from mnemo.cli.console import print_json
from mnemo.cli.run_arguments import BITS_PER_SYMBOL, format_loss, require_corpus
from mnemo.cli.train_start import Start, find_start, take_given
from mnemo.cli.watching import watching
from mnemo.config import to_json
from mnemo.errors import CheckFailed, MnemoError
from mnemo.recipes.presets import format_presets
from mnemo.recipes.recipe import Recipe
from mnemo.start import starting
from mnemo.storage.overrides import Rates, differences
from mnemo.storage.run_header import RECIPE, RUN_NAME, RUNS, find_run, load_header
from mnemo.training import Monitor, Unwatched
from mnemo.training.changeable_fields import refuse
from mnemo.training.launch import RankError, is_main, may_start_again, starts_again
from mnemo.training.metrics_log import Service, open_tracker
from mnemo.units import bits

if TYPE_CHECKING:
    from mnemo.data.own_text import OwnText
    from mnemo.training import Outcome
    from mnemo.training.processes import AnyWorld

RESUME_HELP = """Resume a run, with changes of its recipe from here on.

Without changes the run continues exactly. The run keeps changes and records the step at which they began. A field that
cannot change, such as the model, is refused with the reason."""


@dataclass(frozen=True, kw_only=True)
class NewRun:
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    name: str | None = None
    """Name of the run; if unset, the name of the preset or of the text, and a number."""
    runs: Path = RUNS
    """Folder of runs."""
    from_: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """Start from the best weights of this run."""
    data: str | None = None
    """Your own text: a file, a folder, - for a pipe; or a prepared corpus."""
    memory: str | None = None
    """Another paper's memory in place of the recipe's: none, xl, long-range, lamemo, rmt, armt, mt, compressive,
    infinite. --model.memory does the same."""
    encoding: str | None = None
    """Encoding of text files that are not UTF-8, such as latin-1; skip: leave them out."""
    binary: bool = False
    """Take the bytes of all files as they are, also of files that are not text."""
    config: Path | None = None
    """Values of the recipe in a TOML, YAML or JSON file, or another run's recipe.json; flags take precedence."""
    dry_run: bool = False
    """Train nothing: print the whole recipe as TOML that --config accepts, with its size, tokens and memory."""
    track: Service = "none"
    """Also send metrics to a tracking service (in a checkout of Mnemo: pip install '.[track]')."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class Resume:
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    resume: str
    """Run to resume."""
    rates: Rates = "auto"
    """Learning rate after a change of steps or schedule. continue: decay from the present rate; rewarm: rise to the
    peak again, then decay; recompute: as if the new values had applied from the first step; auto: continue, or
    rewarm if the rate is at its minimum already."""
    runs: Path = RUNS
    """Folder of runs."""
    track: Service = "none"
    """Also send metrics to a tracking service."""
    json: bool = False
    """Print JSON."""


def main(argv: list[str]) -> int:
    try:
        with starting():
            return _main(argv)
    except RankError:
        raise
    except MnemoError as error:
        if is_main():
            raise
        return EXIT_CHECK_FAILED if isinstance(error, CheckFailed) else EXIT_USAGE  # the main process prints the reason


def _main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: mnemo train PRESET|FILE [options]\n\n" + (__doc__ or "").strip())
        return 0
    if "--list" in argv:
        print(format_presets(_filter(argv)))
        return 0
    if any(word.partition("=")[0] == "--resume" for word in argv):
        return _resume(argv)
    return _start(argv)


def _filter(argv: list[str]) -> list[str]:
    words = [word for word in argv if word != "--list"]
    refuse_unknown([word for word in words if word.startswith("-")], ["--list"])
    return words


def _resume(argv: list[str]) -> int:
    name, _ = overrides.take("--resume", argv)
    runs, _ = overrides.take("--runs", argv)
    if not name or name.startswith("-"):
        raise MnemoError("--resume needs the name or folder of a run")
    folder = find_run(name, Path(runs or RUNS))
    recipe = load_header(folder).recipe
    default = Resume(recipe=recipe, resume=name)
    args = overrides.parse(Resume, default, argv, prog=f"mnemo train --resume {name}", description=RESUME_HELP)
    changes = {field: new for field, (_, new) in differences(recipe, args.recipe).items()}
    for field in changes:
        refuse(field)
    _require_corpus(recipe)
    config = args.recipe.train
    from mnemo.training.processes import joined

    with joined(config.device, config.timeout) as world, _watching() as watcher:
        return _run(folder, watcher, args, world, changes, args.rates)


def _start(argv: list[str]) -> int:
    given, rest = take_given(argv)
    with ExitStack() as stack:
        start = find_start(given, stack)
        default = NewRun(
            recipe=start.recipe,
            data=given.data,
            memory=given.memory,
            encoding=given.encoding,
            binary=given.binary,
            config=None if given.config is None else given.config.path,
        )
        prog = "mnemo train" if given.name is None else f"mnemo train {given.name}"
        args = overrides.parse(NewRun, default, rest, prog=prog, description=start.about)
        return _train_new(args, start)


def _train_new(args: NewRun, start: Start) -> int:
    if args.name is None and may_start_again():
        raise MnemoError("torchrun --max-restarts needs --name, so that a restarted job finds its run")
    name = args.name or start.name
    if not re.fullmatch(RUN_NAME, name):
        raise MnemoError(f"'{name}' cannot be a run's name: use letters, digits, '.', '_' and '-'")
    source = None if args.from_ is None else find_run(args.from_, args.runs)
    text = start.text if start.text is not None and args.recipe.data.corpus == start.text.corpus_name else None
    if args.dry_run:
        return _dry_run(args, text)
    if text is None:
        _require_corpus(args.recipe)
    config = args.recipe.train
    from mnemo.training import create_run
    from mnemo.training.precision_hint import give_precision_hint
    from mnemo.training.processes import joined

    with joined(config.device, config.timeout) as world, _watching() as watcher:

        def create() -> str:
            with _reserved(args.runs, name) if args.name is None else nullcontext(args.runs / name) as folder:
                if not (starts_again() and (folder / RECIPE).exists()):
                    if text is not None:
                        text.prepare(watcher.show)
                    create_run(args.recipe, folder, preset=start.preset, source=source, monitor=watcher)
                    give_precision_hint(args.recipe, watcher)
            return str(folder)

        return _run(Path(world.main(create)), watcher, args, world)


def _dry_run(args: NewRun, text: OwnText | None) -> int:
    from mnemo.cli import dry_run

    size = None if text is None else dry_run.TextSize(text.num_tokens["train"], 256, "byte")
    dry_run.show(args.recipe, size, None if text is None else text.files.source, args.json)
    return 0


def _require_corpus(recipe: Recipe) -> None:
    if recipe.data.task is None:
        require_corpus(recipe.data.corpus)


def _watching() -> AbstractContextManager[Monitor]:
    return watching() if is_main() else nullcontext(Unwatched())


@contextmanager
def _reserved(runs: Path, base: str) -> Iterator[Path]:
    """An empty folder under the first free name, which no other process takes; removed if it stays empty."""
    first = not runs.exists()
    runs.mkdir(parents=True, exist_ok=True)
    folder = next(folder for folder in (runs / f"{base}-{i}" for i in count(1)) if _try_to_make(folder))
    try:
        yield folder
    finally:
        with suppress(OSError):  # not empty
            folder.rmdir()
            if first:
                runs.rmdir()


def _try_to_make(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _run(
    folder: Path,
    watcher: Monitor,
    args: NewRun | Resume,
    world: AnyWorld,
    changes: dict[str, Any] | None = None,
    rates: Rates = "auto",
) -> int:
    from mnemo.training import train

    header = load_header(folder)
    unit = str(header.corpus.get("unit"))
    tracker = open_tracker(args.track if is_main() else "none", folder, to_json(header.recipe))
    outcome = train(folder, monitor=watcher, tracker=tracker, world=world, overrides=changes, rates=rates)
    if outcome.signal is not None and not outcome.finished:
        watcher.note(
            f"stopped and saved after step {outcome.step:,}; resume with: mnemo train --resume {folder}{_imports()}"
        )
        return 128 + outcome.signal
    if not is_main():
        return 0
    if outcome.early_end is not None:
        watcher.note(outcome.early_end)
    if args.json:
        print_json(_summary(outcome, unit))
        return 0
    if outcome.best is not None:
        step, loss = outcome.best
        print(f"best: {format_loss(loss, unit)} on valid, after step {step:,} of {outcome.step:,}")
    print(_next_commands(folder, header.preset))
    return 0


def _imports() -> str:
    return "".join(f" {shlex.quote(word)}" for word in import_options())


def _next_commands(folder: Path, preset: str | None) -> str:
    if preset is not None:
        return f"next: mnemo eval {folder}{_imports()}"
    run = "" if folder.parent == RUNS else f" {folder}"  # without a name, verbs use the last run in ./runs
    run += _imports()
    return f"next: mnemo chat{run}, mnemo generate{run}, mnemo analyse{run}, mnemo eval{run}"


def _summary(outcome: Outcome, unit: str) -> dict[str, Any]:
    best = None if outcome.best is None else outcome.best._asdict()
    if best is not None and unit in BITS_PER_SYMBOL:
        best["bpc"] = bits(best["loss"])
    return {"run": str(outcome.folder), "step": outcome.step, "best": best}
