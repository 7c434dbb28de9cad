"""The tables and figures of Transformer-XL (Dai et al., 2019)."""

from __future__ import annotations

from mnemo.experiments.experiment import Experiment
from mnemo.experiments.xl.ablation import ABLATION
from mnemo.experiments.xl.attention import XL_ATTENTION
from mnemo.experiments.xl.context_length import CONTEXT_LENGTH
from mnemo.experiments.xl.equal_memory import EQUAL_MEMORY
from mnemo.experiments.xl.evaluation_speed import EVALUATION_SPEED
from mnemo.experiments.xl.language_modelling import ENWIK8, TEXT8, WIKITEXT103
from mnemo.experiments.xl.one_billion import EXPERIMENT as ONE_BILLION
from mnemo.experiments.xl.penn_treebank import PENN_TREEBANK

EXPERIMENTS: list[Experiment] = [
    WIKITEXT103.experiment(),
    ENWIK8.experiment(),
    TEXT8.experiment(),
    PENN_TREEBANK,
    ONE_BILLION,
    ABLATION,
    EQUAL_MEMORY,
    CONTEXT_LENGTH,
    EVALUATION_SPEED,
    XL_ATTENTION,
]
