"""Download files with progress, resumption of interrupted downloads, and checksums."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from mnemo.data.known_corpora import Download
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.progress import ShowProgress, silent

TIMEOUT_SECONDS = 60
ATTEMPTS = 4
_BLOCK = 1 << 18
_BROKEN = (ConnectionError, TimeoutError, EOFError, http.client.HTTPException)


def fetch(download: Download, folder: Path, show: ShowProgress = silent) -> Path:
    """Download a file and return its path; a file with the right checksum is not downloaded again."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / download.file
    if target.exists() and (download.checksum is None or checksum_of(target, download.checksum) == download.checksum):
        return target
    part = target.with_name(target.name + ".part")
    _fetch_any(download, part, show)
    if download.checksum is not None and (found := checksum_of(part, download.checksum)) != download.checksum:
        part.unlink()
        raise MnemoError(
            f"the download of {download.file} has checksum {found}, expected {download.checksum}; "
            "it was removed, try again"
        )
    atomic.rename_file(part, target)
    return target


def checksum_of(path: Path, like: str) -> str:
    """Return the checksum of a file, by the algorithm of `like` (`md5:...`)."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _fetch_any(download: Download, part: Path, show: ShowProgress) -> None:
    """Try every address; broken connections are resumed a few times."""
    problems = []
    for url in download.urls:
        for _ in range(ATTEMPTS):
            try:
                return _fetch(url, part, show)
            except urllib.error.HTTPError as error:
                error.close()
                problems.append(f"{url}: {error.code} {error.reason}")
                break
            except urllib.error.URLError as error:
                problems.append(f"{url}: {error.reason}")
                break
            except _BROKEN as error:
                problems.append(f"{url}: {error}")
    raise MnemoError(f"cannot download {download.file} ({problems[-1]}); download it by hand, then use --from PATH")


def _fetch(url: str, part: Path, show: ShowProgress) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "mnemo"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not done:
            raise
        error.close()
        if _full_size(error) == done:
            return
        part.unlink()
        raise EOFError("the part downloaded earlier is longer than the file") from None
    with response:
        resumes = (response.headers.get("Content-Range") or "").startswith(f"bytes {done}-")
        _save(response, part, done if resumes else 0, show)


def _full_size(response: Any) -> int | None:
    """Return the size of the file from `Content-Range: bytes .../SIZE`."""
    size = (response.headers.get("Content-Range") or "").rpartition("/")[2]
    return int(size) if size.isdigit() else None


def _save(response: Any, part: Path, done: int, show: ShowProgress) -> None:
    length = response.headers.get("Content-Length")
    total = done + int(length) if length and length.isdigit() else None
    name = part.name.removesuffix(".part")
    with show(f"downloading {name}", total, unit="B") as bar, part.open("ab" if done else "wb") as file:
        bar.advance(done)
        while block := response.read(_BLOCK):
            file.write(block)
            done += len(block)
            bar.advance(len(block))
    atomic.sync(part)
    if total is not None and done != total:
        raise EOFError(f"the connection ended after {done:,} of {total:,} bytes")
