"""What a trained model does with a text: attention, memorising coefficients, and what every token costs.

Every function takes a model and token ids (T,), reads them segment by segment with the state, and keeps no gradient.
"""

from __future__ import annotations

from mnemo.analysis.attention import (
    AttentionByDistance,
    Buckets,
    DistanceObserver,
    Head,
    Maxima,
    MaximaObserver,
    ScoreTerms,
    TermsObserver,
    attention_by_distance,
    interval_maxima,
    score_terms,
)
from mnemo.analysis.context import EffectiveLength, Group, relative_effective_context_length
from mnemo.analysis.losses import (
    Gain,
    context_targets,
    gain_from_memory,
    losses_at_context,
    losses_at_memory,
    token_losses,
    token_losses_without_memory,
)
from mnemo.analysis.maps import AttentionMap, attention_map
from mnemo.analysis.memorising import Alpha, AlphaObserver, alpha, has_alpha
from mnemo.analysis.observing import attending_layers, observe
from mnemo.analysis.repeats import repetition, repetition_of_text
from mnemo.analysis.text import keeps_memory

__all__ = [
    "Alpha",
    "AlphaObserver",
    "AttentionByDistance",
    "AttentionMap",
    "Buckets",
    "DistanceObserver",
    "EffectiveLength",
    "Gain",
    "Group",
    "Head",
    "Maxima",
    "MaximaObserver",
    "ScoreTerms",
    "TermsObserver",
    "alpha",
    "attending_layers",
    "attention_by_distance",
    "attention_map",
    "context_targets",
    "gain_from_memory",
    "has_alpha",
    "interval_maxima",
    "keeps_memory",
    "losses_at_context",
    "losses_at_memory",
    "observe",
    "relative_effective_context_length",
    "repetition",
    "repetition_of_text",
    "score_terms",
    "token_losses",
    "token_losses_without_memory",
]
