"""What a configuration costs: parameters, FLOPs per token, bytes of state, and its memory plan as a picture.

FLOPs count a multiply-add as 2, matrix products only (no norms, softmaxes, activations, embeddings), per token, with
the memory full. For D model width, W = heads * head size, F inner width, segments of n tokens that make q rows (n and
their memory tokens), m memory slots and a batch of B, a layer's forward pass over a segment takes

    projections   8 DW q (queries, keys, values, output) + 2 DW (m + q) / B (positions) + 2 DH q (gates of H heads)
    attention     2 W (2 or 3) times the keys that its rows see: for keys, values and, where positions are relative,
                  positions; m each and the mean of a causal segment, or what a block mask shows, though more is
                  computed and hidden there; with same_length m
    feed-forward  4 DF q
    memory        twice what the memory says itself (`work`): 4 DW m to project it anew; what it refreshes, compresses,
                  fits; all that recurrent layers do

and a token 1/n of that. Cached inference projects neither positions nor Transformer-XL's memory again. The softmax over
V words in width E takes 2EV, and 2DE more where E is not D; of an adaptive one, the first bin for every token, and each
further bin for its share of tokens by Zipf's law. A backward pass counts as two forward passes. Losses that memories
add in training are not counted, nor is what is no product of matrices, such as pooling and sampling.

Activations are what a backward pass needs of its forward pass, without attention scores: of every layer about
(5 D + 2 W + 2 F) q + 2 W (m + q) numbers in the type that is computed in; with `recompute`, D q of every layer and the
inside of one.

Many papers call a multiply-add one FLOP, LaMemo's Table 1 among them: see `mnemo.recipes.lamemo`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import torch

from mnemo.errors import MnemoError, unknown
from mnemo.memory import AnyMemory
from mnemo.memory.protocol import Stage
from mnemo.memory.state import State, leaves, nbytes
from mnemo.model import Model, ModelConfig, attention_objection, stage_layers
from mnemo.model.embedding import Bins
from mnemo.model.positions import Relative, Shaw
from mnemo.ops.cpu import eager
from mnemo.recipes.presets import LISTING, PRESETS, preset
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.storage.run_folder import RUNS, find_run, load_header
from mnemo.storage.weights import build_model
from mnemo.training.precision import state_dtype

LARGEST_PATTERN = 2**14
BAR = 40
"""Width of the plan's longest bar."""


class Flops(NamedTuple):
    """Of one token."""

    projections: float
    attention: float
    feed_forward: float
    memory: float
    softmax: float

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def multiply_adds(self) -> float:
        return self.total / 2

    def to_json(self) -> dict[str, float]:
        return self._asdict() | {"total": self.total, "multiply_adds": self.multiply_adds}


class Activations(NamedTuple):
    """What an update keeps for its backward pass, in bytes, about."""

    all: int
    """Everything"""
    layers: int
    """With --train.recompute layer"""
    segments: int
    """With --train.bptt-memory replay: of one segment of the window, and as much as `all` where there is no window"""
    layers_work: float
    """FLOPs of an update where layers are computed again, over those where nothing is"""
    segments_work: float
    """Likewise, where segments are"""


class Parameters(NamedTuple):
    embedding: int
    """Embedding and softmax"""
    layers: int
    """Layers, with their own position weights"""
    shared: int
    """What all layers share: position biases, memory tokens, a last norm"""

    @property
    def total(self) -> int:
        return sum(self)


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    layer: int
    """From 1."""
    memory: str
    """The mechanism."""
    length: int
    """Slots of memory."""
    slots: int
    """Keys that it adds to a segment's own; more than its length where it has others besides."""
    long: bool


@dataclass(frozen=True, kw_only=True)
class MemoryKind:
    """Layers with equal memories."""

    memory: str
    """The mechanism."""
    layers: tuple[int, ...]
    """From 1."""
    settings: dict[str, Any]
    """Its configuration."""
    tensors: dict[str, tuple[int, ...]]
    """What a layer keeps of a row, by name: shapes, after their number where there are several."""
    together: bool
    """Whether the layers keep these between them, and not each its own."""
    state_bytes: int
    """Of all these layers and one row, counters aside."""


@dataclass(frozen=True, kw_only=True)
class TokensPlan:
    read: int
    """Memory tokens before a segment."""
    written: int
    """Memory tokens behind it."""
    state_bytes: int
    """Of one row."""


