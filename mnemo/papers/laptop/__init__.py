"""The main claim of every paper at a size that two CPU cores train in minutes."""

from __future__ import annotations

from mnemo.papers.experiment import Experiment
from mnemo.papers.laptop import copying, text

EXPERIMENTS: list[Experiment] = [*text.EXPERIMENTS[:2], copying.EXPERIMENT, *text.EXPERIMENTS[2:]]
"""Older papers first."""
