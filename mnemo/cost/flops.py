"""FLOPs of a token: forward pass by kind of product, and training.

FLOPs count a multiply-add as 2, matrix products only (no norms, softmaxes, activations, embeddings), per token, with
the memory full. For D model width, W = heads * head size, F inner width, segments of n tokens that make q rows (n and
their memory tokens), m memory slots and a batch of B, a layer's forward pass over a segment takes

    projections   8 DW q (queries, keys, values, output) + 2 DW (m + q) / B (positions) + 2 DH q (gates of H heads)
    attention     2 W (2 or 3) times the keys that its rows see: products with keys, values and, if positions are
                  relative, positions. A row sees m slots and on average half of a causal segment, or the visible keys
                  of a block mask, although hidden ones are computed there too; with same_length m
    feed-forward  4 DF q
    memory        twice the multiply-adds of the memory itself (`Stage.work`): 4 DW m to project it again; refreshing,
                  compressing, fitting; all work of recurrent layers

and a token 1/n of that. Cached inference projects neither positions nor Transformer-XL's memory again. The softmax over
V words in width E takes 2EV, and 2DE more if E is not D; of an adaptive one, the first bin for every token, and each
further bin for its share of tokens by Zipf's law. A backward pass counts as two forward passes. Auxiliary losses of
memories are not counted, nor is anything that is not a matrix product, such as pooling and sampling.

Many papers call a multiply-add one FLOP, LaMemo's Table 1 among them: see `mnemo.recipes.lamemo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mnemo.errors import MnemoError
from mnemo.memory.protocol import Stage
from mnemo.model import Model, ModelConfig, stage_layers
from mnemo.model.embedding import Bins
from mnemo.model.positions import Relative, Shaw
from mnemo.recipes.recipe import TrainConfig

LARGEST_PATTERN = 2**14
"""Rows of a segment up to which the visible keys of a block mask are counted."""


class Flops(NamedTuple):
    """FLOPs of one token."""

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
        num_layers, extent = len(attending.intersection(group)), stage.extent(memory)
        slots = extent.slots
        columns = 0 if cached else slots + rows + max(reach, extent.ahead)
        projections += num_layers * _projections(config, rows, columns, batch)
        attention += num_layers * _attention(config, _seen(config, slots, segment, rows))
        feed_forward += num_layers * rows * 4.0 * config.dim * config.inner_dim
        work += 2.0 * (stage.work(rows, slots, cached) + model.input_memory.num_written * stage.work_of_written)
    return Flops(projections / segment, attention / segment, feed_forward / segment, work / segment, _softmax(config))


def _projections(config: ModelConfig, rows: int, columns: int, batch: int) -> float:
    """Projections of a layer's rows and of its table of positions, which the rows of the batch share."""
    one = 2.0 * config.dim * config.num_heads * config.head_dim
    own = 4 * rows * one + config.head_gate * rows * 2.0 * config.dim * config.num_heads
    if not isinstance(config.positions, Relative) or not columns:
        return own
    return own + (columns + config.positions.shared_projection) * one / batch


def _seen(config: ModelConfig, slots: int, segment: int, rows: int) -> float:
    """Number of (row, visible key) pairs of a segment."""
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


def _softmax(config: ModelConfig) -> float:
    bins = Bins.of(config.embedding, config.vocab_size, config.dim)
    total = 0.0
    for index, (width, share) in enumerate(zip(bins.widths, bins.zipf_shares(), strict=True)):
        words = bins.edges[index + 1] - bins.edges[index] + (len(bins) - 1 if index == 0 else 0)
        project = 2.0 * config.dim * width if bins.projected else 0.0
        total += (1.0 if index == 0 else share) * (project + 2.0 * width * words)
    return total


def training_step(forward: Flops, train: TrainConfig) -> float:
    """FLOPs of a new token: three forward passes, and as many for every segment that its window repeats.

    `forward`: of a token of the segment and the context before it, which the layers encode again. Repeated segments are
    not scored, unless all are. Recomputation takes one more forward pass, of everything or of the layers alone.
    """
    again = train.bptt if train.bptt_window == "sliding" else 0
    layers = (forward.total - forward.softmax) * (train.segment + train.context) / train.segment
    scored = layers + forward.softmax
    passes = 4 if train.bptt and train.bptt_memory != "plain" else 3
    repeated = again * (scored if train.bptt_loss == "all" else layers)
    return passes * (scored + repeated) + ((1 + again) * layers if train.recompute == "layer" else 0.0)