@dataclass(frozen=True, kw_only=True)
class Info:
    name: str
    parameters: Parameters
    batch: int
    segment: int
    memory: int
    """Memory length of the long-range layers."""
    training: Flops
    """Forward pass of training."""
    inference: Flops
    """Forward pass with cached keys and values."""
    training_step: float
    """FLOPs of a new token in training, forward and backward, segments that are read again included."""
    activations: Activations
    plan: tuple[LayerPlan, ...]
    memories: tuple[MemoryKind, ...]
    tokens: TokensPlan | None
    state_bytes: tuple[int, ...]
    """Of every layer, for one row, in 32-bit numbers; layers that keep one memory together have it at their first."""
    cached_bytes: tuple[int, ...]
    """Of every layer's inference form."""
    attention: str
    """Which attention runs, and why."""

    def total_bytes(self, by_layer: Sequence[int]) -> int:
        """With those of memory tokens."""
        return sum(by_layer) + (0 if self.tokens is None else self.tokens.state_bytes)

    def to_json(self) -> dict[str, Any]:
        layers = zip(self.plan, self.state_bytes, self.cached_bytes, strict=True)
        return {
            "name": self.name,
            "parameters": self.parameters._asdict() | {"total": self.parameters.total},
            "batch": self.batch,
            "segment": self.segment,
            "memory": self.memory,
            "forward_flops_per_token": {
                "training": self.training.to_json(),
                "cached_inference": self.inference.to_json(),
            },
            "training_step_flops_per_token": self.training_step,
            "activation_bytes": self.activations._asdict(),
            "state_bytes": self.total_bytes(self.state_bytes),
            "cached_state_bytes": self.total_bytes(self.cached_bytes),
            "memory_tokens": None if self.tokens is None else asdict(self.tokens),
            "memories": [asdict(kind) for kind in self.memories],
            "layers": [
                asdict(layer) | {"state_bytes": kept, "cached_state_bytes": cached} for layer, kept, cached in layers
            ],
            "attention": self.attention,
        }


def find_recipe(name: str) -> Recipe:
    """The recipe of a preset, or of a run by name or folder; a preset comes first."""
    if name.partition("@")[0] in PRESETS:
        return preset(name)
    try:
        return load_header(find_run(name)).recipe
    except MnemoError:
        if (RUNS / name).exists() or "/" in name or name.startswith("."):
            raise
    runs = [path.name for path in RUNS.glob("*") if path.is_dir()]
    raise unknown("preset or run", name, [*PRESETS, *runs], LISTING)


def describe(
    name: str, recipe: Recipe, *, memory: int | None = None, segment: int | None = None, batch: int | None = None
) -> Info:
    """Everything about a recipe; lengths and batch are those of training when left out."""
    config = recipe.model
    segment = _positive("segment", recipe.train.segment + recipe.train.context if segment is None else segment)
    batch = _positive("batch", recipe.train.batch if batch is None else batch)
    if memory is not None and memory < 0:
        raise MnemoError(f"memory length {memory} is negative")
    with torch.device("meta"):
        model = build_model(config, "fp32")
    lengths = config.memory.lengths(config.num_layers, memory)
    training = flops_per_token(model, lengths, segment=segment, batch=batch)
    state = model.init(1, lengths)
    return Info(
        name=name,
        parameters=count_parameters(model),
        batch=batch,
        segment=segment,
        memory=_long_length(config, lengths),
        training=training,
        inference=flops_per_token(model, lengths, segment=segment, batch=batch, cached=True),
        training_step=training_step(training, recipe.train),
        activations=activations(model, lengths, training, recipe.train, segment=segment, batch=batch),
        plan=_plan(config, lengths, model.memory_lengths(state)),
        memories=memory_kinds(model, state),
        tokens=_tokens(model, state),
        state_bytes=state_bytes(model, lengths),
        cached_bytes=state_bytes(model, lengths, cached=True),
        attention=attention_path(config, recipe.train),
    )


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise MnemoError(f"{name} {value} must be positive")
    return value


def _long_length(config: ModelConfig, lengths: Sequence[int]) -> int:
    long = config.memory.long_layers(config.num_layers)
    return lengths[long[0]] if long else max(lengths)


def _plan(config: ModelConfig, lengths: Sequence[int], slots: Sequence[int]) -> tuple[LayerPlan, ...]:
    long = set(config.memory.long_layers(config.num_layers))
    memories = config.memory.memories(config.num_layers)
    return tuple(
        LayerPlan(
            layer=index + 1,
            memory=type(memory).__name__,
            length=lengths[index],
            slots=slots[index],
            long=index in long,
        )
        for index, memory in enumerate(memories)
    )


def _tokens(model: Model, state: State) -> TokensPlan | None:
    tokens = model.config.tokens
    if tokens is None:
        return None
    return TokensPlan(read=tokens.num, written=tokens.num_extra - tokens.num, state_bytes=_size(state.memory))


def _size(tree: State) -> int:
    """Bytes without counters, which are no memory."""
    return nbytes(tuple(leaf for _, leaf in leaves(tree) if leaf.is_floating_point()))


