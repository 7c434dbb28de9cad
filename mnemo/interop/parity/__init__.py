"""Compare our numbers with those of published implementations, which are stored in files of reference values.

The metadata of a file give its `format` and its configuration. Every tensor in it must be used or compared.
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
    """The result of the comparison with one file."""

    status: Literal["passed", "failed", "refused"]
    errors: dict[str, float] = field(default_factory=dict)
    """Largest error of each set of values."""
    worst: str = ""
    """Name of the tensor with the largest error."""
    reason: str = ""
    """Why the file was refused."""

    @property
    def error(self) -> float | None:
        return max(self.errors.values(), default=None)


def check(path: Path, tolerance: float = TOLERANCE) -> Parity:
    """Compare everything in one reference file; an error says why it cannot be loaded."""
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
        # Inconsistent sizes or types in a file can make any operation fail.
        raise MnemoError(f"its values do not fit together ({type(error).__name__}: {one_line(error)})") from error
    reference.refuse_leftovers()
    errors = reference.errors
    if not errors:
        raise MnemoError("the file holds nothing to compare")
    largest = max(errors, key=lambda name: errors[name])
    status = "passed" if errors[largest] <= tolerance else "failed"
    return Parity(status=status, errors=errors, worst=reference.worst[largest])


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the given files and all safetensors files in the given folders.

    Among several paths, files of other types are skipped.
    """
    found, paths = [], list(paths)
    for path in paths:
        if len(paths) > 1 and path.is_file() and path.suffix != ".safetensors":
            continue
        inside = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
        if not inside:
            raise MnemoError(f"{path}: no safetensors file in this folder")
        found += inside
    return found
