"""The page of `mnemo analyse`: where memory helps on a text, what attention looks at, what memories keep of their past.

Losses are in bits per token, whatever the tokens are: what memory saves adds up over a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from mnemo.analysis import Alpha, AttentionByDistance, Gain
from mnemo.report import frame, shaded_text
from mnemo.report.content import Figure
from mnemo.report.figure_files import write_figures
from mnemo.report.files import csv_text, write_text
from mnemo.report.frame import Section
from mnemo.report.markup import Markup, join, tag
from mnemo.report.measures import bits
from mnemo.report.plots import Line, heat_figure, line_figure
from mnemo.report.scales import number

FILES = "report-files"
TOKENS = "tokens.csv"
MOST_POINTS = 120
"""Of a curve: longer ones show means of neighbours."""
MOST_LINES = 6
MOST_HEADS = 12


@dataclass(frozen=True, kw_only=True)
class TextAnalysis:
    """What was found out about one text."""

    run: str
    text: str
    """Its name."""
    ids: Sequence[int]
    pieces: Sequence[str]
    """What each token looks like; a character of several tokens is the last one's."""
    unit: str
    """What a token is: byte, char, word, bpe."""
    facts: Sequence[tuple[str, str]]
    gain: Gain
    attention: AttentionByDistance | None = None
    alpha: Alpha | None = None
    left_out: Sequence[str] = ()
    """What the page does not show, and why."""


def write_analysis(found: TextAnalysis, folder: Path) -> Path:
    """Write `folder`/report.html, with its figures as SVG and CSV, and every token's losses, in report-files/."""
    sections = [section for section in _sections(found) if section is not None]
    drawn = [figure for section in sections for figure in section.figures]
    write_figures(folder / FILES, drawn, {TOKENS: _token_table(found)})
    path = folder / "report.html"
    lead = f"What {found.run} makes of {len(found.ids):,} tokens, segments of {found.gain.segment:,} at a time."
    page = frame.build(found.text, lead, sections, problems=found.left_out, top=_cards(found))
    write_text(path, page)
    return path


def _token_table(found: TextAnalysis) -> str:
    rows = zip(
        found.ids[1:], found.pieces[1:], found.gain.with_memory, found.gain.without, found.gain.gain, strict=True
    )
    headers = ("place", "id", "token", "nats with memory", "nats without", "gain")
    return csv_text(headers, [(place, *row) for place, row in enumerate(rows, 1)])


def _cards(found: TextAnalysis) -> Markup:
    gain = found.gain
    kept, lost, saved = (bits(float(part.mean())) for part in (gain.with_memory, gain.without, gain.gain))
    helped = float((bits_of(gain.gain) > shaded_text.EDGES[0]).mean())
    harmed = float((bits_of(gain.gain) < -shaded_text.EDGES[0]).mean())
    cards = [
        ("With memory", number(kept), "bits", f"per {_token(found.unit)}, on average"),
        ("Without", number(lost), "bits", "the memory emptied before every segment"),
        ("Memory saves", number(saved), "bits", f"{saved / lost:.1%} of the loss" if lost > 0 else ""),
        ("Tokens it helps", f"{helped:.0%}", "", f"by {shaded_text.EDGES[0]} bits or more; it harms {harmed:.0%}"),
    ]
    drawn = [
        tag(
            "div",
            tag("dt", label),
            tag("dd", tag("div", value, tag("small", f" {unit}"), class_="big"), tag("div", detail, class_="detail")),
            class_="card",
        )
        for label, value, unit, detail in cards
    ]
    return tag("dl", *drawn, class_="cards")


def _token(unit: str) -> str:
    return {"byte": "byte", "char": "character", "word": "word"}.get(unit, "token")


def bits_of(nats: np.ndarray) -> np.ndarray:
    return nats / np.log(2)


def _sections(found: TextAnalysis) -> list[Section | None]:
    return [
        frame.figure_section(
            "losses",
            "Where memory helps",
            "Every token was predicted twice: behind the memory of all segments before, and with the memory emptied "
            "before its segment. A segment's first tokens then see next to nothing, so memory helps them most.",
            [_curve(found), _along(found), _by_position(found)],
            FILES,
        ),
        _passages(found),
        _strip(found),
        _attention(found),
        _alpha(found),
        Section("facts", "How it was measured", "", tag("div", frame.facts_list(found.facts), class_="card run")),
    ]


