"""Checks of every request before its route: host, origin, key and size.

A web page that is open in a browser on the same machine can send requests to a server on localhost. Three checks refuse
them: the Host header must be a name of this server (a page whose own domain name resolves to 127.0.0.1 has another
one), the Origin header must be that of this server, and requests of other sites that carry no Origin are recognised by
Sec-Fetch-Site.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemo.errors import shorten
from mnemo.files.safe_load import MAX_DIGITS
from mnemo.serving.errors import CLOSE, ApiError, too_large
from mnemo.serving.settings import LOOPBACK_NAMES, Settings, is_loopback

WITHOUT_KEY = ("/health",)
"""Paths that answer without a key."""
PAGES, DATA_OF_PAGES = "/studio", "/studio/api/"
"""Pages and their files answer without a key, which a browser cannot send for them; they hold no data of the user."""
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Middleware that answers forbidden requests, bounds bodies, and adds headers that restrict browsers."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.key = None if settings.api_key is None else settings.api_key.encode()
        self.hosts = {name.lower() for name in (*LOOPBACK_NAMES, settings.host, *settings.allowed_hosts)}
        # With a key any name is safe: a foreign page does not have the key. Clients may use any name of this machine.
        self.any_host = not is_loopback(settings.host) and not settings.allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # the server closes a web socket that is not accepted
        headers = Headers(scope=scope)
        answer = _Answer(send, self._cors(headers))
        try:
            self._check(scope, headers)
        except ApiError as error:
            error.headers |= CLOSE
            await error.response()(scope, receive, answer)
            return
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await self._preflight(answer)
            return
        await self.app(scope, _Bounded(receive, self.settings.max_upload_bytes), answer)

    def _check(self, scope: Scope, headers: Headers) -> None:
        self._check_host(headers)
        self._check_origin(scope, headers)
        self._check_key(scope, headers)
        length = headers.get("content-length", "0")
        if len(length) > MAX_DIGITS or (length.isdecimal() and int(length) > self.settings.max_upload_bytes):
            raise too_large(self.settings.max_upload_bytes)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        name = _host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None or not (self.any_host or name in self.hosts):
            shown = shorten(", ".join(hosts))
            raise _forbidden(f"the Host header '{shown}' is not a name of this server; --allow-host adds one", "host")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        origins = headers.getlist("origin")
        if any(not self._is_own(origin, scope, headers) and not self._is_allowed(origin) for origin in origins):
            shown = shorten(", ".join(origins))
            raise _forbidden(f"pages of '{shown}' may not use this server; --allow-origin permits an origin", "origin")
        site = headers.get("sec-fetch-site", "none")
        followed_link = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if not origins and site not in ("none", "same-origin") and not followed_link:
            raise _forbidden("pages of other sites may not use this server", "origin")

    def _is_own(self, origin: str, scope: Scope, headers: Headers) -> bool:
        # A proxy may add TLS, so the scheme of the origin can differ from that of the connection.
        return origin.lower() in (f"{scheme}://{headers['host'].lower()}" for scheme in ("http", "https"))

    def _is_allowed(self, origin: str) -> bool:
        return origin in self.settings.allowed_origins

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        if self.key is None or _is_open(scope) or self._is_preflight(scope, headers):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), self.key):
            message = "the API key is wrong or missing: send the header 'Authorization: Bearer KEY'"
            challenge = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, message, kind="authentication_error", code="invalid_api_key", headers=challenge)

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        return scope["method"] == "OPTIONS" and self._is_allowed(headers.get("origin", ""))

    def _cors(self, headers: Headers) -> dict[str, str]:
        origin = headers.get("origin", "")
        if not self._is_allowed(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Vary": "Origin",
            "Cross-Origin-Resource-Policy": "cross-origin",
        }

    async def _preflight(self, send: Send) -> None:
        headers = {
            "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
            "access-control-allow-headers": "authorization, content-type",
            "access-control-max-age": "600",
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 204, "headers": raw})
        await send({"type": "http.response.body", "body": b""})


class _Answer:
    """Sends messages with additional headers."""

    def __init__(self, send: Send, further: dict[str, str]) -> None:
        self.send, self.headers = send, SAFE_HEADERS | further

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in self.headers.items():
                headers.setdefault(name, value)
        await self.send(message)


class _Bounded:
    """Receives messages, and raises an error as soon as the body is too large."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self.receive, self.limit, self.size = receive, limit, 0

    async def __call__(self) -> Message:
        message = await self.receive()
        self.size += len(message.get("body", b""))
        if self.size > self.limit:
            raise too_large(self.limit)
        return message


def _is_open(scope: Scope) -> bool:
    """Whether a request needs no key."""
    path = scope["path"]
    is_page = path in ("/", PAGES) or (path.startswith(f"{PAGES}/") and not path.startswith(DATA_OF_PAGES))
    return path in WITHOUT_KEY or (is_page and scope["method"] in ("GET", "HEAD"))


def _host_name(host: str) -> str | None:
    """The name in a Host header without its port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises ValueError for a port that is no number
    except ValueError:
        return None
    has_other_parts = parts.path or parts.query or parts.fragment or "@" in parts.netloc
    return None if has_other_parts else parts.hostname


def _forbidden(message: str, code: str) -> ApiError:
    return ApiError(403, message, kind="permission_error", code=f"foreign_{code}")
