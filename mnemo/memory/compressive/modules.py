"""State, stage and decoder of the Compressive Transformer's memory; see the package for what it is.

Shapes: B batch, L segment, M memory slots, C compressed slots, Q queued rows, D model width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.errors import MnemoError
from mnemo.memory.compressive import Compressive
from mnemo.memory.protocol import (
    Extent,
    Layer,
    Segment,
    Stage,
    fit_slots,
    keep_newest,
    narrowed,
    projection_work,
    widened,
)
from mnemo.memory.shared_steps import RowTensor, SharesSteps, plain_tensors
from mnemo.memory.state import select
from mnemo.memory.waiting_rows import leaving, take_rows
from mnemo.ops import Attended

LEARNED = ("conv", "dilated")


class CompressiveState(NamedTuple):
    hidden: Tensor
    """(B, M, D) the layer's last inputs, newest last"""
    length: Tensor
    """(B,) valid slots, right-aligned"""
    compressed: Tensor
    """(B, C, D), newest last"""
    compressed_length: Tensor
    """(B,) valid slots, right-aligned"""
    waiting: Tensor
    """(B, ratio - 1, D) rows that left the memory and do not fill a block yet, oldest first"""
    waiting_length: Tensor
    """(B,) valid rows, left-aligned"""
    usage: Tensor
    """(B, M, 2) total attention to each slot, and the number of queries that saw it; (B, M, 0) if it is not needed"""
    waiting_usage: Tensor
    """The same for the waiting rows"""


