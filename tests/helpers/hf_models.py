"""Small random models with the interface of the transformers library."""

from __future__ import annotations

from typing import Any

import torch
from helpers.models import random_model

from mnemo.hf import MnemoConfig, MnemoForCausalLM
from mnemo.model.embedding import EmbeddingConfig

SEGMENT = 4
UNTIED = EmbeddingConfig(tie_weights=False)
"""With which a model does not just repeat its last word."""


def hf_model(segment: int = SEGMENT, start: Any = "empty", dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """The core's random model without constant biases, so that its texts vary.

    `Any`, as the library's types are.
    """
    options: dict[str, Any] = {"embedding": UNTIED} | changes
    core = random_model(dtype=dtype, **options)
    with torch.no_grad():
        for name, parameter in core.named_parameters():
            if name.endswith("bias") or ".biases." in name:
                parameter.zero_()
    model: Any = MnemoForCausalLM(MnemoConfig(core.config, segment=segment, start=start))
    model.to(dtype).model.load_state_dict(core.state_dict())
    return model.eval()
