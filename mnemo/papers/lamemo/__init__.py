"""LaMemo (Ji et al., 2022): every table and figure."""

from __future__ import annotations

from mnemo.papers.experiment import Experiment
from mnemo.papers.lamemo import comparison
from mnemo.papers.lamemo.ablation import ABLATION
from mnemo.papers.lamemo.alpha import ALPHA
from mnemo.papers.lamemo.attention import ATTENTION
from mnemo.papers.lamemo.encoding import ENCODING
from mnemo.papers.lamemo.extrapolation import EXTRAPOLATION
from mnemo.papers.lamemo.flops import COST
from mnemo.papers.lamemo.samples import SAMPLES

EXPERIMENTS: list[Experiment] = [
    *comparison.EXPERIMENTS,
    ABLATION,
    ENCODING,
    EXTRAPOLATION,
    ALPHA,
    ATTENTION,
    COST,
    SAMPLES,
]
