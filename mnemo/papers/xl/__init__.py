"""The tables and figures of Transformer-XL (Dai et al., 2019)."""

from __future__ import annotations

from mnemo.papers.experiment import Experiment
from mnemo.papers.xl.ablation import ABLATION
from mnemo.papers.xl.attention import XL_ATTENTION
from mnemo.papers.xl.context_length import CONTEXT_LENGTH
from mnemo.papers.xl.equal_memory import EQUAL_MEMORY
from mnemo.papers.xl.evaluation_speed import EVALUATION_SPEED
from mnemo.papers.xl.language_modelling import ENWIK8, TEXT8, WIKITEXT103
from mnemo.papers.xl.one_billion import ONE_BILLION
from mnemo.papers.xl.penn_treebank import PENN_TREEBANK

EXPERIMENTS: list[Experiment] = [
    WIKITEXT103.experiment(),
    ENWIK8.experiment(),
    TEXT8.experiment(),
    PENN_TREEBANK,
    ONE_BILLION.experiment(),
    ABLATION,
    EQUAL_MEMORY,
    CONTEXT_LENGTH,
    EVALUATION_SPEED,
    XL_ATTENTION,
]
