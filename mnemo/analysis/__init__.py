"""Analyse a trained model on a text: attention, LaMemo's alpha, and the loss of every token.

Every function takes a model and token ids (T,), and reads them segment by segment with the state, without gradient.
"""

from __future__ import annotations

from mnemo.analysis.attention_distance import (
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
from mnemo.analysis.attention_map import AttentionMap, attention_map
from mnemo.analysis.effective_context import EffectiveLength, Group, relative_effective_context_length
from mnemo.analysis.inputs import keeps_memory
from mnemo.analysis.lamemo_alpha import Alpha, AlphaObserver, alpha, has_alpha
from mnemo.analysis.memory_attention import MemoryAttention, attention_to_memory
from mnemo.analysis.observers import attending_layers, observe
from mnemo.analysis.repetition import Earlier, earlier_occurrences, repetition
from mnemo.analysis.slot_contents import LayerSlots, SlotContents, SlotRange, slot_contents
from mnemo.analysis.token_losses import (
    Gain,
    context_targets,
    gain_from_memory,
    losses_at_context,
    losses_at_memory,
    token_losses,
    token_losses_without_memory,
)

__all__ = [
    "Alpha",
    "AlphaObserver",
    "AttentionByDistance",
    "AttentionMap",
    "Buckets",
    "DistanceObserver",
    "Earlier",
    "EffectiveLength",
    "Gain",
    "Group",
    "Head",
    "LayerSlots",
    "Maxima",
    "MaximaObserver",
    "MemoryAttention",
    "ScoreTerms",
    "SlotContents",
    "SlotRange",
    "TermsObserver",
    "alpha",
    "attending_layers",
    "attention_by_distance",
    "attention_map",
    "attention_to_memory",
    "context_targets",
    "earlier_occurrences",
    "gain_from_memory",
    "has_alpha",
    "interval_maxima",
    "keeps_memory",
    "losses_at_context",
    "losses_at_memory",
    "observe",
    "relative_effective_context_length",
    "repetition",
    "score_terms",
    "slot_contents",
    "token_losses",
    "token_losses_without_memory",
]
