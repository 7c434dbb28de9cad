"""Check the inputs of analyses: token ids, segment length and memory length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mnemo.errors import MnemoError, require_not_negative, require_positive
from mnemo.memory.state import State, leaves
from mnemo.model import Model

Ids = Tensor | np.ndarray | Sequence[int]


def as_ids(model: Model, ids: Ids, at_least: int = 2) -> Tensor:
    """Return the text (T,) on the model's device."""
    text = torch.from_numpy(ids.astype(np.int64)) if isinstance(ids, np.ndarray) else torch.as_tensor(ids)
    if text.dim() != 1:
        raise MnemoError(f"an analysis needs one row of token ids, not shape {list(text.shape)}")
    if len(text) < at_least:
        raise MnemoError(f"a text of {len(text)} tokens is too short: this analysis needs at least {at_least}")
    text = text.to(torch.int64)
    model.check_tokens(text.cpu())
    return text.to(model.device)


def keeps_memory(model: Model, memory: int | None = None) -> bool:
    """Return whether the model passes anything from one segment to the next."""
    state = model.init(1, checked_memory(memory))
    return any(leaf.is_floating_point() and leaf.numel() for _, leaf in leaves(state))


def checked_memory(memory: int | None) -> int | None:
    require_not_negative("memory length", memory)
    return memory


def checked_segment(segment: int) -> int:
    require_positive("segment length", segment)
    return segment


def empty_state(model: Model, memory: int | None, batch: int = 1) -> State:
    return model.init(batch, checked_memory(memory), cached=True)
