"""The transformer: `out, state = model(tokens, state)`. It knows the memory protocol, and no mechanism by name.

Shapes: B batch, L segment, D model width, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mnemo import positions as positions_module
from mnemo.config import digest
from mnemo.embedding import EmbeddingConfig, Softmax, TokenEmbedding
from mnemo.errors import MnemoError
from mnemo.layers import Activation, Dropout, DropoutConfig, TransformerLayer
from mnemo.memory import Plan
from mnemo.memory.protocol import Layer, Relation, Relations, Segment, Stage
from mnemo.ops import Attended
from mnemo.positions import AnyPositions, Learned, Relative, Sinusoidal
from mnemo.state import State, reset

if TYPE_CHECKING:
    from mnemo.decode import Decoder


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    kind: Literal["normal", "uniform"] = "normal"
    std: float = 0.02
    """Deviation of weights, biases u and v, and of norm weights around 1."""
    projection_std: float = 0.01
    """Deviation of embedding projections."""
    bound: float = 0.1
    """Range of the uniform kind."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    vocab_size: int = 256
    num_layers: int = 4
    dim: int = 128
    num_heads: int = 4
    head_dim: int = 32
    inner_dim: int = 512
    norm: Literal["post", "pre"] = "post"
    final_norm: bool = False
    """A norm after the last layer (the published pre-norm model has none)."""
    norm_eps: float = 1e-5
    activation: Activation = "relu"
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    positions: AnyPositions = field(default_factory=Relative)
    memory: Plan = field(default_factory=Plan)
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
        if self.dim % 2 and isinstance(self.positions, (Relative, Sinusoidal)):
            raise ValueError(f"model width {self.dim} must be even: half are sines, half cosines")
        for memory in set(self.memory.memories(self.num_layers)):
            memory.check(self)
        lengths = self.memory.lengths(self.num_layers)
        if isinstance(self.positions, (Sinusoidal, Learned)) and any(lengths):
            raise ValueError(
                f"{type(self.positions).__name__} positions are absolute: a memory would repeat the segment's own; "
                "set the memory length to 0 or use relative positions"
            )

    def published(self) -> ModelConfig:
        """The same model with the published code's quirks."""
        if isinstance(self.positions, Sinusoidal):
            return replace(self, positions=replace(self.positions, countdown=True))
        if isinstance(self.positions, Learned):
            return replace(self, positions=replace(self.positions, align_end=True))
        return self


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
        sizes = positions_module.Sizes(
            num_layers=config.num_layers,
            dim=config.dim,
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            dropout=config.dropout,
        )
        self.positions = positions_module.build(config.positions, sizes)
        layers = [_layer(config, index) for index in range(config.num_layers)]
        self._groups = stage_layers(config.memory, config.num_layers)
        self.stages = nn.ModuleList(_stages(config.memory, layers))
        self.norm = nn.LayerNorm(config.dim, config.norm_eps) if config.final_norm else nn.Identity()
        self.drop_input = Dropout(config.dropout.input, config.dropout.locked)
        self.drop_output = Dropout(config.dropout.output, config.dropout.locked)
        initialize(self, config.init)

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        tables: Sequence[Relation] | None = None,
    ) -> tuple[Output, State]:
        """Read one segment of tokens (B, L).

        `lengths` (B,): valid tokens of each row, the rest is padding on the right and enters no memory.
        `starts` (B,): rows that begin a document, whose memory is emptied first.
        `tables`: what `model.tables` gave, so that positions are not projected again for every segment.
        """
        return self._read(tokens, state, lengths, starts, tables, record=None)

    @torch.no_grad()
    def explain(self, tokens: Tensor, state: State | None = None) -> tuple[Output, State, list[Attended]]:
        """As `forward`, on the reference path, with every layer's attention probabilities and score terms."""
        record: list[Attended] = []
        out, state = self._read(tokens, state, None, None, None, record)
        return out, state, record

    def _read(
        self,
        tokens: Tensor,
        state: State,
        lengths: Tensor | None,
        starts: Tensor | None,
        tables: Sequence[Relation] | None,
        record: list[Attended] | None,
    ) -> tuple[Output, State]:
        self.check_tokens(tokens)
        if state is None:
            state = self.init(tokens.shape[0])
        if starts is not None:
            state = reset(state, starts)
        slots = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop_input(self.embed(tokens, slots, tokens.shape[1]))
        segment = Segment(
            relation=self._relations(state, tokens.shape[1], tables),
            lengths=lengths,
            same_length=self.config.same_length,
            record=record,
        )
        after = []
        for index, (stage, memory) in enumerate(zip(self.stages, state, strict=True)):
            x, memory = stage(self.enter(index, x, slots, tokens.shape[1]), memory, segment)
            after.append(memory)
        return self.finish(x, segment), tuple(after)

    def embed(self, tokens: Tensor, slots: Tensor, segment: int) -> Tensor:
        """Tokens (B, T) that stand at `slots` of a segment of the given length."""
        return self.positions.at_input(self.embedding(tokens), slots, segment)  # type: ignore[operator]

    def enter(self, stage: int, x: Tensor, slots: Tensor, segment: int) -> Tensor:
        """Rows x as a stage's first layer takes them."""
        layer = self._groups[stage][0]
        return self.positions.at_layer(layer, x, slots, segment)  # type: ignore[operator]

    def finish(self, x: Tensor, segment: Segment) -> Output:
        """The output of the last layer's rows x (B, L, D)."""
        x = self.norm(x)
        if self.training:
            segment.aux.update(self._penalties(x))
        return Output(self.drop_output(x), segment.aux)

    def _penalties(self, x: Tensor) -> dict[str, Tensor]:
        config, penalties = self.config, {}
        if config.activation_penalty:
            penalties["activation"] = config.activation_penalty * x.square().mean()
        if config.temporal_penalty and x.shape[1] > 1:
            penalties["temporal"] = config.temporal_penalty * (x[:, 1:] - x[:, :-1]).square().mean()
        return penalties

    def loss(self, out: Output, targets: Tensor) -> Tensor:
        """Negative log-likelihood (B, L) of the newest L positions, in nats and token order; 0 where a target is -1."""
        self.check_tokens(targets, lowest=-1)
        hidden = out.hidden[:, out.hidden.shape[1] - targets.shape[1] :]
        nll = self.softmax.nll(hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), self.embedding)
        return nll.view(targets.shape)

    def logits(self, out: Output) -> Tensor:
        """(B, L, V); with an adaptive softmax these are log-probabilities."""
        return self.softmax.logits(out.hidden, self.embedding)

    def init(self, batch: int, lengths: int | Sequence[int] | None = None, cached: bool = False) -> State:
        """An empty state.

        `lengths`: slots of the long-range layers, or of every layer; as configured when left out.
        `cached`: the form for inference, which keeps projected keys and values.
        """
        return self._new_state(batch, lengths, cached, full=False)

    def zeros(self, batch: int, lengths: int | Sequence[int] | None = None, cached: bool = False) -> State:
        """A state full of zero vectors that are attended to: where TensorFlow and Hugging Face start from."""
        return self._new_state(batch, lengths, cached, full=True)

    def _new_state(self, batch: int, lengths: int | Sequence[int] | None, cached: bool, full: bool) -> State:
        with torch.no_grad():
            like = self.embedding.tables[0].new_empty(0, self.config.dim)
            return tuple(
                stage.init(batch, length, like, cached, full)
                for stage, length in zip(self._stages(), self._stage_lengths(lengths), strict=True)
            )

    def resize(self, state: State, lengths: int | Sequence[int]) -> State:
        """The same state with other memory lengths: the newest slots stay."""
        stages = zip(self._stages(), state, self._stage_lengths(lengths), strict=True)
        return tuple(stage.resize(memory, length) for stage, memory, length in stages)

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
        """Every layer's projected positions for segments of at most this length behind such a state."""
        relation = self._relations(state, segment, None)
        result: list[Relation] = []
        for stage, memory, group in zip(self._stages(), state, self._groups, strict=True):
            keys, ahead = stage.slots(memory) + segment, stage.ahead(memory)
            result += [relation(self.layers()[index], keys, ahead) for index in group]
        return tuple(result)

    def _relations(self, state: State, segment: int, tables: Sequence[Relation] | None, ahead: int = 0) -> Relations:
        if tables is not None:
            return lambda layer, num_keys, ahead=0: tables[layer.index].take(num_keys, ahead)
        stages = list(zip(self._stages(), state, strict=True))
        slots = max(stage.slots(memory) for stage, memory in stages)
        most = max(ahead, *(stage.ahead(memory) for stage, memory in stages))
        encoding = self.positions.encoding(slots + segment, most, self.embedding.tables[0])  # type: ignore[operator]

        def relation(layer: Layer, num_keys: int, ahead: int = 0) -> Relation:
            near = positions_module.nearest(encoding, num_keys, ahead, most)
            return self.positions.relation(layer.index, layer.attention, near, ahead)  # type: ignore[operator, attr-defined]

        return relation

    def decoder(self, state: State | None = None, *, segment: int, batch: int = 1) -> Decoder:
        """A private runner that reads and writes token by token; see `mnemo.decode`."""
        from mnemo.decode import Decoder

        return Decoder(self, self.init(batch) if state is None else state, segment)

    def variant(self, **changes: Any) -> Model:
        """The same weights under a changed configuration, such as `same_length=True` or `clamp=820`."""
        config = self.config
        if "clamp" in changes:
            config = with_clamp(config, changes.pop("clamp"))
        with torch.device("meta"):
            other = Model(replace(config, **changes))
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
        if tokens.device.type != "cpu" or tokens.numel() == 0:
            return
        low, high = tokens.aminmax()
        if int(low) < lowest or int(high) >= self.config.vocab_size:
            bad = int(low) if int(low) < lowest else int(high)
            raise MnemoError(f"token id {bad} is outside the vocabulary of {self.config.vocab_size}")


