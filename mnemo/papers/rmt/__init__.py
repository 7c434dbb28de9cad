"""Recurrent Memory Transformer (Bulatov et al., 2022): its tasks, its language models, and two tasks of our own."""

from __future__ import annotations

from mnemo.papers.experiment import Experiment
from mnemo.papers.rmt import attention, context, jobs, language, long_copy, quadratic, state_size
from mnemo.papers.rmt.accuracy import COPY_EXPERIMENT, RETRIEVAL_EXPERIMENT, REVERSE_EXPERIMENT
from mnemo.papers.rmt.half_memory import HALF_MEMORY
from mnemo.papers.rmt.recall import MULTI_QUERY_EXPERIMENT, PASSKEY_EXPERIMENT

EXPERIMENTS: list[Experiment] = [
    COPY_EXPERIMENT,
    REVERSE_EXPERIMENT,
    RETRIEVAL_EXPERIMENT,
    HALF_MEMORY,
    long_copy.EXPERIMENT,
    quadratic.EXPERIMENT,
    language.EXPERIMENT,
    context.EXPERIMENT,
    state_size.EXPERIMENT,
    attention.EXPERIMENT,
    MULTI_QUERY_EXPERIMENT,
    PASSKEY_EXPERIMENT,
]

__all__ = ["EXPERIMENTS", "jobs"]
