"""JSON answers of the studio that are computed in a thread; the application turns errors into answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from mnemo.files.json_file import without_nan
from mnemo.serving.api.fields import Fields, json_body
from mnemo.serving.errors import JsonResponse
from mnemo.serving.server import server_of

Endpoint = Callable[[Request], Awaitable[Response]]
NO_STORE = {"Cache-Control": "no-store"}


def computed(compute: Callable[[Request], Any]) -> Endpoint:
    """An endpoint that answers with the value of a function, as JSON."""

    async def endpoint(request: Request) -> Response:
        content = await run_in_threadpool(compute, request)
        return content if isinstance(content, Response) else JsonResponse(without_nan(content), headers=NO_STORE)

    return endpoint


def computed_from_json(compute: Callable[[Fields], Any]) -> Endpoint:
    """The same for a function of the JSON object that the client sends."""

    async def endpoint(request: Request) -> Response:
        fields = await json_body(request, server_of(request).settings)
        return JsonResponse(without_nan(await run_in_threadpool(compute, fields)), headers=NO_STORE)

    return endpoint
