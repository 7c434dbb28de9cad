"""Every way to run a model without training, and its differences from the plain path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers.models import random_tokens
from helpers.option_places import (
    BATCH,
    EXACT,
    SEGMENT,
    Outcome,
    Place,
    at_place,
    differences,
    random_weights,
    with_state,
)
from torch import Tensor

from mnemo.inference.decoder import Decoder
from mnemo.inference.ring_decoder import RingDecoder, suits
from mnemo.inference.segment_scorer import Scorer, SegmentScorer, ThreadedScorer
from mnemo.memory.state import State
from mnemo.model import Model, ModelConfig

NUM_SEGMENTS = 3


class InPlaceScorer(SegmentScorer):
    """Keeps memories in place on every device, not on a GPU alone."""

    def _may_record(self) -> bool:
        return True


def text(model: Model) -> Tensor:
    tokens = random_tokens(BATCH, NUM_SEGMENTS * SEGMENT, vocab_size=model.config.vocab_size)
    return tokens.to(next(model.parameters()).device)


def segments(model: Model, state: State, **given: Any) -> Outcome:
    """The model itself, segment by segment."""
    hidden, losses = [], []
    for part in text(model).split(SEGMENT, 1):
        out, state = model(part, state, **given)
        hidden.append(out.hidden)
        losses.append(model.loss(out, part.flip(1)))
    return with_state({"hidden": torch.cat(hidden, 1), "loss": torch.cat(losses, 1)}, state)


def cached(model: Model) -> Outcome:
    return visible(segments(model, model.init(BATCH, cached=True)))


def tabled(model: Model) -> Outcome:
    state = model.init(BATCH, cached=True)
    return visible(segments(model, state, tables=model.tables(SEGMENT, state)))


def explained(model: Model) -> Outcome:
    """On the reference path, with the attention of every layer."""
    state, hidden = model.init(BATCH, cached=True), []
    for part in text(model).split(SEGMENT, 1):
        out, state, _ = model.explain(part, state)
        hidden.append(out.hidden)
    return visible(with_state({"hidden": torch.cat(hidden, 1)}, state))


def visible(outcome: Outcome) -> Outcome:
    """Without keys and values of slots that are not valid: their contents are arbitrary."""
    result = dict(outcome)
    for name, length in outcome.items():
        stem = name.removesuffix("length")
        for part in (f"{stem}keys", f"{stem}values") if stem != name else ():
            if part in outcome and outcome[part].dim() == 4:
                result[part] = _valid(outcome[part], length)
    return result


def _valid(slots: Tensor, length: Tensor) -> Tensor:
    """Slots (B, H, M, d), of which the last length[b] are valid; zero elsewhere."""
    age = torch.arange(slots.shape[2], device=slots.device).flip(0)
    return torch.where((age < length[:, None])[:, None, :, None], slots, 0.0)


def decoded(decoder: Any, tokens: Tensor, pieces: list[int]) -> Outcome:
    hidden = [decoder.feed(part).hidden.clone() for part in tokens.split(pieces, 1)]
    state = decoder.state()
    assert state.count.tolist() == [0] * BATCH
    return visible(with_state({"hidden": torch.cat(hidden, 1)}, state.state))


ONE_BY_ONE = [1] * (NUM_SEGMENTS * SEGMENT)
IN_PIECES = [2, 5, 1, 1]


def decoder_tokens(model: Model) -> Outcome:
    return decoded(Decoder(model, model.init(BATCH, cached=True), SEGMENT), text(model), ONE_BY_ONE)


def decoder_pieces(model: Model) -> Outcome:
    return decoded(Decoder(model, model.init(BATCH, cached=True), SEGMENT), text(model), IN_PIECES)


def rings(model: Model) -> Outcome:
    return decoded(RingDecoder(model, model.init(BATCH, cached=True), SEGMENT), text(model), ONE_BY_ONE)


def rings_after_pieces(model: Model) -> Outcome:
    return decoded(RingDecoder(model, model.init(BATCH, cached=True), SEGMENT), text(model), [3, 2, 1, 1, 1, 1])


def scored_by(scorer: Scorer, model: Model) -> Outcome:
    try:
        losses = [scorer.score(part, part.flip(1)) for part in text(model).split(SEGMENT, 1)]
    finally:
        scorer.close()
    return {"loss": torch.cat(losses, 1)}


def scorer(model: Model) -> Outcome:
    return scored_by(InPlaceScorer(model, model.init(BATCH, cached=True), SEGMENT), model)


def scorer_on_threads(model: Model) -> Outcome:
    state = model.init(BATCH, cached=True)
    return scored_by(ThreadedScorer(model, state, SEGMENT, [slice(0, 1), slice(1, BATCH)]), model)


def always(model: Model) -> bool:
    return True


def in_rings(model: Model) -> bool:
    return suits(model.config)


def on_cpu(model: Model) -> bool:
    return next(model.parameters()).device.type == "cpu"


RUNNERS: dict[str, tuple[Callable[[Model], Outcome], Callable[[Model], bool]]] = {
    "cached": (cached, always),
    "tables": (tabled, always),
    "explain": (explained, always),
    "decoder, tokens": (decoder_tokens, always),
    "decoder, pieces": (decoder_pieces, always),
    "rings": (rings, in_rings),
    "rings after pieces": (rings_after_pieces, in_rings),
    "scorer": (scorer, always),
    "scorer on threads": (scorer_on_threads, on_cpu),
}
"""Each with the models that it takes."""
KERNEL_RUNNERS = ("rings after pieces",)
"""Runners with kernels of their own, which the interpreter runs, slowly; attention's are tested with training."""


def expected(model: Model) -> Outcome:
    """Without caches; the state is that of a cached run, whose form all runners share."""
    plain = segments(model, model.init(BATCH))
    return {**cached(model), "hidden": plain["hidden"], "loss": plain["loss"]}


def wrong(config: ModelConfig, place: Place, names: tuple[str, ...]) -> list[str]:
    model, exact = at_place(random_weights(config, 0.3 if place == EXACT else 0.1), place)
    with torch.no_grad():
        want = expected(exact)
        applied = [name for name in names if RUNNERS[name][1](model)]
        return [line for name in applied for line in differences(name, RUNNERS[name][0](model), want, place.dtype)]
