"""The main claims of the papers on enwik8 and on RMT's tasks, each group sized for half an hour of one GPU.

Three seeds a row, with the same first weights and order of the text for all rows of a seed; rows, numbers of seeds and
limits were fixed before the first run. Published depth and dropout unless a note says otherwise.
"""

from __future__ import annotations

from mnemo.papers.experiment import Experiment
from mnemo.papers.gpu import lamemo, long_range, memory, memory_tokens, quadratic, retrieval

EXPERIMENTS: list[Experiment] = [
    memory.EXPERIMENT,
    long_range.EXPERIMENT,
    memory_tokens.EXPERIMENT,
    retrieval.EXPERIMENT,
    quadratic.EXPERIMENT,
    lamemo.EXPERIMENT,
]
"""Older papers first."""
