"""Data of the page Memory: a run's plan, what a text or a session leaves in its slots, and its attention."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from torch import Tensor

from mnemo.cost.model_cost import describe
from mnemo.report.loss_units import loss_unit
from mnemo.report.run_summary import plan_words
from mnemo.run import Run, open_run
from mnemo.serving.api.fields import Fields
from mnemo.serving.errors import invalid, not_found
from mnemo.serving.served_model import RunCodec
from mnemo.serving.server import Server, server_of
from mnemo.serving.studio.answers import computed, computed_from_json
from mnemo.serving.studio.memory_data import attention_json, contents_json
from mnemo.serving.studio.playground_text import token_texts
from mnemo.serving.studio.run_names import run_path, states
from mnemo.serving.studio.shell import ASSETS
from mnemo.serving.studio.transcripts import Transcripts
from mnemo.session.text_run import OpenedRun, encode
from mnemo.storage.run_header import last_written, load_header
from mnemo.storage.shipped import DEFAULT

PATH = "/studio/api/memory"
MOST_TOKENS = 20_000
"""Tokens that are read for a picture of the memory: the newest ones of the text."""
MOST_OBSERVED = 6_000
"""Tokens for which attention is recorded."""
MOST_PIECES = 8_192
"""Tokens whose text is sent."""
MOST_MODELS = 2
"""Models that stay in memory."""
MOST_SESSIONS = 30
"""Sessions to choose from: those used last."""
SAMPLE = ASSETS / "playground" / "example.txt"


class MemoryPages:
    """Models are opened on the CPU, apart from those of the server's engines, and used by one request at a time.

    A picture of the memory therefore never delays what clients compute. `transcripts`: texts of sessions.
    """

    def __init__(self, runs: Path, transcripts: Transcripts) -> None:
        self._runs, self._transcripts = runs, transcripts
        self._opened: dict[tuple[Path, float], Run] = {}
        self._lock = threading.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route(f"{PATH}/choices", computed(self._choices)),
            Route(f"{PATH}/plan", computed(self._plan)),
            Route(f"{PATH}/read", computed_from_json(self._read), methods=["POST"]),
            Route(f"{PATH}/attention", computed_from_json(self._attention), methods=["POST"]),
            Route(f"{PATH}/session", computed(self._session)),
            Route(f"{PATH}/session/attention", computed(self._session_attention)),
        ]

    def _choices(self, request: Request) -> Any:
        """The runs and sessions to choose from, and a text to start with."""
        usable = [state.name for state in states(self._runs) if state.state not in ("damaged", "not trained yet")]
        first = DEFAULT if DEFAULT in usable else next(iter(usable), None)
        sample = SAMPLE.read_text(encoding="utf-8")
        return {"runs": usable, "sessions": _sessions(server_of(request)), "first": first, "sample": sample}

    def _plan(self, request: Request) -> Any:
        name = request.query_params.get("run", "")
        header = load_header(run_path(self._runs, name))
        cost = describe(name, header.recipe)
        return {
            "name": name,
            "words": plan_words(header.recipe.model),
            "segment": header.recipe.train.segment,
            "unit": header.corpus.get("unit"),
            "layers": [asdict(layer) for layer in cost.plan],
            "memory_tokens": None if cost.tokens is None else asdict(cost.tokens),
            "bytes": cost.total_bytes(cost.cached_bytes),
            "parameters": cost.parameters.total,
            "hints": list(cost.hints),
        }

    def _read(self, fields: Fields) -> Any:
        with self._lock:
            run = self._open(run_path(self._runs, fields.text("run", "")))
            ids, left_out = _newest(_encoded(run, fields), MOST_TOKENS)
            session = run.session(memory_length=_slots(fields))
            loss = session.read_tokens(ids)
        unit = loss_unit(run.corpus.get("unit"))
        pieces = token_texts(RunCodec(run.text.tokenizer), (), ids[-MOST_PIECES:].tolist())
        return {
            **contents_json(run.model, session.state, session.segment, pieces),
            "left_out": left_out,
            "loss": unit.of(loss.nats / max(1, loss.predicted)),
            "unit": unit.long,
        }

    def _attention(self, fields: Fields) -> Any:
        with self._lock:
            run = self._open(run_path(self._runs, fields.text("run", "")))
            ids, _ = _newest(_encoded(run, fields), MOST_OBSERVED)
            return attention_json(run.model, ids, segment=run.recipe.train.segment, memory=_slots(fields))

    def _session(self, request: Request) -> Any:
        server, identity = server_of(request), request.query_params.get("id", "")
        opened, ids = self._session_text(server, identity)
        assert server.store is not None
        session = server.store.session(identity)
        known = ids[-min(len(ids), session.facts.tokens) :] if len(ids) else ids
        pieces = token_texts(RunCodec(opened.tokenizer), (), known.tolist())
        contents = contents_json(opened.run.model, session.state, opened.run.recipe.train.segment, pieces)
        return {**contents, "left_out": 0, "loss": None, "unit": loss_unit(opened.unit).long}

    def _session_attention(self, request: Request) -> Any:
        opened, ids = self._session_text(server_of(request), request.query_params.get("id", ""))
        if len(ids) < 2:
            raise invalid("the text of this session is not known here, only its memory: attention needs the text", "id")
        with self._lock:
            model = self._open(opened.run.path).model
            return attention_json(model, ids[-MOST_OBSERVED:], segment=opened.run.recipe.train.segment)

    def _session_text(self, server: Server, identity: str) -> tuple[OpenedRun, Tensor]:
        """The run of a session, and the ids of its last tokens as far as the playground knows them."""
        if server.store is None:
            raise not_found("this server keeps no sessions", "id")
        model = server.model(server.store.facts(identity).model)
        if model.run is None:
            raise invalid(f"'{model.name}' is a model of another library: the page Memory shows Mnemo's runs", "id")
        transcript = self._transcripts.get(identity, model.run.run.recipe.train.segment, model.run.unit)
        rows = transcript.rows[-MOST_PIECES:]
        # Tokens that other clients added are missing: only those that follow each other up to the end can be shown.
        steps = (rows["position"][1:] != rows["position"][:-1] + 1).nonzero()[0]
        rows = rows[int(steps[-1]) + 1 :] if len(steps) else rows
        whole = transcript.end == server.store.facts(identity).tokens
        return model.run, torch.tensor(rows["id"].tolist() if whole else [], dtype=torch.int64)

    def _open(self, path: Path) -> Run:
        key = (path, last_written(path))
        if key not in self._opened:
            while len(self._opened) >= MOST_MODELS:
                self._opened.pop(next(iter(self._opened)))
            self._opened[key] = open_run(path, device="cpu")
        return self._opened[key]


def _sessions(server: Server) -> list[dict[str, Any]]:
    if server.store is None:
        return []
    facts = [(identity, server.store.facts(identity)) for identity in server.store.ids()[:MOST_SESSIONS]]
    return [
        {"id": identity, "name": each.name, "run": each.model, "tokens": each.tokens}
        for identity, each in facts
        if each.tokens and each.model in server.models and server.models[each.model].run is not None
    ]


def _encoded(run: Run, fields: Fields) -> Tensor:
    text = fields.text("text", "")
    if not text:
        raise invalid("'text' is empty", "text")
    return encode(run.text.tokenizer, text, "the text")


def _slots(fields: Fields) -> int | None:
    return fields.count("memory", None, 0, 1 << 16)


def _newest(ids: Tensor, most: int) -> tuple[Tensor, int]:
    """The newest ids, and the number of older ones."""
    return ids[-most:], max(0, len(ids) - most)
