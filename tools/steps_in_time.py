"""Print how many steps fit into a time, at the speed of a short run.

    python -m tools.steps_in_time RUN SECONDS [MOST]

With MOST, no more steps than these.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from mnemo.errors import MnemoError
from mnemo.storage.run_header import find_run, load_header
from mnemo.training.training_log import TIMING, settled_speed


def steps_in_time(run: Path, seconds: float) -> int:
    train = load_header(run).recipe.train
    return math.floor(seconds * settled_speed(run / TIMING) / (train.batch * train.segment))


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3):
        print(__doc__)
        return 2
    try:
        steps = steps_in_time(find_run(argv[0]), float(argv[1]))
        print(min([steps, *map(int, argv[2:])]))
    except (MnemoError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
