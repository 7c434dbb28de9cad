"""Memory tokens: vectors beside the text (Burtsev et al., 2020: Memory Transformer, MT) that may be carried from
segment to segment (Bulatov et al., 2022: Recurrent Memory Transformer, RMT).

A segment is read as [memory ; tokens ; memory]. The first block is the memory so far. The second block, which sees all
tokens, is written: its output is the memory of the next segment. MT has the first block only and carries nothing.
Memory tokens only change the input and output of the backbone, so any model that takes embeddings can be one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mnemo.errors import plural

if TYPE_CHECKING:
    from torch import Tensor

    from mnemo.memory.memory_tokens.modules import RecurrentMemory


def check_room(tokens: MemoryTokens | WriteTokens, model: Any) -> None:
    """Raise ValueError if learned positions leave no room for text."""
    rows, max_rows = tokens.num_read + tokens.num_written, model.positions.max_rows
    if max_rows is not None and rows >= max_rows:
        raise ValueError(f"{rows} rows of memory tokens leave no room for text in {max_rows} learned positions")


@dataclass(frozen=True, kw_only=True)
class MemoryTokens:
    """Memory tokens that are carried from segment to segment (RMT), or only read (MT)."""

    num: int = 10
    """Memory tokens; with 0 the model is its backbone."""
    write: bool = True
    """Write the memory after every segment (RMT); else only read it (MT)."""
    mask: Literal["block", "causal"] = "block"
    """The tokens of a block see each other, as in the paper, or only earlier rows, as stock backbones do."""
    memory_sees_cache: bool = False
    """With block masks, let memory tokens see the layers' own memories, which text tokens always see."""
    ahead: Literal["signed", "zero", "wrap"] = "signed"
    """Position of keys ahead inside a block: their negative distance, none, or wrapped around (as published)."""
    carry_read: bool = False
    """MT carries the output of its read block to the next segment, as the published code does, instead of starting
    every segment from the learned rows."""
    identical_init: bool = False
    """All learned rows are equal at first, as in the published code, where only their positions differ."""
    std: float = 1.0
    """Deviation of the initial learned rows."""

    def __post_init__(self) -> None:
        if self.num < 0:
            raise ValueError(f"{self.num} memory tokens")
        if self.std < 0:
            raise ValueError(f"deviation {self.std} of the memory tokens is negative")
        if self.write and self.carry_read:
            raise ValueError("a model that writes its memory carries the written block: carry_read is for write=False")

    @property
    def num_read(self) -> int:
        """Rows before the tokens of a segment."""
        return self.num

    @property
    def num_written(self) -> int:
        """Rows after the tokens of a segment."""
        return self.num if self.write else 0

    @property
    def blocks(self) -> bool:
        """Whether rows see later rows."""
        return self.num > 0 and self.mask == "block"

    @property
    def reach(self) -> int:
        """Largest number of positions between a row and a later row that it sees."""
        return self.num - 1 if self.blocks else 0

    @property
    def carries(self) -> bool:
        """Whether a segment passes a memory on to the next one."""
        return self.num > 0 and (self.write or self.carry_read)

    @property
    def in_words(self) -> str:
        """The memory that they are, for the start of a run."""
        how = "carried from segment to segment" if self.carries else "read anew by every segment"
        return f"{plural(self.num, 'memory token')} {how}"

    def build(self, dim: int) -> RecurrentMemory:
        """The module for a model of this width."""
        from mnemo.memory.memory_tokens import modules

        return modules.RecurrentMemory(self, dim)

    def check(self, model: Any) -> None:
        """Raise ValueError, with the reason, if memory tokens do not fit a model configuration."""
        if self.blocks and model.same_length:
            raise ValueError(
                "same_length gives every query equally many keys, but a block mask gives memory tokens more: "
                'use mask="causal"'
            )
        if self.blocks and model.positions.signed and self.ahead != "signed":
            raise ValueError(f'rotary positions are signed: ahead="{self.ahead}" needs a table of distances')
        check_room(self, model)

    def published(self) -> MemoryTokens:
        """The same with the published code's quirks."""
        return replace(self, ahead="wrap", identical_init=True, carry_read=not self.write)

    def pattern(self, num_tokens: int, cached: int = 0) -> Tensor:
        """The mask of one segment, boolean (Q, cached + Q): rows are queries, columns keys. `describe` prints it."""
        from mnemo.memory.memory_tokens import modules

        return modules.pattern(self, num_tokens, cached)

    def describe(self, num_tokens: int, cached: int = 0) -> str:
        """The mask as text: a line for every query, with a # for every key that it sees."""
        from mnemo.memory.memory_tokens import modules

        return modules.describe(self, num_tokens, cached)


@dataclass(frozen=True, kw_only=True)
class WriteTokens:
    """Rows after the tokens of every segment, which start from the learned rows each time and are not carried on.

    The memories of layers are written from them (`mnemo.memory.associative`). They see all earlier rows.
    """

    num: int = 16
    """Memory tokens after every segment."""
    std: float = 1.0
    """Deviation of the initial learned rows."""

    num_read: ClassVar[int] = 0
    reach: ClassVar[int] = 0
    blocks: ClassVar[bool] = False
    ahead: ClassVar[Literal["signed"]] = "signed"
    write: ClassVar[bool] = True
    carries: ClassVar[bool] = False
    carry_read: ClassVar[bool] = False
    identical_init: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.num < 1:
            raise ValueError(f"{self.num} memory tokens")
        if self.std < 0:
            raise ValueError(f"deviation {self.std} of the memory tokens is negative")

    def pattern(self, num_tokens: int, cached: int = 0) -> Tensor:
        """The mask of one segment, boolean (Q, cached + Q): every row sees itself and all rows before it."""
        import torch

        rows = num_tokens + self.num
        return torch.ones(rows, cached + rows, dtype=torch.bool).tril(cached)

    @property
    def num_written(self) -> int:
        """Rows after the tokens of a segment."""
        return self.num

    @property
    def in_words(self) -> str:
        """The memory that they are, for the start of a run."""
        return f"{self.num:,} memory tokens that write to the layers"

    def build(self, dim: int) -> RecurrentMemory:
        """The module for a model of this width."""
        from mnemo.memory.memory_tokens import modules

        return modules.RecurrentMemory(self, dim)

    def check(self, model: Any) -> None:
        """Raise ValueError, with the reason, if they do not fit a model configuration."""
        check_room(self, model)
        if not any(memory.traits.carries_gradient for memory in model.memory.memories(model.num_layers)):
            raise ValueError("WriteTokens write to an associative memory, and no layer has one: use MemoryTokens")

    def published(self) -> WriteTokens:
        return self
