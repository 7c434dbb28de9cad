"""An associative memory (ARMT) in every layer of a transformers model.

Hooks on the layers of the backbone read the memory before each layer and write it after the layer. They act only while
a `LayerCall` is active; without one, the backbone is unchanged. The weights of the memories belong to the model around
the backbone, so that names of the backbone's weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.previous_segment import PreviousSegment, join_states, split_states
from mnemo.memory import Associative, RecurrentMemory, TokensState, WriteTokens
from mnemo.memory.associative.modules import Associations, AssociativeMemory, keep_unread, written_rows
from mnemo.memory.protocol import Backbone
from mnemo.memory.state import State
from mnemo.ops import Blocks, Causal

Memories = tuple[Associations, ...]
"""The associations of every layer."""


def layers_of(body: nn.Module) -> nn.ModuleList:
    """Return the list of layers of a model without its head."""
    config: Any = body.config
    number = config.get_text_config().num_hidden_layers
    lists = [module for module in body.modules() if isinstance(module, nn.ModuleList) and len(module) == number]
    direct = [module for module in body.children() if any(module is found for found in lists)]
    found = direct if len(direct) == 1 else lists
    if len(found) != 1:
        raise MnemoError(f"{type(body).__name__} has {len(found)} lists of {number} layers, and needs one")
    return found[0]  # type: ignore[return-value]


class LayerCall:
    """One call of the backbone: the memories that its layers read, and those after the call.

    `memories`: None if all of them are empty. Then nothing is read.
    """

    def __init__(
        self, weights: nn.ModuleList, memories: Memories | None, num_written: int, lengths: Tensor | None
    ) -> None:
        self.weights, self.memories = weights, memories
        self.num_written, self.lengths = num_written, lengths
        self._written: list[Associations] = []

    @property
    def after(self) -> Memories | None:
        """The memories after the call; those before it if nothing was written."""
        return tuple(self._written) if self._written else self.memories

    def read(self, index: int, rows: Tensor) -> Tensor:
        weights: Any = self.weights[index]
        return rows if self.memories is None else weights.add_read(rows, self.memories[index])

    def write(self, index: int, rows: Tensor) -> None:
        """Write the last `num_written` valid rows (B, T, D) of a layer's output."""
        if self.num_written == 0:
            return
        weights: Any = self.weights[index]
        before = None if self.memories is None else self.memories[index]
        self.add_written(written_after(weights, rows, before, self.num_written, self.lengths))

    def add_written(self, memory: Associations | None) -> None:
        """Add the memory of the next layer after the call; None if nothing is written."""
        if memory is not None:
            self._written.append(memory)


def written_after(
    weights: AssociativeMemory, rows: Tensor, before: Associations | None, num: int, lengths: Tensor | None
) -> Associations:
    """Return the memory of a layer after its output rows (B, T, D), of which the last `num` valid ones write."""
    last = written_rows(rows, num, lengths)
    written = weights.write_first(last) if before is None else weights.write(last, before)
    return keep_unread(written, before, lengths)


class LayerHooks:
    """Hooks on the layers of a backbone, which pass rows to the active call."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self.call: LayerCall | None = None
        self.in_layers = False
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(_ReadHook(self, index), with_kwargs=True)
            layer.register_forward_hook(_WriteHook(self, index))

    def act_in_layers(self) -> None:
        """Leave reading and writing to the layers, which are compiled with them."""
        self.in_layers = True

    def __deepcopy__(self, copied: dict[int, Any]) -> LayerHooks:
        return self  # peft copies the weights of the memory, but not the layers that the hooks belong to

    @contextmanager
    def during(self, call: LayerCall) -> Iterator[None]:
        self.call = call
        try:
            yield
        finally:
            self.call = None


class _ReadHook:
    def __init__(self, hooks: LayerHooks, index: int) -> None:
        self.hooks, self.index = hooks, index

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self.hooks.call
        if call is None or self.hooks.in_layers:
            return None
        if args:
            return (call.read(self.index, args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": call.read(self.index, kwargs["hidden_states"])}


class _WriteHook:
    def __init__(self, hooks: LayerHooks, index: int) -> None:
        self.hooks, self.index = hooks, index

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.hooks.call is not None and not self.hooks.in_layers:
            self.hooks.call.write(self.index, output if isinstance(output, Tensor) else output[0])


class AssociativeTokens(nn.Module):
    """Memory tokens after every segment, and the associative memory of each layer, which they write.

    Has the interface of `RecurrentMemory`; a state's `inner` part holds the memories of the layers, and the previous
    segment if they attend to it.
    """

    def __init__(self, tokens: WriteTokens, config: Associative, layers: nn.ModuleList, dim: int) -> None:
        super().__init__()
        self.tokens = RecurrentMemory(tokens, dim)
        self.layers = nn.ModuleList(AssociativeMemory(config, dim) for _ in layers)
        self.hooks = LayerHooks(layers)

    @property
    def initial(self) -> nn.Parameter:
        return self.tokens.initial

    def init(self, batch: int, previous: PreviousSegment | None = None) -> TokensState:
        """Return the state before a text."""
        like: Any = self.initial
        memories = tuple(layer.init(batch, like.detach()) for layer in self.layers)  # type: ignore[operator]
        return self.tokens.init(batch, join_states(memories, previous))

    def init_unread(self, batch: int, previous: PreviousSegment | None = None) -> TokensState:
        """Return the state before a text without the zeros of its empty memories; only `forward` accepts it."""
        return self.tokens.init(batch, previous)

    def rows(self, state: TokensState) -> Tensor:
        return self.tokens.rows(state)

    def row_mask(self, lengths: Tensor, begun: int = 0) -> Causal | Blocks:
        return self.tokens.row_mask(lengths, begun)

    def carry(self, state: TokensState, memory: Tensor, inner: State) -> TokensState:
        return self.tokens.carry(state, memory, inner)

    def forward(
        self,
        embeddings: Tensor,
        state: TokensState,
        backbone: Backbone,
        lengths: Tensor | None = None,
        *,
        write: bool = True,
    ) -> tuple[Tensor, TokensState]:
        """Return the hidden rows of embedded tokens (B, L, D) after a state, and the next state.

        `write`: if false, the next state has the memories from before the segment.
        """

        def run(
            rows: Tensor, inner: State, /, *, mask: Any, positions: Tensor, lengths: Tensor | None
        ) -> tuple[Tensor, State]:
            memories, previous = split_states(inner)
            with self.call(memories, self.tokens.num_written if write else 0, lengths) as call:
                hidden, previous = backbone(rows, previous, mask=mask, positions=positions, lengths=lengths)
            return hidden, join_states(call.after, previous)

        return self.tokens(embeddings, state, run, lengths)

    @contextmanager
    def call(self, memories: Memories | None, num_written: int, lengths: Tensor | None = None) -> Iterator[LayerCall]:
        """Let the layers of the backbone read these memories, and write those of `LayerCall.after`."""
        call = LayerCall(self.layers, memories, num_written, lengths)
        with self.hooks.during(call):
            yield call
