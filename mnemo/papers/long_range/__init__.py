"""Do Transformers Need Deep Long-Range Memory? (Rae & Razavi, 2020)."""

from __future__ import annotations

from mnemo.papers.experiment import Experiment
from mnemo.papers.long_range.arrangement import ARRANGEMENT, NUMBER
from mnemo.papers.long_range.profile import PROFILE
from mnemo.papers.long_range.short_memory import SHORT_MEMORY
from mnemo.papers.long_range.words import WORDS

EXPERIMENTS: list[Experiment] = [NUMBER, ARRANGEMENT, WORDS, PROFILE, SHORT_MEMORY]
