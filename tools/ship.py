"""Make a model that comes with the package from a run: weights in bfloat16, and a card with the given facts.

    python -m tools.ship RUN NAME FACTS.json      writes mnemo/shipped/NAME

FACTS.json is an object with the texts `title`, `data`, `licence`, `training` and `score`; the checksum is added, and
the losses of the training for the curves.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from mnemo.files.json_file import load_json, write_json
from mnemo.storage.run_folder import export_run
from mnemo.storage.run_header import METRICS, find_run
from mnemo.storage.shipped import CARD, SHIPPED, load_card, weights_digest


def ship(run: str, name: str, facts: Path) -> Path:
    source, folder = find_run(run), SHIPPED / name
    export_run(source, folder, half=True)
    shutil.copyfile(source / METRICS, folder / METRICS)
    write_json(folder / CARD, load_json(facts) | {"sha256": weights_digest(folder)})
    load_card(folder)
    return folder


if __name__ == "__main__":
    run, name, facts = sys.argv[1:]
    print(ship(run, name, Path(facts)))
