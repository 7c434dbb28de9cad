"""`/v1/models` and `/health`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mnemo import __version__
from mnemo.serving.errors import JsonResponse
from mnemo.serving.served_model import ServedModel
from mnemo.serving.server import server_of


def model_routes() -> list[Route]:
    return [
        Route("/v1/models", _models, methods=["GET"]),
        Route("/v1/models/{model:path}", _model, methods=["GET"]),
        Route("/health", _health, methods=["GET"]),
    ]


def model_json(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "mnemo",
        "vocabulary": model.codec.vocab_size,
        "state_bytes": model.state_bytes(model.empty),
        "chat": model.chat is not None,
        **model.about,
    }


async def _models(request: Request) -> Response:
    models = server_of(request).models.values()
    return JsonResponse({"object": "list", "data": [model_json(model) for model in models]})


async def _model(request: Request) -> Response:
    return JsonResponse(model_json(server_of(request).model(request.path_params["model"])))


async def _health(request: Request) -> Response:
    """200 while the server answers requests, 503 when it is shutting down."""
    server = server_of(request)
    status = "stopping" if server.stopping else "ok"
    return JsonResponse({"status": status, "version": __version__}, 503 if server.stopping else 200)
