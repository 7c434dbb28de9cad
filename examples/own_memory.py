"""A memory of your own in one file: the mean of every two neighbouring positions becomes one slot.

    python examples/own_memory.py [TEXT]                                       compares it with Transformer-XL's
    mnemo train mybook.txt --memory pooled --import examples/own_memory.py     uses it in any command of Mnemo

You will see the bits per byte of two models with 28 slots on generated songs, as in compare_memories.py. A line has
48 bytes: 28 slots of two positions each contain the line before, blurred; 28 slots of Transformer-XL do not.
"""

from dataclasses import dataclass
from typing import ClassVar

from mnemo.memory import mechanism
from mnemo.memory.configuration import Traits
from mnemo.memory.protocol import projection_work, remember
from mnemo.memory.replay import ReplayedSegment
from mnemo.memory.xl.modules import XLStage, XLState


@mechanism
@dataclass(frozen=True, kw_only=True)
class Pooled:
    length: int
    traits: ClassVar[Traits] = Traits()

    def check(self, model): ...

    def published(self):
        return self

    def stage(self, layers):
        return PooledStage(layers[0])


class PooledStage(XLStage):  # a layer with its memory; docs/adding-memory.md explains the methods
    def init(self, batch, length, like, cached=False, full=False):
        return super().init(batch, length, like, full=full)

    def forward(self, x, state, segment):
        num_slots, num_new, new = state.hidden.shape[1], x.shape[1], segment.used(x) // 2
        keys, values = self.layer.keys_values(x, state.hidden)
        scope = segment.scope(self.layer, num_slots, num_slots + num_new, state.length + num_new)
        context, _ = self.layer.attend(x, keys, values, scope)
        pairs = x[:, : num_new // 2 * 2].unflatten(1, (-1, 2)).mean(2)  # an odd last position is dropped
        after = XLState(remember(state.hidden, pairs, new), (state.length + new).clamp(max=num_slots))
        return self.layer.finish(x, context), after

    def work(self, rows, slots, cached=False):
        return 2 * slots * projection_work(self.layer)

    def open(self, state, segment):
        return ReplayedSegment(self, state, segment, self.layer.dim)


if __name__ == "__main__":
    from compare_memories import main

    main(memories=("xl", "pooled"), steps=600, slots=28)
