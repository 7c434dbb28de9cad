"""Numbers of the paper and of its authors' result files, as text: mean, deviation and number of runs.

Accuracies are means over runs from the result files, whose values the figures show. Segment counts are real: the figure
of the retrieval task shows two of its points one segment too far to the right, because ten tokens cut into pieces of 4
and of 3 give 2 and 3 pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BASELINE, MT, XL, RMT = "Baseline", "MT", "Transformer-XL", "RMT"
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

WIKITEXT, ENWIK8 = "wikitext-103", "enwik8"
LANGUAGE: Mapping[tuple[str, int, str, int], Sequence[str]] = {
    (WIKITEXT, 150, BASELINE, 0): ("29.95 ± 0.15",),
    (WIKITEXT, 150, MT, 10): ("29.63 ± 0.06",),
    (WIKITEXT, 150, MT, 25): ("29.67 ± 0.03",),
    (WIKITEXT, 150, MT, 75): ("29.69 ± 0.02",),
    (WIKITEXT, 150, MT, 150): ("29.82 ± 0.35",),
    (WIKITEXT, 150, XL, 150): ("24.12 ± 0.05",),
    (WIKITEXT, 150, XL, 75): ("24.68 ± 0.01",),
    (WIKITEXT, 150, XL, 25): ("25.57 ± 0.02",),
    (WIKITEXT, 150, RMT, 10): ("26.85 ± 0.02", "25.92 ± 1.07", "25.32 ± 0.61", "25.04 ± 0.07"),
    (WIKITEXT, 150, RMT, 25): ("29.73", "24.91", "24.85 ± 0.31"),
    (WIKITEXT, 50, BASELINE, 0): ("39.05 ± 0.01",),
    (WIKITEXT, 50, XL, 200): ("25.14",),
    (WIKITEXT, 50, XL, 100): ("25.66 ± 0.01",),
    (WIKITEXT, 50, XL, 50): ("26.54 ± 0.01",),
    (WIKITEXT, 50, XL, 25): ("27.57 ± 0.09",),
    (WIKITEXT, 50, XL, 10): ("28.98 ± 0.11",),
    (WIKITEXT, 50, XL, 5): ("30.06 ± 0.07",),
    (WIKITEXT, 50, XL, 1): ("32.35 ± 0.03",),
    (WIKITEXT, 50, RMT, 1): ("31.33 ± 1.26", "28.71 ± 0.03", "28.44", "28.40 ± 0.03"),
    (WIKITEXT, 50, RMT, 5): ("30.32 ± 0.18", "27.05 ± 0.20", "26.83 ± 0.18", "26.75 ± 0.26", "26.67 ± 0.03"),
    (WIKITEXT, 50, RMT, 10): ("30.69 ± 0.01", "27.95 ± 1.32", "26.62 ± 0.34", "26.37 ± 0.01", "26.25 ± 0.19"),
    (WIKITEXT, 50, RMT, 25): ("29.75", "26.32", "27.31"),
    (WIKITEXT, 50, RMT, 50): ("29.75", "26.03"),
    (ENWIK8, 512, XL, 512): ("1.071",),
    (ENWIK8, 128, BASELINE, 0): ("1.402 (result files)",),
    (ENWIK8, 128, XL, 200): ("1.140",),
    (ENWIK8, 128, XL, 100): ("1.178",),
    (ENWIK8, 128, XL, 75): ("1.196",),
    (ENWIK8, 128, XL, 40): ("1.230 ± 0.001",),
    (ENWIK8, 128, XL, 20): ("1.261",),
    (ENWIK8, 128, XL, 10): ("1.283 ± 0.001",),
    (ENWIK8, 128, RMT, 5): ("", "1.241 ± 0.002", "1.231 ± 0.002"),
    (ENWIK8, 128, RMT, 10): ("", "1.240 ± 0.006", "1.228 ± 0.003"),
    (ENWIK8, 128, RMT, 20): ("1.301", "1.229", "1.222"),
}
"""Tables 2 to 4, perplexity or bits per character by corpus, segment, model and memory; a value for each BPTT depth."""
LITERATURE = {
    WIKITEXT: ("Transformer-XL (Dai et al., 2019)", 150, 150, "24.0"),
    ENWIK8: ("Transformer-XL (Dai et al., 2019)", 512, 512, "1.06"),
}
"""Rows that the paper itself quotes: model, memory, segment, result."""
