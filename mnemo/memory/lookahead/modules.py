"""State, stage and decoder of the look-ahead memory; see the package for what it is.

Looking ahead is causal attention over reversed sequences: memory row i is query M - 1 - i and position j is key M - j,
so that the true distance j - i is one more than the distance between query and key.

Shapes: B batch, L segment, M memory slots, D model width, H heads, d head size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mnemo.memory.lookahead import Lookahead
from mnemo.memory.protocol import (
    DrawsOwnWeights,
    Extent,
    Layer,
    PositionTables,
    Relation,
    Scope,
    Segment,
    Stage,
    fit_slots,
    keep_newest,
    matrix_work,
    projection_work,
)
from mnemo.memory.shared_steps import RowTensor, SharesSteps, plain_tensors
from mnemo.memory.state import select, tree_map, tree_zip
from mnemo.ops import Causal, KeyLimit


class LookaheadState(NamedTuple):
    inputs: Tensor
    """(B, M, D): inputs of the group, newest last"""
    contexts: tuple[Tensor, ...]
    """(B, M, H, d) of every layer that is refreshed"""
    lse: tuple[Tensor, ...]
    """(B, M, H) likewise, in float32 or better"""
    length: Tensor
    """(B,) valid slots, right-aligned"""
    previous: Tensor
    """(B,) tokens of the previous segment"""


class Horizon(NamedTuple):
    """The positions that memory rows attend to in one segment."""

    num_keys: int
    """Number of these positions, the segment's first token included"""
    mask: Causal | KeyLimit
    refreshed: Tensor | None
    """(B, M) slots that look ahead; None if all do"""


class Trace(NamedTuple):
    """Inputs and results of a layer's attention over [memory ; segment]."""

    keys: Tensor
    values: Tensor
    """(B, H, M + L, d) each"""
    contexts: Tensor | None
    """(B, M + L, H, d); None in a layer that is not refreshed"""
    lse: Tensor | None
    """(B, M + L, H), likewise"""
    own: tuple[Tensor, Tensor] | None = None
    """The segment's part of both"""


