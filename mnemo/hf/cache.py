"""A Mnemo memory as a transformers `Cache`: one decode state for all layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from mnemo.errors import MnemoError
from mnemo.hf.packing import Packed
from mnemo.hf.segment_loop import no_outputs
from mnemo.inference.decoder import Decoder, DecodeState
from mnemo.inference.generation import TextState
from mnemo.inference.ring_decoder import RingDecoder
from mnemo.memory.state import State, leaves, select, tree_map, tree_zip
from mnemo.model import Model

Memory = TextState | DecodeState | State | None


class MnemoCache(Cache):
    """Everything that the continuation of a text depends on. Its size does not grow with the text.

    `MnemoCache(memory)` continues from a reading, a decode state or a plain state. Earlier tokens are not repeated in
    the next input: `generate(new_ids, past_key_values=MnemoCache(memory))` takes the new tokens only. A private decoder
    advances the state in place; `state()` and `reading()` return copies.
    """

    def __init__(self, memory: Memory = None) -> None:
        super().__init__(layers=[])
        reading = memory if isinstance(memory, TextState) else None
        self._state: Any = memory if reading is None else reading.state
        self._decoder: Decoder | RingDecoder | None = None
        self._segment = 0
        """Tokens of the decoder's segments"""
        self._hidden: Tensor | None = None if reading is None else reading.hidden
        self._tokens: Tensor | None = None if reading is None else reading.tokens
        self._columns = 0

    def state(self) -> DecodeState | State | None:
        """Return a copy of the memory; it has an open segment if the model has decoded, else it is as given."""
        return self._state if self._decoder is None else self._decoder.state()

    def plain_state(self) -> State | None:
        """Return the memory between two segments, from which training continues."""
        if self._decoder is not None or isinstance(self._state, DecodeState):
            raise MnemoError("this cache holds an open segment: continue without labels, in evaluation mode")
        return self._state

    def reading(self) -> TextState:
        """Return what a continuation needs, in the form that `mnemo.save_memory` and `mnemo.generate` take."""
        if self._decoder is None or self._hidden is None or self._tokens is None:
            raise MnemoError("the model has not read any tokens yet")
        return TextState(self._decoder.state(), self._hidden.clone(), self._tokens.clone())

    def memory(self) -> MnemoCache:
        """Return the same memory for another text: the next input does not repeat earlier tokens."""
        other = self._select(None)
        other._columns = 0
        return other

    def feed(self, model: Model, packed: Packed, columns: int, segment: int | None, start: State) -> Tensor:
        """Return outputs (B, T, D) of the tokens, given the memory, or `start` if there is none yet.

        `segment`: tokens of a segment; None: the tokens of each row are one.
        """
        tokens, lengths, _ = packed
        decoder = self._open(model, segment or max(1, tokens.shape[1]), start)
        if decoder.batch != len(tokens):
            raise MnemoError(
                f"the memory has {decoder.batch} rows, the input {len(tokens)}: "
                "cache.batch_repeat_interleave(n) makes n continuations of every row"
            )
        before = self._hidden
        if segment is None and lengths is not None:
            hidden = self._feed_rows(model, tokens, lengths.tolist())
        elif tokens.shape[1]:
            hidden = decoder.feed(tokens, None if lengths is None else lengths.tolist()).hidden
        else:
            hidden = no_outputs(model, len(tokens))
        unpacked = packed.unpack(hidden, before)
        self._columns += columns
        used = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths.cpu()
        self._tokens = used if self._tokens is None else self._tokens + used
        self._hidden = unpacked[:, -1].clone() if columns else before
        return unpacked

    def _open(self, model: Model, segment: int, start: State) -> Decoder | RingDecoder:
        """Return the decoder for segments of this length; it continues from the memory."""
        if self._decoder is None or self._segment != segment:
            before = self.state()
            self._decoder = model.decoder(start if before is None else before, segment=segment)
            self._state, self._segment = None, segment
        return self._decoder

    def _feed_rows(self, model: Model, tokens: Tensor, lengths: list[int]) -> Tensor:
        """Read rows of different lengths, each as one segment; return outputs (B, T, D), zero after a row's tokens."""
        assert self._decoder is not None
        hidden = no_outputs(model, len(tokens)).new_zeros(*tokens.shape, model.config.dim)
        order, states = [], []
        for length in sorted(set(lengths)):
            rows = torch.tensor([row for row, used in enumerate(lengths) if used == length])
            part = model.decoder(self._decoder.select(rows).state(), segment=max(1, length))
            if length:
                there = rows.to(tokens.device)
                hidden[there, :length] = part.feed(tokens[there, :length]).hidden
            order.append(rows)
            states.append(part.state())
        joined = tree_zip(lambda *parts: torch.cat(parts), *states)
        places = torch.cat(order).argsort()
        state = tree_map(lambda leaf: leaf[places.to(leaf.device)], joined)
        self._decoder, self._segment = model.decoder(state, segment=1), 1
        return hidden

    def keep(self, state: State, columns: int) -> None:
        """Store the memory after a segment."""
        self._state, self._decoder, self._hidden, self._tokens = state, None, None, None
        self._columns += columns

    def _select(self, rows: Tensor | None) -> MnemoCache:
        other = MnemoCache()
        other._columns = self._columns
        if self.batch_size < 0:
            return other
        rows = torch.arange(self.batch_size) if rows is None else rows
        if self._decoder is not None:
            other._decoder, other._segment = self._decoder.select(rows), self._segment
        else:
            other._state = select(self._state, rows.to(next(leaves(self._state))[1].device))
        if self._hidden is not None:
            other._hidden = self._hidden.index_select(0, rows.to(self._hidden.device))
        if self._tokens is not None:
            other._tokens = self._tokens.index_select(0, rows.cpu())
        return other

    def _become(self, other: MnemoCache) -> None:
        self._state, self._decoder, self._segment = other._state, other._decoder, other._segment
        self._hidden, self._tokens, self._columns = other._hidden, other._tokens, other._columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace row i by row beam_idx[i]."""
        self._become(self._select(beam_idx))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._become(self._select(indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row `repeats` times: one memory, several continuations."""
        self._become(self._select(torch.arange(self.batch_size).repeat_interleave(repeats)))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise MnemoError("a memory cannot be cropped: it does not store its tokens one by one")

    def reset(self) -> None:
        """Forget everything."""
        self._become(MnemoCache())

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of columns of the current text that were read, padding included."""
        return self._columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    @property
    def batch_size(self) -> int:
        if self._decoder is not None:
            return self._decoder.batch
        return -1 if self._state is None else len(next(leaves(self._state))[1])

    @property
    def is_croppable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self.batch_size > 0

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return f"MnemoCache(rows={max(0, self.batch_size)}, columns={self._columns})"

    def __copy__(self) -> MnemoCache:
        return self._select(None)

    def __deepcopy__(self, memo: dict[int, Any]) -> MnemoCache:
        return self._select(None)
