"""Our numbers against those of the published implementations, from files of reference values.

A file's metadata name its `format` and give its configuration; every tensor in it must be used or compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mnemo.errors import MnemoError, one_line, unknown
from mnemo.interop.parity import data_iterators, infinite, lamemo, rmt, training_loop, transformer_xl
from mnemo.interop.parity.reference import LM_RMT, Reference, Refused

TOLERANCE = 1e-9

FORMATS: dict[str, Callable[[Reference], None]] = {
    "txl-golden-1": transformer_xl.check_authors,
    "txl-golden-hf-1": transformer_xl.check_hugging_face,
    "txl-golden-train-1": training_loop.check,
    "txl-golden-data-1": data_iterators.check,
    "lamemo-golden-1": lamemo.check,
    "infinite-ltm-golden-1": infinite.check,
    LM_RMT: rmt.check,
}

CONTRADICTIONS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class Parity:
    """What a file's comparison gave."""

    status: Literal["passed", "failed", "refused"]
    errors: dict[str, float] = field(default_factory=dict)
    """Largest error of every set of values."""
    worst: str = ""
    """The value with the largest of them."""
    reason: str = ""
    """Why the file was refused."""

    @property
    def error(self) -> float | None:
        return max(self.errors.values(), default=None)


def check(path: Path, tolerance: float = TOLERANCE) -> Parity:
    """Compare everything in one reference file; an error says why it cannot be read."""
    try:
        return compare(Reference.open(path), tolerance)
    except MnemoError as error:
        raise MnemoError(f"{path}: {error}") from None


def compare(reference: Reference, tolerance: float = TOLERANCE) -> Parity:
    if reference.kind not in FORMATS:
        raise unknown("format", reference.kind, FORMATS)
    try:
        FORMATS[reference.kind](reference)
    except Refused as refusal:
        return Parity(status="refused", reason=str(refusal))
    except CONTRADICTIONS as error:
        # Sizes and types in a file that do not fit each other show in as many ways as there are operations.
        raise MnemoError(f"its values do not fit together ({type(error).__name__}: {one_line(error)})") from error
    reference.refuse_leftovers()
    errors = reference.errors
    if not errors:
        raise MnemoError("the file holds nothing to compare")
    largest = max(errors, key=lambda name: errors[name])
    status = "passed" if errors[largest] <= tolerance else "failed"
    return Parity(status=status, errors=errors, worst=reference.worst[largest])


def find_files(paths: Iterable[Path]) -> list[Path]:
    """The given files, and every safetensors file under the given folders; among several files, no others."""
    found, paths = [], list(paths)
    for path in paths:
        if len(paths) > 1 and path.is_file() and path.suffix != ".safetensors":
            continue
        inside = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
        if not inside:
            raise MnemoError(f"{path}: no safetensors file in this folder")
        found += inside
    return found