def memory_kinds(model: Model, state: State) -> tuple[MemoryKind, ...]:
    """What layers keep, one entry for all that keep the same."""
    config, kinds = model.config, {}
    memories = config.memory.memories(config.num_layers)
    groups = stage_layers(config.memory, config.num_layers)
    for group, kept in zip(groups, model.layer_states(state), strict=True):
        memory, tensors = memories[group[0]], _tensors(kept)
        layers, size = kinds.get((memory, *tensors.items()), ((), 0))
        kinds[memory, *tensors.items()] = (*layers, *(index + 1 for index in group)), size + _size(kept)
    return tuple(
        MemoryKind(
            memory=type(memory).__name__,
            layers=layers,
            settings=_settings(memory),
            tensors=dict(tensors),
            together=memory.grouped,
            state_bytes=size,
        )
        for (memory, *tensors), (layers, size) in kinds.items()
    )


def _tensors(kept: State) -> dict[str, tuple[int, ...]]:
    """Shapes of what a stage keeps of a row, by name; equal tensors of several layers are counted."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for path, leaf in leaves(kept):
        if leaf.is_floating_point() and leaf.numel():
            name = next(part for part in reversed(path.split(".")) if not part.isdigit())
            found.setdefault(name, []).append(tuple(leaf.shape[1:]))
    return {name: shapes[0] if len(shapes) == 1 else (len(shapes), *shapes[0]) for name, shapes in found.items()}


def _settings(memory: AnyMemory) -> dict[str, Any]:
    values = {field.name: getattr(memory, field.name) for field in fields(memory) if field.name != "length"}
    return {name: value for name, value in values.items() if value is not None}


def count_parameters(model: Model) -> Parameters:
    counts = {"embedding": 0, "layers": 0, "shared": 0}
    for name, parameter in model.named_parameters():
        counts[_kind(name)] += parameter.numel()
    return Parameters(**counts)


def _kind(name: str) -> str:
    if name.startswith(("embedding.", "softmax.")):
        return "embedding"
    per_layer = ("stages.", "positions.projections", "positions.table", "positions.bias")
    return "layers" if name.startswith(per_layer) else "shared"


def state_bytes(model: Model, lengths: Sequence[int], cached: bool = False) -> tuple[int, ...]:
    """Bytes that every layer keeps of one row, counters aside; a group of layers keeps them at its first."""
    config = model.config
    groups = stage_layers(config.memory, config.num_layers)
    state = model.layer_states(model.init(1, lengths, cached=cached))
    by_layer = [0] * config.num_layers
    for group, memory in zip(groups, state, strict=True):
        by_layer[group[0]] = _size(memory)
    return tuple(by_layer)


def flops_per_token(
    model: Model, lengths: Sequence[int], *, segment: int, batch: int = 1, cached: bool = False
) -> Flops:
    """FLOPs of the forward pass; the module's documentation gives the formula."""
    config, rows = model.config, model.num_rows(segment)
    attending = set(config.memory.attending(config.num_layers))
    state = model.layer_states(model.init(1, lengths, cached=cached))
    reach = 0 if config.tokens is None else config.tokens.reach
    projections = attention = feed_forward = work = 0.0
    stages: Sequence[Stage] = model.stages  # type: ignore[assignment]
    for stage, memory, group in zip(stages, state, stage_layers(config.memory, config.num_layers), strict=True):
        num_layers, slots = len(attending.intersection(group)), stage.slots(memory)
        columns = 0 if cached else slots + rows + max(reach, stage.ahead(memory))
        projections += num_layers * _projections(config, rows, columns, batch)
        attention += num_layers * _attention(config, _seen(config, slots, segment, rows))
        feed_forward += num_layers * rows * 4.0 * config.dim * config.inner_dim
        work += 2.0 * stage.work(rows, slots, cached)
    return Flops(projections / segment, attention / segment, feed_forward / segment, work / segment, _softmax(config))


def _projections(config: ModelConfig, rows: int, columns: int, batch: int) -> float:
    """Of a layer's rows, and of its table of positions, which all rows of the batch share."""
    one = 2.0 * config.dim * config.num_heads * config.head_dim
    own = 4 * rows * one + config.head_gate * rows * 2.0 * config.dim * config.num_heads
    if not isinstance(config.positions, Relative) or not columns:
        return own
    return own + (columns + config.positions.shared_projection) * one / batch


