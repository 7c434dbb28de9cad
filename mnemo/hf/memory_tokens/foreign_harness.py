"""Warn if the evaluation harness's own class for Hugging Face models evaluates a model with memory.

That class cuts contexts at the backbone's length, and scores each window of a long document by itself. It gives no
error, only scores without memory.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

FOREIGN = "lm_eval.models.huggingface"
MOST_FRAMES = 40
_warned: set[int] = set()


def warn_of_windows(model: Any) -> None:
    """Warn once for each model that is called by the harness's own class."""
    if FOREIGN not in sys.modules or torch.compiler.is_compiling() or id(model) in _warned or not _called_by_harness():
        return
    _warned.add(id(model))
    warnings.warn(
        "lm_eval's model 'hf' cuts long contexts and scores long documents window by window, without the memory of "
        'earlier windows: use model="mnemo" after `import mnemo.hf.harness`',
        stacklevel=2,
    )


def _called_by_harness() -> bool:
    frame = sys._getframe()
    for _ in range(MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == FOREIGN:
            return True
        frame = frame.f_back
    return False
