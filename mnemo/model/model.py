"""The transformer: `out, state = model(tokens, state)`. It knows the memory protocol, and no mechanism by name.

Shapes: B batch, L segment, D model width, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mnemo.config import check_sizes, digest
from mnemo.errors import MnemoError
from mnemo.memory import MemoryTokens, Plan, RecurrentMemory
from mnemo.memory.protocol import Layer, Layerless, Record, Relation, Relations, Segment, Stage, widened
from mnemo.memory.state import State, reset
from mnemo.model import positions as positions_module
from mnemo.model.embedding import EmbeddingConfig, Softmax, TokenEmbedding
from mnemo.model.layers import NORMS, Activation, Dropout, DropoutConfig, NormKind, RMSNorm, TransformerLayer
from mnemo.model.positions import AnyPositions, Learned, Relative, Sinusoidal
from mnemo.ops import Attended, Blocks, Causal, call_objection, objection
from mnemo.ops.projection import compute_dtype

if TYPE_CHECKING:
    from mnemo.inference.decoder import Decoder
    from mnemo.inference.ring_decoder import RingDecoder

RESIDUAL = ("attention.output.weight", "feed_forward.outer.weight")
"""Weights whose products are added to the residual."""


LIMITS = {
    "vocab_size": 2**31,
    "cutoffs": 2**31,
    "num_layers": 1024,
    "dim": 2**20,
    "num_heads": 2**12,
    "head_dim": 2**12,
    "seed": 2**63 - 1,
}
"""Largest values of fields that need other limits than `config.LARGEST_SIZE`."""


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    kind: Literal["normal", "uniform"] = "normal"
    """How first weights are drawn."""
    std: float = 0.02
    """Deviation of weights, biases u and v, and of norm weights around 1."""
    projection_std: float = 0.01
    """Deviation of embedding projections."""
    norm_bias_std: float = 0.0
    """Deviation of the biases of norms. At 0, a first word that word dropout has emptied stays empty in all layers of a
    new model, and its gradient grows in every norm, beyond all numbers in a deep one."""
    bound: float = 0.1
    """Range of the uniform kind."""
    residual: Literal["same", "scaled", "zero"] = "same"
    """Weights whose products are added to the residual: drawn as all others; narrower, by the square root of how many
    of them there are; or zero, so that every layer begins as the identity (pre-norm)."""

    def __post_init__(self) -> None:
        if min(self.std, self.projection_std, self.norm_bias_std, self.bound) < 0:
            raise ValueError("deviations and bounds of first weights are not negative")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    vocab_size: int = 256
    """Symbols; training takes the corpus's number."""
    num_layers: int = 4
    """Layers of attention and feed-forward, or recurrent ones."""
    dim: int = 128
    """Model width."""
    num_heads: int = 4
    """Attention heads of a layer."""
    head_dim: int = 32
    """Width of a head; heads times this need not be the model width."""
    inner_dim: int = 512
    """Width inside the feed-forward."""
    norm: Literal["post", "pre"] = "post"
    """The norm after each residual sum, or before each branch."""
    final_norm: bool = False
    """A norm after the last layer (the published pre-norm model has none)."""
    norm_kind: NormKind = "layer"
    """Norms that subtract the mean (layer) or only divide by the root of the mean square (rms)."""
    norm_eps: float = 1e-5
    """Added to the variance in norms."""
    qk_norm: bool = False
    """Queries and keys pass through an rms norm, head by head, before their positions are added."""
    head_gate: bool = False
    """What each head has read is multiplied by a gate that the reading row sets (Qiu et al., 2025)."""
    activation: Activation = "relu"
    """Of the feed-forward."""
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    positions: AnyPositions = field(default_factory=Relative)
    """How attention sees positions."""
    memory: Plan = field(default_factory=Plan)
    """Which layer keeps which memory."""
    tokens: MemoryTokens | None = None
    """Memory tokens around every segment."""
    same_length: bool = False
    """Every query sees as many keys as its layer has memory slots, itself included."""
    dropout: DropoutConfig = field(default_factory=DropoutConfig)
    activation_penalty: float = 0.0
    """Weight of the squared final hidden state in the training loss (AR)."""
    temporal_penalty: float = 0.0
    """Weight of its squared change from token to token (TAR)."""
    init: InitConfig = field(default_factory=InitConfig)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_layers", "dim", "num_heads", "head_dim", "inner_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive")
        check_sizes(self, LIMITS)
        if self.dim % 2 and isinstance(self.positions, (Relative, Sinusoidal)):
            raise ValueError(f"model width {self.dim} must be even: half are sines, half cosines")
        for memory in set(self.memory.memories(self.num_layers)):
            memory.check(self)
        if self.tokens is not None:
            self.tokens.check(self)
        lengths = self.memory.lengths(self.num_layers)
        if isinstance(self.positions, (Sinusoidal, Learned)) and any(lengths):
            raise ValueError(
                f"{type(self.positions).__name__} positions are absolute: a memory would repeat the segment's own; "
                "set the memory length to 0 or use relative positions"
            )

    def published(self) -> ModelConfig:
        """The same model with the published code's quirks."""
        positions, tokens, memory = self.positions, self.tokens, self.memory.published()
        if isinstance(positions, Sinusoidal):
            positions = replace(positions, countdown=True)
        if isinstance(positions, Learned):
            positions = replace(positions, align_end=True)
        tokens = None if tokens is None else tokens.published()
        return replace(self, positions=positions, memory=memory, tokens=tokens)


