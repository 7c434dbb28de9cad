"""Colours of pages and figures, in light and in dark, and their style sheets.

Text has a contrast of at least 4.5 to its background, lines at least 3. The first three series colours can be
distinguished with any colour vision.
"""

from __future__ import annotations

from pathlib import Path

NUM_COLORS = 8
NUM_SHADES = 16
"""Shades of heat maps, from near the background to far from it."""


def _ramp(*stops: str) -> dict[str, str]:
    """`h0` to `h15`, evenly spaced on the straight lines between the given colours."""
    points = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in stops]
    shades = {}
    for shade in range(NUM_SHADES):
        at = shade / (NUM_SHADES - 1) * (len(points) - 1)
        begin = min(int(at), len(points) - 2)
        mixed = (round(a + (b - a) * (at - begin)) for a, b in zip(points[begin], points[begin + 1], strict=True))
        shades[f"h{shade}"] = "#" + "".join(f"{channel:02x}" for channel in mixed)
    return shades


LIGHT = {
    "page": "#f7f6f3",
    "card": "#ffffff",
    "ink": "#1c2230",
    "muted": "#5a6373",
    "rule": "#e3e1db",
    "grid": "#ecebe6",
    "sunk": "#f3f2ee",
    "accent": "#3b4cbf",
    "warn": "#8a5a00",
    "warnbg": "#fdf3dc",
    "shadow": "#1c223033",
    "good": "#1a6e3a",
    "bad": "#b02a2a",
    "c0": "#3b4cc0",
    "c1": "#d1600a",
    "c2": "#0b8577",
    "c3": "#b02a8a",
    "c4": "#8f6b00",
    "c5": "#0b7fb8",
    "c6": "#c0293f",
    "c7": "#5a6374",
} | _ramp("#eef1fa", "#aabcf0", "#5a6fd6", "#2f3aa3", "#161a4d")
"""No colour occurs twice: figures are drawn in these colours, and pages replace each by the variable of its name."""
DARK = {
    "page": "#11141b",
    "card": "#191e28",
    "ink": "#e7eaf1",
    "muted": "#9ca6b8",
    "rule": "#2b3240",
    "grid": "#262d3a",
    "sunk": "#141923",
    "accent": "#93a4ff",
    "warn": "#f0c674",
    "warnbg": "#2c2617",
    "shadow": "#000000b0",
    "good": "#6fd392",
    "bad": "#ff8f8f",
    "c0": "#8c9eff",
    "c1": "#ff9a52",
    "c2": "#4dd0bd",
    "c3": "#ee8bd0",
    "c4": "#e0b84c",
    "c5": "#5fc3f2",
    "c6": "#ff8a97",
    "c7": "#a9b3c4",
} | _ramp("#1f2534", "#33408a", "#6478e0", "#a6b4ff", "#f2f4ff")
GAIN_SHADES = (0.14, 0.28, 0.44, 0.6)
"""Opacity of the background of a token that memory helps or harms, from little to much."""
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
CHART_CSS = (
    f".chart{{font:12px {FONT};font-variant-numeric:tabular-nums;stroke-linejoin:round}}.chart .dark{{display:none}}"
)


def page_css() -> str:
    """The style sheet of a page."""
    light, dark = ("".join(f"--{name}:{color};" for name, color in colors.items()) for colors in (LIGHT, DARK))
    fixed = (Path(__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")
    rules = [f".dot.c{color}{{background:var(--c{color})}}" for color in range(NUM_COLORS)]
    for level, opacity in enumerate(GAIN_SHADES, 1):
        rules += [f".gains .p{level}{{background:rgb(11 133 119/{opacity})}}"]
        rules += [f".gains .n{level}{{background:rgb(209 96 10/{opacity})}}"]
    return (
        f"{CHART_CSS}:root{{color-scheme:light dark;--font:{FONT};--mono:{MONO};{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}"
        f".chart .light{{display:none}}.chart .dark{{display:inline}}}}{''.join(rules)}\n{fixed}"
    )
