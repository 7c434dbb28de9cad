"""The server as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mnemo.errors import MnemoError
from mnemo.serving.api.answers import NoAnswer
from mnemo.serving.api.chat import chat_routes
from mnemo.serving.api.completions import completion_routes
from mnemo.serving.api.models import model_routes
from mnemo.serving.api.sessions import session_routes
from mnemo.serving.api.tokenize import tokenize_routes
from mnemo.serving.errors import ApiError, as_api_error
from mnemo.serving.metrics import Measured, metrics_routes
from mnemo.serving.security import Guard
from mnemo.serving.served_model import ServedModel
from mnemo.serving.server import Server
from mnemo.serving.settings import Settings
from mnemo.serving.store import SessionStore


def create_app(
    models: Sequence[ServedModel],
    store: SessionStore | None = None,
    settings: Settings | None = None,
    further_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """The application with all routes. `further_routes`: those of the studio.

    Routes find models, store and settings by `server_of(request)`. The lifespan closes the store, then the engines.
    """
    settings = settings or Settings()
    server = Server(list(models), store, settings)
    routes: list[BaseRoute] = [
        *model_routes(),
        *completion_routes(),
        *chat_routes(),
        *session_routes(),
        *tokenize_routes(),
        *metrics_routes(),
        *further_routes,
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Measured, server.metrics, routes), Middleware(Guard, settings)],
        exception_handlers={kind: _on_error for kind in (Exception, MnemoError, ApiError)}
        | {HTTPException: _on_http_error, ClientDisconnect: _on_disconnect},
        lifespan=_lifespan,
    )
    app.state.server = server
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    server: Server = app.state.server
    yield
    server.stopping = True
    if server.store is not None:
        await server.store.close()
    for model in server.models.values():
        model.engine.close(wait=False)


async def _on_error(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client has closed the connection in the middle of its body."""
    return NoAnswer()


async def _on_http_error(request: Request, error: Any) -> Response:
    """Errors of the router: an unknown path, a wrong method."""
    path = request.url.path
    messages = {404: f"there is no path {path}", 405: f"{request.method} is not possible for {path}"}
    message, code = (
        messages.get(error.status_code) or str(error.detail),
        "not_found" if error.status_code == 404 else None,
    )
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()
