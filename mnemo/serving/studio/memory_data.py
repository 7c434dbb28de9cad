"""Pictures of a memory as JSON: the tokens in its slots with their text, attention by distance, alpha."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

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
from mnemo.inference.generation import AnyState
from mnemo.model import Model
from mnemo.session.memory_use import measure

MOST_SEGMENTS = 100
"""Segments in the averages of alpha."""


def contents_json(model: Model, state: AnyState, segment: int, pieces: Sequence[str]) -> dict[str, Any]:
    """What fills the slots. `pieces`: the text of the last tokens, one each."""
    found, use = slot_contents(model, state), measure(model, state, segment)
    return {
        "tokens": found.tokens,
        "open": found.open,
        "exact": found.exact,
        "segment": segment,
        "bytes": found.nbytes,
        "memory_tokens": use.memory_tokens,
        "layers": [asdict(layer) | {"ranges": [part._asdict() for part in layer.ranges]} for layer in found.layers],
        "pieces": list(pieces),
        "first_piece": found.tokens - len(pieces),
    }


def attention_json(model: Model, ids: Tensor, *, segment: int, memory: int | None = None) -> dict[str, Any]:
    """Attention of every layer by distance while the model reads a text, and alpha where there is look-ahead."""
    distance = DistanceObserver(attending_layers(model))
    alpha = AlphaObserver(attending_layers(model), MOST_SEGMENTS) if has_alpha(model) else None
    watched = [] if alpha is None else [alpha]
    observe(model, ids, [distance], segment=segment, memory=memory, diagnostics=watched)
    return {"tokens": len(ids), "segment": segment, **_distances(distance.result()), **_alpha(alpha)}


def _distances(found: AttentionByDistance) -> dict[str, Any]:
    buckets = found.buckets()
    heads = [{"layer": head.layer + 1, "head": head.head + 1, "reach": head.reach} for head in found.wide_heads()]
    return {
        "layers": [layer + 1 for layer in found.layers],
        "distances": list(buckets.labels),
        "shares": buckets.shares.tolist(),
        "memory_token_shares": found.memory_tokens.mean(1).tolist(),
        "reach": found.reach().mean(1).tolist(),
        "wide_heads": heads,
    }


def _alpha(observer: AlphaObserver | None) -> dict[str, Any]:
    if observer is None:
        return {"alpha": None, "why_no_alpha": ""}
    found = observer.result()
    if found is None:
        return {"alpha": None, "why_no_alpha": "the text is too short to fill the memory"}
    curves = {"layers": [layer + 1 for layer in found.layers], "mean": found.mean.tolist(), "segments": found.segments}
    return {"alpha": curves, "why_no_alpha": ""}
