"""Run measurements one after the other on a GPU that is there for a limited time.

    python -m tools.gpu_queue run PLAN.toml --minutes 27 --folder runs/queue [--only JOB ...] [--dry-run]
    python -m tools.gpu_queue watch --folder runs/queue [--seconds 570] [--copy-to FOLDER]

`run` starts the jobs of a plan (format: tools/gpu_queue/plan.py) in order. A job that could not end in time is not
started, and one that still runs when the time is over is asked to stop, as a scheduler does; it then has 75 seconds to
save, which --minutes does not include. If the queue is interrupted, it stops its job in the same way; interrupted again
a second later or more, it stops it at once. State, logs and the small files that jobs keep are in one archive, written
anew every ten seconds. The state names card, driver, versions and commit: without git, the one in COMMIT.

`watch` says what happens, and copies the archive, until the queue ends, a job fails, or its own time is over. Where a
connection lasts for minutes only, start `run` with `setsid nohup ... > LOG 2>&1 < /dev/null &`, and watch again and
again.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import suppress
from pathlib import Path

from mnemo.errors import MnemoError
from mnemo.training.stop_signals import stop_on_signals
from tools.gpu_queue.plan import Plan, read_plan
from tools.gpu_queue.queue import Queue
from tools.gpu_queue.watching import Watcher


def main(argv: list[str]) -> int:
    args = _arguments().parse_args(argv)
    try:
        if args.verb == "run":
            return _run(args)
        Watcher(args.folder, args.copy_to, _say).watch(args.seconds)
        return 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except MnemoError as error:
        print(f"gpu_queue: error: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_queue", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run the jobs of a plan")
    run.add_argument("plan", type=Path)
    run.add_argument("--minutes", type=float, required=True, help="until the running job is asked to stop")
    run.add_argument("--folder", type=Path, required=True, help="new folder for state, logs and archive")
    run.add_argument("--only", nargs="+", default=[], metavar="JOB", help="leave the other jobs out")
    run.add_argument("--dry-run", action="store_true", help="only show the jobs")
    watch = verbs.add_parser("watch", help="show the progress of a queue")
    watch.add_argument("--folder", type=Path, required=True)
    watch.add_argument("--seconds", type=float, default=570.0, help="(default: 570)")
    watch.add_argument("--copy-to", type=Path, help="folder for copies of the archive")
    return parser


def _run(args: argparse.Namespace) -> int:
    plan = read_plan(args.plan)
    plan = plan.only(args.only) if args.only else plan
    if args.dry_run:
        _show(plan, args.minutes)
        return 0
    with stop_on_signals(alone=False) as stop:
        succeeded = Queue(plan, args.folder, seconds=60 * args.minutes, stop=stop, say=_say).run()
    if succeeded:
        return 0
    return 1 if stop.signal is None else 128 + stop.signal


def _show(plan: Plan, minutes: float) -> None:
    print(plan.title)
    before = 0.0
    for job in plan.jobs:
        late = "" if before + job.minutes < minutes else ", may not be started"
        print(f"  {job.name} ({job.minutes:g} min{late})", *job.run, sep="\n      ")
        before += job.minutes
    print(f"{before:g} minutes at most, {minutes:g} are there")


def _say(line: str) -> None:
    """Without a reader, as after a lost connection, the queue goes on: its state has the same."""
    with suppress(OSError):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