def _layer(config: ModelConfig, index: int) -> nn.Module:
    return TransformerLayer(
        index,
        dim=config.dim,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        inner_dim=config.inner_dim,
        norm=config.norm,
        norm_eps=config.norm_eps,
        activation=config.activation,
        dropout=config.dropout,
    )


def stage_layers(plan: Plan, num_layers: int) -> list[list[int]]:
    """Layer indices of every stage: runs of equal grouped memories, else one layer a stage."""
    memories = plan.memories(num_layers)
    keys = [(memory, None if memory.grouped else index) for index, memory in enumerate(memories)]
    return [list(group) for _, group in groupby(range(num_layers), key=lambda index: keys[index])]


def _stages(plan: Plan, layers: Sequence[nn.Module]) -> list[nn.Module]:
    memories = plan.memories(len(layers))
    groups = stage_layers(plan, len(layers))
    return [memories[group[0]].stage([layers[index] for index in group]) for group in groups]


def with_clamp(config: ModelConfig, clamp: int | None) -> ModelConfig:
    if not hasattr(config.positions, "clamp"):
        raise MnemoError(f"{type(config.positions).__name__} positions have no distances to clamp")
    return replace(config, positions=replace(config.positions, clamp=clamp))  # type: ignore[call-arg]


def fingerprint_config(config: ModelConfig) -> dict[str, Any]:
    """The fields that the meaning of a memory depends on; lengths and dropout may change freely."""
    free = {"dropout", "init", "memory", "same_length", "activation_penalty", "temporal_penalty"}
    return {f.name: getattr(config, f.name) for f in fields(config) if f.name not in free}


@torch.no_grad()
def initialize(model: nn.Module, config: InitConfig) -> None:
    """The published initialisation: N(0, std), norm weights N(1, std), biases 0, embedding projections narrower."""

    def draw(tensor: Tensor, std: float) -> None:
        if config.kind == "uniform":
            tensor.uniform_(-config.bound, config.bound)
        else:
            tensor.normal_(0.0, std)

    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.LayerNorm):
            parameter.normal_(1.0, config.std) if name.endswith("weight") else parameter.zero_()
        elif name.endswith("bias") or ".biases." in name:
            parameter.zero_()
        elif name.startswith(("embedding.projections", "softmax.projections")):
            draw(parameter, config.projection_std)
        else:
            draw(parameter, config.std)
