"""Small files of jobs in one archive, which is always complete: a machine may be taken away at any moment."""

from __future__ import annotations

import glob
import io
import os
import tarfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from mnemo.files import atomic

STATE, COLLECTED = "state.json", "collected.tar.gz"
MOST_BYTES = 8 << 20
"""Of a file; larger ones, such as checkpoints, are left out."""
TAIL_BYTES = 256 << 10
"""Of a log: its end."""


def collect(target: Path, own: Sequence[Path], patterns: Iterable[str]) -> list[str]:
    """Write the archive; return what is left out. `own`: the state of the queue, and logs."""
    found = {Path(name) for pattern in patterns for name in glob.glob(os.path.expandvars(pattern), recursive=True)}
    left_out = []
    with atomic.new_file(target) as partial, tarfile.open(partial, "w:gz", compresslevel=1) as archive:
        for path in own:
            if path.exists():
                _add(archive, path.name, path.read_bytes()[-TAIL_BYTES:])
        for path in sorted(found):
            with suppress(FileNotFoundError, IsADirectoryError):  # a job may replace its files at any moment
                if (size := path.stat().st_size) > MOST_BYTES:
                    left_out.append(f"{path} ({size / 2**20:.0f} MiB)")
                else:
                    _add(archive, f"files/{path.as_posix().lstrip('/')}", path.read_bytes())
    return left_out


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