def _seen(config: ModelConfig, slots: int, segment: int, rows: int) -> float:
    """Keys that a segment's rows see, all together."""
    if config.same_length:
        return rows * max(1, slots)
    if config.tokens is None or not config.tokens.blocks:
        return rows * slots + rows * (rows + 1) / 2
    if rows > LARGEST_PATTERN:
        raise MnemoError(f"keys under a block mask are counted one by one: {rows:,} rows of a segment are too many")
    pattern = config.tokens.pattern(segment, cached=1)
    return int(slots * pattern[:, 0].sum() + pattern[:, 1:].sum())


def _attention(config: ModelConfig, seen: float) -> float:
    products = 3 if isinstance(config.positions, (Relative, Shaw)) else 2
    return 2.0 * config.num_heads * config.head_dim * seen * products


def training_step(forward: Flops, train: TrainConfig) -> float:
    """FLOPs of a new token: three forward passes, and as much for every segment that its window reads again.

    Segments that are read again are not scored, unless all are; a backward pass that keeps little takes one more
    forward pass, or one of the layers alone.
    """
    again = train.bptt if train.bptt_window == "sliding" else 0
    unscored = forward.total - (0 if train.bptt_loss == "all" else forward.softmax)
    passes = 4 if train.bptt and train.bptt_memory != "plain" else 3
    layers = (1 + again) * (forward.total - forward.softmax) if train.recompute == "layer" else 0.0
    return passes * (forward.total + again * unscored) + layers


def activations(
    model: Model, lengths: Sequence[int], forward: Flops, train: TrainConfig, *, segment: int, batch: int
) -> Activations:
    """Of an update with a batch of so many rows; the module's documentation gives the formula."""
    config, rows = model.config, model.num_rows(segment)
    width = config.num_heads * config.head_dim
    size = {"fp64": 8, "fp32": 4}.get(train.precision, 2) * batch
    attending = config.memory.attending(config.num_layers)
    slots = model.memory_lengths(model.init(1, lengths))
    inside = [
        size * (rows * (5 * config.dim + 2 * width + 2 * config.inner_dim) + 2 * width * (slots[index] + rows))
        for index in attending
    ]
    inputs = size * rows * config.dim * config.num_layers
    window = 1 + train.bptt
    plain = replace(train, recompute="none", bptt_memory="plain")
    work = training_step(forward, plain)
    return Activations(
        all=window * sum(inside),
        layers=window * inputs + max(inside, default=0),
        segments=sum(inside),
        layers_work=training_step(forward, replace(plain, recompute="layer")) / work,
        segments_work=training_step(forward, replace(plain, bptt_memory="replay")) / work,
    )


def _softmax(config: ModelConfig) -> float:
    bins = Bins.of(config.embedding, config.vocab_size, config.dim)
    total = 0.0
    for index, (width, share) in enumerate(zip(bins.widths, _zipf_shares(bins.edges), strict=True)):
        words = bins.edges[index + 1] - bins.edges[index] + (len(bins) - 1 if index == 0 else 0)
        project = 2.0 * config.dim * width if bins.projected else 0.0
        total += (1.0 if index == 0 else share) * (project + 2.0 * width * words)
    return total


def _zipf_shares(edges: Sequence[int]) -> list[float]:
    """The share of tokens in each bin, where the word of rank r has a frequency of 1 / r."""
    below = [0.0, *(math.log(edge + 1) for edge in edges[1:])]
    return [(high - low) / below[-1] for low, high in zip(below, below[1:], strict=False)]


def attention_path(config: ModelConfig, train: TrainConfig) -> str:
    """Which implementation of attention training takes on this machine, and why not a faster one."""
    device = torch.device("cuda" if torch.cuda.is_available() and train.device != "cpu" else "cpu")
    refused = attention_objection(config, device, state_dtype(train.precision) or torch.float32)
    if refused is None:
        return f"fused kernels ({train.precision})"
    return f"plain PyTorch, queries in blocks of {eager.QUERY_BLOCK}: {refused}"


def draw_plan(info: Info) -> list[tuple[str, str, str, str, int]]:
    """A row for every layer: its number, L where it is long range, the memory, a bar as long as it, its slots.

    The bar has a # for slots of the memory and a = for those besides. Memory tokens have a row before the first layer.
    """
    tokens = [] if info.tokens is None else [(info.tokens.read, info.tokens.read)]
    longest = max(1, *(slots for _, slots in tokens), *(layer.slots for layer in info.plan))
    first = [("input", "", "MemoryTokens", _bar(*pair, longest), pair[1]) for pair in tokens]
    return first + [
        (f"{plan.layer:>5}", "L" if plan.long else "", plan.memory, _bar(plan.length, plan.slots, longest), plan.slots)
        for plan in info.plan
    ]


def _bar(length: int, slots: int, longest: int) -> str:
    own = max(min(1, length), round(BAR * length / longest))
    return "#" * own + "=" * (round(BAR * slots / longest) - own)
