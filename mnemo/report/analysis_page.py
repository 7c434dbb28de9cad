"""The page of `mnemo analyse`: where memory helps on a text, attention by distance, what memories keep of their past.

Losses are in bits per token for all kinds of tokens, so that savings can be summed over a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mnemo.analysis import Alpha, AttentionByDistance, Gain
from mnemo.report import page_template, shaded_text
from mnemo.report.figure import Figure
from mnemo.report.figure_files import write_figures
from mnemo.report.files import csv_text, write_text
from mnemo.report.findings import Table
from mnemo.report.number_text import number
from mnemo.report.page_template import Card, Section, figure_section
from mnemo.report.plots import Line, heat_figure, line_figure
from mnemo.units import bits

FILES = "report-files"
TOKENS, WIDE_HEADS = "tokens.csv", "wide-heads.csv"
MOST_POINTS = 120
"""Points of a curve; longer ones show means of neighbours."""
MOST_LINES = 6
MOST_HEADS = 12


@dataclass(frozen=True, kw_only=True)
class TextAnalysis:
    """Measurements on one text."""

    run: str
    text: str
    """Its name."""
    ids: Sequence[int]
    pieces: Sequence[str]
    """The text of each token; a character of several tokens belongs to the last one."""
    unit: str
    """Kind of token: byte, char, word, bpe."""
    facts: Sequence[tuple[str, str]]
    gain: Gain
    attention: AttentionByDistance | None = None
    alpha: Alpha | None = None
    left_out: Sequence[str] = ()
    """Parts that the page does not show, and why."""


def write_analysis(found: TextAnalysis, folder: Path) -> Path:
    """Write `folder`/report.html, with its figures as SVG and CSV, and every token's losses, in report-files/."""
    sections = [section for section in _sections(found) if section is not None]
    drawn = [figure for section in sections for figure in section.figures]
    others = {TOKENS: _token_table(found)}
    if found.attention is not None:
        table = _wide_heads(found.attention)
        others[WIDE_HEADS] = csv_text(table.headers, table.rows)
    write_figures(folder / FILES, drawn, others)
    path = folder / "report.html"
    lead = f"{found.run} on {len(found.ids):,} tokens, in segments of {found.gain.segment:,}."
    html = page_template.build(found.text, lead, sections, folder=FILES, problems=found.left_out, cards=_cards(found))
    write_text(path, html)
    return path


def _token_table(found: TextAnalysis) -> str:
    rows = zip(
        found.ids[1:], found.pieces[1:], found.gain.with_memory, found.gain.without, found.gain.gain, strict=True
    )
    headers = ("place", "id", "token", "nats with memory", "nats without", "gain")
    return csv_text(headers, [(place, *row) for place, row in enumerate(rows, 1)])


def _cards(found: TextAnalysis) -> list[Card]:
    gain = found.gain
    kept, lost, saved = (bits(float(part.mean())) for part in (gain.with_memory, gain.without, gain.gain))
    helped = float((bits(gain.gain) > shaded_text.EDGES[0]).mean())
    harmed = float((bits(gain.gain) < -shaded_text.EDGES[0]).mean())
    token = {"byte": "byte", "char": "character", "word": "word"}.get(found.unit, "token")
    effect = "Memory saves" if saved >= 0 else "Memory costs"
    return [
        Card("With memory", number(kept), "bits", f"per {token}, on average"),
        Card("Without", number(lost), "bits", "the memory emptied before every segment"),
        Card(effect, number(abs(saved)), "bits", f"{abs(saved) / lost:.1%} of the loss" if lost > 0 else ""),
        Card("Tokens it helps", f"{helped:.0%}", "", f"by {shaded_text.EDGES[0]} bits or more; it harms {harmed:.0%}"),
    ]


def _sections(found: TextAnalysis) -> list[Section | None]:
    return [
        figure_section(
            "losses",
            "Where memory helps",
            "Every token was predicted twice: with the memory of all earlier segments, and with the memory emptied "
            "before its segment. Without memory the first tokens of a segment have almost no context, so memory helps "
            "them most.",
            [_curve(found), _along(found), _by_position(found)],
        ),
        _passages(found),
        _text(found),
        *_attention(found),
        _alpha(found),
        Section("facts", "How it was measured", "", "facts.html.j2", found.facts),
    ]


