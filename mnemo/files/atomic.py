"""Write files and folders atomically: under its final name, a file or folder is complete or absent.

Everything is written under a temporary name in the same folder, flushed to the disk and then renamed; then the folder,
which holds the new name, is flushed as well. So a power failure keeps what was written before a function here returned.
A killed process leaves only the temporary name, which starts with `.tmp-`; the next write to the same target removes it
once it is a day old.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = ".tmp-"
STALE_SECONDS = 24 * 3600


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to; it replaces `target` if the block succeeds, and is removed otherwise."""
    _remove_stale(target)
    partial = _temporary(target)
    partial.touch(exist_ok=False)
    mode = partial.stat().st_mode & 0o777
    try:
        yield partial
        partial.chmod(mode)  # libraries that create the file anew give it other permissions
        sync(partial)
        rename_file(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def rename_file(partial: Path, target: Path) -> None:
    """Give a complete file its final name; an earlier file of that name is replaced."""
    partial.replace(target)
    sync(target.parent)


@contextmanager
def new_folder(target: Path, *, replace: bool = False, keep: bool = False) -> Iterator[Path]:
    """Yield a folder to fill; it is renamed to `target` if the block succeeds, and removed otherwise.

    `replace`: take the place of an existing folder. Without it, only an empty folder may exist there.
    `keep`: if another process has filled the same folder in the meantime, that one stays, and this one is removed.
    """
    partial = begin_folder(target)
    try:
        yield partial
        try:
            commit_folder(partial, target, replace=replace)
        except OSError as error:
            if not (keep and error.errno in (errno.ENOTEMPTY, errno.EEXIST)):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def begin_folder(target: Path) -> Path:
    """Create the temporary folder whose content `commit_folder` puts at `target`."""
    make_folder(target.parent)
    _remove_stale(target)
    partial = _temporary(target)
    partial.mkdir()
    return partial


def make_folder(path: Path) -> None:
    """Create a folder and its parents where they are missing, and flush their names to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync(folder.parent)


def commit_folder(partial: Path, target: Path, *, replace: bool = False) -> None:
    """Flush every file of a temporary folder to the disk and give the folder its final name."""
    for path in (*partial.rglob("*"), partial):
        sync(path)
    if replace:
        _swap_in(partial, target)
    else:
        partial.rename(target)
    sync(target.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder. It is renamed first, so that an interruption leaves no incomplete folder under its name."""
    aside = _move_aside(path)
    try:
        sync(path.parent)  # else a power failure could keep the name and lose some of the files
    except OSError:
        with suppress(FileNotFoundError):
            aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap_in(partial: Path, target: Path) -> None:
    """Rename, and try again if another process has created the target in the meantime."""
    for last in (False, False, True):
        earlier = _move_aside(target)
        try:
            partial.rename(target)
            sync(target.parent)  # before the earlier folder is removed
            break
        except OSError:
            if last:
                raise
        finally:
            shutil.rmtree(earlier, ignore_errors=True)


def _move_aside(path: Path) -> Path:
    """Rename a folder, if it exists, to a temporary name, and return that name."""
    aside = _temporary(path)
    with suppress(FileNotFoundError):
        path.rename(aside)
    return aside


def _temporary(target: Path) -> Path:
    return target.with_name(f"{PREFIX}{target.name}.{secrets.token_hex(4)}")


def _remove_stale(target: Path) -> None:
    """Remove temporary files and folders that killed processes have left."""
    for path in target.parent.glob(f"{PREFIX}{glob.escape(target.name)}.*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
