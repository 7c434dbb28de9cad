"""A recipe: everything a run depends on. A run folder records it as recipe.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mnemo.model import ModelConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    corpus: str = "python"
    """Name of a prepared corpus, or the folder of one."""
    order: Literal["contiguous", "sentences"] = "contiguous"
    """B contiguous streams, or shuffled sentences (One Billion Word)."""
    documents: Literal["ignore", "reset"] = "ignore"
    """At a document's end, let the text run on, or cut the segment and reset that row's memory."""
    rotate: bool = False
    """Rotate each row's stream by a random amount at every epoch."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    kind: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 2.5e-4
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Coupled L2 for adam and sgd, decoupled for adamw."""
    momentum: float = 0.0
    clip: float | None = 0.25
    """Global gradient norm limit."""
    embedding_lr_factor: float = 1.0
    """Multiplies the learning rate of the embedding tables."""
    scale_lr_by_length: bool = False
    """Multiply the learning rate of a step by its segment length over the nominal one."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    kind: Literal["cosine", "linear", "inverse_sqrt", "plateau", "constant"] = "cosine"
    warmup: int = 0
    steps: int | None = None
    """Length of the schedule; the run's number of steps when left out."""
    min_lr: float = 0.0
    factor: float = 0.5
    """Plateau: factor at an evaluation without improvement."""
    patience: int = 0
    """Plateau: evaluations without improvement before the rate falls."""
    published: bool = False
    """The published Transformer-XL schedule: the first update runs at the full rate, the cosine is not
    shifted by the warm-up, and a constant rate stays one warm-up step short of its maximum."""


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    start: int
    """First step whose weights enter the average."""
    kind: Literal["uniform", "ema"] = "uniform"
    decay: float = 0.9995
    lr: float | None = None
    """Constant learning rate from `start` on, where given."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 1000
    batch: int = 16
    segment: int = 128
    context: int = 0
    """Tokens before the segment that are encoded again, with gradient, and carry no loss."""
    loss: Literal["full", "half"] = "full"
    """Score the whole segment or its last half."""
    vary_segment: bool = False
    """Draw each segment's length near the nominal one (95%) or near half of it (AWD-LSTM's rule)."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    average: AverageConfig | None = None
    accumulate: int = 1
    """Split the batch's rows into this many parts, one after the other, before each update."""
    precision: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    seed: int = 1111
    device: str = "auto"
    compile: bool = False
    log_every: int = 10
    eval_every: int = 200
    checkpoint_every: int = 200
    keep: int = 2
    """Checkpoints to keep besides the best."""
    patience: int | None = None
    """Stop after this many evaluations without improvement."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    batch: int = 10
    segment: int | None = None
    """Segment length; the training length when left out."""
    context: int | None = None
    """Tokens before the segment that are encoded again; as trained when left out."""
    memory: int | None = None
    """Memory length of the long-range layers; as trained when left out."""
    clamp: int | None = None
    same_length: bool | None = None
    limit: int | None = None
    """Evaluate on the first N symbols of the validation set during training."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: ModelConfig
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    """How the validation set is scored during training."""
    test: EvalConfig = field(default_factory=EvalConfig)
    """How `mnemo eval` scores, unless told otherwise."""
