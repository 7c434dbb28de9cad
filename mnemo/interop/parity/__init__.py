"""Compare our numbers with those of published implementations, which are stored in files of reference values.

The metadata of a file give its `format` and its configuration. Every tensor in it must be used or compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.interop.parity.reference_files import TOLERANCE, find_files
from mnemo.lazy import lazy_names

if TYPE_CHECKING:
    from mnemo.interop.parity.comparison import Parity, check, compare

__all__ = [
    "TOLERANCE",
    "Parity",
    "check",
    "compare",
    "find_files",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.interop.parity.comparison": (
            "Parity",
            "check",
            "compare",
        ),
    },
)
