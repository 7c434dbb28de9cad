"""Gated DeltaNet (Yang et al., 2025) and Kimi Delta Attention (Kimi Team, 2025) of the library flash-linear-attention,
as memories of Mnemo's model.

A block of the library (norm, gated delta rule, norm, gated feed-forward) replaces a transformer layer. What the library
keeps in a cache is here a state that is passed on, so that Mnemo's training loop, optimizer, streams and scores serve
it unchanged: out, state = model(tokens, state).

Shapes: B batch, L segment, D model width, H heads, K and V widths of a head's keys and values, k inputs of a short
convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mnemo.errors import MnemoError, one_line
from mnemo.memory.configuration import Layerless, Traits
from mnemo.memory.protocol import Extent, Segment, Stage, matrix_work, widened
from mnemo.memory.replay import ReplayedSegment
from mnemo.memory.state import tree_map

LIBRARY, KNOWN = "flash-linear-attention", "0.6.0"
"""Its name, and the release whose states and layers are known."""
CONVOLVED = 4
"""Inputs of the short convolutions before queries, keys and values: the library's default."""
INIT_STD = 0.02
"""Deviation of the initial weights of linear maps and convolutions, as in the library's own models; biases are zero."""


@dataclass(frozen=True, kw_only=True)
class GatedDelta(Layerless):
    """Layers of flash-linear-attention in place of attention. With the default sizes and a width of 512, a layer has as
    many weights as one of `speedrun-enwik8`, divided as the library advises for Gated DeltaNet: 0.75 D for keys, 1.5 D
    for values."""

    traits: ClassVar[Traits] = Traits(besides="a matrix for each head")
    decay: Literal["head", "channel"] = "head"
    """Whether a matrix decays by one factor (Gated DeltaNet), or by one for each channel of its keys (Kimi)."""
    num_heads: int = 3
    head_dim: int = 128
    """Width of a head's queries and keys."""
    value_ratio: int = 2
    """Width of a head's values, as a multiple of that of its keys."""
    inner_dim: int = 1024
    """Width inside the gated feed-forward."""

    def check(self, model: Any) -> None:
        if not model.positions.none:
            raise ValueError("a gated delta rule has no positions: use NoPositions")

    def build(self, dim: int, drop: nn.Module) -> Stage:
        return GatedDeltaStage(self, dim, drop)


class GatedDeltaState(NamedTuple):
    matrices: Tensor
    """(B, H, V, K) in float32"""
    queries: Tensor
    keys: Tensor
    values: Tensor
    """(B, H * K or H * V, k): the last inputs of the short convolutions"""


class Block(NamedTuple):
    """The modules of a block of the library."""

    mixer_norm: nn.Module
    mixer: nn.Module
    mlp_norm: nn.Module
    mlp: nn.Module


def require_library(device: torch.device) -> None:
    """Raise MnemoError if a GPU for the library's kernels or the library is missing."""
    if device.type != "cuda":
        raise MnemoError(f"the kernels of {LIBRARY} need a CUDA device, not {device.type}")
    _library()


def _library() -> tuple[Any, Any]:
    """The library's layers and modules."""
    try:
        import fla.layers  # pyright: ignore[reportMissingImports]
        import fla.modules  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MnemoError(
            f"this row needs {LIBRARY} (pip install {LIBRARY}=={KNOWN}), which cannot be imported: {one_line(error)}"
        ) from None
    return fla.layers, fla.modules


def library_block(config: GatedDelta, dim: int) -> Block:
    """A block of the library, with initial weights as in its own models."""
    layers, modules = _library()
    kind = layers.GatedDeltaNet if config.decay == "head" else layers.KimiDeltaAttention
    mixer = kind(
        hidden_size=dim,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        expand_v=config.value_ratio,
        conv_size=CONVOLVED,
        layer_idx=0,
    )
    mlp = modules.GatedMLP(hidden_size=dim, intermediate_size=config.inner_dim)
    for module in (*mixer.modules(), *mlp.modules()):
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=INIT_STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return Block(modules.RMSNorm(dim), mixer, modules.RMSNorm(dim), mlp)


class LayerCache:
    """The library's interface to the state of one layer: read before a segment, replaced after it."""

    def __init__(self, state: GatedDeltaState) -> None:
        self.state = state

    def __len__(self) -> int:
        return 1

    def __getitem__(self, layer: int) -> dict[str, Any]:
        matrices, *convolved = self.state
        return {"recurrent_state": matrices, "conv_state": tuple(convolved)}

    def update(
        self, *, layer_idx: int, recurrent_state: Tensor, conv_state: tuple[Tensor, Tensor, Tensor], offset: int
    ) -> None:
        self.state = GatedDeltaState(recurrent_state, *conv_state)


class GatedDeltaStage(Stage):
    def __init__(self, config: GatedDelta, dim: int, drop: nn.Module) -> None:
        super().__init__()
        self.config, self.dim, self.drop = config, dim, drop
        self.mixer_norm, self.mixer, self.mlp_norm, self.mlp = library_block(config, dim)

    def init(self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False) -> GatedDeltaState:
        heads, keys = self.config.num_heads, self.config.head_dim
        values = self.config.value_ratio * keys
        widths = (heads * keys, heads * keys, heads * values)
        matrices = widened(like).new_zeros(batch, heads, values, keys)
        return GatedDeltaState(matrices, *(like.new_zeros(batch, width, CONVOLVED) for width in widths))

    def forward(self, x: Tensor, state: GatedDeltaState, segment: Segment) -> tuple[Tensor, GatedDeltaState]:
        if segment.lengths is not None:
            raise MnemoError("gated delta rules read rows of equal length only")
        return self.read(x, state)

    def read(self, x: Tensor, state: GatedDeltaState) -> tuple[Tensor, GatedDeltaState]:
        cache = LayerCache(_as_read(state, x))
        mixed, *_ = self.mixer(self.mixer_norm(x), past_key_values=cache, use_cache=True)
        # The library's norm adds its input to the residual, and returns both in one kernel.
        rows, x = self.mlp_norm(self.drop(mixed), residual=x, prenorm=True)
        return x + self.drop(self.mlp(rows)), _as_kept(cache.state, state)

    def extent(self, state: GatedDeltaState) -> Extent:
        return Extent(0)

    def resize(self, state: GatedDeltaState, length: int) -> GatedDeltaState:
        return state

    def open(self, state: GatedDeltaState, segment: int) -> ReplayedSegment:
        return ReplayedSegment(self, state, segment, self.dim)

    def work(self, rows: int, slots: int, cached: bool = False) -> float:
        return rows * matrix_work(self)


def _as_read(state: GatedDeltaState, x: Tensor) -> GatedDeltaState:
    """The state in the type of the rows, except for the matrices."""
    if x.shape[1] == 1:  # the library changes the inputs of convolutions in place when it reads a single token
        state = tree_map(torch.clone, state)
    matrices, *convolved = state
    return GatedDeltaState(matrices, *(part.to(x.dtype) for part in convolved))


def _as_kept(found: GatedDeltaState, before: GatedDeltaState) -> GatedDeltaState:
    """The next state without gradient, in the types of the one before."""
    for new, old in zip(found, before, strict=True):
        if new.shape != old.shape:
            shapes = f"{list(new.shape)}, not {list(old.shape)}"
            raise MnemoError(f"the installed {LIBRARY} has states of another form: {shapes}; known is release {KNOWN}")
    return GatedDeltaState(*(new.detach().to(old.dtype) for new, old in zip(found, before, strict=True)))
