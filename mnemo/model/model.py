"""The transformer: `out, state = model(tokens, state)`. It uses the memory protocol, and no mechanism by name.

Shapes: B batch, L segment, Q rows of a segment (tokens and memory tokens), D model width, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from mnemo.config import digest
from mnemo.errors import MnemoError, plural
from mnemo.memory.protocol import (
    AuxiliaryLosses,
    Call,
    Extent,
    InputMemory,
    NoInputMemory,
    PositionTables,
    Record,
    Segment,
    Stage,
    mean_of_valid,
    widened,
)
from mnemo.memory.state import State, leaves, reset
from mnemo.model.config import ModelConfig, fingerprint_config
from mnemo.model.embedding.modules import Softmax, TokenEmbedding
from mnemo.model.init import initialize
from mnemo.model.layers.modules import NORMS, Dropout, TransformerLayer
from mnemo.model.layers.rows import normed
from mnemo.model.positions import modules as positions
from mnemo.model.positions.modules import ProjectedPositions, StoredPositions
from mnemo.model.stages import attending_layers, build_stages, recomputed, stage_layers
from mnemo.ops import Attended, Blocks, Causal, call_obstacle, gate_obstacle, kernel_obstacle
from mnemo.ops.heads import heads_obstacle
from mnemo.ops.projection import compute_dtype
from mnemo.ops.rows import joining_obstacle, row_obstacle

if TYPE_CHECKING:
    from mnemo.inference.decoder import Decoder
    from mnemo.inference.ring_decoder import RingDecoder

Lengths = int | Sequence[int] | None
"""Memory slots of the long-range layers, or of every layer; as configured if None."""


class Output(NamedTuple):
    """Result of a model; `model.logits(out)` and `model.loss(out, targets)` compute logits and losses from it."""

    hidden: Tensor
    """(B, L, D), the input of the softmax"""
    aux: dict[str, Tensor]
    """Weighted auxiliary losses: scalars that are added to the training loss"""


class Model(nn.Module):
    """A transformer with memory: `out, state = model(tokens, state)`.

    tokens (B, L) are one segment of every row; a state of None is the empty state. The state is immutable data: the
    caller passes it to the next call, and may keep, copy or save it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.embedding, config.vocab_size, config.dim, config.dropout.word)
        self.softmax = Softmax(config.embedding, self.embedding, config.dim, config.logit_cap)
        self.positions = positions.build(config.positions, _sizes(config))
        self._groups = stage_layers(config.memory, config.num_layers)
        self._attending = attending_layers(config.memory, config.num_layers)
        self.stages = nn.ModuleList(build_stages(config))
        self.memory_tokens = None if config.tokens is None else config.tokens.build(config.dim)
        self.norm = NORMS[config.norm_kind](config.dim, config.norm_eps) if config.final_norm else nn.Identity()
        self.drop_input = Dropout(config.dropout.input, config.dropout.locked)
        self.drop_output = Dropout(config.dropout.output, config.dropout.locked)
        self.made_from: str | None = None
        """Fingerprint of the model whose weights were rounded to make this one (`mnemo.inference.narrow_weights`)."""
        without_layers = [stage for stage, places in enumerate(self._attending) if not places]
        initialize(self, config.init, kept=tuple(f"stages.{stage}." for stage in without_layers))

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        tables: PositionTables | None = None,
        record: Record | None = None,
        notes: dict[str, Tensor] | None = None,
        recompute: bool = False,
    ) -> tuple[Output, State]:
        """Read one segment of tokens (B, L); the output and the next state.

        `lengths` (B,): valid tokens of each row; the rest is padding on the right and enters no memory.
        `starts` (B,): rows that begin a document, whose memory is emptied first.
        `tables`: the result of `model.tables`, to avoid projecting positions again for every segment.
        `record`: receives every layer's attention probabilities and score terms, on the reference path.
        `notes`: a dictionary that memories fill with diagnostics, for example alpha.
        `recompute`: keep only the input of each layer, and compute the layer again in the backward pass.
        """
        self.check_rows(tokens)
        state = self._start(tokens, state, starts)
        # Made here and not by a default of `Call`, which torch.compile cannot trace.
        first, losses = self.input_memory.num_read, AuxiliaryLosses()
        text = slice(first, first + tokens.shape[1])
        written = self.input_memory.num_written
        call = Call(
            tables=tables, record=record, notes=notes, recompute=recompute, text=text, written=written, losses=losses
        )
        backbone = partial(self.run, call=call)
        hidden, state = self.input_memory(self.embedding(tokens), state, backbone, lengths)
        return Output(hidden, losses.by_name), state

    def _start(self, tokens: Tensor, state: State | None, starts: Tensor | None) -> State:
        """The state before a segment."""
        if state is None:
            state = self.init(len(tokens))
        elif not torch.compiler.is_compiling():
            _check_state(state, len(tokens))
        return state if starts is None else reset(state, starts)

    @torch.no_grad()
    def explain(self, tokens: Tensor, state: State | None = None) -> tuple[Output, State, list[Attended]]:
        """As `forward`, on the reference path, with every layer's attention probabilities and score terms."""
        record: list[Attended] = []
        return *self.observe(tokens, state, record), record

    @torch.no_grad()
    def observe(
        self, tokens: Tensor, state: State | None, record: Record, notes: dict[str, Tensor] | None = None
    ) -> tuple[Output, State]:
        """As `explain`, with a `record` that receives one layer after the other and need not keep all of them."""
        return self(tokens, state, record=record, notes=notes)

    def run(
        self,
        embeddings: Tensor,
        state: State,
        *,
        mask: Causal | Blocks,
        positions: Tensor,
        lengths: Tensor | None = None,
        call: Call | None = None,
    ) -> tuple[Tensor, State]:
        """The backbone: embedded rows (B, Q, D) at `positions` (Q,) of a segment -> hidden rows for the softmax.

        `state` is that of the layers.
        """
        call, rows = call or Call(written=self.input_memory.num_written), embeddings.shape[1]
        segment = Segment(
            tables=call.tables or self._project_positions(state, rows, mask.reach),
            lengths=lengths,
            same_length=self.config.same_length,
            row_mask=mask,
            call=call,
        )
        embeddings = embeddings.to(compute_dtype(embeddings))
        if lengths is not None and self.positions.counts_from_end:
            # A row's own last slot takes the place of the segment's, so that padding does not move the others.
            positions = (positions + rows - lengths[:, None]).clamp(max=rows - 1)
        x = self.drop_input(self.at_input(embeddings, positions, rows))
        after = []
        stages = recomputed(self.stages, self._groups) if call.recompute else self.stages
        for index, (stage, memory) in enumerate(zip(stages, state, strict=True)):
            x, memory = stage(self.enter(index, x, positions, rows), memory, segment)
            after.append(memory)
        x = normed(x, self.norm)
        if self.training:
            self._penalise(x, lengths, call)
        return self.drop_output(x), tuple(after)

    def at_input(self, x: Tensor, slots: Tensor, rows: int) -> Tensor:
        """Embedded rows x (B, T, D) at `slots` of a segment of `rows` rows, with positions, for the first stage."""
        return self.positions.at_input(x, slots, rows)  # type: ignore[operator]

    def enter(self, stage: int, x: Tensor, slots: Tensor, rows: int) -> Tensor:
        """Rows x with positions, for the first layer of a stage."""
        layers = self._attending[stage]
        return self.positions.at_layer(layers[0], x, slots, rows) if layers else x  # type: ignore[operator]

    def finish(self, x: Tensor) -> Output:
        """The output for the last layer's rows x (B, T, D), outside of training."""
        return Output(normed(x, self.norm), {})

    def _penalise(self, rows: Tensor, lengths: Tensor | None, call: Call) -> None:
        """Add the penalties of activations of the tokens among rows (B, Q, D), and of their change between tokens."""
        config, x = self.config, widened(rows[:, call.text])
        # The other rows are memory tokens; those that write follow each row's last valid token.
        tokens = None if lengths is None else lengths - (rows.shape[1] - x.shape[1])
        if config.activation_penalty:
            call.losses.add("activation", config.activation_penalty * mean_of_valid(x.square(), tokens))
        if config.temporal_penalty and x.shape[1] > 1:
            changes = (x[:, 1:] - x[:, :-1]).square()
            pairs = None if tokens is None else tokens - 1
            call.losses.add("temporal", config.temporal_penalty * mean_of_valid(changes, pairs))

    def loss(self, out: Output, targets: Tensor, temperature: float = 1.0) -> Tensor:
        """Negative log-likelihood (B, L) of the newest L positions, in nats and token order; 0 where a target is -1.

        `temperature`: divides the logits.
        """
        self.check_tokens(targets, lowest=-1)
        hidden = out.hidden[:, out.hidden.shape[1] - targets.shape[1] :]
        nll = self.softmax.nll(hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), self.embedding, temperature)
        return nll.view(targets.shape)

    def loss_and_squared_lse(self, out: Output, targets: Tensor) -> tuple[Tensor, Tensor]:
        """As `loss`, with the squared log-sum-exp of the logits of each position, for the z-loss."""
        self.check_tokens(targets, lowest=-1)
        hidden = out.hidden[:, out.hidden.shape[1] - targets.shape[1] :]
        flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
        nll, squares = self.softmax.nll_and_squared_lse(*flat, self.embedding)
        return nll.view(targets.shape), squares.view(targets.shape)

    def logits(self, out: Output) -> Tensor:
        """(B, L, V); with an adaptive softmax these are log-probabilities."""
        return self.softmax.logits(out.hidden, self.embedding)

    def init(
        self, batch: int, lengths: Lengths = None, cached: bool = False, dtype: torch.dtype | None = None
    ) -> State:
        """An empty state.

        `lengths`: slots of the long-range layers, or of every layer; as configured if left out.
        `cached`: the form for inference, which keeps projected keys and values.
        `dtype`: that of the memories, such as the one that autocast computes in; the weights' if left out.
        """
        return self._new_state(batch, lengths, cached, False, dtype)

    def zeros(
        self, batch: int, lengths: Lengths = None, cached: bool = False, dtype: torch.dtype | None = None
    ) -> State:
        """A state full of zero vectors that are attended to, with which TensorFlow and Hugging Face start."""
        return self._new_state(batch, lengths, cached, True, dtype)

    @torch.no_grad()
    def _new_state(self, batch: int, lengths: Lengths, cached: bool, full: bool, dtype: torch.dtype | None) -> State:
        like = self.embedding.tables[0].new_empty(0, self.config.dim, dtype=dtype)
        stages = zip(self._stages(), self._stage_lengths(lengths), strict=True)
        layers = tuple(stage.init(batch, length, like, cached, full) for stage, length in stages)
        return self.input_memory.init(batch, layers)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def input_memory(self) -> InputMemory:
        """Memory tokens, or the absence of any input memory."""
        return self.memory_tokens or NoInputMemory()

    def layer_states(self, state: State) -> tuple[Any, ...]:
        """The stages' part of a state, one entry each."""
        return self.input_memory.inner(state)

    def memory_lengths(self, state: State) -> tuple[int, ...]:
        """Every layer's memory slots in a state, compressed slots included."""
        return tuple(extent.slots for extent in self.extents(state))

    def filled_slots(self, state: State, row: int = 0) -> tuple[int, ...]:
        """Of every layer's memory slots, the number that hold something of the text of one row."""
        return tuple(extent.filled_slots(row) for extent in self.extents(state))

    def init_lengths(self, state: State) -> tuple[int, ...]:
        """The `lengths` with which `init` makes a state of this size."""
        return tuple(extent.length for extent in self.extents(state))

    def extents(self, state: State) -> tuple[Extent, ...]:
        """The size of every layer's memory; layers of one stage share theirs."""
        of_stages = self._extents(self.layer_states(state))
        return tuple(extent for extent, group in zip(of_stages, self._groups, strict=True) for _ in group)

    def _extents(self, layers: Sequence[Any]) -> list[Extent]:
        return [stage.extent(memory) for stage, memory in zip(self._stages(), layers, strict=True)]

    def num_rows(self, segment: int) -> int:
        """Rows of a segment of `segment` tokens, including memory tokens."""
        return segment + self.input_memory.num_read + self.input_memory.num_written

    def resize(self, state: State, lengths: int | Sequence[int]) -> State:
        """The same state with other memory lengths; the newest slots stay."""
        stages = zip(self._stages(), self.layer_states(state), self._stage_lengths(lengths), strict=True)
        layers = tuple(stage.resize(memory, length) for stage, memory, length in stages)
        return self.input_memory.with_inner(state, layers)

    def _stages(self) -> Sequence[Stage]:
        return self.stages  # type: ignore[return-value]

    def _stage_lengths(self, lengths: Lengths) -> list[int]:
        """Memory length of each stage, from its first layer."""
        by_layer = self.config.memory.lengths(self.config.num_layers, lengths)
        return [by_layer[group[0]] for group in self._groups]

    def layers(self) -> list[TransformerLayer]:
        """The layers that attend."""
        return [module for module in self.stages.modules() if isinstance(module, TransformerLayer)]

    @torch.no_grad()
    def tables(self, segment: int, state: State) -> StoredPositions:
        """Projected positions of every attending layer, for segments of at most this length after such a state."""
        memories, rows, reach = self.layer_states(state), self.num_rows(segment), self.input_memory.reach
        projected = self._project_positions(memories, rows, reach)
        layers, relations = self.layers(), []
        for extent, places in zip(self._extents(memories), self._attending, strict=True):
            size = extent.slots + rows, max(extent.ahead, reach)
            relations += [projected.relation(layers[place], *size).for_reuse() for place in places]
        return StoredPositions(tuple(relations))

    def _project_positions(self, memories: Sequence[Any], rows: int, reach: int) -> ProjectedPositions:
        """Positions for the largest number of keys that any stage needs; `reach`: of keys ahead in the segment."""
        extents = self._extents(memories)
        slots, ahead = max(extent.slots for extent in extents), max(reach, *(extent.ahead for extent in extents))
        like, mirrored = self.embedding.tables[0], max(extent.mirrored for extent in extents)
        encoding = self.positions.encoding(slots + rows, ahead, like)  # type: ignore[operator]
        second = None
        if mirrored and self.positions.drops_out:
            second = self.positions.encoding(mirrored + 1, 0, like)  # type: ignore[operator]
        return ProjectedPositions(self.positions, encoding, ahead, second)  # type: ignore[arg-type]

    def decoder(self, state: State | None = None, *, segment: int, batch: int = 1) -> Decoder | RingDecoder:
        """A decoder that reads and generates token by token from `state`; see `mnemo.inference`."""
        from mnemo.inference.ring_decoder import open_decoder

        return open_decoder(self, self.init(batch, cached=True) if state is None else state, segment)

    def variant(self, **changes: Any) -> Model:
        """The same weights under a changed configuration, such as `same_length=True` or `clamp=820`."""
        with torch.device("meta"):
            other = Model(self.config.changed(changes))
        other.load_state_dict(self.state_dict(keep_vars=True), assign=True)
        return other.train(self.training)

    def fingerprint(self) -> str:
        """A hash of configuration and weights: a memory belongs to the model that wrote it."""
        if self.made_from is not None:
            return self.made_from
        sha = hashlib.sha256(digest(fingerprint_config(self.config)).encode())
        for name, tensor in sorted(self.state_dict().items()):
            sha.update(name.encode())
            sha.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return sha.hexdigest()

    def check_rows(self, tokens: Tensor) -> None:
        """Raise MnemoError unless tokens are ids (B, L) of the vocabulary."""
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32) or not tokens.numel():
            kind = str(tokens.dtype).removeprefix("torch.")
            raise MnemoError(f"expected token ids (batch, length) of int64, not {kind} {list(tokens.shape)}")
        self.check_tokens(tokens)

    def check_tokens(self, tokens: Tensor, lowest: int = 0) -> None:
        """Raise MnemoError for ids outside the vocabulary (on the CPU, where reading values is cheap)."""
        if tokens.device.type != "cpu" or tokens.numel() == 0 or torch.compiler.is_compiling():
            return
        low, high = (int(bound) for bound in tokens.aminmax())
        worst = low if low < lowest else high
        if not lowest <= worst < self.config.vocab_size:
            raise MnemoError(f"token id {worst} is outside the vocabulary of {self.config.vocab_size}")