def binned(values: np.ndarray, first: int = 0, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """(x, y) of neighbours' means, at most so many; x is the middle of those averaged."""
    edges = np.linspace(0, len(values), min(most, len(values)) + 1).astype(int).tolist()
    pairs = zip(edges, edges[1:], strict=False)
    return [(first + (begin + end - 1) / 2, float(values[begin:end].mean())) for begin, end in pairs]


def _curve(found: TextAnalysis) -> Figure:
    lines = [
        Line("without memory", binned(bits_of(found.gain.without), 1)),
        Line("with memory", binned(bits_of(found.gain.with_memory), 1)),
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
        "What memory saves along the text",
        _averaged(found),
        [Line("gain", binned(bits_of(found.gain.gain), 1))],
        x_label="token",
        y_label="bits saved per token",
        reference=("no gain", 0.0),
    )


def _by_position(found: TextAnalysis) -> Figure:
    lines = [Line("gain", binned(bits_of(found.gain.by_position()), 1))]
    return line_figure(
        "gain-by-position",
        "Inside a segment",
        "What memory saves at each position of a segment, the first segment left out.",
        lines,
        x_label="position in the segment",
        y_label="bits saved per token",
        reference=("no gain", 0.0),
    )


def _passages(found: TextAnalysis) -> Section | None:
    chosen = shaded_text.passages(found.gain, found.unit)
    if not chosen:
        return None
    about = (
        "The passages where memory saves most, beyond what it saves at such places of a segment anyway. "
        "What comes before is grey; what memory could see of it is farther back."
    )
    drawn = [shaded_text.draw_passage(passage, found.pieces, bits_of(found.gain.gain)) for passage in chosen]
    return Section("passages", "Largest gains", about, tag("div", *drawn, class_="columns"))


def _strip(found: TextAnalysis) -> Section:
    shown = min(len(found.pieces), shaded_text.MOST_SHOWN)
    body = tag(
        "div",
        shaded_text.legend(),
        tag(
            "pre", shaded_text.shaded(found.pieces[:shown], bits_of(found.gain.gain), found.gain.segment), tabindex="0"
        ),
        tag("p", tag("a", "Every token's losses as CSV", href=quote(f"{FILES}/{TOKENS}")), class_="links"),
        class_="card sample gains",
    )
    cut = f" The first {shown:,} tokens are shown." if shown < len(found.pieces) else ""
    return Section(
        "text", "The text", f"Shaded by what memory saves on each token; a bar opens every segment.{cut}", body
    )


def _attention(found: TextAnalysis) -> Section | None:
    if found.attention is None:
        return None
    about = (
        f"What {found.attention.queries:,} tokens attend to, on average. Distance 0 is the token itself; the next "
        "token is what it predicts."
    )
    drawn = [_buckets(found.attention), _heads(found.attention)]
    section = frame.figure_section("attention", "Attention by distance", about, drawn, FILES)
    assert section is not None
    return Section(section.slug, section.title, about, join([section.body, _wide(found.attention)]), section.figures)


def _buckets(attention: AttentionByDistance) -> Figure:
    labels, shares = attention.buckets()
    columns, grid = list(labels), shares.tolist()
    if bool((attention.memory_tokens > 0).any()):
        columns.append("memory tokens")
        grid = [[*row, value] for row, value in zip(grid, attention.memory_tokens.mean(1).tolist(), strict=True)]
    return heat_figure(
        "attention-by-layer",
        "Share of each layer's attention",
        "How much of its attention a layer spends at which distance, its heads averaged.",
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
        "Mean attention at each distance, over the tokens that see that far; the fifth of the heads that reaches "
        "farthest is outlined.",
        heads.tolist(),
        x_label="tokens back",
        y_label="layer.head",
        row_labels=attention.rows(),
        column_labels=range(heads.shape[1]),
        logarithmic=True,
        marked=frozenset(wide),
    )


def _wide(attention: AttentionByDistance) -> Markup:
    rows = [(f"{head.layer + 1}.{head.head + 1}", head.reach) for head in attention.wide_heads()[:MOST_HEADS]]
    listed = frame.value_table(("wide head (layer.head)", "mean distance in tokens"), rows)
    return tag("div", listed, class_="card wide scroll small")


def _alpha(found: TextAnalysis) -> Section | None:
    if found.alpha is None:
        return None
    about = (
        "How much of each memory row is what it was, and how much it has looked up ahead: alpha is 1 where the past "
        f"is all, averaged over heads and {found.alpha.segments:,} segments. Slot 1 is the oldest."
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
    return frame.figure_section("alpha-section", "What memories keep", about, [curve, heat], FILES)
