"""Fields that completions and chat completions share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mnemo.errors import MnemoError
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.api.fields import KINDS, Fields
from mnemo.serving.continuation import Wanted
from mnemo.serving.errors import invalid
from mnemo.serving.served_model import ServedModel
from mnemo.serving.server import Server

OWN = ("session", "fork", "top_k")
"""Fields that OpenAI's API does not have; its client sends them as `extra_body`."""
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
"""Fields without an effect on the text"""
UNSUPPORTED = ("presence_penalty", "frequency_penalty", "logit_bias")
"""Refused unless they have no effect"""
COMMON = (
    *("model", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "stream", "stream_options"),
    *OWN,
    *IGNORED,
    *UNSUPPORTED,
)
MOST_LOGPROBS = 20
MOST_REPORTED = 1 << 21
"""Log-probabilities in an answer; each takes some hundred bytes until the answer is sent"""
MOST_STOPS, LONGEST_STOP = 16, 1000
LARGEST_SEED = 2**61


def completed(
    common: Wanted,
    *,
    prompts: tuple[tuple[int, ...], ...],
    max_tokens: int,
    top_logprobs: int | None,
    echo: bool = False,
) -> Wanted:
    """The common fields with those of one kind of completion."""
    written = len(prompts) * common.n * max_tokens
    _check_reported(written + (sum(map(len, prompts)) if echo else 0), top_logprobs)
    return replace(common, prompts=prompts, max_tokens=max_tokens, top_logprobs=top_logprobs, echo=echo)


def _check_reported(tokens: int, top_logprobs: int | None) -> None:
    """Refuse a request whose log-probabilities would fill the memory."""
    reported = 0 if top_logprobs is None else tokens * (top_logprobs + 1)
    if reported > MOST_REPORTED:
        problem = f"{reported:,} log-probabilities of {tokens:,} tokens are more than {MOST_REPORTED:,}"
        raise invalid(f"{problem}: ask for fewer tokens, choices or likeliest tokens", "logprobs")


def common_fields(fields: Fields, server: Server) -> Wanted:
    """Check everything except the prompt and the number of tokens, which `completed` adds."""
    refuse_unsupported(fields, UNSUPPORTED)
    n = fields.count("n", 1, 1, server.settings.max_choices)
    session, fork = fields.text("session", None, longest=200), fields.flag("fork")
    if fork and session is None:
        raise invalid("'fork' needs a 'session'", "fork")
    if session is not None and server.store is None:
        raise invalid("this server keeps no sessions", "session")
    if session is not None and n > 1 and not fork:
        raise invalid("n > 1 with a 'session' needs \"fork\": true, because a session has one continuation", "n")
    stream = fields.flag("stream")
    options = fields.object("stream_options")
    options.only(("include_usage", "include_obfuscation"))
    if options.content and not stream:
        raise invalid("'stream_options' needs \"stream\": true", "stream_options")
    return Wanted(
        model=_model(fields, server),
        prompts=(),
        max_tokens=0,
        sampling=_sampling(fields),
        n=n,
        stop=_stop(fields),
        seed=fields.count("seed", None, 0, LARGEST_SEED),
        stream=stream,
        include_usage=options.flag("include_usage"),
        session=session,
        fork=fork,
    )


def refuse_unsupported(fields: Fields, names: Iterable[str]) -> None:
    """Refuse fields whose effect is not implemented; 0 and empty values have no effect."""
    for name in names:
        if fields.content.get(name):
            raise invalid(f"'{fields.name(name)}' is not supported", fields.name(name))


def _model(fields: Fields, server: Server) -> ServedModel:
    name = fields.text("model", None, longest=1000)
    if name is None:
        known = ", ".join(server.models)
        raise invalid(f"'model' is missing; this server has: {known}", "model")
    return server.model(name)


def _sampling(fields: Fields) -> Sampling:
    temperature = fields.number("temperature", 1.0, 0, 1000)
    sampling = Sampling(temperature, fields.count("top_k", None, 1, 1 << 31), fields.number("top_p", None, 0, 1))
    try:
        sampling.check()
    except MnemoError as error:
        raise invalid(str(error), "top_p") from None
    return sampling


def _stop(fields: Fields) -> tuple[str, ...]:
    value: Any = fields.content.get("stop")
    stops = [] if value is None else value if isinstance(value, list) else [value]
    for stop in stops:
        if type(stop) is not str:
            raise invalid(f"'stop' must be a string or a list of strings, not {KINDS[type(stop)]}", "stop")
        if not 0 < len(stop) <= LONGEST_STOP:
            raise invalid(f"a stop string has {len(stop):,} characters; it must have from 1 to {LONGEST_STOP}", "stop")
    if len(stops) > MOST_STOPS:
        raise invalid(f"{len(stops)} stop strings are more than {MOST_STOPS}", "stop")
    return tuple(stops)
