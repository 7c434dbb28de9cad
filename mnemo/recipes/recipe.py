"""A recipe: everything a run depends on. A run folder records it as recipe.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mnemo.config import check_sizes
from mnemo.data.tasks import AnyTask
from mnemo.model import ModelConfig

LIMITS = {"steps": 10**12, "seed": 2**62, "start": 10**12, "warmup": 10**12, "patience": 10**12} | dict.fromkeys(
    ("log_every", "eval_every", "checkpoint_every", "keep"), 10**12
)
"""Largest values of counts that need other limits than `config.LARGEST_SIZE`."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    corpus: str = "python"
    """Name of a prepared corpus, or the folder of one."""
    task: AnyTask | None = None
    """Samples that are made, with answers to find, instead of a corpus."""
    leak: bool = False
    """Of a task: let what is remembered of a sample go on into the next, as the published Transformer-XL baseline does
    in training."""
    order: Literal["contiguous", "sentences"] = "contiguous"
    """B contiguous streams, or shuffled sentences (One Billion Word)."""
    documents: Literal["ignore", "reset"] = "ignore"
    """At a document's end, let the text run on, or cut the segment and reset that row's memory."""
    rotate: bool = False
    """Rotate each row's stream by a random amount at every epoch."""
    drop_last: bool = False
    """Leave out an epoch's last segment, which is shorter than the others: a compiled step then has one shape."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    kind: Literal["adam", "adamw", "sgd", "muon"] = "adam"
    """Muon moves the matrices of layers by orthogonal steps, and everything else by Adam's."""
    lr: float = 2.5e-4
    """Learning rate at the schedule's top; Muon's is near 0.02."""
    adam_lr: float = 3e-3
    """Muon: learning rate, at the schedule's top, of what takes Adam's steps (embeddings, softmax, norms, biases)."""
    betas: tuple[float, ...] = (0.9, 0.999)
    """Adam's decay of the first and of the second moment."""
    eps: float = 1e-8
    """Added to Adam's denominator."""
    weight_decay: float = 0.0
    """Coupled L2 for adam and sgd, decoupled for adamw and muon; that of muon is for the matrices of layers only."""
    momentum: float = 0.0
    """Of sgd and muon (0.95 is usual there)."""
    clip: float | None = 0.25
    """Global gradient norm limit."""
    embedding_lr_factor: float = 1.0
    """Multiplies the learning rate of the embedding tables."""
    scale_lr_by_length: bool = False
    """Multiply the learning rate of a step by its segment length over the nominal one."""

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {self.betas} must be two numbers in [0, 1)")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum} is not in [0, 1)")
        if self.kind == "muon" and min(self.lr, self.adam_lr) <= 0:
            raise ValueError(f"muon's learning rates {self.lr} and {self.adam_lr} must be positive")
        if self.lr < 0 or (self.clip is not None and self.clip <= 0):
            raise ValueError(f"learning rate {self.lr} and clip {self.clip} must be positive")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    kind: Literal["cosine", "linear", "inverse_sqrt", "plateau", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup: int = 0
    """Steps over which the learning rate rises to its top."""
    steps: int | None = None
    """Length of the schedule; the run's number of steps when left out."""
    min_lr: float = 0.0
    """Where it stops falling."""
    factor: float = 0.5
    """Plateau: factor at an evaluation without improvement."""
    patience: int = 0
    """Plateau: evaluations without improvement before the rate falls."""
    published: bool = False
    """The published Transformer-XL schedule: the first update runs at the full rate, the cosine is not
    shifted by the warm-up, and a constant rate stays one warm-up step short of its maximum."""

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.patience < 0 or (self.steps is not None and self.steps < 1):
            raise ValueError(f"a schedule of {self.steps} steps, {self.warmup} of warm-up, patience {self.patience}")


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    start: int
    """First step whose weights enter the average."""
    kind: Literal["uniform", "ema"] = "uniform"
    """The mean of all weights since the start, or one in which older ones fade."""
    decay: float = 0.9995
    """Share of the old average that an ema keeps at every step."""
    lr: float | None = None
    """Constant learning rate from `start` on, where given."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"an average of decay {self.decay}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 1000
    """Updates of the weights."""
    batch: int = 16
    """Rows that are read side by side."""
    segment: int = 128
    """New tokens of each row at every step."""
    context: int = 0
    """Tokens before the segment that are encoded again, with gradient, and carry no loss."""
    loss: Literal["full", "half"] = "full"
    """Score the whole segment or its last half."""
    vary_segment: bool = False
    """Draw each segment's length near the nominal one (95%) or near half of it (AWD-LSTM's rule)."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    average: AverageConfig | None = None
    bptt: int = 0
    """Segments before the current one that memory tokens carry gradient back to; in tumbling windows of other models,
    segments that share an update with it."""
    bptt_window: Literal["tumbling", "sliding"] = "sliding"
    """One update for every bptt + 1 segments; or one for every segment, which reads those before it again."""
    bptt_loss: Literal["new", "last", "all"] = "new"
    """Score segments when they are new, the last one of a window, or all of a window, read again or not."""
    bptt_memory: Literal["plain", "checkpoint", "replay"] = "plain"
    """Keep a window's activations, or compute each segment again in the backward pass, which needs the memory of one
    segment: by torch's checkpoints, or by replaying segments from the last to the first."""
    bptt_stale: bool = False
    """Start sliding windows from the memory behind the newest segment, as the published loop does by mistake."""
    accumulate: int = 1
    """Split the batch's rows into this many parts, one after the other, before each update."""
    precision: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    """bf16 and fp16 compute in half precision and keep the weights in fp32; fp16 needs a CUDA device."""
    seed: int = 1111
    """Of the first weights, dropout and the data's order."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; a GPU where there is one when left at auto."""
    compile: bool | Literal["layers"] | None = None
    """Compile forward pass and loss with torch.compile, on a GPU when left out; or there layers only, all of them as
    one, which takes less time."""
    cuda_graph: bool = True
    """On a GPU, replay whole updates as one CUDA graph where their shapes stay the same."""
    recompute: Literal["none", "layer"] = "none"
    """Keep only what goes into each layer, and compute the layer again in the backward pass: less memory, more work."""
    log_every: int = 10
    """Steps from one line of metrics to the next."""
    eval_every: int = 200
    """Steps from one evaluation to the next; the last step is always evaluated."""
    checkpoint_every: int = 200
    """Steps from one checkpoint to the next; the best and the last step are always saved."""
    keep: int = 2
    """Checkpoints to keep besides the best."""
    patience: int | None = None
    """Stop after this many evaluations without improvement."""
    goal: float | None = None
    """Stop at an evaluation whose loss, in nats a token, is not above this."""
    on_nan: Literal["stop", "skip"] = "stop"
    """At a loss or gradient that is no finite number: end the run; or pass the batch over, so that neither weights nor
    memory see it, which makes every step wait for its numbers."""
    spike: float | None = None
    """Treat a step like one without a finite loss where its loss is this many times that of recent steps."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """Several processes (torchrun): all keep the weights, or each a share of them, which auto takes where GPUs are too
    small."""
    timeout: float = 600.0
    """Seconds that a process waits for the others of its job before it gives up."""

    def __post_init__(self) -> None:
        counts = ("steps", "batch", "segment", "accumulate", "log_every", "eval_every", "checkpoint_every", "keep")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive")
        if not 0 <= self.seed < 2**62:
            raise ValueError(f"seed {self.seed} is not between 0 and 2^62")
        check_sizes(self, LIMITS)
        if self.timeout <= 0:
            raise ValueError(f"timeout {self.timeout} must be positive")
        if self.spike is not None and self.spike <= 1:
            raise ValueError(f"spike {self.spike} must be above 1: it is a multiple of the usual loss")
        if self.context < 0:
            raise ValueError(f"context {self.context} is negative")
        if self.bptt < 0:
            raise ValueError(f"bptt {self.bptt} is negative")
        if self.bptt_stale and self.bptt_window != "sliding":
            raise ValueError("bptt_stale is about sliding windows: tumbling ones start where the last one ended")
        if self.accumulate > self.batch:
            raise ValueError(f"{self.batch} rows cannot be split into {self.accumulate} parts")


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    batch: int = 10
    """Rows that are read side by side."""
    segment: int | None = None
    """Segment length; the training length when left out."""
    context: int | None = None
    """Tokens before the segment that are encoded again; as trained when left out."""
    memory: int | None = None
    """Memory length of the long-range layers; as trained when left out."""
    clamp: int | None = None
    """Largest distance that is told apart; as trained when left out."""
    same_length: bool | None = None
    """Every query sees as many keys; as trained when left out."""
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

    def __post_init__(self) -> None:
        tokens = self.model.tokens
        if tokens is not None and tokens.num > self.train.segment:
            raise ValueError(
                f"{tokens.num} memory tokens are more than the {self.train.segment} tokens of a segment that they "
                "are to remember"
            )
