"""Numbers of the paper and of its authors' result files, as text: mean, deviation and number of runs.

Accuracies are means over runs from the result files, whose values the figures show. Segment counts are real: the figure
of the retrieval task shows two of its points one segment too far to the right, because ten tokens cut into pieces of 4
and of 3 give 2 and 3 pieces.
"""

from __future__ import annotations

from collections.abc import Mapping

from mnemo.recipes.rmt import BASELINE, ENWIK8, MT, RMT, WIKITEXT, XL

MODELS = (BASELINE, MT, XL, RMT)
Quotes = Mapping[str, Mapping[int, str]]
"""By model; then by number of segments or of symbols."""


def quote(quotes: Quotes, model: str, at: int) -> str:
    return quotes.get(model, {}).get(at, "not reported")


def beside(quotes: Quotes, at: int, *models: str) -> str:
    """The published values of several models at one number of segments or symbols."""
    return ", ".join(f"{model} {quote(quotes, model, at)}" for model in models)


COPY: Quotes = {
    BASELINE: {1: "1.0", 3: "0.118 (3 runs)", 6: "0.102", 9: "0.102 (5 runs)"},
    MT: {3: "0.119 (3 runs)", 6: "0.101", 9: "0.100"},
    XL: {1: "1.0", 3: "0.9997 (3 runs)", 6: "0.967 ± 0.055 (3 runs)", 9: "0.278 ± 0.121 (11 runs)"},
    RMT: {1: "1.0", 3: "1.0 (3 runs)", 6: "1.0 (3 runs)", 9: "1.0 (4 runs)"},
}
REVERSE: Quotes = {
    BASELINE: {1: "1.0", 2: "0.102", 4: "0.101", 6: "0.102 (6 runs)"},
    MT: {2: "0.102"},
    XL: {1: "1.0", 2: "0.783 ± 0.262 (4 runs)", 4: "0.861 ± 0.024 (3 runs)", 6: "0.666 ± 0.028 (8 runs)"},
    RMT: {1: "1.0", 2: "1.0 (4 runs)", 4: "1.0 (3 runs)", 6: "0.90 ± 0.154 (6 runs)"},
}
RETRIEVAL: Quotes = {
    BASELINE: {1: "1.0", 2: "0.496", 3: "0.099", 5: "0.099"},
    MT: {2: "0.191", 3: "0.139", 5: "0.109"},
    XL: {2: "1.0 (3 runs)", 3: "0.849 ± 0.160 (3 runs)", 5: "0.988 ± 0.018 (7 runs)"},
    RMT: {2: "0.990 ± 0.018 (4 runs)", 3: "0.992 ± 0.005 (3 runs)", 5: "0.965 ± 0.037 (3 runs)"},
}
HALF_COPY: Quotes = {
    XL: {3: "0.832", 6: "0.542 ± 0.262 (4 runs)"},
    RMT: {3: "1.0", 6: "1.0 (4 runs)"},
}
HALF_REVERSE: Quotes = {
    XL: {2: "0.996", 4: "0.800 ± 0.023 (4 runs)"},
    RMT: {2: "1.0", 4: "1.0 (3 runs)"},
}
LONG_REVERSE: Quotes = {
    XL: {2: "0.861 ± 0.059", 4: "0.614", 6: "0.668"},
    RMT: {2: "0.959 ± 0.036", 4: "0.997", 6: "1.0"},
}
"""Sequences of 120, memory 60."""
LONG_COPY_BY_SEGMENTS: Quotes = {
    BASELINE: {1: "1.0", 3: "0.125"},
    XL: {3: "0.779 ± 0.128", 6: "0.125", 9: "0.136"},
    RMT: {3: "1.0", 6: "1.0", 9: "1.0"},
}
"""Sequences of 120, 360 tokens with their copies."""
LONG_COPY_MEMORY = {3: 60, 6: 30, 9: 40}
"""Memory tokens or slots by segments; the figure's caption says 60 for all of them."""
LONG_COPY_BY_SIZE: Quotes = {
    XL: {120: "0.779 ± 0.128", 240: "0.125", 360: "0.125"},
    RMT: {120: "1.0", 240: "0.883 ± 0.213 (4 runs)", 360: "0.579 (1 run)"},
}
"""By the number of symbols, in segments of 120 with a memory of 60."""
QUADRATIC = {BASELINE: "0.99 ± 0.01", XL: "0.93", RMT: "0.99 ± 0.002"}
"""The paper's Table 1; the result files have 0.98, 0.999 and 0.998 for RMT."""

LITERATURE = {
    WIKITEXT: ("Transformer-XL (Dai et al., 2019)", 150, 150, "24.0"),
    ENWIK8: ("Transformer-XL (Dai et al., 2019)", 512, 512, "1.06"),
}
"""Rows that the paper itself quotes: model, memory, segment, result."""