class _Compress(nn.Module):
    """(B, blocks * ratio, D) -> (B, blocks, D), by pooling or convolution."""

    def __init__(self, config: Compressive, dim: int) -> None:
        super().__init__()
        self.config, self.convolutions = config, nn.ModuleList()
        self.decoder = None
        if not config.compressed:
            return
        if config.function == "conv":
            self.convolutions.append(nn.Conv1d(dim, dim, config.ratio, config.ratio))
        if config.function == "dilated":
            levels = config.ratio.bit_length() - 1
            self.convolutions.extend(nn.Conv1d(dim, dim, 2, dilation=2**level) for level in range(levels))
        if config.loss == "autoencoding" and config.function in LEARNED:
            self.decoder = nn.ConvTranspose1d(dim, dim, config.ratio, config.ratio)

    def forward(self, rows: Tensor) -> Tensor:
        """Compress every block separately, so that a block's result does not depend on the other blocks."""
        batch, length, dim = rows.shape
        blocks = rows.reshape(-1, self.config.ratio, dim).transpose(1, 2)  # (B * blocks, D, ratio)
        if self.config.function == "max":
            out = blocks.amax(-1)
        elif self.config.function == "mean":
            out = blocks.mean(-1)
        else:
            for number, convolution in enumerate(self.convolutions):
                blocks = convolution(narrowed(F.relu(blocks) if number else blocks, convolution.weight))  # type: ignore[arg-type]
            out = blocks.squeeze(-1)
        return out.view(batch, length // self.config.ratio, dim)

    def work(self) -> int:
        """Multiply-adds for one block."""
        total, length = 0, self.config.ratio
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            reach = convolution.dilation[0] * (convolution.kernel_size[0] - 1)
            length = (length - reach - 1) // convolution.stride[0] + 1
            total += length * convolution.weight.numel()
        return total

    def rebuild(self, compressed: Tensor) -> Tensor:
        assert self.decoder is not None
        return self.decoder(compressed.transpose(1, 2)).transpose(1, 2)


class _Queue(NamedTuple):
    """Rows that left the memory, oldest first, including the waiting ones."""

    rows: Tensor
    """(B, Q, D)"""
    usage: Tensor
    """(B, Q, 2) or (B, Q, 0)"""
    length: Tensor
    """(B,) valid rows, left-aligned"""


class CompressiveStage(Stage):
    def __init__(self, config: Compressive, layer: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.layer: Layer = layer  # type: ignore[assignment]
        self.compress = _Compress(config, self.layer.dim)
        self.unused_weights = () if config.compressed and config.loss != "none" else self._compression_weights()

    def _compression_weights(self) -> tuple[str, ...]:
        return tuple(f"compress.{name}" for name, _ in self.compress.named_parameters())

    def init(self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False) -> CompressiveState:
        config, dim, like = self.config, like.shape[-1], widened(like)
        tracked = 2 if config.function == "most_used" else 0

        def valid(count: int) -> Tensor:
            return torch.full((batch,), count if full else 0, device=like.device)

        return CompressiveState(
            like.new_zeros(batch, length, dim),
            valid(length),
            like.new_zeros(batch, config.compressed, dim),
            valid(config.compressed),
            like.new_zeros(batch, config.ratio - 1, dim),
            valid(0),
            like.new_zeros(batch, length, tracked),
            like.new_zeros(batch, config.ratio - 1, tracked),
        )

    def forward(self, x: Tensor, state: CompressiveState, segment: Segment) -> tuple[Tensor, CompressiveState]:
        keys, values = self.layer.keys_values(x, torch.cat([state.compressed, state.hidden], 1))
        context, received = self.attend(x, keys, values, state, 0, segment)
        after = self.write(x, state, segment.used(x), received, segment if self.training else None)
        return self.layer.finish(x, context), after

    def attend(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        state: CompressiveState,
        count: int,
        segment: Segment,
    ) -> tuple[Tensor, Tensor]:
        """Contexts of rows x that follow `count` others, and the attention that memory and segment received."""
        slots = self.extent(state).slots
        num_keys = slots + count + x.shape[1]
        lengths = state.compressed_length + state.length + count + x.shape[1]
        tracked = state.usage.shape[-1] > 0
        own: list[Attended] = []
        scope = segment.scope(self.layer, slots, num_keys, lengths)
        context, _ = self.layer.attend(x, keys, values, scope._replace(record=own) if tracked else scope)
        if not tracked:
            return context, state.usage.new_zeros(len(x), num_keys - state.compressed.shape[1], 0)
        if scope.record is not None:
            scope.record.append(own[-1])
        return context, _received(own[-1].probabilities, segment.lengths, state.compressed.shape[1])

    def write(
        self, x: Tensor, state: CompressiveState, used: Tensor, received: Tensor, segment: Segment | None = None
    ) -> CompressiveState:
        """The state after the first used[b] rows of x (B, L, D); `segment` receives the compression loss, if given."""
        num_slots, num_new = state.hidden.shape[1], x.shape[1]
        rows = torch.cat([state.hidden, x.detach()], 1)
        usage = F.pad(state.usage, (0, 0, 0, num_new)) + received
        after = state._replace(
            hidden=keep_newest(rows, num_slots, used, num_new, 1),
            length=(state.length + used).clamp(max=num_slots),
            usage=keep_newest(usage, num_slots, used, num_new, 1),
        )
        if not self.config.compressed:
            return after
        return self._push(after, self._leave(rows, usage, state, used), x, segment)

    def _leave(self, rows: Tensor, usage: Tensor, state: CompressiveState, used: Tensor) -> _Queue:
        """The waiting rows, then the rows that a segment pushes out of the memory."""
        num_slots = state.hidden.shape[1]
        index, length = leaving(
            state.waiting, state.waiting_length, state.length, used, num_slots, rows.shape[1] - num_slots
        )
        return _Queue(
            take_rows(torch.cat([state.waiting, rows], 1), index),
            take_rows(torch.cat([state.waiting_usage, usage], 1), index),
            length,
        )

    def _push(self, state: CompressiveState, queue: _Queue, x: Tensor, segment: Segment | None) -> CompressiveState:
        """Compress the complete blocks of the queue; the remaining rows wait or are dropped."""
        ratio, most = self.config.ratio, queue.rows.shape[1] // self.config.ratio
        blocks = queue.length // ratio
        old = queue.rows[:, : most * ratio]
        if self.config.function == "most_used":
            new = _most_used(old, queue.usage[:, : most * ratio], blocks, ratio)
        else:
            new = self.compress(old)
            if segment is not None and self.config.function in LEARNED and self.config.loss != "none":
                segment.call.losses.add("compression", self._loss(x.detach(), old, new, blocks, segment.lengths))
        left = queue.length - blocks * ratio if self.config.remainder == "wait" else torch.zeros_like(blocks)
        place = torch.arange(ratio - 1, device=x.device)
        index = (blocks[:, None] * ratio + place).clamp(max=queue.rows.shape[1] - 1)
        gone = (place >= left[:, None])[..., None]
        return state._replace(
            compressed=keep_newest(torch.cat([state.compressed, new], 1), state.compressed.shape[1], blocks, most, 1),
            compressed_length=(state.compressed_length + blocks).clamp(max=state.compressed.shape[1]),
            waiting=take_rows(queue.rows, index).masked_fill(gone, 0),
            waiting_length=left,
            waiting_usage=take_rows(queue.usage, index).masked_fill(gone, 0),
        )

    def _loss(self, x: Tensor, old: Tensor, new: Tensor, blocks: Tensor, lengths: Tensor | None) -> Tensor:
        """Mean squared error over the rows of the batch that compressed a block; x has lengths[b] valid rows."""
        ratio, some = self.config.ratio, blocks > 0
        if self.config.loss == "autoencoding":
            place = torch.arange(old.shape[1], device=x.device)
            error = (self.compress.rebuild(new) - old).square().mean(-1)
            error = (error * (place < blocks[:, None] * ratio)).sum(-1) / (blocks * ratio).clamp(min=1)
        else:
            kept = blocks.clamp(min=1)
            target = self.layer.content_attention(x, old, kept * ratio).detach()
            difference = (self.layer.content_attention(x, new, kept) - target).square()
            error = difference.mean((1, 2)) if lengths is None else _means_of_valid(difference, lengths)
        return (error * some).sum() / some.sum().clamp(min=1)

    def extent(self, state: CompressiveState) -> Extent:
        filled = state.length, state.compressed_length
        further, rows = state.compressed.shape[1], self.config.ratio
        return Extent(state.hidden.shape[1], further=further, filled=filled, further_rows=rows)

    def resize(self, state: CompressiveState, length: int) -> CompressiveState:
        if length > state.hidden.shape[1] and bool((state.compressed_length > 0).any()):
            raise MnemoError("a memory that has begun to compress cannot grow: the older rows are compressed already")
        return state._replace(
            hidden=fit_slots(state.hidden, length, 1),
            length=state.length.clamp(max=length),
            usage=fit_slots(state.usage, length, 1),
        )

    def open(self, state: CompressiveState, segment: int) -> OpenCompressive:
        return OpenCompressive(self, state, segment)

    def work(self, rows: int, slots: int, cached: bool = False) -> float:
        """Without the loss that trains the compression."""
        blocks = (self.config.ratio - 1 + rows) // self.config.ratio
        return 2 * slots * projection_work(self.layer) + blocks * self.compress.work()


def _means_of_valid(values: Tensor, lengths: Tensor) -> Tensor:
    """(B,): means of values (B, L, D) over the first lengths[b] rows."""
    valid = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
    share = values.shape[1] / lengths.clamp(min=1).to(torch.promote_types(values.dtype, torch.float32))
    return share.to(values.dtype) * (values * valid[..., None]).mean((1, 2))


def _received(probabilities: Tensor, used: Tensor | None, first: int) -> Tensor:
    """Total attention (mean of heads) of the first used[b] queries to keys from `first` on, and their number."""
    by_key = probabilities.detach().mean(1)[..., first:]  # (B, L, M + L)
    if used is not None:
        by_key = by_key * (torch.arange(by_key.shape[1], device=used.device) < used[:, None])[..., None]
    return torch.stack([by_key.sum(1), (by_key > 0).sum(1).to(by_key.dtype)], -1)


def _most_used(rows: Tensor, usage: Tensor, blocks: Tensor, ratio: int) -> Tensor:
    """The blocks[b] rows with the highest mean attention among the first blocks[b] * ratio, in their order."""
    place = torch.arange(rows.shape[1], device=rows.device).expand(len(rows), -1)
    mean = usage[..., 0] / usage[..., 1].clamp(min=1)
    mean = mean.masked_fill(place >= blocks[:, None] * ratio, -1)
    rank = mean.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    kept = torch.where(rank < blocks[:, None], place, rows.shape[1]).sort(1).values[:, : rows.shape[1] // ratio]
    return take_rows(rows, kept.clamp(max=rows.shape[1] - 1))


class CompressiveContents(NamedTuple):
    hidden: Tensor
    """(B, T, D)"""
    keys: Tensor
    values: Tensor
    """(B, H, T, d) each"""
    received: Tensor
    """(B, M + L, 2) or (B, M + L, 0)"""


class OpenCompressive(SharesSteps):
    """Keys and values of [compressed ; memory ; open segment], and the inputs that will enter the memory."""

    def __init__(self, stage: CompressiveStage, state: CompressiveState, segment: int) -> None:
        self.stage, self.segment = stage, segment
        self._begin(state)

    def _begin(self, state: CompressiveState) -> None:
        self.memory = state
        memory = torch.cat([state.compressed, state.hidden], 1)
        self.keys, self.values = self.stage.layer.keys_values(F.pad(memory, (0, 0, 0, self.segment)))
        self.keys, self.values = self.keys.contiguous(), self.values.contiguous()
        batch, slots, dim = state.hidden.shape
        self.hidden = memory.new_zeros(batch, self.segment, dim)
        self.received = memory.new_zeros(batch, slots + self.segment, state.usage.shape[-1])

    @property
    def _num_slots(self) -> int:
        return self.stage.extent(self.memory).slots

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        begin = self._num_slots + count
        end = begin + x.shape[1]
        self.keys[:, :, begin:end], self.values[:, :, begin:end] = self.stage.layer.keys_values(x)
        self.hidden[:, count : count + x.shape[1]] = x
        keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        context, received = self.stage.attend(x, keys, values, self.memory, count, segment)
        self.received[:, : received.shape[1]] += received
        return self.stage.layer.finish(x, context)

    def commit(self) -> None:
        used = torch.full_like(self.memory.length, self.segment)
        self._begin(self.stage.write(self.hidden, self.memory, used, self.received))

    def state(self) -> CompressiveState:
        return CompressiveState(*(leaf.clone() for leaf in self.memory))

    def contents(self, length: int) -> CompressiveContents:
        begin = self._num_slots
        hidden = self.hidden[:, :length].contiguous().clone()
        keys, values = (part[:, :, begin : begin + length].contiguous().clone() for part in (self.keys, self.values))
        return CompressiveContents(hidden, keys, values, self.received.clone())

    def restore(self, contents: CompressiveContents, count: int) -> None:
        begin = self._num_slots
        self.hidden[:, :count] = contents.hidden[:, :count]
        self.keys[:, :, begin : begin + count] = contents.keys[:, :, :count]
        self.values[:, :, begin : begin + count] = contents.values[:, :, :count]
        self.received = contents.received.clone()

    def row_tensors(self) -> Iterator[RowTensor]:
        yield from (RowTensor(part, 2, self._num_slots) for part in (self.keys, self.values))
        yield RowTensor(self.hidden, 1)
        yield RowTensor(self.received, 1, self.memory.hidden.shape[1])
        yield RowTensor(self.memory.length, counts_memory=True)
        yield from plain_tensors((self.memory.hidden, *self.memory[2:]))

    def window(self, begin: int) -> OpenCompressive:
        other = copy.copy(self)
        other.keys, other.values = self.keys[:, :, begin:], self.values[:, :, begin:]
        other.hidden, other.received = self.hidden[:, begin:], self.received[:, begin:]
        return other

    def select(self, rows: Tensor) -> OpenCompressive:
        other, rows = copy.copy(self), rows.to(self.hidden.device)
        other.memory = select(self.memory, rows)
        other.keys, other.values = select((self.keys, self.values), rows)
        other.hidden, other.received = select((self.hidden, self.received), rows)
        return other
