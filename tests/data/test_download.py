from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mnemo.data import download
from mnemo.data.download import fetch
from mnemo.data.known_corpora import Download
from mnemo.errors import MnemoError

CONTENT = bytes(range(256)) * 4000
CHECKSUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """A web server under test's control."""

    address: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    break_after: list[int] = field(default_factory=list)
    """Bytes to send before breaking the connection, one entry for each of the next answers."""
    asked: list[str | None] = field(default_factory=list)
    """The Range header of every request."""

    def download(self, checksum: str | None = CHECKSUM, path: str = "file.bin") -> Download:
        return Download((f"{self.address}/{path}",), "file.bin", checksum)


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.asked.append(asked)
            if self.path != "/file.bin":
                self.send_error(404)
                return
            begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.ranges else 0
            if begin >= len(state.content) and begin:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(state.content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(state.content) - 1}/{len(state.content)}")
            self.send_header("Content-Length", str(len(state.content) - begin))
            self.end_headers()
            body = state.content[begin:]
            self.wfile.write(body[: state.break_after.pop(0)] if state.break_after else body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_fetched_once(site: Site, tmp_path: Path) -> None:
    path = fetch(site.download(), tmp_path / "new")
    assert path.read_bytes() == CONTENT and site.asked == [None]
    assert fetch(site.download(), tmp_path / "new") == path
    assert site.asked == [None] and list((tmp_path / "new").iterdir()) == [path]


def test_a_damaged_file_is_fetched_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"old")
    assert fetch(site.download(), tmp_path).read_bytes() == CONTENT


def test_a_part_from_earlier_is_continued(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(site.download(), tmp_path).read_bytes() == CONTENT
    assert site.asked == ["bytes=1000-"]


def test_broken_connections_are_continued(site: Site, tmp_path: Path) -> None:
    site.break_after = [5000, 300_000]
    assert fetch(site.download(), tmp_path).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=5000-", "bytes=305000-"]


def test_a_server_without_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    assert fetch(site.download(), tmp_path).read_bytes() == CONTENT


def test_a_complete_part_needs_no_more_bytes(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(site.download(), tmp_path).read_bytes() == CONTENT


def test_a_part_longer_than_the_file_starts_over(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert fetch(site.download(), tmp_path).read_bytes() == CONTENT


def test_a_server_that_keeps_breaking_is_given_up(site: Site, tmp_path: Path) -> None:
    site.break_after = [10] * download.ATTEMPTS
    with pytest.raises(MnemoError, match="connection ended after 40 of 1,024,000 bytes.*use --from"):
        fetch(site.download(), tmp_path)
    assert (tmp_path / "file.bin.part").stat().st_size == 40  # kept for the next time
    assert fetch(site.download(), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_one_clear_error_and_leaves_nothing(site: Site, tmp_path: Path) -> None:
    site.content = CONTENT[:-1] + b"?"
    with pytest.raises(MnemoError, match="checksum sha256:.*expected " + CHECKSUM):
        fetch(site.download(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_next_address_is_tried(site: Site, tmp_path: Path) -> None:
    urls = (f"{site.address}/gone.bin", "http://127.0.0.1:9/refused.bin", f"{site.address}/file.bin")
    assert fetch(Download(urls, "file.bin", CHECKSUM), tmp_path).read_bytes() == CONTENT


def test_no_address_works(site: Site, tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match="cannot download file.bin.*404.*use --from"):
        fetch(site.download(path="gone.bin"), tmp_path)


def test_progress_counts_every_byte(site: Site, tmp_path: Path) -> None:
    seen: list[float] = []

    class Bar:
        def advance(self, count: float = 1, note: str = "") -> None:
            seen.append(count)

    class Show:
        def __init__(self, label: str, total: float | None = None, *, unit: str = "") -> None:
            assert (label, total, unit) == ("downloading file.bin", len(CONTENT), "B")

        def __enter__(self) -> Bar:
            return Bar()

        def __exit__(self, *error: object) -> None:
            pass

    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    fetch(site.download(), tmp_path, Show)
    assert seen[0] == 1000 and sum(seen) == len(CONTENT)


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_checksums(algorithm: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    expected = f"{algorithm}:{hashlib.new(algorithm, b'text').hexdigest()}"
    assert download.checksum_of(tmp_path / "a", f"{algorithm}:0") == expected
