"""The benchmark cases: sizes of models, segments and memories, for a CPU and for a GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mnemo.errors import MnemoError, unknown
from mnemo.inference.weight_formats import WeightFormat
from mnemo.memory import XL, Lookahead, MemoryTokens, Plan
from mnemo.model import InitConfig, ModelConfig
from mnemo.model.layers import DropoutConfig

if TYPE_CHECKING:
    import torch

Section = Literal["op", "training", "evaluation", "generation"]
SECTIONS: tuple[Section, ...] = ("op", "training", "evaluation", "generation")


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    summary: str
    section: Section
    segment: int
    memory: int
    batch: int
    required: float
    """Required speed of Mnemo's fastest option as a multiple of the published formulation's, in this precision."""
    mechanism: Literal["xl", "lookahead", "tokens"] = "xl"
    num_long: int | None = None
    """Number of long-range layers, interleaved; the others have `short` slots."""
    short: int = 128
    memory_tokens: int = 10
    bptt: int = 0
    """Number of earlier segments that gradient reaches."""
    precision: Literal["fp32", "bf16"] = "fp32"
    weights: WeightFormat = "fp32"
    """Format of the layers' matrices when generating on a CPU."""
    dropout: float = 0.0
    attention_dropout: float = 0.0
    vocab_size: int = 204
    num_layers: int = 6
    dim: int = 256
    num_heads: int = 8
    head_dim: int = 32
    inner_dim: int = 1024
    init_std: float = 0.02
    new_tokens: int = 1
    """Tokens that one call generates."""
    num_segments: int = 1
    """Segments that one call evaluates."""
    compile: bool | None = None
    """Compile Mnemo's training step, which takes about a minute; default: on a GPU only."""
    cuda_graph: bool = True
    """Replay Mnemo's training step as a CUDA graph."""

    @property
    def training(self) -> bool:
        return self.section == "training"

    @property
    def tokens(self) -> int:
        """Tokens of one call."""
        if self.section == "generation":
            return self.batch * self.new_tokens
        return self.batch * self.segment * (self.num_segments if self.section == "evaluation" else 1 + self.bptt)

    @property
    def ring_bytes(self) -> float:
        """Bytes of cached keys and values that generating one token of every text reads."""
        slots = sum(length + self.segment for length in self.plan().lengths(self.num_layers))
        item = 2 if self.precision == "bf16" else 4
        return 2.0 * item * slots * self.num_heads * self.head_dim * self.batch

    def plan(self) -> Plan:
        if self.mechanism == "lookahead":
            return Plan(long=Lookahead(length=self.memory).published())
        return Plan(long=XL(length=self.memory), short=XL(length=self.short), num_long=self.num_long)

    def config(self) -> ModelConfig:
        return ModelConfig(
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
            dim=self.dim,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            inner_dim=self.inner_dim,
            memory=self.plan(),
            tokens=MemoryTokens(num=self.memory_tokens) if self.mechanism == "tokens" else None,
            dropout=DropoutConfig.published(self.dropout, attention=self.attention_dropout),
            init=InitConfig(std=self.init_std),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


BASE: dict[str, Any] = dict(num_layers=12, dim=512, num_heads=8, head_dim=64, inner_dim=2048, precision="bf16")
"""Transformer-XL's base model on enwik8."""
DEEP: dict[str, Any] = dict(num_layers=24, dim=1024, num_heads=8, head_dim=128, inner_dim=3072, precision="bf16")
"""Transformer-XL's large model on enwik8."""
TRAINING: dict[str, Any] = dict(section="training", dropout=0.1)

CPU_CASES = (
    Case(
        name="train",
        summary="training step: forward, backward, clipping, Adam",
        section="training",
        segment=256,
        memory=256,
        batch=4,
        required=4.0,
    ),
    Case(
        name="train-dropout",
        summary="training step with dropout 0.1 everywhere",
        section="training",
        segment=256,
        memory=256,
        batch=4,
        required=4.0,
        dropout=0.1,
        attention_dropout=0.1,
    ),
    Case(
        name="eval",
        summary="evaluation with a full memory",
        section="evaluation",
        segment=64,
        memory=2048,
        batch=4,
        required=8.0,
        num_segments=4,
    ),
    Case(
        name="generate",
        summary="generation with a full memory",
        section="generation",
        segment=1,
        memory=2048,
        batch=1,
        required=8.0,
        new_tokens=2,
    ),
)
REQUIRED_IN_FP32 = {"train": 2.5, "train-dropout": 2.0, "eval": 6.0, "generate": 5.0}
"""Required of processors without products in bf16."""
GPU_CASES = (
    Case(
        name="xl-base",
        summary="training step of the enwik8 base model",
        segment=512,
        memory=512,
        batch=22,
        required=10.0,
        **TRAINING,
        **BASE,
    ),
    Case(
        name="xl-24",
        summary="training step of 24 layers, all with a long memory",
        segment=384,
        memory=2304,
        batch=16,
        required=10.0,
        **TRAINING,
        **DEEP,
    ),
    Case(
        name="xl-24-plan",
        summary="the same with 4 interleaved long-range layers",
        segment=384,
        memory=2304,
        batch=16,
        required=5.0,
        num_long=4,
        **TRAINING,
        **DEEP,
    ),
    Case(
        name="lamemo",
        summary="training step of LaMemo's enwik8 base model",
        segment=512,
        memory=512,
        batch=22,
        required=10.0,
        mechanism="lookahead",
        **TRAINING,
        **BASE,
    ),
    Case(
        name="rmt",
        summary="update through 3 segments with 10 memory tokens",
        segment=128,
        memory=0,
        batch=32,
        required=5.0,
        mechanism="tokens",
        bptt=2,
        **TRAINING,
        **BASE,
    ),
    Case(
        name="eval-long",
        summary="evaluation of the base model with a full memory",
        section="evaluation",
        segment=128,
        memory=3800,
        batch=16,
        required=10.0,
        num_segments=15,
        **BASE,
    ),
    Case(
        name="generate-long",
        summary="generation by the base model with a full memory",
        section="generation",
        segment=1,
        memory=3800,
        batch=1,
        required=10.0,
        new_tokens=32,
        **BASE,
    ),
    Case(
        name="generate-batch",
        summary="the same, 16 texts at a time",
        section="generation",
        segment=1,
        memory=3800,
        batch=16,
        required=10.0,
        new_tokens=32,
        **BASE,
    ),
)
CASES = {case.name: case for case in (*CPU_CASES, *GPU_CASES)}
SMALL: dict[str, Any] = dict(
    segment=8,
    memory=20,
    batch=2,
    num_layers=2,
    dim=32,
    num_heads=2,
    head_dim=8,
    inner_dim=48,
    vocab_size=11,
    short=6,
    memory_tokens=3,
    precision="fp32",
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.3,
    new_tokens=2,
    num_segments=1,
)
"""Sizes of the model that is used to check that both formulations agree."""


def default_cases(device: torch.device) -> tuple[Case, ...]:
    """Return small models for a CPU, those of the papers for a GPU."""
    return GPU_CASES if device.type == "cuda" else CPU_CASES


def check_names(names: str) -> list[str]:
    """Parse comma-separated names of sections and cases; an error names the known ones."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise MnemoError("name at least one of " + ", ".join((*SECTIONS, *CASES)))
    for name in wanted:
        if name not in CASES and name not in SECTIONS:
            raise unknown("benchmark", name, (*SECTIONS, *CASES))
    return wanted


def find_cases(names: str, device: torch.device) -> tuple[bool, list[Case]]:
    """Return whether the operation is among the named sections and cases, and the cases."""
    wanted = check_names(names)
    cases: dict[str, Case] = {}
    for name in wanted:
        chosen = [CASES[name]] if name in CASES else [c for c in default_cases(device) if c.section == name]
        cases |= {case.name: CASES[case.name] for case in chosen}
    return "op" in wanted, list(cases.values())
