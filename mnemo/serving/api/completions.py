"""`/v1/completions`: the continuation of texts, as in OpenAI's API, and of sessions."""

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
from mnemo.serving.served_model import ServedModel
from mnemo.serving.server import Server, server_of

FIELDS = (*COMMON, "prompt", "echo", "logprobs", "best_of", "suffix")
DEFAULT_TOKENS = 16
"""As in OpenAI's API"""


def completion_routes() -> list[Route]:
    return [Route("/v1/completions", _completions, methods=["POST"])]


async def _completions(request: Request) -> Response:
    server = server_of(request)
    fields = await json_body(request, server.settings)
    # A long prompt takes a while to encode, and streams of other clients go on meanwhile.
    wanted = await asyncio.to_thread(parse, fields, server)
    return await answer(request, server, wanted, CompletionForm(wanted))


def parse(fields: Fields, server: Server) -> Wanted:
    """The checked content of a request."""
    fields.only(FIELDS)
    refuse_unsupported(fields, ("suffix",))
    common = common_fields(fields, server)
    if fields.count("best_of", common.n, 1, server.settings.max_choices) != common.n:
        raise invalid("'best_of' is not supported: it must be as large as 'n'", "best_of")
    prompts = _prompts(fields, common.model, common.model.prefix if common.session is None else ())
    if len(prompts) * common.n > server.settings.max_choices:
        raise invalid(f"{len(prompts)} prompts times n = {common.n} are more than {server.settings.max_choices}", "n")
    if common.session is not None and len(prompts) > 1:
        raise invalid("a request with a 'session' has one prompt", "prompt")
    return completed(
        common,
        prompts=prompts,
        max_tokens=fields.count("max_tokens", DEFAULT_TOKENS, 0, server.settings.max_tokens),
        top_logprobs=fields.count("logprobs", None, 0, MOST_LOGPROBS),
        echo=fields.flag("echo"),
    )


def _prompts(fields: Fields, model: ServedModel, prefix: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Token ids of `prompt`: a text, a list of texts, token ids, or a list of token ids. `prefix`: before texts."""
    prompt = fields.content.get("prompt")
    if prompt is None:
        return ((),)
    if isinstance(prompt, str):
        return (_encode(model, prompt, "prompt", prefix),)
    if not isinstance(prompt, list):
        raise invalid(f"'prompt' must be a string or a list, not {KINDS[type(prompt)]}", "prompt")
    if not prompt or type(prompt[0]) is int:
        return (_ids(model, prompt, "prompt"),)
    return tuple(_one_prompt(model, each, f"prompt[{i}]", prefix) for i, each in enumerate(prompt))


def _one_prompt(model: ServedModel, prompt: Any, name: str, prefix: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return _encode(model, prompt, name, prefix)
    if isinstance(prompt, list):
        return _ids(model, prompt, name)
    raise invalid(f"'{name}' must be a string or a list of token ids, not {KINDS[type(prompt)]}", name)


def _encode(model: ServedModel, text: str, name: str, prefix: tuple[int, ...]) -> tuple[int, ...]:
    ids = tuple(model.encode(text, name))
    if text and not ids:
        raise invalid(f"'{name}' contains no text that the model's tokenizer keeps", name)
    return (*prefix, *ids) if ids else ()


def _ids(model: ServedModel, values: list[Any], name: str) -> tuple[int, ...]:
    if not values:
        raise invalid(f"'{name}' is an empty list", name)
    for at, value in enumerate(values):
        if type(value) is not int:
            raise invalid(f"'{name}[{at}]' must be a token id, not {KINDS[type(value)]}", name)
    return tuple(model.check_ids(values, name))


class CompletionForm(ChoiceForm):
    """Answers of `/v1/completions`."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl-"

    def choice(self, index: int, pieces: list[Piece], finish: str | None) -> dict[str, Any]:
        tokens = [token for piece in pieces for token in piece.tokens]
        text = "".join(piece.text for piece in pieces)
        logprobs = None if self.wanted.top_logprobs is None else self._logprobs(tokens)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        return self.choice(piece.index, [piece], piece.finish)

    def _logprobs(self, tokens: list[TokenText]) -> dict[str, Any]:
        name = self.wanted.model.codec.name
        return {
            "tokens": [name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }

    def _top(self, token: TokenText) -> dict[str, float] | None:
        """The likeliest tokens, and the chosen one if it is not among them."""
        if token.logprob is None:
            return None
        name = self.wanted.model.codec.name
        return {name(each): logprob for each, logprob in (*token.top, (token.id, token.logprob))}
