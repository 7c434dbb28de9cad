"""A recipe: everything that a run depends on. It is stored in a run folder as recipe.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mnemo.config import check_sizes
from mnemo.data.tasks import AnyTask
from mnemo.model import ModelConfig

LIMITS = {"steps": 10**12, "seed": 2**62, "start": 10**12, "warmup": 10**12, "patience": 10**12} | dict.fromkeys(
    ("log_every", "eval_every", "checkpoint_every", "keep", "slower_steps"), 10**12
)
"""Limits of counts that may exceed `config.LARGEST_SIZE`."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpus or task that a model is trained on, and the order of its text."""

    corpus: str = "python"
    """Name of a prepared corpus, or the folder of one."""
    task: AnyTask | None = None
    """A synthetic task, whose samples replace the corpus."""
    leak: bool = False
    """Tasks: keep the memory from one sample to the next in training, as the published Transformer-XL baseline does."""
    order: Literal["contiguous", "sentences"] = "contiguous"
    """B contiguous streams, or shuffled sentences (One Billion Word)."""
    documents: Literal["ignore", "reset"] = "ignore"
    """At the end of a document: ignore it, or end the segment and reset the memory of that row."""
    rotate: bool = False
    """Rotate each row's stream by a random amount in every epoch."""
    drop_last: bool = False
    """Omit the last, shorter segment of an epoch, so that a compiled step has one shape."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    kind: Literal["adam", "adamw", "sgd", "muon"] = "adam"
    """muon updates the weight matrices of layers by orthogonalized steps, and all other parameters by Adam."""
    lr: float = 2.5e-4
    """Peak learning rate; for muon typically 0.02."""
    adam_lr: float = 3e-3
    """muon: peak learning rate of the parameters updated by Adam (embeddings, softmax, norms, biases)."""
    betas: tuple[float, ...] = (0.9, 0.999)
    """Adam's decay rates of the first and second moment."""
    eps: float = 1e-8
    """Added to Adam's denominator."""
    weight_decay: float = 0.0
    """Coupled L2 for adam and sgd, decoupled for adamw and muon; for muon, of the weight matrices of layers only."""
    momentum: float = 0.0
    """Momentum of sgd and muon (for muon typically 0.95)."""
    clip: float | None = 0.25
    """Largest global gradient norm."""
    clip_mean: float | None = None
    """Also limit the gradient norm to this many times its running mean, for example 3."""
    update_clip: float | None = None
    """muon: limit the change of a weight matrix in one step to this share of its norm, for example 0.05."""
    embedding_lr_factor: float = 1.0
    """Multiplies the learning rate of the embedding tables."""
    scale_lr_by_length: bool = False
    """Multiply the learning rate of a step by its segment length over the nominal one."""

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {self.betas} must be two numbers in [0, 1)")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum} must be in [0, 1)")
        if self.kind == "muon" and min(self.lr, self.adam_lr) <= 0:
            raise ValueError(f"muon's learning rates {self.lr} and {self.adam_lr} must be positive")
        if self.lr < 0 or (self.clip is not None and self.clip <= 0):
            raise ValueError(f"learning rate {self.lr} and clip {self.clip} must be positive")
        if self.clip_mean is not None and self.clip_mean <= 1:
            raise ValueError(f"clip_mean {self.clip_mean} must be above 1: it is a multiple of the mean gradient norm")
        if self.update_clip is not None and (self.kind != "muon" or self.update_clip <= 0):
            raise ValueError(f"update_clip {self.update_clip} must be positive, and is for muon only")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    kind: Literal["cosine", "linear", "inverse_sqrt", "plateau", "constant"] = "cosine"
    """Decay of the learning rate after the warm-up."""
    warmup: int = 0
    """Steps in which the learning rate rises to its peak."""
    steps: int | None = None
    """Length of the schedule; default: the number of training steps."""
    min_lr: float = 0.0
    """Smallest learning rate."""
    factor: float = 0.5
    """plateau: multiply the rate by this factor when the validation loss stops improving."""
    patience: int = 0
    """plateau: evaluations without improvement before the rate is reduced."""
    published: bool = False
    """The published Transformer-XL schedule: the first update uses the peak rate, the cosine is not shifted by the
    warm-up, and a constant rate stays one warm-up step below its peak."""

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.patience < 0 or (self.steps is not None and self.steps < 1):
            raise ValueError(
                f"warm-up {self.warmup} and patience {self.patience} must not be negative, steps {self.steps} must be "
                "positive"
            )


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    start: int
    """First step whose weights are averaged."""
    kind: Literal["uniform", "ema"] = "uniform"
    """The mean of all weights since the start, or an exponential moving average."""
    decay: float = 0.9995
    """ema: weight of the old average at every step."""
    lr: float | None = None
    """If given, constant learning rate from step `start`."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"the decay of an average must be in [0, 1], not {self.decay}")


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    """When a run counts as diverged, and how it goes back to an earlier checkpoint (docs/divergence.md)."""

    loss_rise: float | None = 0.3
    """A sustained rise of the loss by this share of what was learned (log of the vocabulary size minus the lowest loss)
    is a divergence; at least a quarter of the lowest loss and six mean deviations. None: never."""
    norm_rise: float | None = 10.0
    """A gradient norm this many times its recent mean, sustained while the loss rises, is a divergence. None: never."""
    patience: int = 50
    """Consecutive steps after which a rise counts as sustained."""
    weight_growth: float = 10.0
    """A checkpoint is unhealthy if the norm of its weights or optimizer moments is this many times the median of the
    last five checkpoints."""
    rollbacks: int = 10
    """Most rollbacks of a run; the next divergence stops it."""
    slower: float = 0.5
    """Factor of the learning rate after each repeated divergence; the first one keeps the rate."""
    slower_steps: int = 500
    """Steps after a divergence in which another one counts as repeated, and in which a lowered rate applies."""

    def __post_init__(self) -> None:
        if self.loss_rise is not None and self.loss_rise <= 0:
            raise ValueError(f"loss_rise {self.loss_rise} must be positive: it is a share of what was learned")
        if self.norm_rise is not None and self.norm_rise <= 1:
            raise ValueError(f"norm_rise {self.norm_rise} must be above 1: it is a multiple of the recent norm")
        if self.weight_growth <= 1:
            raise ValueError(f"weight_growth {self.weight_growth} must be above 1: it is a multiple of recent norms")
        if self.patience < 1 or self.rollbacks < 0 or self.slower_steps < 0:
            raise ValueError(
                f"patience {self.patience} must be positive, rollbacks {self.rollbacks} and slower_steps "
                f"{self.slower_steps} must not be negative"
            )
        if not 0 < self.slower <= 1:
            raise ValueError(f"slower {self.slower} must be in (0, 1]: it multiplies the learning rate")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of training: batches, BPTT, optimizer, checkpoints and precision."""

    steps: int = 1000
    """Number of updates."""
    batch: int = 16
    """Rows of a batch."""
    segment: int = 128
    """New tokens of each row in every step."""
    context: int = 0
    """Tokens before the segment that are encoded again, with gradient but without a loss."""
    loss: Literal["full", "half"] = "full"
    """Compute the loss of the whole segment or of its second half."""
    z_loss: float = 0.0
    """Weight of the squared log-sum-exp of the logits in the training loss, for example 1e-4: keeps logits small
    (PaLM). Reported losses do not contain it."""
    vary_segment: bool = False
    """Draw each segment's length near the nominal one (95%) or near half of it (AWD-LSTM's rule)."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    average: AverageConfig | None = None
    bptt: int = 0
    """Number of earlier segments that the gradient reaches through memory tokens; with tumbling windows in models
    without memory tokens, the number of earlier segments in the same update."""
    bptt_window: Literal["tumbling", "sliding"] = "sliding"
    """tumbling: one update for every bptt + 1 segments; sliding: one for every segment, which reads the earlier ones
    again."""
    bptt_loss: Literal["new", "last", "all"] = "new"
    """Segments of a window that have a loss: those not scored before, the last one, or all."""
    bptt_memory: Literal["plain", "checkpoint", "replay"] = "plain"
    """plain: store the activations of all segments; others store those of one segment and compute each segment again in
    the backward pass, by torch's checkpoints or by replaying segments from the last to the first."""
    bptt_stale: bool = False
    """Start sliding windows from the memory after the newest segment, a defect of the published training loop."""
    accumulate: int = 1
    """Process the rows of a batch in this many parts, and accumulate their gradients."""
    precision: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    """bf16 and fp16 compute in half precision and keep the weights in fp32; fp16 needs a CUDA device."""
    seed: int = 1111
    """Random seed of initial weights, dropout and the order of data."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto uses a GPU if there is one."""
    compile: bool | Literal["layers"] | None = None
    """Compile forward pass and loss with torch.compile, as one graph; layers: on a GPU, compile one layer for all,
    which is faster to compile. By default on a GPU only: layers for Transformer-XL's memory, else one graph."""
    cuda_graph: bool = True
    """On a GPU, replay whole updates as one CUDA graph while their shapes stay the same."""
    recompute: Literal["none", "layer"] = "none"
    """layer: store only the input of each layer and compute it again in the backward pass (less memory, slower)."""
    log_every: int = 10
    """Steps between two lines of metrics."""
    eval_every: int = 200
    """Steps between two evaluations; the last step is always evaluated."""
    checkpoint_every: int = 200
    """Steps between two checkpoints; the best and the last step are always saved."""
    checkpoint_minutes: float | None = 5.0
    """Also save a checkpoint when this many minutes have passed since the last one; slow saves make the interval
    longer, so that they take at most 3% of the time. None: save by steps only."""
    keep: int = 2
    """Number of checkpoints to keep besides the best, and besides one by time or signal if it is the newest."""
    patience: int | None = None
    """Stop after this many evaluations without improvement."""
    goal: float | None = None
    """Stop when the validation loss is at most this, in nats per token (a bit is 0.693 nats)."""
    on_nan: Literal["rollback", "stop", "skip"] = "rollback"
    """If a loss or gradient is not finite: go back to the last healthy checkpoint and pass over the batches since then,
    stop the run, or skip the batch without changing weights or memory (every step then synchronizes with the GPU)."""
    spike: float | None = None
    """Treat a single loss that is this many times the recent mean like one that is not finite."""
    health: HealthConfig = field(default_factory=HealthConfig)
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """Several processes (torchrun): replicate the weights (ddp) or shard them (fsdp); auto shards if GPU memory is too
    small."""
    timeout: float = 600.0
    """Seconds that a process waits for the other processes of its job."""

    def __post_init__(self) -> None:
        counts = ("steps", "batch", "segment", "accumulate", "log_every", "eval_every", "checkpoint_every", "keep")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive")
        if not 0 <= self.seed < 2**62:
            raise ValueError(f"seed {self.seed} is not between 0 and 2^62")
        check_sizes(self, LIMITS)
        if self.checkpoint_minutes is not None and self.checkpoint_minutes <= 0:
            raise ValueError(f"checkpoint_minutes {self.checkpoint_minutes} must be positive")
        if self.timeout <= 0:
            raise ValueError(f"timeout {self.timeout} must be positive")
        if self.spike is not None and self.spike <= 1:
            raise ValueError(f"spike {self.spike} must be above 1: it is a multiple of the recent loss")
        if self.z_loss < 0:
            raise ValueError(f"z_loss {self.z_loss} must not be negative")
        if self.context < 0:
            raise ValueError(f"context {self.context} is negative")
        if self.bptt < 0:
            raise ValueError(f"bptt {self.bptt} is negative")
        if self.bptt_stale and self.bptt_window != "sliding":
            raise ValueError("bptt_stale applies to sliding windows only")
        if self.accumulate > self.batch:
            raise ValueError(f"{self.batch} rows cannot be split into {self.accumulate} parts")


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Settings of an evaluation; those that are left out are as in training."""

    batch: int = 10
    """Rows of a batch."""
    segment: int | None = None
    """Segment length; default: as in training."""
    context: int | None = None
    """Tokens before the segment that are encoded again; default: as in training."""
    memory: int | None = None
    """Memory length of the long-range layers; default: as in training."""
    clamp: int | None = None
    """Largest relative distance; larger ones are clamped to it. Default: as in training."""
    same_length: bool | None = None
    """Every query sees the same number of keys; default: as in training."""
    limit: int | None = None
    """Evaluate on the first N symbols of the validation set during training."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a run depends on: model, data, training and evaluation."""

    model: ModelConfig
    """Configuration of the model."""
    data: DataConfig = field(default_factory=DataConfig)
    """Corpus or task."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Settings of training."""
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    """Settings of validation during training."""
    test: EvalConfig = field(default_factory=EvalConfig)
    """Default settings of `mnemo eval`."""

    def __post_init__(self) -> None:
        tokens = self.model.tokens
        if tokens is not None and tokens.num > self.train.segment:
            raise ValueError(f"{tokens.num} memory tokens are more than the {self.train.segment} tokens of a segment")
