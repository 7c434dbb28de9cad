"""Where the help for one token comes from: the same tokens earlier in the text, and attention to memory.

Attention is computed again for the segment of the token. The memory before that segment is made by reading the segments
before it, as many as can have an influence through the slots of all layers. A memory without slots may reach further.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any

import torch

from mnemo.analysis import MemoryAttention, attention_to_memory
from mnemo.errors import MnemoError
from mnemo.memory.state import State
from mnemo.model import Model, evaluating
from mnemo.serving.served_model import ServedModel
from mnemo.serving.studio.playground_text import excerpt
from mnemo.serving.studio.transcript import Transcript

EXCERPT = {"byte": 40, "char": 40, "word": 8, "bpe": 10}
"""Tokens of an excerpt, by unit."""
USUAL_EXCERPT = 12
KEPT_SEGMENTS = 64


class TokenDetails:
    """Details of tokens; the attention of the latest segments is kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, int, int], MemoryAttention] = OrderedDict()
        self._computing = Lock()

    def describe(self, session: str, model: ServedModel, transcript: Transcript, at: int, slots: int) -> dict[str, Any]:
        """Return details of the token with index `at`. `slots`: memory length of the long-range layers."""
        found: dict[str, Any] = {"at": at, "earlier": _earlier(model, transcript, at, slots)}
        try:
            found["attention"] = self._attention(session, model, transcript, at, slots)
        except MnemoError as error:
            found |= {"attention": None, "why": f"Attention: {error}"}
        return found

    def _attention(
        self, session: str, model: ServedModel, transcript: Transcript, at: int, slots: int
    ) -> dict[str, Any] | None:
        if model.run is None:
            raise MnemoError("not available for this kind of model")
        if at == 0:
            return None
        query = at - 1  # the token before predicts this one
        start = query - int(transcript.rows["in_segment"][query])
        if start < 0 or int(transcript.rows["position"][start]) != int(transcript.rows["position"][query]) - (
            query - start
        ):
            raise MnemoError("the begin of this segment is not shown")
        attention = self._of_segment(session, model, transcript, start, slots)
        share, peak = float(attention.share[query - start]), int(attention.peak[query - start])
        distance = peak + 1 if peak else 0
        return {
            "share": round(share, 4),
            "distance": distance,
            "text": _around(model, transcript, at - distance) if distance else "",
        }

    def _of_segment(
        self, session: str, model: ServedModel, transcript: Transcript, start: int, slots: int
    ) -> MemoryAttention:
        stop = min(start + transcript.segment, len(transcript))
        key = (session, start, stop, slots)
        with self._computing:
            if key not in self._kept:
                self._kept[key] = _compute(model, transcript, start, stop, slots)
                if len(self._kept) > KEPT_SEGMENTS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


@lru_cache(maxsize=8)
def _on_cpu(network: Model) -> Model:
    """Return a copy on the CPU: work of other threads on the GPU would disturb CUDA graphs that the engine records."""
    with torch.device("meta"):
        copied = Model(network.config)
    copied.load_state_dict({name: weight.cpu() for name, weight in network.state_dict().items()}, assign=True)
    return copied.eval()


def _compute(model: ServedModel, transcript: Transcript, start: int, stop: int, slots: int) -> MemoryAttention:
    assert model.run is not None
    run, segment = model.run.run, transcript.segment
    if run.model.device.type == "cuda":
        run = replace(run, model=_on_cpu(run.model))
    network = run.model
    # A layer's output depends on the layer below it back to the first slot, and to the begin of its own segment.
    lengths = network.config.memory.lengths(network.config.num_layers, slots)
    segments_before = min(start // segment, sum(-(-length // segment) for length in lengths))
    ids = torch.from_numpy(transcript.rows["id"][start - segments_before * segment : stop].astype("int64"))
    state = _warmed(
        network, ids[: segments_before * segment], segment, model.run.run.first_state(1, slots, cached=True)
    )
    return attention_to_memory(network, ids[segments_before * segment :], segment=segment, memory=slots, state=state)


def _warmed(network: Model, ids: torch.Tensor, segment: int, state: State) -> State:
    with evaluating(network):
        for part in ids.split(segment) if len(ids) else ():
            _, state = network(part[None].to(network.device), state)
    return state


def _earlier(model: ServedModel, transcript: Transcript, at: int, slots: int) -> dict[str, Any] | None:
    earlier = transcript.earlier()
    distance, length = int(earlier.distance[at]), int(earlier.length[at])
    if not distance:
        return None
    rows = transcript.rows
    apart = int(rows["position"][at] - rows["position"][at - distance])
    opened = int(rows["in_segment"][at])
    return {
        "distance": apart,
        "length": length,
        "in_segment": apart <= opened,
        "in_memory": opened < apart <= opened + slots,
        "text": _around(model, transcript, at - distance),
    }


def _around(model: ServedModel, transcript: Transcript, place: int) -> str:
    """Return the text up to a place, and a little of what follows."""
    size = EXCERPT.get(transcript.unit, USUAL_EXCERPT)
    ids = transcript.rows["id"][max(0, place + 1 - size) : place + 1 + size // 4]
    return excerpt(model.codec, ids.tolist())
