"""Transformer-XL's memory with rotary positions: keys that were rotated before are used again."""

from __future__ import annotations

import pytest
import torch
from helpers.models import random_model, random_tokens

from mnemo.inference.decoder import Decoder
from mnemo.memory.xl.modules import OpenXL
from mnemo.model.positions import Rotary
from mnemo.ops import rotary

PIECES = ([3, 1, 2], [1, 1, 1], [0, 4, 1], [1, 1, 1], [5, 0, 2], [1, 1, 1], [1, 1, 1])
"""Tokens of three rows in each call; segments have 4."""


def forget_rotated(decoder: Decoder) -> None:
    for group in decoder.groups:
        for stage in group.stages:
            assert isinstance(stage, OpenXL)
            stage.rotated = None


@pytest.mark.parametrize("memory", [0, 3, 9])
def test_keys_that_were_rotated_before_change_nothing(memory: int) -> None:
    model = random_model(memory=memory, positions=Rotary())
    kept, anew = (Decoder(model, model.init(3, cached=True), segment=4) for _ in range(2))
    for number, lengths in enumerate(PIECES):
        tokens = random_tokens(3, max(lengths), seed=number)
        forget_rotated(anew)
        assert torch.equal(kept.feed(tokens, lengths).hidden, anew.feed(tokens, lengths).hidden)
        if number == 3:
            kept, anew = (decoder.select(torch.tensor([2, 0, 1])) for decoder in (kept, anew))
        if number == 4:
            kept, anew = (Decoder(model, decoder.state(), segment=4) for decoder in (kept, anew))


def test_a_token_rotates_its_own_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(memory=6, positions=Rotary())
    decoder = Decoder(model, model.init(1, cached=True), segment=4)
    decoder.feed(random_tokens(1, 2))
    rotated: list[int] = []

    def counted(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rotated.append(x.shape[2])
        return rotary.rotate(x, angles)

    monkeypatch.setattr("mnemo.memory.xl.modules.rotate", counted)
    decoder.feed(random_tokens(1, 1))
    assert rotated == [1] * 3
    decoder.feed(random_tokens(1, 1))  # the segment is full: its keys change their places
    decoder.feed(random_tokens(1, 1))
    assert rotated[-3:] == [7] * 3
