"""A transformers model as the backbone of the core's memory tokens.

Rows are [read block, tokens, write block, padding]. Padding is on the right, which causal attention never sees, so the
backbone's causal mask is enough; block masks are passed as 4-D masks.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.options import MemoryConfig
from mnemo.hf.memory_tokens.position_ids import first_token, position_ids
from mnemo.hf.memory_tokens.previous_segment import PreviousSegment, filled_cache, no_previous_segment, segment_of
from mnemo.ops import Blocks, Causal


def body_of(backbone: Any) -> nn.Module:
    """Return the model without its head."""
    return backbone.base_model


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a 4-D additive mask from (B, Q, K) booleans: 0 where visible, the lowest number elsewhere."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def check_attention(backbone: Any, config: MemoryConfig) -> None:
    """Refuse flash attention where it would silently ignore the mask or position policy."""
    attention = backbone.config._attn_implementation or ""
    if "flash" in attention and config.attend_previous:
        raise MnemoError(f'attend_previous is not tested with {attention}: use attn_implementation="sdpa"')
    if "flash" not in attention or config.tokens == 0:
        return
    if config.positions != "continue":
        raise MnemoError(
            f'{attention} interprets positions that do not increase as several texts: use positions="continue" or '
            'attn_implementation="sdpa"'
        )
    if config.mask == "block":
        raise MnemoError(f'{attention} supports no 4-D mask: use mask="causal" or attn_implementation="sdpa"')


def first_position(backbone: Any) -> int:
    """Return the first position: 0, or in models like RoBERTa the one after the padding token's."""
    for name, module in body_of(backbone).named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


class CausalRows:
    """A causal language model without embeddings and head; runs whole segments, or parts of them with a cache."""

    def __init__(self, backbone: Any, config: MemoryConfig) -> None:
        check_attention(backbone, config)
        self.backbone, self.body, self.config = backbone, body_of(backbone), config

    def first_state(self, batch: int) -> PreviousSegment | None:
        """Return the state of the layers at the start of a text; None if they attend to their segment only."""
        if not self.config.attend_previous:
            return None
        return no_previous_segment(self.body, batch, self.config.segment, self.backbone.get_input_embeddings().weight)

    def __call__(
        self,
        rows: Tensor,
        state: PreviousSegment | None,
        /,
        *,
        mask: Causal | Blocks,
        positions: Tensor,
        lengths: Tensor | None,
        unread: Tensor | None = None,
    ) -> tuple[Tensor, PreviousSegment | None]:
        """Return hidden rows (B, Q, D) of a whole segment, and the state for the next one.

        `unread` (B,): rows whose read block is hidden from the other rows.
        """
        memory = self.config.num_read + self.config.tokens
        total = torch.full((len(rows),), rows.shape[1], device=rows.device) if lengths is None else lengths
        counts, cache = (total - memory).clamp(min=0), self.open(state, rows) if state is not None else None
        hidden = self.feed(rows, cache, 0, counts, mask, unread, state)
        return hidden, None if state is None else self.segment_in(cache, state, counts)

    def open(self, previous: PreviousSegment, rows: Tensor) -> Any:
        """Return a cache that begins with the previous segment; `rows`: those that follow."""
        device, dtype = rows.device.type, rows.dtype
        if torch.is_autocast_enabled(device) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        return filled_cache(self.body, previous, dtype)

    def segment_in(self, cache: Any, before: PreviousSegment, counts: Tensor) -> PreviousSegment:
        """Return the state after a segment of `counts` (B,) tokens, whose rows are in the cache."""
        first = first_token(self.config.positions, self.config.num_read, self.config.tokens)
        return segment_of(self.body, cache, before, self.config.num_read, counts, before.count + first)

    def feed(
        self,
        rows: Tensor,
        cache: Any,
        begin: int,
        counts: Tensor,
        mask: Causal | Blocks,
        unread: Tensor | None = None,
        previous: PreviousSegment | None = None,
    ) -> Tensor:
        """Return the hidden rows of `rows`, which follow the first `begin` rows of the segment; those are in the cache.

        `counts` (B,): number of tokens between the memory blocks of the segment. `unread` (B,): as above. `previous`:
        the segment with which the cache begins.
        """
        num = rows.shape[1]
        index = torch.arange(begin, begin + num, device=rows.device)
        options: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            options["past_key_values"] = cache
        seen = self._seen(unread, begin + num, previous)
        if isinstance(mask, Blocks):
            visible = mask.visible(num, begin + num, begin, rows.device)
            if previous is not None:
                visible = torch.nn.functional.pad(visible, (previous.slots, 0), value=True)
            visible = visible if seen is None else visible & seen[:, None]
            options["attention_mask"] = additive(visible, rows.dtype)
        elif seen is not None:
            options["attention_mask"] = seen.long()
        positions = self._positions(index, counts, previous)
        if positions is not None:
            options["position_ids"] = positions + first_position(self.backbone)
            # Without a mask, transformers interprets positions that do not increase as several texts in one row.
            options.setdefault("attention_mask", torch.ones(len(rows), begin + num, device=rows.device).long())
        return self.body(inputs_embeds=rows, **options).last_hidden_state

    def _positions(self, index: Tensor, counts: Tensor, previous: PreviousSegment | None) -> Tensor | None:
        """Return positions (B, N) of the rows `index`; None if the backbone's own are right."""
        found = position_ids(self.config.positions, index, self.config.num_read, self.config.tokens, counts)
        if previous is None or not takes_positions(self.body):
            return found
        return previous.count[:, None] + (index if found is None else found)

    def _seen(self, unread: Tensor | None, num_rows: int, previous: PreviousSegment | None) -> Tensor | None:
        """Return booleans (B, K), False for the keys of hidden read blocks and empty slots; None if all are seen."""
        seen = None
        # A compiled graph has one path: with the mask.
        if unread is not None and (torch.compiler.is_compiling() or bool(unread.any())):
            seen = (torch.arange(num_rows, device=unread.device) >= self.config.num_read) | ~unread[:, None]
        if previous is None:
            return seen
        if seen is None:
            seen = torch.ones(len(previous.count), num_rows, dtype=torch.bool, device=previous.count.device)
        return torch.cat([previous.seen(), seen], 1)