class Output(NamedTuple):
    hidden: Tensor
    """(B, L, D), ready for the softmax"""
    aux: dict[str, Tensor]
    """Weighted auxiliary losses, scalars to add to the training loss"""


class Model(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.embedding, config.vocab_size, config.dim, config.dropout.word)
        self.softmax = Softmax(config.embedding, self.embedding, config.dim)
        attending = config.memory.attending(config.num_layers)
        sizes = positions_module.Sizes(
            num_layers=len(attending),
            dim=config.dim,
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            dropout=config.dropout,
        )
        self.positions = positions_module.build(config.positions, sizes)
        layers = {index: _layer(config, place) for place, index in enumerate(attending)}
        self._groups = stage_layers(config.memory, config.num_layers)
        self._attending = [[attending.index(index) for index in group if index in layers] for group in self._groups]
        self.stages = nn.ModuleList(_stages(config, layers))
        self.memory_tokens = None if config.tokens is None else RecurrentMemory(config.tokens, config.dim)
        self.norm = NORMS[config.norm_kind](config.dim, config.norm_eps) if config.final_norm else nn.Identity()
        self.drop_input = Dropout(config.dropout.input, config.dropout.locked)
        self.drop_output = Dropout(config.dropout.output, config.dropout.locked)
        initialize(self, config.init, own=[stage for stage, places in enumerate(self._attending) if not places])

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        tables: Sequence[Relation] | None = None,
        notes: dict[str, Tensor] | None = None,
        recompute: bool = False,
    ) -> tuple[Output, State]:
        """Read one segment of tokens (B, L).

        `lengths` (B,): valid tokens of each row, the rest is padding on the right and enters no memory.
        `starts` (B,): rows that begin a document, whose memory is emptied first.
        `tables`: what `model.tables` gave, so that positions are not projected again for every segment.
        `notes`: a dictionary into which memories put what they have to tell of themselves.
        `recompute`: keep only what goes into each layer, and compute the layer again in the backward pass.
        """
        return self._read(tokens, state, lengths, starts, tables, None, notes, recompute)

    @torch.no_grad()
    def explain(self, tokens: Tensor, state: State | None = None) -> tuple[Output, State, list[Attended]]:
        """As `forward`, on the reference path, with every layer's attention probabilities and score terms."""
        record: list[Attended] = []
        return *self.observe(tokens, state, record), record

    @torch.no_grad()
    def observe(
        self, tokens: Tensor, state: State | None, record: Record, notes: dict[str, Tensor] | None = None
    ) -> tuple[Output, State]:
        """As `explain`, but `record` takes the attention of each layer as it comes: all of them need not be held."""
        return self._read(tokens, state, None, None, None, record, notes)

    def _read(
        self,
        tokens: Tensor,
        state: State,
        lengths: Tensor | None,
        starts: Tensor | None,
        tables: Sequence[Relation] | None,
        record: Record | None,
        notes: dict[str, Tensor] | None = None,
        recompute: bool = False,
    ) -> tuple[Output, State]:
        _check_rows(tokens)
        self.check_tokens(tokens)
        if state is None:
            state = self.init(tokens.shape[0])
        if starts is not None:
            state = reset(state, starts)
        aux: dict[str, Tensor] = {}
        backbone = partial(self.run, tables=tables, record=record, notes=notes, aux=aux, recompute=recompute)
        x, length = self.embedding(tokens), tokens.shape[1]
        if self.memory_tokens is not None:
            first = self.memory_tokens.config.num
            hidden, state = self.memory_tokens(x, state, partial(backbone, text=slice(first, first + length)), lengths)
        else:
            slots = torch.arange(length, device=tokens.device)
            hidden, state = backbone(x, state, mask=Causal(), positions=slots, lengths=lengths)
        return Output(hidden, aux), state

    def run(
        self,
        embeddings: Tensor,
        state: State,
        *,
        mask: Causal | Blocks,
        positions: Tensor,
        lengths: Tensor | None = None,
        tables: Sequence[Relation] | None = None,
        record: Record | None = None,
        notes: dict[str, Tensor] | None = None,
        aux: dict[str, Tensor] | None = None,
        text: slice = slice(None),
        recompute: bool = False,
    ) -> tuple[Tensor, State]:
        """The backbone: embedded rows (B, Q, D) at `positions` (Q,) of a segment -> hidden rows, ready for the softmax.

        `state` is that of the layers. Auxiliary losses are put into `aux`; `text` are the rows that may have any.
        """
        rows = embeddings.shape[1]
        blocks = mask if isinstance(mask, Blocks) else None
        losses = {} if aux is None else aux
        segment = Segment(
            relation=self._relations(state, rows, tables, 0 if blocks is None else blocks.reach),
            lengths=lengths,
            same_length=self.config.same_length,
            blocks=blocks,
            record=record,
            notes=notes,
            recompute=recompute,
            add_loss=partial(_add_loss, losses),
        )
        embeddings = embeddings.to(compute_dtype(embeddings))
        x = self.drop_input(self.at_input(embeddings, positions, rows))
        after = []
        for index, (stage, memory) in enumerate(zip(self.stages, state, strict=True)):
            x, memory = self._through(index, stage, self.enter(index, x, positions, rows), memory, segment)
            after.append(memory)
        x = self.norm(x)
        if self.training:
            losses.update(self._penalties(x[:, text]))
        return self.drop_output(x), tuple(after)

    def _through(self, index: int, stage: nn.Module, x: Tensor, memory: Any, segment: Segment) -> tuple[Tensor, Any]:
        """One stage; a stage of several layers keeps or recomputes each of them itself."""
        if not segment.recompute or len(self._groups[index]) > 1:
            return stage(x, memory, segment)

        def read(x: Tensor, memory: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
            losses: dict[str, Tensor] = {}
            own = replace(segment, add_loss=partial(_add_loss, losses), recompute=False)
            return *stage(x, memory, own), losses

        x, memory, losses = segment.through(read, x, memory)
        for name, value in losses.items():
            segment.add_loss(name, value)
        return x, memory

    def at_input(self, x: Tensor, slots: Tensor, rows: int) -> Tensor:
        """Embedded rows x (B, T, D) at `slots` of a segment of so many rows, as the first stage takes them."""
        return self.positions.at_input(x, slots, rows)  # type: ignore[operator]

    def enter(self, stage: int, x: Tensor, slots: Tensor, rows: int) -> Tensor:
        """Rows x as a stage's first layer takes them."""
        layers = self._attending[stage]
        return self.positions.at_layer(layers[0], x, slots, rows) if layers else x  # type: ignore[operator]

    def finish(self, x: Tensor) -> Output:
        """The output of the last layer's rows x (B, T, D), where nothing is trained."""
        return Output(self.norm(x), {})

    def _penalties(self, x: Tensor) -> dict[str, Tensor]:
        config, penalties = self.config, {}
        x = widened(x)
        if config.activation_penalty:
            penalties["activation"] = config.activation_penalty * x.square().mean()
        if config.temporal_penalty and x.shape[1] > 1:
            penalties["temporal"] = config.temporal_penalty * (x[:, 1:] - x[:, :-1]).square().mean()
        return penalties

    def loss(self, out: Output, targets: Tensor, temperature: float = 1.0) -> Tensor:
        """Negative log-likelihood (B, L) of the newest L positions, in nats and token order; 0 where a target is -1.

        `temperature`: what logits are divided by.
        """
        self.check_tokens(targets, lowest=-1)
        hidden = out.hidden[:, out.hidden.shape[1] - targets.shape[1] :]
        nll = self.softmax.nll(hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), self.embedding, temperature)
        return nll.view(targets.shape)

    def logits(self, out: Output) -> Tensor:
        """(B, L, V); with an adaptive softmax these are log-probabilities."""
        return self.softmax.logits(out.hidden, self.embedding)

    def init(
        self,
        batch: int,
        lengths: int | Sequence[int] | None = None,
        cached: bool = False,
        dtype: torch.dtype | None = None,
    ) -> State:
        """An empty state.

        `lengths`: slots of the long-range layers, or of every layer; as configured when left out.
        `cached`: the form for inference, which keeps projected keys and values.
        `dtype`: of what layers remember, such as the one that autocast computes in; the weights' when left out.
        """
        return self._new_state(batch, lengths, cached, full=False, dtype=dtype)

    def zeros(
        self,
        batch: int,
        lengths: int | Sequence[int] | None = None,
        cached: bool = False,
        dtype: torch.dtype | None = None,
    ) -> State:
        """A state full of zero vectors that are attended to: where TensorFlow and Hugging Face start from."""
        return self._new_state(batch, lengths, cached, full=True, dtype=dtype)

    def _new_state(
        self,
        batch: int,
        lengths: int | Sequence[int] | None,
        cached: bool,
        full: bool,
        dtype: torch.dtype | None = None,
    ) -> State:
        with torch.no_grad():
            like = self.embedding.tables[0].new_empty(0, self.config.dim, dtype=dtype)
            layers = tuple(
                stage.init(batch, length, like, cached, full)
                for stage, length in zip(self._stages(), self._stage_lengths(lengths), strict=True)
            )
            return layers if self.memory_tokens is None else self.memory_tokens.init(batch, layers)

    def layer_states(self, state: State) -> tuple[Any, ...]:
        """The part of a state that the stages keep, one entry each."""
        return state if self.memory_tokens is None else state.inner

    def memory_lengths(self, state: State) -> tuple[int, ...]:
        """Every layer's memory slots in a state."""
        stages = zip(self._stages(), self.layer_states(state), self._groups, strict=True)
        by_layer = {index: stage.slots(memory) for stage, memory, group in stages for index in group}
        return tuple(by_layer[index] for index in range(self.config.num_layers))

    def num_rows(self, segment: int) -> int:
        """Rows of a segment of so many tokens: its memory tokens' too."""
        return segment if self.config.tokens is None else segment + self.config.tokens.num_extra

    def resize(self, state: State, lengths: int | Sequence[int]) -> State:
        """The same state with other memory lengths: the newest slots stay."""
        stages = zip(self._stages(), self.layer_states(state), self._stage_lengths(lengths), strict=True)
        layers = tuple(stage.resize(memory, length) for stage, memory, length in stages)
        return layers if self.memory_tokens is None else state._replace(inner=layers)

    def _stages(self) -> Sequence[Stage]:
        return self.stages  # type: ignore[return-value]

    def _stage_lengths(self, lengths: int | Sequence[int] | None) -> list[int]:
        """Memory length of each stage, from its first layer."""
        by_layer = self.config.memory.lengths(self.config.num_layers, lengths)
        return [by_layer[group[0]] for group in self._groups]

    def layers(self) -> list[TransformerLayer]:
        return [module for module in self.stages.modules() if isinstance(module, TransformerLayer)]

    @torch.no_grad()
    def tables(self, segment: int, state: State) -> tuple[Relation, ...]:
        """Every attending layer's projected positions for segments of at most this length behind such a state."""
        layers, rows = self.layer_states(state), self.num_rows(segment)
        within = 0 if self.config.tokens is None else self.config.tokens.reach
        relation = self._relations(layers, rows, None, within)
        result: list[Relation] = []
        for stage, memory, group in zip(self._stages(), layers, self._attending, strict=True):
            keys, ahead = stage.slots(memory) + rows, max(stage.ahead(memory), within)
            result += [relation(self.layers()[index], keys, ahead).to_keep() for index in group]
        return tuple(result)

    def _relations(self, state: State, rows: int, tables: Sequence[Relation] | None, ahead: int = 0) -> Relations:
        if tables is not None:
            return lambda layer, num_keys, ahead=0: tables[layer.index].take(num_keys, ahead)
        stages = list(zip(self._stages(), state, strict=True))
        slots = max(stage.slots(memory) for stage, memory in stages)
        most = max(ahead, *(stage.ahead(memory) for stage, memory in stages))
        encoding = self.positions.encoding(slots + rows, most, self.embedding.tables[0])  # type: ignore[operator]

        def relation(layer: Layer, num_keys: int, ahead: int = 0) -> Relation:
            near = positions_module.nearest(encoding, num_keys, ahead, most)
            return self.positions.relation(layer.index, layer.attention, near, ahead)  # type: ignore[operator, attr-defined]

        return relation

    def decoder(self, state: State | None = None, *, segment: int, batch: int = 1) -> Decoder | RingDecoder:
        """Return a decoder that reads and generates token by token from `state`; see `mnemo.inference`."""
        from mnemo.inference.ring_decoder import open_decoder

        return open_decoder(self, self.init(batch, cached=True) if state is None else state, segment)

    def variant(self, **changes: Any) -> Model:
        """The same weights under a changed configuration, such as `same_length=True` or `clamp=820`."""
        config = self.config
        if "clamp" in changes:
            config = with_clamp(config, changes.pop("clamp"))
        try:
            config = replace(config, **changes)
        except ValueError as error:
            raise MnemoError(str(error)) from None
        with torch.device("meta"):
            other = Model(config)
        other.load_state_dict(self.state_dict(keep_vars=True), assign=True)
        return other.train(self.training)

    def fingerprint(self) -> str:
        """A hash of configuration and weights: a memory belongs to the model that wrote it."""
        sha = hashlib.sha256(digest(fingerprint_config(self.config)).encode())
        for name, tensor in sorted(self.state_dict().items()):
            sha.update(name.encode())
            sha.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return sha.hexdigest()

    def check_tokens(self, tokens: Tensor, lowest: int = 0) -> None:
        """Refuse ids beyond the vocabulary (on the CPU, where looking costs nothing)."""
        if tokens.device.type != "cpu" or tokens.numel() == 0 or torch.compiler.is_compiling():
            return
        low, high = tokens.aminmax()
        if int(low) < lowest or int(high) >= self.config.vocab_size:
            bad = int(low) if int(low) < lowest else int(high)
            raise MnemoError(f"token id {bad} is outside the vocabulary of {self.config.vocab_size}")


