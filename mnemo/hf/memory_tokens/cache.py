"""The cache for decoding with memory tokens: the memory, and the open segment that fills token by token.

Inside a segment, the backbone's cache holds the read block and the tokens so far. When the segment is full, the write
block is appended, which gives the new memory, and the backbone's cache is discarded. Rows whose segments end at the
same time form a group. A group is never padded, so a batch equals its rows one by one.
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
from mnemo.hf.memory_tokens.carried import Carried, carried, continued
from mnemo.hf.memory_tokens.options import MemoryConfig
from mnemo.hf.memory_tokens.overlap import OverlapMemory
from mnemo.hf.memory_tokens.previous_segment import join_states, split_states
from mnemo.hf.memory_tokens.split import first_length
from mnemo.hf.memory_tokens.text_memory import TextMemory
from mnemo.memory import TokensState
from mnemo.memory.state import State, select, tree_map, tree_zip


class DecodingModel:
    """The parts of the model that decoding needs."""

    def __init__(self, backbone: Any, memory: Any, config: MemoryConfig, embed: Callable[..., Tensor]):
        self.rows, self.memory, self.config, self.embed = CausalRows(backbone, config), memory, config, embed

    def first_state(self, batch: int) -> TokensState:
        """Return the state at the start of a text."""
        return self.memory.init(batch, self.rows.first_state(batch))

    def open(self, state: TokensState) -> Any:
        """Return the backbone's cache at the start of a segment."""
        _, previous = split_states(state.inner)
        if previous is None:
            return DynamicCache(config=self.rows.body.config)  # type: ignore[call-arg]
        return self.rows.open(previous, self.memory.initial)

    def read_rows(self, state: TokensState) -> Tensor:
        """Return the read block (B, m, D) of a segment; an associative memory has none."""
        if isinstance(self.memory, OverlapMemory):
            return self.memory.read_rows(state)
        return self.memory.rows(state)[:, : self.config.num_read]

    def feed(
        self, rows: Tensor, cache: Any, begin: int, room: int, state: TokensState, written: bool
    ) -> tuple[Tensor, Any]:
        """Return the hidden rows of `rows`, which follow the first `begin` rows of a segment of `room` tokens.

        `written`: they are the write block. Also return the layers' associative memories after them.
        """
        counts = torch.full_like(state.started, room)
        memories, previous = split_states(state.inner)
        part = (rows, cache, begin, counts, self.memory.row_mask(counts, begin))
        if self.config.kind == "tokens":
            unread = state.started == 0 if self.config.start == "overlap" else None
            return self.rows.feed(*part, unread, previous), memories
        with self.memory.call(memories, self.config.tokens if written else 0) as call:  # type: ignore[operator]
            hidden = self.rows.feed(*part, None, previous)
        return hidden, call.after

    def layers_after(self, state: TokensState, cache: Any, room: int, memories: Any) -> State:
        """Return the state of the layers after a segment of `room` tokens, whose rows are in the cache."""
        _, previous = split_states(state.inner)
        if previous is not None:
            previous = self.rows.segment_in(cache, previous, torch.full_like(state.started, room))
        return join_states(memories, previous)


class Group:
    """Rows whose segments end at the same time."""

    def __init__(
        self,
        rows: list[int],
        state: TokensState,
        room: int,
        count: int = 0,
        cache: Any = None,
        tail: Tensor | None = None,
    ) -> None:
        self.rows, self.state, self.count, self.cache = rows, state, count, cache
        self.room = room  # length of the open segment
        self.tail = tail  # (B, m, D): the last rows of the open segment, for a memory that starts as them

    def feed(self, tokens: Tensor, model: DecodingModel, last: int) -> Tensor:
        """Read tokens (B, T) and return the hidden rows of the last ones, (B, last, D); others are not kept."""
        pieces = []
        while tokens.shape[1]:
            part, tokens = tokens.tensor_split([self.room - self.count], 1)
            hidden = self._feed_part(model.embed(part), model)
            unwanted = hidden.shape[1] - max(0, min(last - tokens.shape[1], hidden.shape[1]))
            pieces.append(hidden[:, unwanted:].clone())  # a view, even an empty one, would keep all rows in memory
            if self.count == self.room:
                self._commit(model)
        return torch.cat(pieces, 1)

    def _feed_part(self, rows: Tensor, model: DecodingModel) -> Tensor:
        num, new = model.config.num_read, rows.shape[1]
        begin = num + self.count
        if isinstance(model.memory, OverlapMemory):
            self._keep_tail(rows, model.memory)
        if self.count == 0:
            self.cache, begin = model.open(self.state), 0
            rows = torch.cat([model.read_rows(self.state), rows], 1)
        hidden, _ = model.feed(rows, self.cache, begin, self.room, self.state, False)
        self.count += new
        return hidden[:, -new:]

    def _keep_tail(self, rows: Tensor, memory: OverlapMemory) -> None:
        before = self.state.memory.chunk(2, 1)[1] if self.tail is None else self.tail
        self.tail = memory.tail_after(before, rows)

    def _commit(self, model: DecodingModel) -> None:
        """Write the memory at the end of a full segment and discard the backbone's cache."""
        memories, _ = split_states(self.state.inner)
        written = model.memory.rows(self.state)  # the write block, (B, 0, D) without memory tokens
        if model.config.tokens:
            begin = model.config.num_read + self.count
            written, memories = model.feed(written, self.cache, begin, self.room, self.state, True)
        inner = model.layers_after(self.state, self.cache, self.room, memories)
        if isinstance(model.memory, OverlapMemory):
            assert self.tail is not None  # the segment has tokens
            self.state = model.memory.carry(self.state, written, self.tail, inner)
        else:
            self.state = model.memory.carry(self.state, written, inner)
        self.cache, self.count, self.room, self.tail = None, 0, model.config.segment, None

    def take(self, rows: list[int], members: list[int]) -> Group:
        """Return a group of the rows `rows`, which are copies of this group's members with indices `members`."""
        index = torch.tensor(members, device=self.state.started.device)
        tail = None if self.tail is None else self.tail[index]
        return Group(rows, select(self.state, index), self.room, self.count, _select(self.cache, index), tail)


