"""Attention to memory of every token, and earlier places of the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.mechanisms import MECHANISMS
from helpers.models import random_model, random_tokens
from helpers.tolerances import assert_close

from mnemo import analysis
from mnemo.analysis.observers import Rows
from mnemo.errors import MnemoError

SEGMENT = 4


def slow_memory_attention(mechanism: str, ids: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Share and peak, computed key by key from every segment's recorded attention."""
    model = random_model(**MECHANISMS[mechanism])
    layers = analysis.attending_layers(model)
    slots = [model.config.memory.lengths(model.config.num_layers)[layer] for layer in layers]
    state, shares, peaks = model.init(1, cached=True), [], []
    for part in ids.split(SEGMENT):
        _, state, found = model.explain(part[None], state)
        for row in range(len(part)):
            share, by_distance = 0.0, {}
            for attended, own in zip(found, slots, strict=True):
                rows = Rows.of(model, len(part))
                before = attended.probabilities.shape[3] - rows.read - rows.tokens - rows.write
                weights = attended.probabilities[0, :, rows.read + row].mean(0)
                share += float(weights[:before].sum()) / len(found)
                for key in range(max(0, before - own), before):
                    distance = before - key + row
                    by_distance[distance] = by_distance.get(distance, 0.0) + float(weights[key])
            shares.append(share)
            best = max(by_distance, key=lambda distance: by_distance[distance], default=0)
            peaks.append(best if by_distance.get(best, 0.0) > 0 else 0)
    return torch.tensor(shares, dtype=torch.float64), peaks


@pytest.mark.parametrize("mechanism", ["xl-plan", "compressive", "rmt-with-cache", "lstm-below-xl"])
def test_attention_to_memory_equals_sums_over_keys(mechanism: str) -> None:
    ids = random_tokens(1, 22, 5)[0]
    found = analysis.attention_to_memory(random_model(**MECHANISMS[mechanism]), ids, segment=SEGMENT)
    shares, peaks = slow_memory_attention(mechanism, ids)
    assert_close(torch.from_numpy(found.share), shares)
    assert found.peak.tolist() == peaks


def test_the_first_segment_has_no_memory() -> None:
    found = analysis.attention_to_memory(random_model(**MECHANISMS["xl-plan"]), random_tokens(1, 9, 1)[0], segment=4)
    assert not found.share[:4].any() and not found.peak[:4].any()
    assert found.share[4:].all() and (found.peak[4:] > 0).all()


def slow_earlier(ids: list[int], sizes: list[int]) -> list[tuple[int, int]]:
    """The last earlier place of the longest piece, by comparing all places."""
    best = [(0, 0)] * len(ids)
    for at in range(len(ids)):
        for size in sizes:
            piece = ids[at - size + 1 : at + 1] if at + 1 >= size else None
            places = [e for e in range(size - 1, at) if piece is not None and ids[e - size + 1 : e + 1] == piece]
            if places:
                best[at] = (at - places[-1], size)
    return best


def test_earlier_places_equal_a_search_over_all_places() -> None:
    ids = np.random.default_rng(0).integers(0, 3, 150)
    ids[90:120] = ids[10:40]
    found = analysis.earlier_occurrences(ids, shortest=2, longest=16)
    assert list(zip(found.distance.tolist(), found.length.tolist(), strict=True)) == slow_earlier(
        ids.tolist(), [2, 4, 8, 16]
    )
    assert found.length.max() == 16


def test_short_texts_have_no_earlier_places() -> None:
    for text in ([], [4], [1, 2, 3]):
        assert not analysis.earlier_occurrences(np.array(text, np.int64), shortest=4).distance.any()


def test_pieces_are_powers_of_two() -> None:
    with pytest.raises(MnemoError, match="6 is not a power of two"):
        analysis.earlier_occurrences(np.arange(9), shortest=6)
