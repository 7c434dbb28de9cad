"""`/v1/chat/completions`, for models that have a chat template."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mnemo.serving.api.choices import ChoiceForm, answer
from mnemo.serving.api.fields import KINDS, Fields, json_body
from mnemo.serving.api.sampling_fields import COMMON, MOST_LOGPROBS, common_fields, completed, refuse_unsupported
from mnemo.serving.continuation import Piece, TokenText, Wanted
from mnemo.serving.errors import invalid
from mnemo.serving.served_model import ChatMessage, ServedModel
from mnemo.serving.server import Server, server_of

UNSUPPORTED = ("tools", "functions", "audio", "prediction")
FIELDS = (
    *COMMON,
    *("messages", "max_completion_tokens", "logprobs", "top_logprobs", "response_format", "modalities"),
    *("tool_choice", "function_call", "parallel_tool_calls"),
    *UNSUPPORTED,
)
ROLES = ("system", "developer", "user", "assistant", "tool")
DEFAULT_TOKENS = 1024
"""A model that never writes a token that ends the text would go on for ever."""


def chat_routes() -> list[Route]:
    return [Route("/v1/chat/completions", _chat, methods=["POST"])]


async def _chat(request: Request) -> Response:
    server = server_of(request)
    wanted = await asyncio.to_thread(parse, await json_body(request, server.settings), server)
    return await answer(request, server, wanted, ChatForm(wanted))


def parse(fields: Fields, server: Server) -> Wanted:
    """The checked content of a request."""
    fields.only(FIELDS)
    refuse_unsupported(fields, UNSUPPORTED)
    if fields.object("response_format").text("type", "text") != "text":
        raise invalid("'response_format' must be text", "response_format")
    common = common_fields(fields, server)
    most = server.settings.max_tokens
    tokens = fields.count("max_tokens", min(DEFAULT_TOKENS, most), 1, most)
    top = fields.count("top_logprobs", 0, 0, MOST_LOGPROBS)
    has_logprobs = fields.flag("logprobs")
    if top and not has_logprobs:
        raise invalid("'top_logprobs' needs \"logprobs\": true", "top_logprobs")
    return completed(
        common,
        prompts=(_prompt(fields, common.model, _is_continued(common.session, server)),),
        max_tokens=fields.count("max_completion_tokens", tokens, 1, most),
        top_logprobs=top if has_logprobs else None,
    )


def _is_continued(session: str | None, server: Server) -> bool:
    """Whether the messages follow an earlier text."""
    return session is not None and server.store.facts(session).tokens > 0


def _prompt(fields: Fields, model: ServedModel, continued: bool) -> tuple[int, ...]:
    """Token ids of the messages by the model's chat template."""
    if model.chat is None:
        raise invalid(f"model '{model.name}' has no chat template: use /v1/completions", "model")
    messages = fields.items("messages", _message)
    if not messages:
        raise invalid("'messages' is missing or empty", "messages")
    return tuple(model.chat.prompt(messages, continued))


def _message(value: Any, name: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise invalid(f"'{name}' must be an object, not {KINDS[type(value)]}", name)
    fields = Fields(value, name)
    role = fields.text("role", "")
    if role not in ROLES:
        raise invalid(f"'{name}.role' must be one of {', '.join(ROLES)}", f"{name}.role")
    refuse_unsupported(fields, ("tool_calls", "function_call", "audio"))
    if isinstance(value.get("content"), list):
        parts = fields.items("content", _text_part)
        return ChatMessage(role, "".join(parts))
    content = fields.text("content")
    if content is None:
        raise invalid(f"'{name}.content' is missing", f"{name}.content")
    return ChatMessage(role, content)


def _text_part(value: Any, name: str) -> str:
    if not isinstance(value, dict) or value.get("type") != "text":
        raise invalid(f"'{name}' must be a part of the type text", name)
    text = Fields(value, name).text("text")
    if text is None:
        raise invalid(f"'{name}.text' is missing", f"{name}.text")
    return text


class ChatForm(ChoiceForm):
    """Answers of `/v1/chat/completions`."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def choice(self, index: int, pieces: list[Piece], finish: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(piece.text for piece in pieces), "refusal": None}
        return {"index": index, "message": message, "logprobs": self._logprobs(pieces), "finish_reason": finish}

    def opening(self) -> list[dict[str, Any]]:
        first = {"role": "assistant", "content": ""}
        return [{"index": i, "delta": first, "logprobs": None, "finish_reason": None} for i in range(self.wanted.n)]

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        delta = {"content": piece.text} if piece.text or piece.finish is None else {}
        return {
            "index": piece.index,
            "delta": delta,
            "logprobs": self._logprobs([piece]) if piece.tokens else None,
            "finish_reason": piece.finish,
        }

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any] | None:
        if self.wanted.top_logprobs is None:
            return None
        return {"content": [self._token(token) for piece in pieces for token in piece.tokens], "refusal": None}

    def _token(self, token: TokenText) -> dict[str, Any]:
        assert token.logprob is not None  # messages are not echoed, so every token was predicted
        likeliest = [self._named(each, logprob) for each, logprob in token.top]
        return self._named(token.id, token.logprob) | {"top_logprobs": likeliest}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        codec = self.wanted.model.codec
        return {"token": codec.name(token), "logprob": logprob, "bytes": list(codec.piece(token))}
