"""Errors of requests, in the form that clients of OpenAI's API expect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from mnemo.errors import MnemoError, shorten
from mnemo.serving.engine import EngineClosed, EngineFull
from mnemo.serving.session_errors import SessionError

LONGEST_MESSAGE = 1000


class ApiError(Exception):
    """An answer with an error status. `param` names the field that is wrong; `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code, self.headers = param, code, dict(headers or {})

    def content(self) -> dict[str, Any]:
        message = shorten(self.message, LONGEST_MESSAGE)
        return {"error": {"message": message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JsonResponse:
        return JsonResponse(self.content(), self.status, self.headers)


class JsonResponse(Response):
    """JSON in ASCII: text of a client may hold surrogates, which UTF-8 cannot encode."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status, headers)

    def render(self, content: Any) -> bytes:
        return json_text(content).encode("ascii")


def json_text(content: Any) -> str:
    """JSON without NaN, which clients refuse."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def invalid(message: str, param: str | None = None) -> ApiError:
    """400: a field of the request is wrong."""
    return ApiError(400, message, param=param, code="invalid_value")


def not_found(message: str, param: str | None = None, code: str = "not_found") -> ApiError:
    return ApiError(404, message, param=param, code=code)


def too_busy(message: str, retry_after: int) -> ApiError:
    """429, with the number of seconds after which the client may try again."""
    headers = {"Retry-After": str(retry_after)}
    return ApiError(429, message, kind="rate_limit_error", code="server_busy", headers=headers)


CLOSE = {"Connection": "close"}
"""The rest of the body is not received."""


def too_large(limit: int) -> ApiError:
    message = f"the request is larger than the allowed {limit:,} bytes"
    return ApiError(413, message, code="request_too_large", headers=CLOSE)


def timed_out(seconds: float) -> ApiError:
    message = f"the request took longer than {seconds:g} seconds and was stopped"
    return ApiError(504, message, kind="server_error", code="timeout")


def as_api_error(error: Exception) -> ApiError:
    """Any exception as an answer; the text of unexpected ones stays in the server's log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SessionError):
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        return ApiError(error.status, str(error), kind=kind, param="session", code=error.code)
    if isinstance(error, EngineFull):
        return too_busy(str(error), 1)
    if isinstance(error, EngineClosed):
        return ApiError(503, str(error), kind="server_error", code="shutting_down")
    if isinstance(error, MnemoError):
        return invalid(str(error))
    return ApiError(500, "internal error of the server; its log has the details", kind="server_error", code="internal")