def _check_rows(tokens: Tensor) -> None:
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32) or not tokens.numel():
        kind = str(tokens.dtype).removeprefix("torch.")
        raise MnemoError(f"expected token ids (batch, length) of int64, not {kind} {list(tokens.shape)}")


def _layer(config: ModelConfig, index: int) -> nn.Module:
    """A transformer layer; `index` counts those that attend."""
    return TransformerLayer(
        index,
        dim=config.dim,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        inner_dim=config.inner_dim,
        norm=config.norm,
        norm_kind=config.norm_kind,
        norm_eps=config.norm_eps,
        qk_norm=config.qk_norm,
        head_gate=config.head_gate,
        activation=config.activation,
        dropout=config.dropout,
    )


def _add_loss(losses: dict[str, Tensor], name: str, value: Tensor) -> None:
    losses[name] = losses[name] + value if name in losses else value


def stage_layers(plan: Plan, num_layers: int) -> list[list[int]]:
    """Layer indices of every stage: runs of equal grouped memories, else one layer a stage."""
    memories = plan.memories(num_layers)
    keys = [(memory, None if memory.grouped else index) for index, memory in enumerate(memories)]
    return [list(group) for _, group in groupby(range(num_layers), key=lambda index: keys[index])]


def _stages(config: ModelConfig, layers: dict[int, nn.Module]) -> list[nn.Module]:
    memories, stages = config.memory.memories(config.num_layers), []
    for group in stage_layers(config.memory, config.num_layers):
        memory, is_last = memories[group[0]], group[-1] == config.num_layers - 1
        if isinstance(memory, Layerless):
            rate = 0.0 if is_last else config.dropout.projection  # the last layer's is `output`
            stages.append(memory.build(config.dim, Dropout(rate, config.dropout.locked)))
        else:
            stages.append(memory.stage([layers[index] for index in group]))
    return stages


