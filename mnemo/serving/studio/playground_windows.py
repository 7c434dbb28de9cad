"""Windows of a transcript as JSON: texts, losses in bits, repetitions; and an overview of the whole text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnemo.serving.served_model import TextCodec
from mnemo.serving.studio.playground_text import token_texts
from mnemo.serving.studio.transcript import Transcript
from mnemo.serving.text_stream import TAIL

OVERVIEW_PARTS = 160
BITS = 1 / math.log(2)
"""Bits per nat."""


def window_json(transcript: Transcript, codec: TextCodec, begin: int, end: int, *, repeats: bool) -> dict[str, Any]:
    """Return the tokens from index `begin` to `end`. `repeats`: with the last earlier place of the same tokens."""
    total = len(transcript)
    begin, end = min(begin, total), min(end, total)
    rows = transcript.rows[begin:end]
    before = transcript.rows["id"][max(0, begin - TAIL) : begin].tolist()
    window = {
        "begin": begin,
        "end": end,
        "total": total,
        "texts": token_texts(codec, before, rows["id"].tolist()),
        "bits": in_bits(rows["with_memory"]),
        "without": in_bits(rows["without"]),
        "written": ranges(rows["written"]),
        "openings": np.flatnonzero(rows["in_segment"] == 0).tolist(),
        "gaps": _gaps(transcript, begin, end),
    }
    if repeats:
        earlier = transcript.earlier()
        window |= {"earlier": earlier.distance[begin:end].tolist(), "same": earlier.length[begin:end].tolist()}
    return window


def overview_json(transcript: Transcript) -> dict[str, Any]:
    """Return means over parts of the text, and over all tokens whose losses with and without memory are known."""
    surprise, saved = transcript.overview(OVERVIEW_PARTS)
    rows = transcript.rows
    known = np.isfinite(rows["with_memory"]) & np.isfinite(rows["without"])
    mean = None
    if known.any():
        with_memory, without = (float(rows[name][known].mean(dtype=np.float64)) for name in ("with_memory", "without"))
        mean = {"bits": with_memory * BITS, "without": without * BITS, "saved": (without - with_memory) * BITS}
    return {"bits": in_bits(surprise), "saved": in_bits(saved), "mean": mean}


def in_bits(nats: np.ndarray) -> list[float | None]:
    """Return bits with three digits after the point; None for values that are not known."""
    bits = np.round(nats.astype(np.float64) * BITS, 3)
    return [value if math.isfinite(value) else None for value in bits.tolist()]


def ranges(flags: np.ndarray) -> list[list[int]]:
    """Return the ranges [begin, end) in which the flags are set."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return edges.reshape(-1, 2).tolist()


def _gaps(transcript: Transcript, begin: int, end: int) -> list[list[int]]:
    """Return [index in the window, number of tokens before it that are not shown]."""
    positions = transcript.rows["position"]
    before = positions[begin - 1] if begin else -1
    missing = np.diff(positions[begin:end], prepend=before) - 1
    return [[int(at), int(missing[at])] for at in np.flatnonzero(missing)]
