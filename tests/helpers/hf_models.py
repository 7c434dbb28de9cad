"""Small random models with the interface of the transformers library."""

from __future__ import annotations

from typing import Any

import torch
from helpers.models import random_model

from mnemo.hf import MnemoConfig, MnemoForCausalLM
from mnemo.model.embedding import EmbeddingConfig

SEGMENT = 4
UNTIED = EmbeddingConfig(tie_weights=False)
"""With tied weights, a random model mostly repeats its last token."""


def hf_model(segment: int = SEGMENT, start: Any = "empty", dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """The core's random model without constant biases, so that its texts vary."""
    options: dict[str, Any] = {"embedding": UNTIED} | changes
    core = random_model(dtype=dtype, **options)
    with torch.no_grad():
        for name, parameter in core.named_parameters():
            if name.endswith("bias") or ".biases." in name:
                parameter.zero_()
    model: Any = MnemoForCausalLM(MnemoConfig(core.config, segment=segment, start=start))
    model.to(dtype).model.load_state_dict(core.state_dict())
    return model.eval()


def in_own_memory(model: Any) -> Any:
    """The model with copies of its weights: loaded ones are views of a file, whose alignment changes the rounding."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model
