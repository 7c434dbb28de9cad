"""Decoding: the memory that is written, and the open segment that fills token by token.

Inside a segment the backbone's own cache holds the read block and the tokens so far. When the segment is full, the
write block is read behind it, and the cache is thrown away together with it: the next segment starts from the new
memory. Rows whose segments end at the same time go in step, as a group; a group is never padded, so a batch equals its
rows one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.backbone import CausalRows
from mnemo.hf.memory_tokens.options import MemoryConfig
from mnemo.hf.memory_tokens.split import first_length
from mnemo.memory import RecurrentMemory, TokensState
from mnemo.memory.state import select


class Reader:
    """What reading tokens takes besides a cache."""

    def __init__(self, backbone: Any, memory: RecurrentMemory, config: MemoryConfig, embed: Callable[..., Tensor]):
        self.rows, self.memory, self.config, self.embed = CausalRows(backbone, config), memory, config, embed
        self.backbone_config = self.rows.body.config

    def open(self) -> DynamicCache:
        return DynamicCache(config=self.backbone_config)  # type: ignore[call-arg]


class Group:
    """Rows in step."""

    def __init__(self, rows: list[int], state: TokensState, room: int, count: int = 0, cache: Any = None) -> None:
        self.rows, self.state, self.count, self.cache = rows, state, count, cache
        self.room = room
        """Tokens that the open segment takes"""

    def feed(self, tokens: Tensor, reader: Reader) -> Tensor:
        """Read tokens (B, T): their hidden rows (B, T, D)."""
        pieces = []
        while tokens.shape[1]:
            part, tokens = tokens.tensor_split([self.room - self.count], 1)
            pieces.append(self._feed_part(reader.embed(part), reader))
            if self.count == self.room:
                self._commit(reader)
        return torch.cat(pieces, 1)

    def _feed_part(self, rows: Tensor, reader: Reader) -> Tensor:
        num, new = reader.config.tokens, rows.shape[1]
        begin = num + self.count
        if self.count == 0:
            self.cache, begin = reader.open(), 0
            rows = torch.cat([reader.memory.rows(self.state), rows], 1)
        hidden = self._rows(rows, begin, reader)
        self.count += new
        return hidden[:, -new:]

    def _rows(self, rows: Tensor, begin: int, reader: Reader) -> Tensor:
        counts = torch.full_like(self.state.started, self.room)
        mask = reader.memory.config.row_mask(counts, begin)
        return reader.rows.feed(rows, self.cache, begin, counts, mask)

    def _commit(self, reader: Reader) -> None:
        """The segment is full: write the memory and forget the rest."""
        if reader.config.tokens:
            written = self._rows(reader.memory.rows(self.state), reader.config.tokens + self.count, reader)
            self.state = reader.memory.carry(self.state, written, None)
        self.cache, self.count, self.room = None, 0, reader.config.segment

    def take(self, rows: list[int], places: list[int]) -> Group:
        """A group of the given rows, which are copies of those at `places`."""
        index = torch.tensor(places, device=self.state.started.device)
        return Group(rows, select(self.state, index), self.room, self.count, _select(self.cache, index))


def _select(cache: Any, index: Tensor) -> Any:
    if cache is None:
        return None
    other = copy.copy(cache)
    other.layers = [copy.copy(layer) for layer in cache.layers]
    other.batch_select_indices(index)
    return other


class MemoryCache(Cache):
    """What `generate` passes from step to step."""

    def __init__(self, memory: Tensor | None = None) -> None:
        super().__init__(layers=[])
        self.groups: list[Group] = []
        self.seen = 0
        self.memory = memory
        """(B, m, D) what the first segment reads, instead of the learned memory"""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # none

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def batch_size(self) -> int:
        return sum(len(group.rows) for group in self.groups) or -1

    def feed(self, tokens: Tensor, mask: Tensor | None, reader: Reader) -> Tensor:
        """Read columns (B, T), of which `mask` (B, >= T) tells the tokens: hidden rows (B, T, D), zero elsewhere."""
        batch, width = tokens.shape
        valid = None if mask is None else mask[:, -width:] != 0
        if valid is not None and bool(valid.all()):
            valid = None
        lengths = [width] * batch if valid is None else valid.sum(1).tolist()
        if not self.groups:
            self._begin(lengths, reader)
        self._split(lengths)
        self.seen += width
        hidden = None
        for group in self.groups:
            used = lengths[group.rows[0]]
            if used == 0:
                continue
            index = torch.tensor(group.rows, device=tokens.device)
            columns = None if valid is None else valid[index]
            new = tokens[index] if columns is None else tokens[index][columns].view(len(index), used)
            rows = group.feed(new, reader)
            if hidden is None:
                hidden = rows.new_zeros(batch, width, rows.shape[2])
            places = torch.ones_like(tokens[index], dtype=torch.bool) if columns is None else columns
            hidden[index] = hidden[index].masked_scatter(places[:, :, None], rows)
        if hidden is None:
            raise MnemoError("no tokens to read")
        return hidden

    def _begin(self, lengths: list[int], reader: Reader) -> None:
        segment, align = reader.config.segment, reader.config.align
        rooms = [first_length(length, segment, align) for length in lengths]
        given = None if self.memory is None else self._given(len(lengths), reader)
        for room in dict.fromkeys(rooms):
            rows = [row for row, its_room in enumerate(rooms) if its_room == room]
            state = reader.memory.init(len(rows))
            if given is not None:
                state = TokensState(given[rows].to(state.memory), torch.ones_like(state.started), None)
            self.groups.append(Group(rows, state, room))

    def _given(self, batch: int, reader: Reader) -> Tensor:
        """The memory to start from, a row for every row of the batch: several beams start from the same one."""
        assert self.memory is not None
        rows, *shape = self.memory.shape
        if rows == 0 or batch % rows or shape != list(reader.memory.initial.shape):
            needed = (batch, *reader.memory.initial.shape)
            raise MnemoError(f"memory {tuple(self.memory.shape)} is not {needed}, as this model's is")
        return self.memory.repeat_interleave(batch // rows, 0)

    def _split(self, lengths: list[int]) -> None:
        """Make groups whose rows read equally many tokens."""
        groups = []
        for group in self.groups:
            by_length: dict[int, list[int]] = {}
            for place, row in enumerate(group.rows):
                by_length.setdefault(lengths[row], []).append(place)
            if len(by_length) == 1:
                groups.append(group)
                continue
            groups += [group.take([group.rows[place] for place in places], places) for places in by_length.values()]
        self.groups = groups

    def batch_select_indices(self, indices: Tensor) -> None:
        """Row i becomes a copy of row indices[i]."""
        wanted = indices.tolist()
        groups = []
        for group in self.groups:
            place = {row: number for number, row in enumerate(group.rows)}
            rows = [row for row, source in enumerate(wanted) if source in place]
            if rows:
                groups.append(group.take(rows, [place[wanted[row]] for row in rows]))
        self.groups = groups

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(max(self.batch_size, 0)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        raise MnemoError("what has been written into memory cannot be taken back: a memory cache cannot be cropped")

    def reset(self) -> None:
        self.groups, self.seen = [], 0

    def written(self) -> Tensor:
        """(B, m, D): the memory that the open segments read."""
        order = torch.tensor([row for group in self.groups for row in group.rows]).argsort()
        memory = torch.cat([group.state.memory for group in self.groups])
        return memory[order.to(memory.device)]
