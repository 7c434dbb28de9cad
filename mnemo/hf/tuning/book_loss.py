"""Loss on text of held-out books, with memory and in separate segments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mnemo.data.babilong.background import Background
from mnemo.errors import MnemoError
from mnemo.hf.tuning.accuracy import evaluating

SEGMENTS = 16
"""Segments of each text"""
ROWS = 64


def book_ids(background: Background, segment: int) -> Tensor:
    """Return rows of consecutive tokens (B, T) from the beginning of the books."""
    length = min(SEGMENTS, len(background.ids) // segment) * segment
    if length == 0:
        raise MnemoError(f"the held-out books have less than {segment} tokens: too few for the loss on them")
    rows = min(ROWS, len(background.ids) // length)
    return torch.from_numpy(background.ids[: rows * length]).long().view(rows, length)


@torch.no_grad()
def book_loss(model: Any, ids: Tensor, segment: int, batch: int) -> dict[str, float]:
    """Return the mean loss in nats per token with memory, and with every segment as a text of its own.

    The first token of a segment is not predicted in either case, so that both have the same tokens.
    """
    total = {"memory": 0.0, "separate": 0.0}
    with evaluating(model, segment) as device:
        for rows in ids.split(batch):
            memory = None
            for piece in rows.split(segment, 1):
                piece = piece.to(device)
                out = model(input_ids=piece, labels=piece, memory=memory, return_logits=False)
                alone = out.loss if memory is None else _alone(model, piece)
                memory = out.memory
                for name, loss in (("memory", out.loss), ("separate", alone)):
                    total[name] += float(loss) * len(rows) * segment
    return {name: loss / ids.numel() for name, loss in total.items()}


def _alone(model: Any, piece: Tensor) -> Tensor:
    return model(input_ids=piece, labels=piece, return_logits=False, return_memory=False).loss
