"""What a memory mechanism and the transformer know of each other: four small protocols and the values they pass.

Shapes: B batch, L segment, M memory slots, K = M + L keys, D model width, H heads, d head size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mnemo.ops import Attended, Blocks, Causal, Mask


class Relation(NamedTuple):
    """How one layer's attention sees positions: tables for K keys, in descending distance."""

    r: Tensor | None = None
    """(H, K + ahead, d)"""
    u: Tensor | None = None
    w: Tensor | None = None
    """(H, d) each"""
    bias: Tensor | None = None
    """(H, K + ahead)"""
    rotary: tuple[Tensor, Tensor] | None = None
    """cos and sin (K, d / 2) of slot positions 0 ... K - 1"""
    ahead: int = 0
    """Columns of negative distances at the tables' end"""

    def to(self, dtype: torch.dtype) -> Relation:
        if all(part is None or part.dtype == dtype for part in (*self[:4], *(self.rotary or ()))):
            return self
        r, u, w, bias = (None if part is None else part.to(dtype) for part in self[:4])
        rotary = None if self.rotary is None else (self.rotary[0].to(dtype), self.rotary[1].to(dtype))
        return Relation(r, u, w, bias, rotary, self.ahead)

    def to_keep(self) -> Relation:
        """The same, to be read again and again: on a CPU with neighbouring distances side by side, which products with
        few queries read a third faster."""
        if self.r is None or self.r.device.type != "cpu":
            return self
        return self._replace(r=self.r.transpose(1, 2).contiguous().transpose(1, 2))

    def take(self, num_keys: int | None, ahead: int = 0) -> Relation:
        """The same relation for fewer keys (all of them for None) and fewer ahead: near distances stay."""

        def near(table: Tensor | None) -> Tensor | None:
            if table is None:
                return None
            end = table.shape[1] - self.ahead
            return table[:, 0 if num_keys is None else end - num_keys : end + ahead]

        rotary = None if self.rotary is None else (self.rotary[0][:num_keys], self.rotary[1][:num_keys])
        return Relation(near(self.r), self.u, self.w, near(self.bias), rotary, ahead)


class Record(Protocol):
    """Takes what attention gives, layer after layer; a list keeps all of it."""

    def append(self, attended: Attended, /) -> None: ...


class Scope(NamedTuple):
    """What one attention call may see."""

    relation: Relation
    mask: Mask = Causal()
    lengths: Tensor | None = None
    """(B,) valid keys of each row, counted from the right"""
    offset: int | None = None
    """The key that the first query stands on; the queries stand on the last keys when left out"""
    with_lse: bool = False
    record: Record | None = None


class Relations(Protocol):
    def __call__(self, layer: Layer, num_keys: int, ahead: int = 0) -> Relation: ...