class LookaheadStage(Stage):
    def __init__(self, config: Lookahead, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(layers)
        first = self.layer(0)
        self.heads = (first.num_heads, first.head_dim)
        self.num_kept = len(layers) if config.refresh_last else len(layers) - 1
        self.v_minus = nn.Parameter(torch.empty(self.heads)) if config.encoding == "disentangled" else None
        looks_ahead = self.num_kept > 0 and config.alpha != "one"
        self.unused_weights = () if looks_ahead or self.v_minus is None else ("v_minus",)

    def layer(self, depth: int) -> Layer:
        return self.layers[depth]  # type: ignore[return-value]

    def init(self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False) -> LookaheadState:
        valid = torch.full((batch,), length if full else 0, device=like.device)
        context = like.new_zeros(batch, length, *self.heads)
        lse = context.new_zeros(context.shape[:3], dtype=at_least_float32(like.dtype))
        return LookaheadState(
            like.new_zeros(batch, length, like.shape[-1]),
            tuple(context.clone() for _ in range(self.num_kept)),
            tuple(lse.clone() for _ in range(self.num_kept)),
            valid,
            valid.clone(),
        )

    def forward(self, x: Tensor, state: LookaheadState, segment: Segment) -> tuple[Tensor, LookaheadState]:
        num_new, num_slots = x.shape[1], self.num_slots(state)
        rows = inputs = torch.cat([state.inputs, x], 1)
        horizon = self.horizon(state, num_new, segment.lengths)
        contexts, lses = [], []

        def newest(kept: Tensor, own: Tensor) -> Tensor:
            if segment.lengths is None and num_new >= num_slots:  # without a copy, if the segment is as long
                return own[:, num_new - num_slots :].detach().to(kept.dtype).contiguous()
            return keep_newest(kept, num_slots, segment.lengths, num_new, 1)

        for depth in range(len(self.layers)):
            trace, rows = segment.run_layer(self.run_layer, depth, rows, state, horizon, segment)
            if trace.contexts is not None and trace.lse is not None and trace.own is not None:
                contexts.append(newest(trace.contexts, trace.own[0]).to(state.contexts[depth].dtype))
                lses.append(newest(trace.lse, trace.own[1]))
        used = segment.used(x)
        return rows, LookaheadState(
            newest(inputs, x),
            tuple(contexts),
            tuple(lses),
            (state.length + used).clamp(max=num_slots),
            torch.where(used > 0, used, state.previous),
        )

    def horizon(self, state: LookaheadState, num_new: int, lengths: Tensor | None = None) -> Horizon:
        """The positions that are new to memory rows in a segment of `num_new` tokens, of which lengths[b] are valid."""
        num_slots = self.num_slots(state)
        used = torch.full_like(state.length, num_new) if lengths is None else lengths
        sizes = (state.previous if self.config.window == "previous" else used).clamp(1, max(1, num_slots))
        valid = state.length * (used > 0)
        refreshed = torch.arange(num_slots, device=valid.device) >= num_slots - valid[:, None]
        if valid.device.type != "cpu" or torch.compiler.is_compiling():  # reading values would synchronise a device
            return Horizon(num_slots, KeyLimit(sizes), refreshed)
        limits, counts = torch.stack([sizes, valid]).tolist()
        wanted = {limit for limit, count in zip(limits, counts, strict=True) if count} or {1}
        mask = Causal() if len(wanted) == 1 else KeyLimit(sizes)
        return Horizon(max(wanted), mask, None if min(counts) == num_slots else refreshed)

    def run_layer(
        self, depth: int, rows: Tensor, state: LookaheadState, horizon: Horizon, segment: Segment
    ) -> tuple[Trace, Tensor]:
        """One layer on [memory ; segment] rows (B, M + L, D): its trace and output; the last layer's without memory."""
        layer, num_slots, num_keys = self.layer(depth), self.num_slots(state), rows.shape[1]
        relation = segment.tables.relation(layer, num_keys, max(segment.ahead, self.extent(state).ahead))
        keys, values = layer.keys_values(rows)
        memory, x = rows.split([num_slots, num_keys - num_slots], 1)
        kept = depth < self.num_kept
        scope = Scope(
            relation.nearest(None, segment.ahead),
            segment.mask(num_slots),
            state.length + x.shape[1],
            with_lse=kept,
            record=segment.call.record,
        )
        past = None
        if kept and num_slots and self.config.alpha != "one" and queries_together(rows):
            past, own = layer.queries(rows).split([num_slots, x.shape[1]], 2)
            context, lse = layer.attend_from(own, keys, values, scope)
        else:
            context, lse = layer.attend(x, keys, values, scope)
        if not kept or lse is None:
            return Trace(keys, values, None, None), layer.finish(x, context)
        ahead = self._relation_ahead(depth, relation, num_slots, segment.tables)
        found = self._look_ahead(depth, memory, keys, values, ahead, horizon, past)
        refreshed, refreshed_lse = self._refresh(depth, found, state, horizon, segment)
        own_lse = by_row(lse)
        contexts = torch.cat([refreshed, context], 1)
        lses = torch.cat([refreshed_lse, own_lse], 1)
        is_last = depth == len(self.layers) - 1
        out = layer.finish(x, context) if is_last else layer.finish(rows, contexts)
        newest = context.unflatten(2, self.heads), own_lse
        return Trace(keys, values, contexts.unflatten(2, self.heads), lses, newest), out

    def _refresh(
        self, depth: int, found: tuple[Tensor, Tensor] | None, state: LookaheadState, horizon: Horizon, segment: Segment
    ) -> tuple[Tensor, Tensor]:
        """Contexts (B, M, H * d) and log-sum-exps (B, M, H) of memory rows, with those of the positions ahead."""
        old, old_lse = state.contexts[depth], state.lse[depth]
        if found is None:
            return old.flatten(2), old_lse
        new, new_lse = found
        old = old.to(new.dtype)
        if self.config.interpolates:
            alpha = coefficient(old_lse, new_lse, self.config.epsilon)
            alpha = alpha.detach() if self.config.alpha == "detached" else alpha
            if segment.call.notes is not None:
                segment.call.notes[f"alpha.{self.layer(depth).index}"] = alpha.detach()
            new = torch.lerp(new, old, alpha.to(new.dtype)[..., None])
            new_lse = torch.logaddexp(old_lse, new_lse.detach())
        if horizon.refreshed is not None:
            new = torch.where(horizon.refreshed[..., None, None], new, old)
            new_lse = torch.where(horizon.refreshed[..., None], new_lse, old_lse)
        return new.flatten(2), new_lse

    def _look_ahead(
        self,
        depth: int,
        memory: Tensor,
        keys: Tensor,
        values: Tensor,
        relation: Relation,
        horizon: Horizon,
        queries: Tensor | None,
    ) -> tuple[Tensor, Tensor] | None:
        """Attention of memory rows (B, M, D) to later positions: contexts (B, M, H, d), log-sum-exps (B, M, H).

        `queries` (B, H, M, d): those of the memory rows, if they are known.
        """
        num_slots = memory.shape[1]
        if self.config.alpha == "one" or num_slots == 0:
            return None
        new = slice(num_slots + 1 - horizon.num_keys, num_slots + 1)
        scope = Scope(relation, horizon.mask, offset=0, with_lse=True)
        layer, seen = self.layer(depth), (keys[:, :, new].flip(2), values[:, :, new].flip(2), scope)
        if queries is None:
            context, lse = layer.attend(memory.flip(1), *seen)
        else:
            context, lse = layer.attend_from(queries.flip(2), *seen)
        assert lse is not None
        return context.flip(1).unflatten(2, self.heads), by_row(lse).flip(1)

    def _relation_ahead(self, depth: int, relation: Relation, num_slots: int, tables: PositionTables) -> Relation:
        """Tables of the true distances M ... 1 ahead, which are M - 1 ... 0 between reversed sequences."""
        if self.v_minus is not None:
            mirrored = tables.mirrored(self.layer(depth), num_slots + 1)
            r = (relation.nearest(num_slots + 1) if mirrored is None else mirrored).r
            return Relation(r if r is None else r[:, :-1], relation.u, self.v_minus)
        r = relation.nearest(0, num_slots).r
        return Relation(r if r is None else r.flip(1), relation.u, relation.w)

    def num_slots(self, state: LookaheadState) -> int:
        return state.inputs.shape[1]

    def extent(self, state: LookaheadState) -> Extent:
        slots = self.num_slots(state)
        mirrored, ahead = (slots, 0) if self.config.encoding == "disentangled" else (0, slots)
        return Extent(slots, ahead=ahead, mirrored=mirrored, filled=(state.length,))

    def resize(self, state: LookaheadState, length: int) -> LookaheadState:
        inputs, contexts, lse = tree_map(lambda leaf: fit_slots(leaf, length, 1), state[:3])
        return LookaheadState(inputs, contexts, lse, state.length.clamp(max=length), state.previous)

    def open(self, state: LookaheadState, segment: int) -> OpenLookahead:
        return OpenLookahead(self, state, segment)

    def work(self, rows: int, slots: int, cached: bool = False) -> float:
        """Memory rows pass through every layer except the last, which computes only their keys and values."""
        one = projection_work(self.layer(0))
        whole = matrix_work(self.layers[0])  # queries, keys, values, output and feed-forward
        newest = min(rows, slots)
        seen = newest * (newest + 1) / 2 + newest * (slots - newest)
        num_heads, head_dim = self.heads
        ahead = slots * one + 3 * seen * num_heads * head_dim
        if self.config.alpha == "one":
            ahead = 0
        below = len(self.layers) - 1
        return self.num_kept * ahead + below * slots * (whole - one) + 2 * slots * one


class XavierLookaheadStage(LookaheadStage, DrawsOwnWeights):
    """Like the published code, whose initialisation leaves out the bias of the positions ahead."""

    def reset_parameters(self) -> None:
        if self.v_minus is not None:
            nn.init.xavier_uniform_(self.v_minus)


def queries_together(rows: Tensor) -> bool:
    """Whether one product for the queries of all rows is faster than one for the memory's and one for the segment's.

    On a GPU it is: those rows would be copied for their products, in both directions.
    """
    return rows.is_cuda


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def by_row(lse: Tensor) -> Tensor:
    """(B, H, T) -> (B, T, H), in float32 or better."""
    return lse.transpose(1, 2).to(at_least_float32(lse.dtype))


def coefficient(past: Tensor, ahead: Tensor, epsilon: float) -> Tensor:
    """Softmax share of the past, from the log-sum-exps of both sides."""
    largest = torch.maximum(past, ahead)
    past, ahead = (past - largest).exp(), (ahead - largest).exp()
    return past / (past + ahead + epsilon)


class LookaheadContents(NamedTuple):
    inputs: Tensor
    """(B, T, D) of the open segment, oldest first"""
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    """(B, H, M + T, d) of every layer: the refreshed memory's, then the open segment's"""
    contexts: tuple[Tensor, ...]
    """(B, M + T, H, d) of every layer that keeps them: memory, then open segment"""
    lse: tuple[Tensor, ...]
    """(B, M + T, H) likewise"""

    def first(self, num_slots: int, count: int) -> LookaheadContents:
        """Views of the memory and the first `count` tokens; empty for 0: the first token refreshes the memory."""
        end = num_slots + count if count else 0
        return LookaheadContents(
            self.inputs[:, :count],
            tuple(keys[:, :, :end] for keys in self.keys),
            tuple(values[:, :, :end] for values in self.values),
            tuple(contexts[:, :end] for contexts in self.contexts),
            tuple(lse[:, :end] for lse in self.lse),
        )


class OpenLookahead(SharesSteps):
    """The committed memory, and buffers of M + L slots: the memory, refreshed by the first token, and the segment."""

    def __init__(self, stage: LookaheadStage, state: LookaheadState, segment: int) -> None:
        self.stage, self.memory, self.segment = stage, state, segment
        self.num_slots = stage.num_slots(state)
        batch, size = len(state.length), self.num_slots + segment
        num_heads, head_dim = stage.heads
        keys = state.inputs.new_zeros(batch, num_heads, size, head_dim)
        contexts = state.inputs.new_zeros(batch, size, num_heads, head_dim)
        lse = contexts.new_zeros(contexts.shape[:3], dtype=at_least_float32(contexts.dtype))
        self.buffers = LookaheadContents(
            state.inputs.new_zeros(batch, segment, state.inputs.shape[2]),
            tuple(keys.clone() for _ in stage.layers),
            tuple(keys.clone() for _ in stage.layers),
            tuple(contexts.clone() for _ in state.contexts),
            tuple(lse.clone() for _ in state.lse),
        )

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        self.buffers.inputs[:, count : count + x.shape[1]] = x
        return self._continue(x, count, segment) if count else self._begin(x, segment)

    def _begin(self, x: Tensor, segment: Segment) -> Tensor:
        """The segment's first tokens, which refresh the memory of all layers."""
        horizon = self.stage.horizon(self.memory, self.segment)
        rows = torch.cat([self.memory.inputs, x], 1)
        for depth in range(len(self.stage.layers)):
            trace, rows = self.stage.run_layer(depth, rows, self.memory, horizon, segment)
            self._write(depth, trace.keys, trace.values, 0)
            self._keep(depth, trace.contexts, trace.lse, 0)
        return rows

    def _continue(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        """Further tokens; the refreshed memory stays the same."""
        begin = self.num_slots + count
        end = begin + x.shape[1]
        for depth in range(len(self.stage.layers)):
            layer, kept = self.stage.layer(depth), depth < self.stage.num_kept
            keys, values = self._write(depth, *layer.keys_values(x), begin)
            valid = self.memory.length + count + x.shape[1]
            scope = segment.scope(layer, self.num_slots, end, valid, with_lse=kept)
            context, lse = layer.attend(x, keys, values, scope)
            if kept and lse is not None:
                self._keep(depth, context.unflatten(2, self.stage.heads), by_row(lse), begin)
            x = layer.finish(x, context)
        return x

    def _write(self, depth: int, keys: Tensor, values: Tensor, begin: int) -> tuple[Tensor, Tensor]:
        """Store keys and values from slot `begin` on, and return all up to them."""
        end = begin + keys.shape[2]
        self.buffers.keys[depth][:, :, begin:end] = keys
        self.buffers.values[depth][:, :, begin:end] = values
        return self.buffers.keys[depth][:, :, :end], self.buffers.values[depth][:, :, :end]

    def _keep(self, depth: int, contexts: Tensor | None, lse: Tensor | None, begin: int) -> None:
        if contexts is not None and lse is not None:
            end = begin + contexts.shape[1]
            self.buffers.contexts[depth][:, begin:end] = contexts
            self.buffers.lse[depth][:, begin:end] = lse

    def commit(self) -> None:
        rows = (torch.cat([self.memory.inputs, self.buffers.inputs], 1), self.buffers.contexts, self.buffers.lse)
        inputs, contexts, lse = tree_map(lambda leaf: leaf[:, self.segment :].contiguous().clone(), rows)
        length = (self.memory.length + self.segment).clamp(max=self.num_slots)
        self.memory = LookaheadState(inputs, contexts, lse, length, torch.full_like(length, self.segment))

    def state(self) -> LookaheadState:
        return self.memory

    def contents(self, length: int) -> LookaheadContents:
        return tree_map(lambda leaf: leaf.contiguous().clone(), self.buffers.first(self.num_slots, length))

    def restore(self, contents: LookaheadContents, count: int) -> None:
        mine, theirs = (part.first(self.num_slots, count) for part in (self.buffers, contents))
        tree_zip(lambda buffer, values: buffer.copy_(values), mine, theirs)

    def row_tensors(self) -> Iterator[RowTensor]:
        buffers, slots = self.buffers, self.num_slots
        yield RowTensor(buffers.inputs, 1)
        yield from (RowTensor(part, 2, slots) for part in (*buffers.keys, *buffers.values))
        yield from (RowTensor(part, 1, slots) for part in (*buffers.contexts, *buffers.lse))
        yield RowTensor(self.memory.length, counts_memory=True)
        yield from plain_tensors((*self.memory[:3], self.memory.previous))

    def window(self, begin: int) -> OpenLookahead:
        other, buffers = copy.copy(self), self.buffers
        other.buffers = LookaheadContents(
            buffers.inputs[:, begin:],
            tuple(keys[:, :, begin:] for keys in buffers.keys),
            tuple(values[:, :, begin:] for values in buffers.values),
            tuple(contexts[:, begin:] for contexts in buffers.contexts),
            tuple(lse[:, begin:] for lse in buffers.lse),
        )
        return other

    def select(self, rows: Tensor) -> OpenLookahead:
        other, rows = copy.copy(self), rows.to(self.memory.length.device)
        other.memory, other.buffers = select((self.memory, self.buffers), rows)
        return other
