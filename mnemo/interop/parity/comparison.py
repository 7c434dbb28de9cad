"""Compare everything in a file of reference values with our own numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mnemo.errors import MnemoError, one_line, unknown
from mnemo.interop.parity import armt, data_iterators, infinite, lamemo, rmt, training_loop, transformer_xl
from mnemo.interop.parity.reference import LM_RMT, Reference, Refused
from mnemo.interop.parity.reference_files import TOLERANCE

FORMATS: dict[str, Callable[[Reference], None]] = {
    "txl-golden-1": transformer_xl.check_authors,
    "txl-golden-hf-1": transformer_xl.check_hugging_face,
    "txl-golden-train-1": training_loop.check,
    "txl-golden-data-1": data_iterators.check,
    "lamemo-golden-1": lamemo.check,
    "infinite-ltm-golden-1": infinite.check,
    "armt-golden-1": armt.check,
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