def _select(cache: Any, index: Tensor) -> Any:
    if cache is None:
        return None
    other = copy.copy(cache)
    other.layers = [copy.copy(layer) for layer in cache.layers]
    other.batch_select_indices(index)
    return other


class MemoryCache(Cache):
    """The cache that `generate` passes from step to step."""

    def __init__(self, memory: Carried | TextMemory | None = None) -> None:
        super().__init__(layers=[])
        self.groups: list[Group] = []
        self.seen = 0
        # For the first segment, instead of an empty one: the memory of an earlier call, or that after an earlier text.
        self.memory = memory

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # no limit

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def batch_size(self) -> int:
        return sum(len(group.rows) for group in self.groups) or -1

    def feed(self, tokens: Tensor, mask: Tensor | None, model: DecodingModel, keep: int = 0) -> Tensor:
        """Read columns (B, T); return the hidden rows of the last `keep` columns (0: all), (B, keep, D).

        Rows are zero at padding; `mask` (B, >= T) is 0 at padding.
        """
        batch, width = tokens.shape
        valid = None if mask is None else mask[:, mask.shape[1] - width :] != 0
        if valid is None or bool(valid.all()):
            valid = torch.ones_like(tokens, dtype=torch.bool)
        lengths = valid.sum(1).tolist()
        if max(lengths, default=0) == 0:
            raise MnemoError("no tokens to read")
        if not self.groups:
            self._begin(lengths, model, tokens.device)
        self._split(lengths)
        self.seen += width
        keep = min(keep or width, width)
        pieces = [self._feed_group(group, tokens, valid, model, keep) for group in self.groups]
        hidden = next(rows for rows in pieces if rows is not None).new_zeros(batch, keep, model.memory.initial.shape[1])
        for group, rows in zip(self.groups, pieces, strict=True):
            if rows is not None:
                hidden[torch.tensor(group.rows, device=tokens.device)] = rows
        return hidden

    def _feed_group(
        self, group: Group, tokens: Tensor, valid: Tensor, model: DecodingModel, keep: int
    ) -> Tensor | None:
        """Return the hidden rows (B, keep, D) of one group; None if it has no tokens."""
        index = torch.tensor(group.rows, device=tokens.device)
        chosen = valid[index]
        used = int(chosen[0].sum())
        if used == 0:
            return None
        new = tokens[index][chosen].view(len(index), used)
        wanted = chosen[:, -keep:]
        counts = wanted.sum(1, keepdim=True)
        last = int(counts.max())
        rows = group.feed(new, model, last)
        placed = rows.new_zeros(len(index), keep, rows.shape[2])
        placed[wanted] = rows[torch.arange(last, device=rows.device) >= last - counts]
        return placed

    def _begin(self, lengths: list[int], model: DecodingModel, device: torch.device) -> None:
        if isinstance(self.memory, TextMemory):
            self._continue_text(self.memory.for_batch(len(lengths), device), model)
            return
        segment, align = model.config.segment, model.config.align
        rooms = [first_length(length, segment, align) for length in lengths]
        state = model.first_state(len(lengths))
        if self.memory is not None:
            state = continued(state, self.memory, repeat=True)  # several beams share one row of the given memory
        for room in dict.fromkeys(rooms):
            rows = [row for row, its_room in enumerate(rooms) if its_room == room]
            self.groups.append(Group(rows, select(state, torch.tensor(rows, device=state.started.device)), room))

    def _continue_text(self, memory: TextMemory, model: DecodingModel) -> None:
        """Read the open segment of an earlier text, which the next tokens continue."""
        group = Group(list(range(len(memory.open))), memory.state, model.config.segment)
        if memory.open.shape[1]:
            group.feed(memory.open, model, 0)
        self.groups.append(group)

    def _split(self, lengths: list[int]) -> None:
        """Split groups so that all rows of a group read the same number of tokens."""
        groups = []
        for group in self.groups:
            by_length: dict[int, list[int]] = {}
            for member, row in enumerate(group.rows):
                by_length.setdefault(lengths[row], []).append(member)
            if len(by_length) == 1:
                groups.append(group)
                continue
            groups += [
                group.take([group.rows[member] for member in members], members) for members in by_length.values()
            ]
        self.groups = groups

    def batch_select_indices(self, indices: Tensor) -> None:
        """Replace row i by a copy of row indices[i]."""
        wanted = indices.tolist()
        groups = []
        for group in self.groups:
            member = {row: number for number, row in enumerate(group.rows)}
            rows = [row for row, source in enumerate(wanted) if source in member]
            if rows:
                groups.append(group.take(rows, [member[wanted[row]] for row in rows]))
        self.groups = groups

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(max(self.batch_size, 0)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        raise MnemoError("a memory cache cannot be cropped: writing to memory cannot be undone")

    def reset(self) -> None:
        self.groups, self.seen = [], 0

    def written(self) -> Carried:
        """Return the memory that the open segments read."""
        order = torch.tensor([row for group in self.groups for row in group.rows]).argsort()
        memory = tree_zip(lambda *parts: torch.cat(parts), *(carried(group.state) for group in self.groups))
        return tree_map(lambda leaf: leaf[order.to(leaf.device)], memory)
