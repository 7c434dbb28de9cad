"""A hash of this package's sources, which marks what was derived from them in caches."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def sources_hash() -> str:
    """A hash of the names and contents of all files of `mnemo.ops`."""
    digest, folder = hashlib.sha256(), Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
