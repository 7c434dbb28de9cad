"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM's server has them.

With them lm-evaluation-harness computes token ids on the server, and needs no copy of the tokenizer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mnemo.serving.api.fields import KINDS, Fields, json_body
from mnemo.serving.errors import JsonResponse, invalid
from mnemo.serving.served_model import ServedModel
from mnemo.serving.server import Server, server_of


def tokenize_routes() -> list[Route]:
    return [
        Route("/tokenize", _tokenize, methods=["POST"]),
        Route("/detokenize", _detokenize, methods=["POST"]),
        Route("/tokenizer_info", _info, methods=["GET"]),
    ]


async def _tokenize(request: Request) -> Response:
    server = server_of(request)
    fields = await json_body(request, server.settings)
    fields.only(("model", "prompt", "add_special_tokens", "return_token_strs"))
    fields.flag("add_special_tokens")
    model, text = _model(fields, server), fields.text("prompt")
    if text is None:
        raise invalid("'prompt' is missing", "prompt")
    ids = list(await asyncio.to_thread(model.encode, text, "prompt"))
    content: dict[str, Any] = {"tokens": ids, "count": len(ids)}
    if fields.flag("return_token_strs"):
        content["token_strs"] = [model.codec.name(token) for token in ids]
    return JsonResponse(content)


async def _detokenize(request: Request) -> Response:
    server = server_of(request)
    fields = await json_body(request, server.settings)
    fields.only(("model", "tokens"))
    model = _model(fields, server)
    if not fields.has("tokens"):
        raise invalid("'tokens' is missing", "tokens")
    ids = model.check_ids(fields.items("tokens", _token_id), "tokens")
    decoder = model.codec.decoder()
    return JsonResponse({"prompt": decoder.feed(ids) + decoder.finish()})


async def _info(request: Request) -> Response:
    """The token between documents, of the model named in the query, or the first one."""
    model = _named(server_of(request), request.query_params.get("model"))
    separator = model.separator
    return JsonResponse({"model": model.name, "eos_token": separator, "bos_token": separator, "pad_token": None})


def _model(fields: Fields, server: Server) -> ServedModel:
    return _named(server, fields.text("model", None, longest=1000))


def _named(server: Server, name: str | None) -> ServedModel:
    """A model; without a name the first one, because lm-evaluation-harness sends none."""
    return next(iter(server.models.values())) if name is None else server.model(name)


def _token_id(value: Any, name: str) -> int:
    if type(value) is not int:
        raise invalid(f"'{name}' must be a token id, not {KINDS[type(value)]}", name)
    return value
