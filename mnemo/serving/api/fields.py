"""Checks of the fields of a request's JSON body. Every error names the field and the value that is expected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from starlette.requests import Request

from mnemo.errors import shorten, unknown
from mnemo.files.safe_load import is_finite, parse_json
from mnemo.serving.errors import CLOSE, ApiError, invalid, too_large
from mnemo.serving.settings import Settings

T = TypeVar("T")
JSON_TYPE = "application/json"
KINDS = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


async def json_body(request: Request, settings: Settings) -> Fields:
    """The fields of a JSON object, loaded within the limits of size and time."""
    kind = media_type(request)
    # Web pages can send other types to foreign servers without asking first.
    if kind != JSON_TYPE:
        raise ApiError(415, f"the header Content-Type must be {JSON_TYPE}, not '{shorten(kind)}'", code="not_json")
    try:
        async with asyncio.timeout(settings.upload_seconds):
            body = await limited_body(request, settings.max_body_bytes)
    except TimeoutError:
        message = f"the body was not received within {settings.upload_seconds:g} seconds"
        raise ApiError(408, message, code="timeout", headers=CLOSE) from None
    try:
        content = await asyncio.to_thread(parse_json, body)
    except ValueError as error:
        raise invalid(f"the body cannot be used: {error}") from None
    if not isinstance(content, dict):
        raise invalid(f"the body must be an object, not {KINDS[type(content)]}")
    return Fields(content)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def limited_body(request: Request, limit: int) -> bytes:
    """The body of a request, which is refused as soon as it is longer than `limit` bytes."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)


class Fields:
    """Fields of an object; null counts as missing."""

    def __init__(self, content: dict[str, Any], path: str = "") -> None:
        self.content, self.path = content, path

    def name(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field

    def has(self, field: str) -> bool:
        return self.content.get(field) is not None

    def only(self, known: Iterable[str]) -> None:
        """Refuse fields that are not known, with a similar name."""
        known = list(known)
        for field in self.content:
            if field not in known:
                raise invalid(str(unknown("field", field, known)), self.name(field))

    def text(self, field: str, default: T = None, *, longest: int = 1 << 30) -> str | T:
        """A string, or the default."""
        if not self.has(field):
            return default
        value = self._typed(field, str)
        if len(value) > longest:
            raise self._wrong(field, f"has {len(value):,} characters; at most {longest:,} are allowed")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        return self._typed(field, bool) if self.has(field) else default

    def count(self, field: str, default: T, least: int, most: int) -> int | T:
        """A whole number in a range, or the default."""
        if not self.has(field):
            return default
        value = self._typed(field, int)
        if not least <= value <= most:
            raise self._wrong(field, f"is {value}; it must be from {least:,} to {most:,}")
        return value

    def number(self, field: str, default: T, least: float, most: float) -> float | T:
        """A finite number in a range, or the default."""
        if not self.has(field):
            return default
        value = self.content[field]
        if not is_finite(value):
            raise self._type_error(field, KINDS[float])
        if not least <= value <= most:
            raise self._wrong(field, f"is {value:g}; it must be from {least:g} to {most:g}")
        return float(value)

    def object(self, field: str) -> Fields:
        """An object, empty if it is missing."""
        return Fields(self._typed(field, dict) if self.has(field) else {}, self.name(field))

    def items(self, field: str, check: Callable[[Any, str], T]) -> list[T]:
        """A list whose items are converted by `check(item, name)`; empty if it is missing."""
        values = self._typed(field, list) if self.has(field) else []
        return [check(value, f"{self.name(field)}[{i}]") for i, value in enumerate(values)]

    def _typed(self, field: str, kind: type[T]) -> T:
        value = self.content[field]
        if type(value) is not kind:
            raise self._type_error(field, KINDS[kind])
        return value

    def _type_error(self, field: str, wanted: str) -> ApiError:
        return self._wrong(field, f"must be {wanted}, not {KINDS[type(self.content[field])]}")

    def _wrong(self, field: str, problem: str) -> ApiError:
        return invalid(f"'{self.name(field)}' {problem}", self.name(field))


def string_item(value: Any, name: str) -> str:
    if type(value) is not str:
        raise invalid(f"'{name}' must be a string, not {KINDS[type(value)]}", name)
    return value
