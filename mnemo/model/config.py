"""The configuration of a model: frozen dataclasses, whose field docstrings are the command line's help."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args

from mnemo.config import check_sizes
from mnemo.errors import MnemoError
from mnemo.memory import AnyInputMemory, Plan
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import Activation, DropoutConfig, NormKind
from mnemo.model.positions import AnyPositions, Relative, Shaw, Sinusoidal

LIMITS = {
    "vocab_size": 2**31,
    "cutoffs": 2**31,
    "num_layers": 1024,
    "dim": 2**20,
    "num_heads": 2**12,
    "head_dim": 2**12,
    "seed": 2**63 - 1,
}
"""Largest values of the fields whose limit is not `mnemo.config.LARGEST_SIZE`."""
NormPlace = Literal["post", "pre"]
KINDS = {"norm": get_args(NormPlace), "norm_kind": get_args(NormKind), "activation": get_args(Activation)}


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """Distributions of the initial weights."""

    kind: Literal["normal", "uniform"] = "normal"
    """Distribution of initial weights."""
    std: float = 0.02
    """Deviation of weights, biases u and v, and of norm weights around 1."""
    projection_std: float = 0.01
    """Deviation of embedding projections."""
    norm_bias_std: float = 0.0
    """Deviation of the biases of norms. At 0, a first word that word dropout has set to zero stays zero in all layers
    of a new model; its gradient grows in every norm and overflows in a deep model."""
    bound: float = 0.1
    """Largest absolute value of the uniform kind."""
    residual: Literal["same", "scaled", "zero"] = "same"
    """Weights whose products are added to the residual: drawn like all others; divided by the square root of their
    number; or zero, so that every layer is the identity at first (pre-norm)."""

    def __post_init__(self) -> None:
        if min(self.std, self.projection_std, self.norm_bias_std, self.bound) < 0:
            raise ValueError("deviations and bounds of initial weights must not be negative")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Configuration of a model: sizes, positions, memory and regularisation."""

    vocab_size: int = 256
    """Size of the vocabulary; training takes that of the corpus."""
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
    norm: NormPlace = "post"
    """The norm after each residual sum, or before each branch."""
    final_norm: bool = False
    """A norm after the last layer (the published pre-norm model has none)."""
    norm_kind: NormKind = "layer"
    """Norms that subtract the mean (layer) or only divide by the root of the mean square (rms)."""
    norm_eps: float = 1e-5
    """Added to the variance in norms."""
    qk_norm: bool = False
    """An rms norm of queries and keys, head by head, before positions are applied."""
    head_gate: bool = False
    """Multiply the context of each head by a gate that depends on the query's row (Qiu et al., 2025)."""
    activation: Activation = "relu"
    """Activation of the feed-forward."""
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    positions: AnyPositions = field(default_factory=Relative)
    """Position encoding."""
    memory: Plan = field(default_factory=Plan)
    """Which layer keeps which memory."""
    tokens: AnyInputMemory | None = None
    """Memory tokens around every segment."""
    same_length: bool = False
    """Every query sees as many keys as its layer has memory slots, including its own."""
    dropout: DropoutConfig = field(default_factory=DropoutConfig)
    logit_cap: float | None = None
    """Soft cap of the logits of the softmax: c * tanh(logit / c), for example 30. Logits that grow without bound are a
    cause of divergence."""
    activation_penalty: float = 0.0
    """Weight of the squared final hidden state in the training loss (AR)."""
    temporal_penalty: float = 0.0
    """Weight of its squared change from token to token (TAR)."""
    init: InitConfig = field(default_factory=InitConfig)

    def __post_init__(self) -> None:
        self._check_kinds()
        for name in ("vocab_size", "num_layers", "dim", "num_heads", "head_dim", "inner_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive")
        check_sizes(self, LIMITS)
        if self.logit_cap is not None and self.logit_cap <= 0:
            raise ValueError(f"logit_cap {self.logit_cap} must be positive")
        if self.dim % 2 and self.positions.sinusoidal:
            raise ValueError(f"model width {self.dim} must be even: half are sines, half cosines")
        for memory in set(self.memory.memories(self.num_layers)):
            memory.check(self)
        if self.tokens is not None:
            self.tokens.check(self)
        if self.positions.absolute and any(self.memory.lengths(self.num_layers)):
            raise ValueError(
                f"{type(self.positions).__name__} positions are absolute: memory slots would have the positions of the "
                "segment; set the memory length to 0 or use relative positions"
            )

    def _check_kinds(self) -> None:
        for name, kinds in KINDS.items():
            if getattr(self, name) not in kinds:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not one of {', '.join(kinds)}")
        if not isinstance(self.memory, Plan):
            raise ValueError(f"memory = {self.memory!r} is not a plan: write memory=Plan(long=XL(length=128))")
        if not is_dataclass(self.positions):
            raise ValueError(f"positions = {self.positions!r} are no configuration: write positions=Rotary()")

    @property
    def carries_gradient(self) -> bool:
        """Whether gradient can reach earlier segments: through memory tokens, or through the memory of a layer."""
        tokens = self.tokens is not None and self.tokens.carries
        return tokens or any(memory.traits.carries_gradient for memory in self.memory.memories(self.num_layers))

    def published(self) -> ModelConfig:
        """The same model with the quirks of the published code."""
        tokens = None if self.tokens is None else self.tokens.published()
        return replace(self, positions=self.positions.published(), memory=self.memory.published(), tokens=tokens)

    def changed(self, changes: dict[str, Any]) -> ModelConfig:
        """The configuration with other fields; `clamp` is a field of its positions."""
        values = dict(changes)
        if "clamp" in values:
            values["positions"] = _clamped(self.positions, values.pop("clamp"))
        try:
            return replace(self, **values)
        except ValueError as error:
            raise MnemoError(str(error)) from None


def _clamped(positions: AnyPositions, clamp: int | None) -> AnyPositions:
    """The positions with another largest distance."""
    if not isinstance(positions, (Relative, Shaw, Sinusoidal)):
        raise MnemoError(f"{type(positions).__name__} positions have no distances to clamp")
    return replace(positions, clamp=clamp)


def fingerprint_config(config: ModelConfig) -> dict[str, Any]:
    """The fields that determine the meaning of a memory; lengths and dropout do not."""
    free = {"dropout", "init", "memory", "same_length", "logit_cap", "activation_penalty", "temporal_penalty"}
    return {f.name: getattr(config, f.name) for f in fields(config) if f.name not in free}
