"""Data of the page Memory: a run's plan, what a text leaves in its slots, attention over distance, and alpha."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from torch import Tensor

from mnemo.analysis import (
    AlphaObserver,
    AttentionByDistance,
    DistanceObserver,
    attending_layers,
    has_alpha,
    observe,
    slot_contents,
)
from mnemo.cost.model_cost import describe
from mnemo.data.tokenizers import AnyTokenizer
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.report.loss_units import loss_unit
from mnemo.report.run_summary import plan_words
from mnemo.run import Run, open_run
from mnemo.serving.studio.answers import computed, computed_from_json
from mnemo.serving.studio.run_names import run_path, states
from mnemo.session.text_run import encode
from mnemo.storage.run_header import last_written, load_header
from mnemo.storage.shipped import DEFAULT

MOST_TOKENS = 20_000
"""Tokens that are read for a picture of the memory: the newest ones of the text."""
MOST_OBSERVED = 6_000
"""Tokens for which attention is recorded."""
MOST_PIECES = 8_192
"""Tokens whose text is sent."""
MOST_MODELS = 2
"""Models that stay in memory."""
MOST_SEGMENTS = 100
"""Segments in the averages of alpha."""
SAMPLE = Path(__file__).parent / "sample.txt"


class TextToRead(NamedTuple):
    run: str
    text: str
    memory: int | None
    """Slots of the long-range layers; None: as in training"""

    @classmethod
    def of(cls, body: dict[str, Any]) -> TextToRead:
        run, text, memory = body.get("run"), body.get("text"), body.get("memory")
        if not isinstance(run, str) or not isinstance(text, str):
            raise MnemoError("'run' and 'text' are texts")
        if not (memory is None or (isinstance(memory, int) and 0 <= memory <= 1 << 20)):
            raise MnemoError(f"'memory' is a number of slots from 0 to {1 << 20:,}")
        return cls(run, text, memory)


class MemoryPages:
    """Models are opened on the CPU, apart from those that the server's engines use, and used by one request at a time.

    A picture of the memory therefore never waits for, or delays, what clients compute on the device.
    """

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._opened: dict[tuple[Path, float], Run] = {}
        self._lock = threading.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/studio/api/memory/runs", computed(self._list)),
            Route("/studio/api/memory/plan", computed(self._plan)),
            Route("/studio/api/memory/read", computed_from_json(self._read), methods=["POST"]),
            Route("/studio/api/memory/attention", computed_from_json(self._attention), methods=["POST"]),
        ]

    def _list(self, request: Request) -> Any:
        """The runs to choose from, and a text to start with."""
        usable = [state.name for state in states(self._runs) if state.state not in ("damaged", "not trained yet")]
        first = DEFAULT if DEFAULT in usable else next(iter(usable), None)
        return {"runs": usable, "first": first, "sample": SAMPLE.read_text(encoding="utf-8")}

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

    def _read(self, body: dict[str, Any]) -> Any:
        wanted = TextToRead.of(body)
        with self._lock:
            run = self._open(wanted.run)
            ids, left_out = _newest(_encoded(run, wanted.text), MOST_TOKENS)
            session = run.session(memory_length=wanted.memory)
            loss = session.read_tokens(ids)
            found, use = slot_contents(run.model, session.state), session.memory()
        unit = loss_unit(run.corpus.get("unit"))
        pieces = _pieces(run.text.tokenizer, ids[-MOST_PIECES:])
        return {
            "tokens": found.tokens,
            "open": found.open,
            "exact": found.exact,
            "segment": use.segment,
            "left_out": left_out,
            "bytes": use.nbytes,
            "memory_tokens": use.memory_tokens,
            "layers": [_layer(asdict(layer)) for layer in found.layers],
            "pieces": pieces,
            "first_piece": len(ids) - len(pieces),
            "loss": unit.of(loss.nats / max(1, loss.predicted)),
            "unit": unit.long,
        }

    def _attention(self, body: dict[str, Any]) -> Any:
        wanted = TextToRead.of(body)
        with self._lock:
            run = self._open(wanted.run)
            ids, _ = _newest(_encoded(run, wanted.text), MOST_OBSERVED)
            model, segment = run.model, run.recipe.train.segment
            distance = DistanceObserver(attending_layers(model))
            alpha = AlphaObserver(attending_layers(model), MOST_SEGMENTS) if has_alpha(model) else None
            watched = [] if alpha is None else [alpha]
            observe(model, ids, [distance], segment=segment, memory=wanted.memory, diagnostics=watched)
        return {"tokens": len(ids), "segment": segment, **_distances(distance.result()), **_alpha(model, alpha)}

    def _open(self, name: str) -> Run:
        path = run_path(self._runs, name)
        key = (path, last_written(path))
        if key not in self._opened:
            while len(self._opened) >= MOST_MODELS:
                self._opened.pop(next(iter(self._opened)))
            self._opened[key] = open_run(path, device="cpu")
        return self._opened[key]


def _encoded(run: Run, text: str) -> Tensor:
    return encode(run.text.tokenizer, text, "the text")


def _newest(ids: Tensor, most: int) -> tuple[Tensor, int]:
    """The newest ids, and the number of older ones."""
    return ids[-most:], max(0, len(ids) - most)


def _pieces(tokenizer: AnyTokenizer, ids: Tensor) -> list[str]:
    """The text of every token; a character of several tokens belongs to its last."""
    decoder = tokenizer.decoder()
    return [decoder.feed([token]) for token in ids.tolist()]


def _layer(layer: dict[str, Any]) -> dict[str, Any]:
    return layer | {"ranges": [dict(part._asdict()) for part in layer["ranges"]]}


def _distances(found: AttentionByDistance) -> dict[str, Any]:
    buckets = found.buckets()
    wide = found.wide_heads()
    return {
        "layers": [layer + 1 for layer in found.layers],
        "distances": list(buckets.labels),
        "shares": buckets.shares.tolist(),
        "memory_token_shares": found.memory_tokens.mean(1).tolist(),
        "reach": found.reach().mean(1).tolist(),
        "wide_heads": [{"layer": head.layer + 1, "head": head.head + 1, "reach": head.reach} for head in wide],
    }


def _alpha(model: Model, observer: AlphaObserver | None) -> dict[str, Any]:
    if observer is None:
        return {"alpha": None, "why_no_alpha": "no layer of this model has a look-ahead memory that interpolates"}
    found = observer.result()
    if found is None:
        return {"alpha": None, "why_no_alpha": "the text is too short to fill the memory"}
    curves = {"layers": [layer + 1 for layer in found.layers], "mean": found.mean.tolist(), "segments": found.segments}
    return {"alpha": curves, "why_no_alpha": ""}
