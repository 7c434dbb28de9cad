"""The files next to a page: its figures as SVG, their numbers as CSV."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mnemo.report.figure import Figure
from mnemo.report.files import csv_text, read_json, write_text
from mnemo.report.page_template import FORMAT_VERSION
from mnemo.report.svg import standalone

INDEX = "index.json"


def write_figures(folder: Path, figures: Sequence[Figure], others: Mapping[str, str]) -> None:
    """Write every figure and the other files (name: text); remove figures that only an earlier page had."""
    files = {**figure_files(figures), **others}
    earlier = _written_earlier(folder)
    for name, text in files.items():
        write_text(folder / name, text)
    write_text(folder / INDEX, json.dumps({"format_version": FORMAT_VERSION, "files": sorted(files)}, indent=1) + "\n")
    for name in earlier - set(files):
        (folder / name).unlink(missing_ok=True)


def figure_files(figures: Iterable[Figure]) -> dict[str, str]:
    """Every figure as SVG and its numbers as CSV, by file name."""
    files = {}
    for figure in figures:
        files[f"{figure.slug}.svg"] = standalone(figure.svg)
        files[f"{figure.slug}.csv"] = csv_text(figure.numbers.headers, figure.numbers.rows)
    return files


def _written_earlier(folder: Path) -> set[str]:
    """Figures in the folder that the earlier page's index lists."""
    listed = (read_json(folder / INDEX, []) or {}).get("files")
    there = {path.name for kind in ("svg", "csv") for path in folder.glob(f"*.{kind}")}
    return {name for name in there if name in listed} if isinstance(listed, list) else set()
