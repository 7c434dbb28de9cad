"""Attention to the previous segment: the keys and values of its tokens in every layer are carried to the next one.

Tokens then attend to the whole previous segment besides their own, as in Transformer-XL and in the `sliding_window`
option of the published ARMT. The carried tensors have a fixed size and no gradient. Memory tokens are not kept.

The tokens of the previous segment have positions 0 ... n - 1, and the rows of the current segment follow them. Rotary
keys are therefore rotated back by their segment's first position. Relative positions (ALiBi) need no change. Learned
positions are part of the rows and cannot be moved: keys keep the positions at which they were computed.
Shapes: B rows, S slots (tokens of a full segment), T tokens, h key heads, d head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache

from mnemo.errors import MnemoError
from mnemo.memory.state import State


class PreviousSegment(NamedTuple):
    keys: tuple[Tensor, ...]
    """For each layer (B, h, S, d), in the order of the text; slots from `count` on are zero and not attended to"""
    values: tuple[Tensor, ...]
    """For each layer (B, h, S, d)"""
    count: Tensor
    """(B,): tokens of the previous segment; 0 at the start of a text"""

    @property
    def slots(self) -> int:
        return self.keys[0].shape[2]

    def seen(self) -> Tensor:
        """Return booleans (B, S): the slots that hold a token."""
        return torch.arange(self.slots, device=self.count.device) < self.count[:, None]


class LayerStates(NamedTuple):
    """The state of layers that have an associative memory and attend to the previous segment."""

    memories: tuple[Any, ...]
    previous: PreviousSegment


def split_states(inner: State) -> tuple[tuple[Any, ...] | None, PreviousSegment | None]:
    """Return the associative memories of the layers and the previous segment; None for what is not there."""
    if isinstance(inner, LayerStates):
        return inner.memories, inner.previous
    return (None, inner) if isinstance(inner, PreviousSegment) else (inner, None)


def join_states(memories: tuple[Any, ...] | None, previous: PreviousSegment | None) -> State:
    """The inverse of `split_states`."""
    if previous is None:
        return memories
    return previous if memories is None else LayerStates(memories, previous)


def no_previous_segment(body: Any, batch: int, slots: int, like: Tensor) -> PreviousSegment:
    """Return the state at the start of a text, for a model without its head."""
    shape, num = (batch, *key_shape(body.config, slots)), body.config.get_text_config().num_hidden_layers
    # Separate tensors for all layers: torch.export would take equal ones for one input.
    keys, values = (tuple(like.detach().new_zeros(shape) for _ in range(num)) for _ in range(2))
    return PreviousSegment(keys, values, torch.zeros(batch, dtype=torch.int64, device=like.device))


def key_shape(config: Any, slots: int) -> tuple[int, int, int]:
    """Return the shape (h, S, d) of the keys of a layer for one row."""
    text = config.get_text_config()
    queries = text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or queries
    return heads, slots, getattr(text, "head_dim", None) or text.hidden_size // queries


def filled_cache(body: Any, previous: PreviousSegment, dtype: torch.dtype) -> DynamicCache:
    """Return a cache of the backbone that begins with the previous segment; its keys have a type for attention."""
    cache = DynamicCache(config=body.config)  # type: ignore[call-arg]
    for index, (keys, values) in enumerate(zip(previous.keys, previous.values, strict=True)):
        cache.update(keys.to(dtype), values.to(dtype), index)
    return cache


def segment_of(
    body: Any, cache: Any, before: PreviousSegment, first: int, counts: Tensor, positions: Tensor
) -> PreviousSegment:
    """Return the segment whose rows a cache holds after the slots of `before`, as the previous one of the next.

    `first`: row of its first token. `counts` (B,): its tokens. `positions` (B,): the position of its first token. Rows
    without tokens keep the segment before.
    """
    frequencies, slots = rotary_frequencies(body), before.slots
    begin, had_tokens = slots + first, counts > 0
    kept = (torch.arange(slots, device=counts.device) < counts[:, None])[:, None, :, None]

    def keep(rows: Tensor, old: Tensor) -> Tensor:
        rows = F.pad(rows.to(old.dtype), (0, 0, 0, slots - rows.shape[2]))
        return torch.where(had_tokens[:, None, None, None], rows * kept, old)

    keys, values = [], []
    for layer, old_keys, old_values in zip(cache.layers, before.keys, before.values, strict=True):
        new_keys, new_values = (rows[:, :, begin : begin + slots].detach() for rows in (layer.keys, layer.values))
        keys.append(keep(rotated_back(new_keys, positions, frequencies), old_keys))
        values.append(keep(new_values, old_values))
    return PreviousSegment(tuple(keys), tuple(values), torch.where(had_tokens, counts, before.count))


def rotary_frequencies(body: nn.Module) -> Tensor | None:
    """Return the frequencies (r / 2,) of rotary positions; None if the model has other positions."""
    found = [buffer for name, buffer in body.named_buffers() if name.rpartition(".")[2] == "inv_freq"]
    if any(buffer.shape != found[0].shape or not torch.equal(buffer, found[0]) for buffer in found[1:]):
        raise MnemoError(
            f"the layers of {type(body).__name__} have different rotary positions: they cannot attend to the previous "
            "segment"
        )
    return found[0] if found else None


def rotated_back(keys: Tensor, distances: Tensor, frequencies: Tensor | None) -> Tensor:
    """Return rotary keys (B, h, T, d) at positions that are lower by `distances` (B,).

    The first half of the rotated channels forms pairs with the second half, as in Llama and GPT-NeoX.
    """
    if frequencies is None:
        return keys
    # In single precision, as transformers computes angles.
    angles = distances[:, None].float() * frequencies.to(keys.device, torch.float32)
    cos, sin = (part.to(keys.dtype)[:, None, None] for part in (angles.cos(), angles.sin()))
    half = frequencies.shape[0]
    x, y, rest = keys[..., :half], keys[..., half : 2 * half], keys[..., 2 * half :]
    return torch.cat([x * cos + y * sin, y * cos - x * sin, rest], -1)
