"""What has grown in a run, checkpoint by checkpoint: the table of `mnemo analyse RUN --growth`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from mnemo.analysis.growth import Sizes, sizes
from mnemo.cli import console, opened_run
from mnemo.cli.analyse import Args
from mnemo.cli.analyse_text import load_text
from mnemo.cli.run_arguments import made_folder
from mnemo.files.json_file import without_nan
from mnemo.report.growth_table import HEADERS, growth_rows
from mnemo.session.text_run import with_tokenizer
from mnemo.storage.checkpoint import checkpoint_steps
from mnemo.storage.run_folder import LoadedRun, open_run


def analyse_growth(args: Args) -> int:
    if args.out is not None:
        made_folder(args.out)
    folder = Path(args.run or "")
    kept: list[Any] = checkpoint_steps(folder) or [args.which]
    found: dict[int, Sizes] = {}
    run, ids = None, None
    with console.progress("measuring checkpoints", len(kept), unit="checkpoints") as bar:
        for which in kept:
            run = open_run(folder, which, args.device)
            ids = _ids(run, args) if ids is None else ids
            segment = args.segment or run.recipe.train.segment
            found[run.step] = sizes(run.model, ids, segment=segment, memory=args.memory_length)
            bar.advance(1)
    assert run is not None
    steps = [{"step": step, **each.to_json()} for step, each in found.items()]
    content = without_nan({"kind": "growth", "steps": steps})
    place = opened_run.result_folder(run) if args.out is None else args.out
    saved = None if place is None else str(opened_run.save_result(place, "growth", run, content))
    if args.json:
        console.print_json(content | {"saved": saved})
        return 0
    console.table(growth_rows(found), HEADERS)
    if saved is not None:
        print(saved)
    return 0


def _ids(run: LoadedRun, args: Args) -> Tensor:
    ids = load_text(with_tokenizer(run), args.text)[1]
    return ids[: args.limit] if args.limit else ids
