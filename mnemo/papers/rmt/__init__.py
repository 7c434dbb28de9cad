"""Recurrent Memory Transformer (Bulatov et al., 2022): its tasks, its language models, and two further tasks."""

from __future__ import annotations

from mnemo.papers.experiment import Experiment
from mnemo.papers.rmt import (
    accuracy,
    attention,
    context,
    half_memory,
    jobs,
    language,
    long_copy,
    quadratic,
    recall,
    state_size,
)

EXPERIMENTS: list[Experiment] = [
    *accuracy.EXPERIMENTS,
    half_memory.EXPERIMENT,
    long_copy.EXPERIMENT,
    quadratic.EXPERIMENT,
    language.EXPERIMENT,
    context.EXPERIMENT,
    state_size.EXPERIMENT,
    attention.EXPERIMENT,
    *recall.EXPERIMENTS,
]

__all__ = ["EXPERIMENTS", "jobs"]
