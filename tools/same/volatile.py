"""What may differ between two runs of the same code, each with its reason. Everything else is compared."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class Volatile(NamedTuple):
    file: str
    """Pattern of paths inside a case's folder."""
    field: str
    """Pattern of field names inside the file; `*` leaves out the whole file."""
    reason: str


VOLATILE = (
    Volatile("*.stderr", "*", "progress, warnings and error messages, whose words may change"),
    Volatile("outputs/*-convert.json", "notes*", "remarks for the user, whose words may change"),
    Volatile("runs/*/timing.jsonl", "*", "seconds and tokens per second"),
    Volatile("runs/*/checkpoints/*/progress.json", "seconds", "time spent in training"),
    Volatile("runs/*/checkpoints/*/progress.json", "timing_bytes", "size of timing.jsonl"),
    Volatile("runs/*/checkpoints/*/progress.json", "environment*", "version of torch and number of threads"),
    Volatile("*.json", "*seconds", "time of an evaluation"),
    Volatile("*.json", "run_id", "a random name of a run, which no number depends on"),
    Volatile("*.json", "checksum", "of a JSON file, whose times and run_id differ"),
    Volatile("runs/*/checkpoints/*/progress.json", "logs.timing.jsonl", "checksum of seconds"),
    Volatile("outputs/*-prepare.json", "path", "absolute path of the case's folder"),
    Volatile("*recipe.json", "source.run", "absolute path of the case's folder"),
    Volatile("*.json", "mnemo_version", "a release changes it"),
    Volatile("*.json", "*.mnemo_version", "a release changes it"),
    Volatile("runs/*/lock", "*", "an empty file that keeps two processes apart"),
    Volatile("*.svg", "*", "pictures, made from numbers that are compared"),
    Volatile("*.png", "*", "pictures, made from numbers that are compared"),
    Volatile("*.html", "*", "pages, made from numbers that are compared"),
)


def is_volatile_file(path: str) -> bool:
    return any(each.field == "*" and fnmatchcase(path, each.file) for each in VOLATILE)


def is_volatile_field(path: str, field: str) -> bool:
    return any(fnmatchcase(path, each.file) and fnmatchcase(field, each.field) for each in VOLATILE)
