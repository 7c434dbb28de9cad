"""Numbers of the paper and of its authors' result files.

Accuracies are means over runs from the result files, whose values the figures show; deviations where there were several
runs. Segment counts are real: the figure of the retrieval task shows two of its points one segment too far to the right
(`RETRIEVAL_AS_PLOTTED`), because ten tokens cut into pieces of 4 and of 3 give 2 and 3 pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Quoted(NamedTuple):
    mean: float
    deviation: float | None = None
    runs: int | None = None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation}"
        runs = "" if self.runs is None else f" ({self.runs} run{'s' if self.runs > 1 else ''})"
        return f"{self.mean}{spread}{runs}"


BASELINE, MT, XL, RMT = "Baseline", "MT", "Transformer-XL", "RMT"
MODELS = (BASELINE, MT, XL, RMT)
Quotes = Mapping[tuple[str, int], Quoted]
"""By model and number of segments, or model and size."""


def said(quoted: Quoted | None) -> str:
    return "not reported" if quoted is None else str(quoted)


def beside(quoted: Quotes, at: int, *models: str) -> str:
    """The published values of several models at one number of segments, or one size."""
    return ", ".join(f"{model} {said(quoted.get((model, at)))}" for model in models)


COPY: Quotes = {
    **{(model, 1): Quoted(1.0) for model in (BASELINE, XL, RMT)},
    (BASELINE, 3): Quoted(0.118, None, 3),
    (MT, 3): Quoted(0.119, None, 3),
    (XL, 3): Quoted(0.9997, None, 3),
    (RMT, 3): Quoted(1.0, None, 3),
    (BASELINE, 6): Quoted(0.102),
    (MT, 6): Quoted(0.101),
    (XL, 6): Quoted(0.967, 0.055, 3),
    (RMT, 6): Quoted(1.0, None, 3),
    (BASELINE, 9): Quoted(0.102, None, 5),
    (MT, 9): Quoted(0.100),
    (XL, 9): Quoted(0.278, 0.121, 11),
    (RMT, 9): Quoted(1.0, None, 4),
}
REVERSE: Quotes = {
    **{(model, 1): Quoted(1.0) for model in (BASELINE, XL, RMT)},
    (BASELINE, 2): Quoted(0.102),
    (MT, 2): Quoted(0.102),
    (XL, 2): Quoted(0.783, 0.262, 4),
    (RMT, 2): Quoted(1.0, None, 4),
    (BASELINE, 4): Quoted(0.101),
    (XL, 4): Quoted(0.861, 0.024, 3),
    (RMT, 4): Quoted(1.0, None, 3),
    (BASELINE, 6): Quoted(0.102, None, 6),
    (XL, 6): Quoted(0.666, 0.028, 8),
    (RMT, 6): Quoted(0.90, 0.154, 6),
}
RETRIEVAL: Quotes = {
    (BASELINE, 1): Quoted(1.0),
    (BASELINE, 2): Quoted(0.496),
    (MT, 2): Quoted(0.191),
    (XL, 2): Quoted(1.0, None, 3),
    (RMT, 2): Quoted(0.990, 0.018, 4),
    (BASELINE, 3): Quoted(0.099),
    (MT, 3): Quoted(0.139),
    (XL, 3): Quoted(0.849, 0.160, 3),
    (RMT, 3): Quoted(0.992, 0.005, 3),
    (BASELINE, 5): Quoted(0.099),
    (MT, 5): Quoted(0.109),
    (XL, 5): Quoted(0.988, 0.018, 7),
    (RMT, 5): Quoted(0.965, 0.037, 3),
}
RETRIEVAL_AS_PLOTTED = {1: 1, 2: 2, 3: 2, 4: 3, 5: 5}
"""Segments that the figure shows -> segments that the models read."""

HALF_COPY: Quotes = {
    (XL, 3): Quoted(0.832),
    (RMT, 3): Quoted(1.0),
    (XL, 6): Quoted(0.542, 0.262, 4),
    (RMT, 6): Quoted(1.0, None, 4),
}
HALF_REVERSE: Quotes = {
    (XL, 2): Quoted(0.996),
    (RMT, 2): Quoted(1.0),
    (XL, 4): Quoted(0.800, 0.023, 4),
    (RMT, 4): Quoted(1.0, None, 3),
}
LONG_REVERSE: Quotes = {
    (XL, 2): Quoted(0.861, 0.059),
    (RMT, 2): Quoted(0.959, 0.036),
    (XL, 4): Quoted(0.614),
    (RMT, 4): Quoted(0.997),
    (XL, 6): Quoted(0.668),
    (RMT, 6): Quoted(1.0),
}
"""Sequences of 120, memory 60."""

LONG_COPY_BY_SEGMENTS: Quotes = {
    (BASELINE, 1): Quoted(1.0),
    (BASELINE, 3): Quoted(0.125),
    (XL, 3): Quoted(0.779, 0.128),
    (RMT, 3): Quoted(1.0),
    (XL, 6): Quoted(0.125),
    (RMT, 6): Quoted(1.0),
    (XL, 9): Quoted(0.136),
    (RMT, 9): Quoted(1.0),
}
"""Sequences of 120, 360 tokens with their copies."""
LONG_COPY_MEMORY = {3: 60, 6: 30, 9: 40}
"""Memory tokens or slots by segments; the figure's caption says 60 for all of them."""
LONG_COPY_BY_SIZE: Quotes = {
    (XL, 120): Quoted(0.779, 0.128),
    (RMT, 120): Quoted(1.0),
    (XL, 240): Quoted(0.125),
    (RMT, 240): Quoted(0.883, 0.213, 4),
    (XL, 360): Quoted(0.125),
    (RMT, 360): Quoted(0.579, None, 1),
}
"""By the size of the sequence, in segments of 120 with a memory of 60."""

QUADRATIC: dict[str, Quoted] = {
    BASELINE: Quoted(0.99, 0.01),
    XL: Quoted(0.93),
    RMT: Quoted(0.99, 0.002),
}
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