def takes_positions(body: Any) -> bool:
    """Return whether a model accepts position ids."""
    return "position_ids" in inspect.signature(body.forward).parameters


class EncoderRows:
    """An encoder with its classification head, which uses the first row: the first token is moved before the memory.

    The logits are returned in place of the backbone's state.
    """

    def __init__(self, backbone: Any, config: MemoryConfig) -> None:
        check_attention(backbone, config)
        self.backbone, self.config = backbone, config

    def __call__(
        self, rows: Tensor, state: Any, /, *, mask: Causal | Blocks, positions: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Any]:
        num, total = self.config.tokens, rows.shape[1]
        order = torch.tensor([num, *range(num), *range(num + 1, total)], device=rows.device)
        counts = torch.full((len(rows),), total, device=rows.device) if lengths is None else lengths
        placed = position_ids(self.config.positions, positions, num, 0, (counts - num).clamp(min=0))
        options: dict[str, Any] = {}
        if placed is not None:
            options["position_ids"] = placed[:, order] + first_position(self.backbone)
        if lengths is not None:
            seen = (positions < lengths[:, None]) | (lengths == 0)[:, None]  # an empty row would give NaN
            options["attention_mask"] = seen.long()
        out = self.backbone(inputs_embeds=rows[:, order], output_hidden_states=True, **options)
        return out.hidden_states[-1][:, order.argsort()], out.logits


def logits_of(backbone: Any, hidden: Tensor) -> Tensor:
    """Apply the head of a causal language model."""
    logits = backbone.get_output_embeddings()(hidden)
    config = backbone.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is not None:
        logits = torch.tanh(logits / cap) * cap
    scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    if scale is not None:
        logits = logits * scale
    return logits if divisor is None else logits / divisor
