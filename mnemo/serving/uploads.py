"""Bodies of requests that are too large for memory: they go to a file of the server's choosing first.

A text is complete and known to be text before the model reads any of it, so that a wrong file changes nothing, and the
answer can say how much of the text was read: clients take no answer before they have sent everything.
"""

from __future__ import annotations

import asyncio
import codecs
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import Request

from mnemo.data import text_parts
from mnemo.data.text_files import kind_of_text
from mnemo.data.text_parts import Part
from mnemo.errors import MnemoError, shorten
from mnemo.serving.errors import ApiError, too_large
from mnemo.serving.session_errors import storage_errors

BUFFER = 1 << 20
"""Bytes that are written at a time."""


@asynccontextmanager
async def uploaded(
    request: Request, folder: Path, *, limit: int, seconds: float, encoding: str = "utf-8"
) -> AsyncIterator[Path]:
    """The body in a file, until the block ends. Text in another encoding is converted to UTF-8.

    `seconds`: how long the client may send nothing.
    """
    path = folder / secrets.token_hex(8)
    try:
        await _receive(request, path, limit, seconds, _converter(encoding))
        yield path
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def written(data: bytes, folder: Path) -> AsyncIterator[Path]:
    """Data in a file, until the block ends."""
    path = folder / secrets.token_hex(8)
    try:
        with storage_errors():
            await asyncio.to_thread(path.write_bytes, data)
        yield path
    finally:
        path.unlink(missing_ok=True)


async def _receive(request: Request, path: Path, limit: int, seconds: float, convert: _Converter) -> None:
    size, buffer = 0, bytearray()
    with storage_errors(), path.open("xb", buffering=0) as file:
        async for part in _parts(request, seconds):
            size += len(part)
            if size > limit:
                raise too_large(limit)
            buffer += convert.feed(part)
            if len(buffer) >= BUFFER:
                await asyncio.to_thread(file.write, bytes(buffer))
                buffer.clear()
        await asyncio.to_thread(file.write, bytes(buffer) + convert.finish())


async def _parts(request: Request, seconds: float) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(seconds):
                part = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(408, f"nothing was received for {seconds:g} seconds", code="timeout") from None
        yield part


class _Converter:
    """Converts text to UTF-8, piece by piece; UTF-8 itself passes unchanged and is checked later."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        is_utf8 = codecs.lookup(encoding).name == "utf-8"
        self.decoder = None if is_utf8 else codecs.getincrementaldecoder(encoding)()

    def feed(self, data: bytes, final: bool = False) -> bytes:
        if self.decoder is None:
            return data
        try:
            return self.decoder.decode(data, final).encode("utf-8")
        except UnicodeError as error:
            raise MnemoError(f"the text is not {self.encoding}: {error}") from None

    def finish(self) -> bytes:
        return self.feed(b"", final=True)


def _converter(encoding: str) -> _Converter:
    try:
        "".encode(encoding)
        return _Converter(encoding)
    except (LookupError, AttributeError, ValueError):
        raise MnemoError(f"unknown encoding '{shorten(encoding)}': use utf-8, latin-1, cp1252 or utf-16") from None


def require_text(path: Path) -> None:
    """Raise MnemoError if a file is empty, binary, or not UTF-8."""
    try:
        kind, detail = kind_of_text(Part(path))
    finally:
        text_parts.release()
    if kind == "empty":
        raise MnemoError("there is no text to read: the body is empty")
    if kind == "binary":
        raise MnemoError("this is binary data, not text")
    if kind == "not UTF-8":
        raise MnemoError(f"this text is not UTF-8 ({detail}): name its encoding, such as ?encoding=latin-1")
