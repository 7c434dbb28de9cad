"""Time a running server under many streamed completions at the same time, over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np

from mnemo.errors import MnemoError, shorten
from mnemo.progress import ShowProgress, silent

SENTENCE = "It was a bright cold day in April, and the clocks were striking thirteen. "
DATA, DONE = b"data:", b"[DONE]"


@dataclass(frozen=True, kw_only=True)
class HttpResult:
    sessions: int
    first_event_p50: float
    first_event_p99: float
    """Seconds from the arrival of all requests to the first event of each, prompts included"""
    tokens_per_second: float
    """Of all requests together, prompts included"""
    event_p50: float
    event_p99: float
    """Seconds between two events of a request; an event is a token, unless a character has several"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class HttpServer:
    """Where the server is, and the key that it wants."""

    address: SplitResult
    key: str | None = None

    @staticmethod
    def at(url: str, key: str | None = None) -> HttpServer:
        address = urlsplit(url)
        if address.scheme != "http" or not address.hostname:
            raise MnemoError(f"'{url}' is no address of a server, such as http://127.0.0.1:8000")
        return HttpServer(address=address, key=key)

    async def lines(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[bytes]:
        """The lines of an answer after its headers, as they arrive. Raises MnemoError unless its status is 200."""
        host, port = self.address.hostname, self.address.port or 80
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            raise MnemoError(f"no server answers at {self.address.geturl()}: {error.strerror or error}") from None
        try:
            writer.write(self._request(method, path, body))
            await writer.drain()
            status = (await reader.readline()).decode("latin-1").strip()
            while (await reader.readline()).strip():
                pass
            if " 200 " not in f"{status} ":
                raise MnemoError(f"the server answered '{status}': {shorten((await reader.read(2000)).decode())}")
            while line := await reader.readline():
                yield line
        finally:
            writer.close()

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        headers = {
            "Host": self.address.netloc,
            "Connection": "close",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


def measure_http(
    server: HttpServer, counts: Sequence[int], *, prompt: int, tokens: int, progress: ShowProgress = silent
) -> list[HttpResult]:
    """Measure a server with each number of requests. `prompt`: characters that each reads; `tokens`: that it writes."""
    text = (SENTENCE * (prompt // len(SENTENCE) + 1))[:prompt]
    model = asyncio.run(_first_model(server))
    asyncio.run(_requests(server, model, 1, text, tokens))
    with progress("requests", sum(counts), unit="requests") as bar:
        results = []
        for count in counts:
            begin = time.perf_counter()
            times = asyncio.run(_requests(server, model, count, text, tokens))
            results.append(_summary(begin, times, tokens))
            bar.advance(count)
        return results


def _summary(begin: float, times: Sequence[Sequence[float]], tokens: int) -> HttpResult:
    waits = [stamps[0] - begin for stamps in times]
    gaps = np.concatenate([np.diff(stamps) for stamps in times])
    return HttpResult(
        sessions=len(times),
        first_event_p50=float(np.percentile(waits, 50)),
        first_event_p99=float(np.percentile(waits, 99)),
        tokens_per_second=len(times) * tokens / (max(stamps[-1] for stamps in times) - begin),
        event_p50=float(np.percentile(gaps, 50)),
        event_p99=float(np.percentile(gaps, 99)),
    )


async def _first_model(server: HttpServer) -> str:
    answer = b"".join([line async for line in server.lines("GET", "/v1/models")])
    try:
        # Without the sizes of chunks, which some servers put around the answer.
        return json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        raise MnemoError(f"{server.address.geturl()}/v1/models lists no model") from None


async def _requests(server: HttpServer, model: str, count: int, text: str, tokens: int) -> list[list[float]]:
    """The times of the events of requests that are sent at the same time."""
    return await asyncio.gather(*(_request(server, model, text, tokens, seed) for seed in range(count)))


async def _request(server: HttpServer, model: str, text: str, tokens: int, seed: int) -> list[float]:
    body = {"model": model, "prompt": text, "max_tokens": tokens, "seed": seed, "stream": True}
    lines = server.lines("POST", "/v1/completions", json.dumps(body).encode())
    stamps = [time.perf_counter() async for line in lines if line.startswith(DATA) and DONE not in line]
    if len(stamps) < 2:
        raise MnemoError(f"{server.address.geturl()} streams no tokens")
    return stamps
