"""Decoding with ring buffers: static tensors for single tokens, rows at different places, one CUDA graph for all rows.

For models whose layers all keep Transformer-XL's memory. A layer's ring has a slot for every key that a token may
attend to: its M memory slots and the L tokens of a segment. A token's key overwrites the one that is M + L tokens old.
When a segment is full, its tokens become memory without being moved. Cursors are tensors, so rows may be at different
places. Several tokens at once go through the plain `Decoder`; states are converted between the two.

Shapes: B rows, N layers, H heads, R = M + L slots, d head size, D model width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.inference import fused_layers
from mnemo.inference.cuda_graph import RecordedFunction
from mnemo.inference.decoder import Decoder, DecodeState
from mnemo.inference.fused_layers import run_layers
from mnemo.memory import KeyValueCache
from mnemo.memory.kv_buffer import KeyValues
from mnemo.memory.protocol import Relation
from mnemo.memory.state import State, select
from mnemo.model.embedding.modules import TokenEmbedding
from mnemo.model.layers.modules import TransformerLayer
from mnemo.model.positions import NoPositions, Relative, Rotary, Shaw
from mnemo.ops.cuda import decode_kernels, decode_rows, early_test
from mnemo.ops.cuda.decode_attention import Table, decode_attention
from mnemo.ops.cuda.decode_kernels import Parts, attend_parts
from mnemo.ops.cuda.early_start import early_starts
from mnemo.ops.rotary import rotate

if TYPE_CHECKING:
    from mnemo.model import Model, ModelConfig, Output


def suits(config: ModelConfig) -> bool:
    """Whether a model of this configuration can be decoded with ring buffers."""
    positions = isinstance(config.positions, (Relative, Shaw, Rotary, NoPositions))
    caches = all(memory.traits.key_value_cache for memory in config.memory.memories(config.num_layers))
    return positions and caches and config.tokens is None


def open_decoder(model: Model, state: State | DecodeState, segment: int) -> Decoder | RingDecoder:
    """The faster decoder for this model on its device."""
    return RingDecoder(model, state, segment) if preferred(model) else Decoder(model, state, segment)


def preferred(model: Model) -> bool:
    """Whether ring buffers are faster: on a CPU nothing is recorded, and the plain decoder copies less."""
    return model.device.type == "cuda" and suits(model.config)


class RingDecoder:
    """As `Decoder`: a plain decoder reads several tokens at once, ring buffers single ones."""

    def __init__(self, model: Model, state: State | DecodeState, segment: int) -> None:
        self.model, self.segment = model, segment
        self.plain: Decoder | None = Decoder(model, state, segment)
        """None while the newest state is in the rings"""
        self.rings: Rings | None = None
        self.step: RecordedFunction | None = None
        self.tokens = torch.zeros(self.plain.batch, 1, dtype=torch.int64, device=model.device)

    @property
    def batch(self) -> int:
        return len(self.tokens)

    @torch.no_grad()
    def feed(self, tokens: Tensor, lengths: Sequence[int] | None = None) -> Output:
        """As `Decoder.feed`."""
        if tokens.shape[1] != 1 or lengths is not None:
            return self._to_plain().feed(tokens, lengths)
        self.model.check_tokens(tokens)
        rings = self._to_rings()
        self.tokens.copy_(tokens)
        if self.step is None:
            self.step = RecordedFunction(lambda: rings.feed(self.tokens), self.tokens.device, rings.cursors)
        return self.model.finish(self.step().clone())

    def feed_single(self, tokens: Tensor) -> Output:
        """As `Decoder.feed_single`; not recorded itself, so that it can be part of a larger CUDA graph."""
        return self.model.finish(self._to_rings().feed(tokens))

    def changed_tensors(self) -> tuple[Tensor, ...]:
        """As `Decoder.changed_tensors`."""
        return self._to_rings().cursors

    def _to_rings(self) -> Rings:
        """The rings, with everything read so far in them."""
        if self.plain is not None:
            state = self.plain.state()
            if self.rings is None:
                self.rings = Rings(self.model, state, self.segment)
            self.rings.load(state)
            self.plain = None
        assert self.rings is not None
        return self.rings

    def _to_plain(self) -> Decoder:
        """The plain decoder, with everything read so far in it."""
        if self.plain is None:
            assert self.rings is not None
            self.plain = Decoder(self.model, self.rings.state(), self.segment)
        return self.plain

    @torch.no_grad()
    def state(self) -> DecodeState:
        """Return a copy of everything that the next token depends on."""
        if self.plain is not None:
            return self.plain.state()
        assert self.rings is not None
        return self.rings.state()

    def select(self, rows: Tensor) -> RingDecoder:
        """Return a decoder of the given rows, which may repeat: several continuations of one memory."""
        state, rows = self.state(), rows.to(self.tokens.device)
        chosen = DecodeState(select(state.state, rows), select(state.open, rows), state.count[rows.cpu()])
        return RingDecoder(self.model, chosen, self.segment)


class RingStack(NamedTuple):
    """The rings of all layers with the same number of slots, in one tensor: a row is copied by a few kernels."""

    layers: tuple[int, ...]
    rings: Tensor
    """(n, 2, B, H, R, d): keys and values"""

    @staticmethod
    def empty(layers: tuple[int, ...], like: Tensor, batch: int, num_slots: int) -> RingStack:
        """Rings for `batch` rows; `like`: keys of a state, (B, H, T, d)."""
        return RingStack(layers, like.new_zeros(len(layers), 2, batch, like.shape[1], num_slots, like.shape[3]))

    def rows(self, begin: int, end: int) -> RingStack:
        return RingStack(self.layers, self.rings[:, :, begin:end])


class Rings:
    """The ring buffers of all layers, and the place of every row in them.

    `state`: a state of the size of the rings; `batch`: their rows, as many as those of the state if left out.
    """

    def __init__(self, model: Model, state: DecodeState, segment: int, batch: int | None = None) -> None:
        self.model, self.segment = model, segment
        self.layers = model.layers()
        caches: tuple[KeyValueCache, ...] = state.state
        keys = caches[0].keys
        batch, device = len(keys) if batch is None else batch, keys.device
        sizes = [cache.keys.shape[2] for cache in caches]
        layers_of = {size: tuple(i for i, other in enumerate(sizes) if other == size) for size in sizes}
        self._set_stacks([RingStack.empty(same, keys, batch, size + segment) for size, same in layers_of.items()])
        self.tables = [_table(relation, keys.dtype) for relation in model.tables(segment, caches).relations]
        pairs = [(layer.attention.query.weight, layer.attention.key_value.weight) for layer in self.layers]
        self.projections = [torch.cat(pair).detach() for pair in pairs]
        self.memory = torch.tensor(sizes, device=device)[:, None]  # (N, 1)
        self.window = self.memory.clamp(min=1) if model.config.same_length else self.memory + segment
        self._set_cursors(torch.zeros(5, len(sizes), batch, dtype=torch.int64, device=device))
        positions = model.config.positions
        self.rotary = RotaryKeys(positions.base, keys) if isinstance(positions, Rotary) else None
        self._place_rows()

    def _set_stacks(self, stacks: list[RingStack]) -> None:
        self.stacks = stacks
        by_layer = {layer: ring for stack in stacks for layer, ring in zip(stack.layers, stack.rings, strict=True)}
        self.buffers = [by_layer[layer] for layer in range(len(by_layer))]
        """(2, B, H, R, d) of each layer"""

    def _set_cursors(self, cursors: Tensor) -> None:
        self.all_cursors = cursors
        self.places, self.slots, self.lengths, self.limits, self.counts = cursors
        """(N, B) each: the next token's place, which grows without bound, and its slot (the place modulo the ring's
        size); valid memory slots; keys that the token attends to; open tokens, equal in all layers"""

    @property
    def cursors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The tensors that a token changes."""
        return self.places, self.slots, self.lengths, self.limits, self.counts

    def rows(self, begin: int, end: int) -> Rings:
        """Some of the rows: views of the same rings and cursors."""
        view = copy.copy(self)
        view._set_stacks([stack.rows(begin, end) for stack in self.stacks])
        view._set_cursors(self.all_cursors[:, :, begin:end])
        return view

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for stack in self.stacks:
            stack.rings[:, :, target] = stack.rings[:, :, source]
        self.all_cursors[:, :, target] = self.all_cursors[:, :, source]

    def clear(self) -> None:
        """Set all slots to zero."""
        for stack in self.stacks:
            stack.rings.zero_()

    def load(self, state: DecodeState) -> None:
        """Put memories at the beginning of the rings, and open tokens after them."""
        self.counts.copy_(state.count)
        self.lengths.copy_(torch.stack([cache.length for cache in state.state]))
        stacked = [
            (stack_pairs(state.state, stack.layers), stack_pairs(state.open, stack.layers)) for stack in self.stacks
        ]
        self.place(stacked)

    def place(self, stacked: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Put memories and open tokens, (n, 2, B, H, T, d) each, into the stacks; lengths and counts are set before."""
        for (_, rings), (memory, opened) in zip(self.stacks, stacked, strict=True):
            num_slots, num_known = memory.shape[4], memory.shape[4] + opened.shape[4]
            rings[:, :, :, :, :num_slots], rings[:, :, :, :, num_slots:num_known] = memory, opened
            if self.rotary is not None:
                keys = rings[:, 0]
                everywhere = torch.arange(keys.shape[3], device=keys.device)
                keys.copy_(self.rotary.to(keys, everywhere.expand(keys.shape[1], -1)))
        self._place_rows()

    def _place_rows(self) -> None:
        """Compute the cursors of rows whose memories begin at the first slot."""
        self.places.copy_(self.memory + self.counts)
        self._locate_next()

    def _locate_next(self) -> None:
        """Compute the slot of each row's next token, and the number of keys that it attends to, its own included."""
        torch.remainder(self.places, self.memory + self.segment, out=self.slots)
        torch.minimum(self.lengths + self.counts + 1, self.window, out=self.limits)

    def feed(self, tokens: Tensor) -> Tensor:
        """Read a token (B, 1) of every row; return the last layer's rows (B, 1, D)."""
        x = embed(self.model.embedding, tokens)
        if fused_layers.suit(self.model, self.projections[0], x):
            activation, attend = self.model.config.activation, self._attend_in_parts
            with early_starts(early_test.works(x.device, x.dtype)):  # the embedding's kernel has a normal start
                x = run_layers(self.layers, self.projections, attend, activation, x[:, 0])[:, None]
        else:
            for index, layer in enumerate(self.layers):
                x = layer.finish(x, self._attend(index, layer, x)[:, None])
        self._advance()
        return x

    def _attend(self, index: int, layer: TransformerLayer, x: Tensor) -> Tensor:
        """Contexts (B, H * d) of a token's rows x (B, 1, D)."""
        projected = F.linear(layer.norm_attention(x) if layer.pre else x, self.projections[index])
        return decode_attention(*self._attention_inputs(index, projected))

    def _attend_in_parts(self, index: int, projected: Tensor) -> Tensor | Parts:
        """The same for projected queries, keys and values (B, 3 * H * d), with the kernels."""
        given = self._attention_inputs(index, projected)
        return attend_parts(*given) if decode_kernels.suit(self.buffers[index]) else decode_attention(*given)

    def _attention_inputs(
        self, index: int, projected: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Table, Tensor, Tensor]:
        """The arguments of `decode_attention`."""
        attention = self.layers[index].attention
        q, k, v = projected.view(len(projected), 3, attention.num_heads, attention.head_dim).unbind(1)
        q, k = attention.norm_query(q), attention.norm_key(k)
        if self.rotary is not None:
            place = self.places[index][:, None]
            q, k = (self.rotary.to(part[:, :, None], place)[:, :, 0] for part in (q, k))
        return q, k, v, self.buffers[index], self.tables[index], self.slots[index], self.limits[index]

    def _advance(self) -> None:
        """Move every row on by one slot; full segments become memory."""
        if decode_kernels.supports(self.buffers[0]):
            decode_rows.advance(*self.cursors, self.memory, self.window, self.segment)
            return
        self.counts += 1
        full = self.counts == self.segment
        grown = torch.minimum(self.lengths + self.segment, self.memory)
        self.lengths.copy_(torch.where(full, grown, self.lengths))
        self.counts.masked_fill_(full, 0)
        self.places += 1
        self._locate_next()

    def state(self) -> DecodeState:
        """A copy of everything, in order."""
        counts = self.counts[0].to("cpu", copy=True)
        return self.unstacked(self.contents(int(counts.max())), self.lengths.clone(), counts)

    def contents(self, num_open: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Copies of the keys and values of the memories and of the first `num_open` open tokens, for each stack."""
        copies = []
        for layers, rings in self.stacks:
            num_slots, first = rings.shape[4] - self.segment, layers[0]
            begin = (self.places[first] - self.counts[first])[:, None]
            memory = self._take(rings, begin - num_slots + torch.arange(num_slots, device=rings.device))
            copies.append((*memory, *self._take(rings, begin + torch.arange(num_open, device=rings.device))))
        return copies

    def unstacked(
        self, contents: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], lengths: Tensor, counts: Tensor
    ) -> DecodeState:
        """The state that consists of the contents of all stacks; its tensors are views of these."""
        caches, opened = dict[int, KeyValueCache](), dict[int, KeyValues]()
        for (layers, _), parts in zip(self.stacks, contents, strict=True):
            for layer, keys, values, new_keys, new_values in zip(layers, *parts, strict=True):
                caches[layer], opened[layer] = (
                    KeyValueCache(keys, values, lengths[layer]),
                    KeyValues(new_keys, new_values),
                )
        layers = range(len(lengths))
        return DecodeState(tuple(caches[layer] for layer in layers), tuple(opened[layer] for layer in layers), counts)

    def _take(self, rings: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (n, B, H, T, d) of n layers' rings at places (B, T)."""
        num_layers, parts, batch, heads, num_slots, size = rings.shape
        index = (places % num_slots)[:, None, :, None].expand(num_layers, parts, batch, heads, -1, size)
        keys, values = rings.gather(4, index).unbind(1)
        return keys if self.rotary is None else self.rotary.back(keys, places), values


class RotaryKeys:
    """Rotary positions that stay with the keys: only differences of places count, so places may grow without bound."""

    def __init__(self, base: float, like: Tensor) -> None:
        size = like.shape[-1]
        exponent = torch.arange(0, size, 2, dtype=torch.float64, device=like.device) / size
        self.frequency = base**-exponent

    def _angles(self, places: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        angle = places[:, None, :, None] * self.frequency  # (B, 1, T, d / 2)
        return angle.cos().to(like.dtype), angle.sin().to(like.dtype)

    def to(self, x: Tensor, places: Tensor) -> Tensor:
        """Rotate x (..., B, H, T, d) by its places (B, T)."""
        return rotate(x, self._angles(places, x))

    def back(self, x: Tensor, places: Tensor) -> Tensor:
        """Undo `to`."""
        return rotate(x, self._angles(-places, x))


def stack_pairs(pairs: Sequence[Sequence[Tensor]], layers: Sequence[int], out: Tensor | None = None) -> Tensor:
    """The keys and values of some layers in one tensor (n, 2, B, H, T, d); `out` has the shape (2 n, B, H, T, d)."""
    return torch.stack([part for layer in layers for part in pairs[layer][:2]], out=out).unflatten(0, (-1, 2))


def _table(relation: Relation, dtype: torch.dtype) -> Table:
    parts = relation.to(dtype)[:4]
    return Table(*(None if part is None else part.contiguous() for part in parts))


def embed(embedding: TokenEmbedding, ids: Tensor) -> Tensor:
    """As the embedding does, but without looking up which bins occur: that would wait for the device."""
    if not embedding.split:
        plain = not (embedding.training or embedding.bins.projected) and ids.device == embedding.tables[0].device
        if plain and decode_kernels.supports(embedding.tables[0]) and not torch.is_autocast_enabled(ids.device.type):
            return decode_rows.look_up(ids, embedding.tables[0], embedding.dim**0.5)
        return embedding(ids)
    x = None
    for index, (table, projection) in enumerate(zip(embedding.tables, embedding.projections, strict=True)):
        begin, end = embedding.bins.edges[index], embedding.bins.edges[index + 1]
        rows = F.linear(F.embedding((ids - begin).clamp(0, end - begin - 1), table), projection)
        x = rows if x is None else torch.where((ids >= begin)[..., None], rows, x)
    assert x is not None
    return x * embedding.dim**0.5