class Layer(Protocol):
    """A transformer layer as mechanisms use it."""

    index: int
    dim: int
    num_heads: int
    head_dim: int

    def queries(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, H, L, d)."""
        ...

    def keys_values(self, rows: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> keys and values, each (B, H, T, d); of `memory` (B, M, D) before them too, which is constant."""
        ...

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, scope: Scope) -> tuple[Tensor, Tensor | None]:
        """Per-head contexts (B, L, H * d) of x's rows, not yet projected; and their log-sum-exp (B, H, L)."""
        ...

    def content_attention(self, x: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
        """What x's rows read from the first lengths[b] `rows`, by content alone and with constant weights."""
        ...

    def finish(self, x: Tensor, context: Tensor, added: Tensor | None = None) -> Tensor:
        """Output projection, residuals, norms and feed-forward; `added` (B, L, D) joins the projected contexts."""
        ...


@dataclass(frozen=True)
class Segment:
    """What all layers of one call share."""

    relation: Relations
    """A layer's relation for a number of keys, and of keys ahead"""
    lengths: Tensor | None = None
    """(B,) valid rows; None when all are valid"""
    same_length: bool = False
    blocks: Blocks | None = None
    """The mask of a segment between memory tokens"""
    record: Record | None = None
    notes: dict[str, Tensor] | None = None
    """Where asked for, what stages have to tell, by name"""
    recompute: bool = False
    """Keep what goes into a layer, not what is inside it, and compute that again in the backward pass"""
    add_loss: Callable[[str, Tensor], None] = lambda name, value: None
    """Takes auxiliary losses by name. Not a dictionary of them: FSDP passes copies of containers on to stages"""

    def mask(self, slots: int) -> Causal | Blocks:
        """The mask of a layer whose memory has this many slots."""
        if self.blocks is not None:
            return self.blocks
        return Causal(window=max(1, slots)) if self.same_length else Causal()

    @property
    def ahead(self) -> int:
        """How far ahead of themselves rows of this segment may look."""
        return 0 if self.blocks is None else self.blocks.reach

    def through(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a layer's function gives; its inside is kept, or computed again in the backward pass."""
        if not self.recompute or not torch.is_grad_enabled():
            return function(*arguments)
        return checkpoint(function, *arguments, use_reentrant=False)


class Stage(Protocol):
    """One or more layers with the memory they keep: a module of the transformer.

    A stage's state is a NamedTuple of tensors, batch first; an empty state is all zeros.
    """

    def init(self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False) -> Any:
        """An empty memory of `length` slots (full of attended zeros with `full`); `cached`: the inference form."""
        ...

    def __call__(self, x: Tensor, state: Any, segment: Segment) -> tuple[Tensor, Any]: ...

    def slots(self, state: Any) -> int:
        """Keys that the memory adds to a segment's own."""
        ...

    def ahead(self, state: Any) -> int:
        """How many negative distances its relations need (0 for most)."""
        ...

    def resize(self, state: Any, length: int) -> Any:
        """The same memory with another number of slots: the newest stay."""
        ...

    def window(self, state: Any, segment: int) -> Window:
        """A private, mutable decoder of one open segment behind this memory."""
        ...

    def work(self, rows: int, slots: int, cached: bool = False) -> float:
        """Multiply-adds of the memory itself in a segment of so many rows, once it is full.

        Not those of its layers' own rows, nor of their attention to `slots` keys. `cached`: in the inference form.
        """
        ...


class Window(Protocol):
    """The open segment of one stage while it is being decoded. Buffers are mutated: never shown to users."""

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        """Tokens (B, T, D) behind `count` open ones of every row."""
        ...

    def commit(self) -> None:
        """The open segment is full: move it into the memory."""
        ...

    def close(self) -> Any:
        """The committed memory, as a state."""
        ...

    def open(self, length: int) -> Any:
        """The open segment's first `length` slots, as a NamedTuple of tensors."""
        ...

    def reopen(self, opened: Any, count: int) -> None:
        """Continue from the first `count` tokens of what `open` gave."""
        ...

    def select(self, rows: Tensor) -> Window: ...


class Memory(Protocol):
    """The configuration of a mechanism."""

    @property
    def length(self) -> int: ...

    @property
    def grouped(self) -> bool:
        """Whether consecutive layers with equal configurations form one stage."""
        ...

    def check(self, model: Any) -> None:
        """Raise ValueError, with the reason, where the mechanism does not fit a model configuration."""
        ...

    def stage(self, layers: Sequence[nn.Module]) -> nn.Module: ...


class Layerless(ABC):
    """The configuration of a mechanism whose stages stand where transformer layers would, and have none.

    They attend to nothing and draw their own initial weights. Their memory has no slots: it has one size for every
    memory length.
    """

    @property
    def length(self) -> int:
        return 0

    @property
    def grouped(self) -> bool:
        return False

    @abstractmethod
    def check(self, model: Any) -> None:
        """As that of `Memory`."""

    @abstractmethod
    def build(self, dim: int, drop: nn.Module) -> nn.Module:
        """A stage for a model of this width; `drop` is the dropout on its output."""


def projection_work(layer: Layer) -> int:
    """Multiply-adds of one row's queries, keys, values or output."""
    return layer.dim * layer.num_heads * layer.head_dim


def matrix_work(module: nn.Module) -> int:
    """Multiply-adds of one row with all weights of a module that are not vectors."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)


def keep_newest(rows: Tensor, num_slots: int, lengths: Tensor | None, num_new: int, dim: int) -> Tensor:
    """The last `num_slots` valid entries along `dim` of [memory ; segment], contiguous and detached.

    `rows` holds `num_new` segment entries at its end, of which row b uses the first lengths[b].
    """
    total = rows.shape[dim]
    if lengths is None:
        return rows.narrow(dim, total - num_slots, num_slots).detach().contiguous()
    start = total - num_new - num_slots + lengths  # (B,)
    index = start[:, None] + torch.arange(num_slots, device=rows.device)
    shape = [1] * rows.dim()
    shape[0], shape[dim] = index.shape
    index = index.view(shape).expand(*rows.shape[:dim], num_slots, *rows.shape[dim + 1 :])
    return rows.detach().gather(dim, index)


def remember(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    """The memory (B, M, D) after a segment's rows x (B, L, D), of which row b uses the first lengths[b]."""
    num_slots, num_new = memory.shape[1], x.shape[1]
    if num_slots == 0:
        return memory
    new = x.detach().to(memory.dtype)
    if lengths is not None:
        return keep_newest(torch.cat([memory, new], 1), num_slots, lengths, num_new, 1)
    if num_new >= num_slots:
        return new[:, num_new - num_slots :].contiguous()
    return torch.cat([memory[:, num_new:], new], 1)


def widened(like: Tensor) -> Tensor:
    """The same in fp32 or better: for memories that sums and counts go into."""
    return like.to(torch.promote_types(like.dtype, torch.float32))


def fit_slots(rows: Tensor, num_slots: int, dim: int) -> Tensor:
    """As many entries along `dim`: the last of what is there, behind zeros where there are fewer."""
    have = rows.shape[dim]
    if have >= num_slots:
        return rows.narrow(dim, have - num_slots, num_slots).contiguous()
    shape = list(rows.shape)
    shape[dim] = num_slots - have
    return torch.cat([rows.new_zeros(shape), rows], dim)
