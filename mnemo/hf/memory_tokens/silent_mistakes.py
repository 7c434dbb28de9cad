"""Warn of mistakes that give no error, only a model whose memory is of no use.

The evaluation harness's own class for Hugging Face models cuts contexts at the backbone's length, and scores each
window of a long document by itself. LoRA freezes everything that it does not adapt, also the memory.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

HARNESS = "lm_eval.models.huggingface"
MOST_FRAMES = 40


def warn_of_windows(model: Any) -> None:
    """Warn once for each model that is called by the harness's own class."""
    if HARNESS not in sys.modules or torch.compiler.is_compiling() or model.warned_of_windows:
        return
    if _called_by_harness():
        model.warned_of_windows = True
        warnings.warn(
            "lm_eval's model 'hf' cuts long contexts and scores long documents window by window, without the memory "
            'of earlier windows: use model="mnemo" after `import mnemo.hf.harness`',
            stacklevel=2,
        )


def _called_by_harness() -> bool:
    frame = sys._getframe()
    for _ in range(MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == HARNESS:
            return True
        frame = frame.f_back
    return False


def warn_of_frozen_memory(model: Any) -> None:
    """Warn once, at the first training step, if parts of the backbone are trained and the memory is not."""
    if model.checked_for_training or not (model.training and torch.is_grad_enabled()):
        return
    model.checked_for_training = True
    memory = list(model.memory_tokens.parameters())
    frozen = model.config.tokens > 0 and not any(parameter.requires_grad for parameter in memory)
    if frozen and any(parameter.requires_grad for parameter in model.backbone.parameters()):
        warnings.warn(
            "the memory is frozen while the backbone is trained: with peft, use "
            'LoraConfig(..., modules_to_save=["memory_tokens"])',
            stacklevel=2,
        )
