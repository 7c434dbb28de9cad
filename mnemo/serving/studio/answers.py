"""JSON answers of the studio, computed in a thread; users' mistakes become errors in OpenAI's shape."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mnemo.errors import MnemoError
from mnemo.report.svg import clean

Endpoint = Callable[[Request], Awaitable[Response]]
NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class NotFound(MnemoError):
    """Raised for a name that the server does not know."""


def error(message: str, status: int) -> Response:
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    content = {"error": {"message": clean(message), "type": kind, "param": None, "code": None}}
    return JSONResponse(content, status, headers=NO_STORE)


def computed(compute: Callable[[Request], Any]) -> Endpoint:
    """An endpoint that answers with the value of a function, as JSON."""

    async def endpoint(request: Request) -> Response:
        return await _answer(compute, request)

    return endpoint


def computed_from_json(compute: Callable[[dict[str, Any]], Any]) -> Endpoint:
    """The same for a function of the JSON object that the client sends."""

    async def endpoint(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            body = None
        return await _answer(compute, body) if isinstance(body, dict) else error("the body is no JSON object", 400)

    return endpoint


async def _answer(compute: Callable[[Any], Any], given: Any) -> Response:
    try:
        content = await run_in_threadpool(compute, given)
    except NotFound as problem:
        return error(str(problem), 404)
    except MnemoError as problem:
        return error(str(problem), 400)
    return content if isinstance(content, Response) else JSONResponse(jsonable(content), headers=NO_STORE)


def jsonable(value: Any) -> Any:
    """The value with None for numbers that JSON lacks, and text that is valid UTF-8."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {jsonable(str(name)): jsonable(item) for name, item in value.items()}
    return [jsonable(item) for item in value] if isinstance(value, list | tuple) else value