def _check_state(state: State, rows: int) -> None:
    """Raise MnemoError for the usual mistakes: output and state together, or the state of another batch."""
    if isinstance(state, tuple) and isinstance(next(iter(state), None), Output):
        raise MnemoError("expected a state, not the output with it: out, state = model(tokens, state)")
    for path, leaf in leaves(state):
        if len(leaf) != rows:
            raise MnemoError(f"the state has {plural(len(leaf), 'row')} ({path}), the tokens have {rows}")
        return


def _sizes(config: ModelConfig) -> positions.Sizes:
    return positions.Sizes(
        num_layers=len(config.memory.attending(config.num_layers)),
        dim=config.dim,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        dropout=config.dropout,
    )


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Without dropout and gradients; the mode of the model is restored afterwards."""
    was_training = model.training
    if was_training:  # setting the modes of all modules takes a noticeable part of the time of a token
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if was_training:
            model.train()


def attention_obstacle(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the model's attention cannot run in fused kernels on a device; None if it can."""
    ahead = config.tokens.ahead if config.tokens is not None and config.tokens.blocks else "signed"
    memories = config.memory.memories(config.num_layers)
    causal = config.tokens is None and all(memory.traits.key_value_cache for memory in memories)
    refused = call_obstacle(True, False, ahead) or kernel_obstacle(device, dtype, config.head_dim, spans=not causal)
    if refused is None:
        heads_obstacle(device, dtype, config.head_dim)  # tests these kernels too, which is impossible while compiling
        if config.head_gate:
            gate_obstacle(device, dtype, config.head_dim)
    return refused


def rows_obstacle(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the model's norms, dropout and activations cannot run in fused kernels on a device; None if they can."""
    refused = row_obstacle(device, dtype, config.dim, config.norm_kind, config.activation)
    if refused is None and config.norm == "pre" and config.norm_kind == "rms":
        joining_obstacle(device, dtype, config.dim)  # tests this kernel too, which is impossible while compiling
    return refused
