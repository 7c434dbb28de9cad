"""LaMemo (Ji et al., 2022): every table and figure."""

from __future__ import annotations

from mnemo.experiments.experiment import Experiment
from mnemo.experiments.lamemo import comparison
from mnemo.experiments.lamemo.ablation import ABLATION
from mnemo.experiments.lamemo.alpha import ALPHA
from mnemo.experiments.lamemo.attention import ATTENTION
from mnemo.experiments.lamemo.encoding import ENCODING
from mnemo.experiments.lamemo.extrapolation import EXTRAPOLATION
from mnemo.experiments.lamemo.flops import COST
from mnemo.experiments.lamemo.samples import SAMPLES

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