def binned(values: np.ndarray, first: int = 0, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` points (x, y): means of neighbouring values, at the middle of their indices."""
    edges = np.linspace(0, len(values), min(most, len(values)) + 1).astype(int).tolist()
    pairs = zip(edges, edges[1:], strict=False)
    return [(first + (begin + end - 1) / 2, float(values[begin:end].mean())) for begin, end in pairs]


def _curve(found: TextAnalysis) -> Figure:
    lines = [
        Line("without memory", binned(bits(found.gain.without), 1)),
        Line("with memory", binned(bits(found.gain.with_memory), 1)),
    ]
    return line_figure(
        "losses-along-the-text", "Along the text", _averaged(found), lines, x_label="token", y_label="bits per token"
    )


def _averaged(found: TextAnalysis) -> str:
    count = -(-len(found.gain.gain) // MOST_POINTS)
    return f"Each point is the mean of about {count} tokens." if count > 1 else "A point for every token."


def _along(found: TextAnalysis) -> Figure:
    return line_figure(
        "gain-along-the-text",
        "Savings along the text",
        _averaged(found),
        [Line("gain", binned(bits(found.gain.gain), 1))],
        x_label="token",
        y_label="bits saved per token",
        reference=("no gain", 0.0),
    )


def _by_position(found: TextAnalysis) -> Figure:
    lines = [Line("gain", binned(bits(found.gain.by_position()), 1))]
    return line_figure(
        "gain-by-position",
        "Inside a segment",
        "Bits that memory saves at each position of a segment, without the first segment.",
        lines,
        x_label="position in the segment",
        y_label="bits saved per token",
        reference=("no gain", 0.0),
    )


def _passages(found: TextAnalysis) -> Section | None:
    gains = bits(found.gain.gain)
    chosen = shaded_text.passages(found.gain, found.unit)
    about = (
        "The passages on which memory saves most, compared with its usual savings at the same positions of a segment. "
        "The text before each is grey; memory may also have used text farther back."
    )
    content = [shaded_text.passage_content(passage, found.pieces, gains) for passage in chosen]
    return Section("passages", "Largest gains", about, "passages.html.j2", content) if chosen else None


def _text(found: TextAnalysis) -> Section:
    shown = min(len(found.pieces), shaded_text.MOST_SHOWN)
    pieces = shaded_text.shaded(found.pieces[:shown], bits(found.gain.gain), found.gain.segment)
    cut = f" The first {shown:,} tokens are shown." if shown < len(found.pieces) else ""
    about = f"Shaded by the bits that memory saves on each token; a vertical bar begins every segment.{cut}"
    content = {"levels": shaded_text.LEVELS, "pieces": pieces, "file": TOKENS}
    return Section("text", "The text", about, "shaded_text.html.j2", content)


def _attention(found: TextAnalysis) -> list[Section | None]:
    if found.attention is None:
        return []
    about = (
        f"The attention of {found.attention.queries:,} tokens, averaged. Distance 0 is the token itself; the next "
        "token is the one that it predicts."
    )
    drawn = [_buckets(found.attention), _heads(found.attention)]
    tables = {WIDE_HEADS: _wide_heads(found.attention)}
    return [
        figure_section("attention", "Attention by distance", about, drawn),
        Section("wide-heads", "Heads that reach farthest", "", "tables.html.j2", tables),
    ]


def _buckets(attention: AttentionByDistance) -> Figure:
    labels, shares = attention.buckets()
    columns, grid = list(labels), shares.tolist()
    if bool((attention.memory_tokens > 0).any()):
        columns.append("memory tokens")
        grid = [[*row, value] for row, value in zip(grid, attention.memory_tokens.mean(1).tolist(), strict=True)]
    return heat_figure(
        "attention-by-layer",
        "Share of each layer's attention",
        "Share of a layer's attention at each distance, averaged over its heads.",
        grid,
        x_label="tokens back",
        y_label="layer",
        row_labels=[layer + 1 for layer in attention.layers],
        column_labels=columns,
    )


def _heads(attention: AttentionByDistance) -> Figure:
    heads = attention.where_visible().flatten(0, 1)
    width = attention.mass.shape[1]
    wide = {attention.layers.index(head.layer) * width + head.head for head in attention.wide_heads()}
    return heat_figure(
        "attention-by-head",
        "Every head",
        "Mean attention at each distance, over the tokens that can see that far. Outlined: the fifth of the heads "
        "that reaches farthest.",
        heads.tolist(),
        x_label="tokens back",
        y_label="layer.head",
        row_labels=attention.rows(),
        column_labels=range(heads.shape[1]),
        logarithmic=True,
        marked=frozenset(wide),
    )


def _wide_heads(attention: AttentionByDistance) -> Table:
    rows = [(f"{head.layer + 1}.{head.head + 1}", head.reach) for head in attention.wide_heads()[:MOST_HEADS]]
    return Table("Wide heads", ("wide head (layer.head)", "mean distance in tokens"), rows)


def _alpha(found: TextAnalysis) -> Section | None:
    if found.alpha is None:
        return None
    about = (
        "Alpha is the share of each memory slot that keeps its past; the rest is replaced by looking ahead. Averaged "
        f"over heads and {found.alpha.segments:,} segments. Slot 1 is the oldest."
    )
    mean = found.alpha.mean
    chosen = sorted(set(np.linspace(0, len(mean) - 1, min(MOST_LINES, len(mean))).round().astype(int).tolist()))
    lines = [Line(f"layer {found.alpha.layers[at] + 1}", binned(mean[at].numpy(), 1)) for at in chosen]
    caption = "One line a layer" + ("." if len(chosen) == len(mean) else f", {len(chosen)} of {len(mean)}.")
    curve = line_figure("alpha", "Alpha", caption, lines, x_label="memory slot", y_label="alpha", y_max=1.0)
    heat = heat_figure(
        "alpha-by-layer",
        "Every layer",
        "Alpha of each layer and slot.",
        mean.tolist(),
        x_label="memory slot",
        y_label="layer",
        row_labels=[layer + 1 for layer in found.alpha.layers],
    )
    return figure_section("alpha-section", "What memories keep", about, [curve, heat])
