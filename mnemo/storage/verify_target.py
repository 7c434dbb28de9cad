"""Find what `mnemo verify` is to check, without importing torch."""

from __future__ import annotations

from pathlib import Path

from mnemo.data.corpus import HEADER, data_root
from mnemo.errors import MnemoError, unknown
from mnemo.storage.run_header import RECIPE, RUNS
from mnemo.storage.shipped import shipped_model


def find_target(target: str | Path, runs: Path = RUNS) -> Path:
    """The path of a run, export, corpus or file, given as a path or by its name."""
    shipped = shipped_model(str(target))
    for path in (Path(target), runs / target, data_root() / target, *([shipped] if shipped else [])):
        if path.is_file() or (path / HEADER).is_file() or (path / RECIPE).is_file():
            return path
    if Path(target).is_dir():
        raise MnemoError(f"{target} is not a run, an export or a corpus: it has neither {RECIPE} nor {HEADER}")
    names = [path.parent.name for path in (*runs.glob(f"*/{RECIPE}"), *data_root().glob(f"*/{HEADER}"))]
    raise unknown("run, corpus or file", str(target), [name for name in names if not name.startswith(".")])
