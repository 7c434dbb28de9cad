"""Small random models for tests. Their weights are large, so that every term changes the output visibly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mnemo.memory import XL, Plan
from mnemo.memory.state import State
from mnemo.model import Model, ModelConfig

set_seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
"""Without a GPU, `torch.manual_seed` formats and keeps the stack of every call, for devices that may come later."""
SMALL: dict[str, Any] = dict(vocab_size=23, num_layers=3, dim=12, num_heads=2, head_dim=6, inner_dim=16)


def random_model(seed: int = 0, memory: Plan | int = 5, dtype: torch.dtype = torch.float64, **changes: Any) -> Model:
    """A model in evaluation mode whose weights are N(0, 0.4), biases included."""
    set_seed(seed)
    plan = Plan(long=XL(length=memory)) if isinstance(memory, int) else memory
    model = Model(ModelConfig(**{**SMALL, **changes}, memory=plan)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.4)
    return model.eval()


def random_tokens(batch: int, length: int, seed: int = 0, vocab_size: int = SMALL["vocab_size"]) -> Tensor:
    return torch.randint(0, vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def read(model: Model, tokens: Tensor, segment: int | list[int], state: State | None = None) -> tuple[Tensor, State]:
    """Logits of all tokens, which are read in segments."""
    pieces = []
    for part in tokens.split(segment, 1):
        out, state = model(part, state)
        pieces.append(model.logits(out))
    return torch.cat(pieces, 1), state
