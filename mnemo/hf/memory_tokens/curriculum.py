"""A curriculum: the number of segments per sample grows during training, so short distances are learned first."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback

from mnemo.errors import MnemoError


@dataclass(frozen=True)
class Curriculum:
    """Number of segments of training samples by step, from few to many."""

    stages: tuple[tuple[int, int], ...]
    """Pairs (first step, number of segments); the first stage begins at step 0"""
    vary: bool = False
    """Draw the number of each step from 1 to the stage's number, so that short texts remain in training"""
    seed: int = 0

    def __post_init__(self) -> None:
        steps = [step for step, _ in self.stages]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise MnemoError(f"curriculum {self.stages} must begin at step 0 and have increasing steps")
        if min(number for _, number in self.stages) < 1:
            raise MnemoError(f"curriculum {self.stages} must have at least one segment at every stage")

    def segments(self, step: int) -> int:
        """Return the number of segments at a step; it depends on the step and the seed only."""
        most = [number for begin, number in self.stages if begin <= max(step, 0)][-1]
        return random.Random(f"{self.seed} {step}").randint(1, most) if self.vary else most


class CurriculumCallback(TrainerCallback):
    """Apply a curriculum in a transformers Trainer.

    `apply` is called with the number of segments before every step, for example to set the length of samples in a data
    set. Without it, the model uses only that many of the last segments of each sample.
    """

    def __init__(self, curriculum: Curriculum, apply: Callable[[int], None] | None = None) -> None:
        self.curriculum, self.apply = curriculum, apply

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = self.curriculum.segments(state.global_step)
        if self.apply is not None:
            self.apply(number)
        else:
            memory_model(kwargs["model"]).num_segments = number

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.apply is None:
            memory_model(kwargs["model"]).num_segments = None


def memory_model(model: Any) -> Any:
    """Return the model with memory inside its wrappers."""
    from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM, MemoryForSequenceClassification

    for module in model.modules():
        if isinstance(module, MemoryForCausalLM | MemoryForSequenceClassification):
            return module
    raise MnemoError(f"this {type(model).__name__} has no memory: add it with add_memory")