def with_clamp(config: ModelConfig, clamp: int | None) -> ModelConfig:
    if not hasattr(config.positions, "clamp"):
        raise MnemoError(f"{type(config.positions).__name__} positions have no distances to clamp")
    return replace(config, positions=replace(config.positions, clamp=clamp))  # type: ignore[call-arg]


def fingerprint_config(config: ModelConfig) -> dict[str, Any]:
    """The fields that the meaning of a memory depends on; lengths and dropout may change freely."""
    free = {"dropout", "init", "memory", "same_length", "activation_penalty", "temporal_penalty"}
    return {f.name: getattr(config, f.name) for f in fields(config) if f.name not in free}


@torch.no_grad()
def initialize(model: nn.Module, config: InitConfig, own: Sequence[int] = ()) -> None:
    """The published initialisation: N(0, std), norm weights N(1, std), biases 0, embedding projections narrower.

    The stages in `own` have drawn their weights themselves.
    """
    keep = tuple(f"stages.{stage}." for stage in own)
    count = sum(name.endswith(RESIDUAL) for name, _ in model.named_parameters())
    share = {"same": 1.0, "scaled": max(1, count) ** -0.5, "zero": 0.0}[config.residual]

    def draw(tensor: Tensor, std: float) -> None:
        if config.kind == "uniform":
            tensor.uniform_(-config.bound, config.bound)
        else:
            tensor.normal_(0.0, std)

    for name, parameter in model.named_parameters():
        if parameter.is_meta:  # shapes only: the weights come from elsewhere, and drawing is slow there
            continue
        if name.startswith(keep):
            continue
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, (nn.LayerNorm, RMSNorm)):
            parameter.normal_(1.0, config.std) if name.endswith("weight") else parameter.zero_()
            if name.endswith("bias") and config.norm_bias_std:
                parameter.normal_(0.0, config.norm_bias_std)
        elif isinstance(owner, RecurrentMemory):
            owner.reset_parameters()
        elif name.endswith("bias") or ".biases." in name:
            parameter.zero_()
        elif name.startswith(("embedding.projections", "softmax.projections")):
            draw(parameter, config.projection_std)
        else:
            draw(parameter, config.std)
            if name.endswith(RESIDUAL):
                parameter.mul_(share)


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """No dropout and no gradients; the model is left as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def attention_objection(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a model's attention does not run in fused kernels on a device, if it does not."""
    ahead = config.tokens.ahead if config.tokens is not None and config.tokens.blocks else "signed"
    return call_objection(True, False, ahead) or objection(device, dtype, config.head_dim)
