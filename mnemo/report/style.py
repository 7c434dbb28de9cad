"""The page's and the figures' style. Colours keep a contrast of at least 3 (lines) or 4.5 (text) to their ground,
in light and in dark; the first three series colours are told apart with any colour vision.
"""

from __future__ import annotations

NUM_COLORS = 8
NUM_SHADES = 16
"""Steps of the ramp for heat maps: from near the ground to far from it."""


def _ramp(*stops: str) -> dict[str, str]:
    """`h0` to `h15`, at equal distances along the way through these colours."""
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
    "accent": "#3b4cc0",
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
    "c7": "#5a6373",
} | _ramp("#eef1fa", "#aabcf0", "#5a6fd6", "#2f3aa3", "#161a4d")
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
"""How dense the ground of a token is that memory helps or harms: the less to the more."""
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def _variables(colors: dict[str, str]) -> str:
    return "".join(f"--{name}:{color};" for name, color in colors.items())


def _series_colors() -> str:
    rules = (
        f".chart .series.c{i}{{stroke:var(--c{i})}}.chart :is(.marker,.fill,.band).c{i}{{fill:var(--c{i})}}"
        for i in range(NUM_COLORS)
    )
    shades = (f".chart .h{i}{{fill:var(--h{i})}}" for i in range(NUM_SHADES))
    return "".join([*rules, *shades])


CHART_CSS = (
    f".chart{{font-family:{FONT};font-size:12px;font-variant-numeric:tabular-nums}}"
    ".chart text{fill:var(--ink);stroke:none}"
    ".chart .tick,.chart .axis{fill:var(--muted)}"
    ".chart .halo{paint-order:stroke;stroke:var(--card);stroke-width:3;stroke-linejoin:round}"
    ".chart .value{font-weight:600}"
    ".chart .heading{font-weight:650;font-size:15px}"
    ".chart .grid{stroke:var(--grid);stroke-width:1}"
    ".chart .base{stroke:var(--muted);stroke-width:1;opacity:.6}"
    ".chart .reference{stroke:var(--muted);stroke-width:1.2;stroke-dasharray:2 4}"
    ".chart .series{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".chart .faint{stroke-width:1.1;opacity:.5}"
    ".chart .dash1{stroke-dasharray:7 4}.chart .dash2{stroke-dasharray:2 4}"
    ".chart .marker{stroke:var(--card);stroke-width:1}"
    ".chart .track{fill:var(--sunk)}"
    ".chart .segment{fill:var(--muted);opacity:.35}"
    ".chart .short{opacity:.45}"
    ".chart .band{opacity:.18}"
    ".chart .on-dense{fill:var(--card)}.chart .on-middle{fill:#000}"
    ".chart .absent{stroke:var(--muted);stroke-width:1;opacity:.6}"
    ".chart .marked{fill:none;stroke:var(--c1);stroke-width:2}"
    ".chart .mark{fill:var(--c1)}" + _series_colors()
)

PAGE_CSS = f"""
:root{{color-scheme:light dark;{_variables(LIGHT)}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%}}
body{{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 {FONT}}}
.page{{max-width:1180px;margin:0 auto;padding:0 24px 64px}}
header{{padding:44px 0 8px}}
.brand{{display:flex;align-items:center;gap:10px;color:var(--muted);font-size:14px;font-weight:600;letter-spacing:.02em}}
.brand svg{{width:30px;height:18px}}
h1{{font-size:clamp(27px,4.2vw,40px);line-height:1.15;letter-spacing:-.022em;margin:14px 0 6px;overflow-wrap:anywhere}}
.lead{{color:var(--muted);margin:0;max-width:70ch}}
nav{{margin:20px 0 0;display:flex;flex-wrap:wrap;gap:6px 18px;font-size:14px}}
a{{color:var(--accent);text-decoration:none}}
a:hover{{text-decoration:underline}}
a:focus-visible,summary:focus-visible{{outline:2px solid var(--accent);outline-offset:3px;border-radius:3px}}
section{{margin-top:44px}}
h2{{font-size:22px;letter-spacing:-.012em;line-height:1.25;margin:0 0 4px}}
h2+.card,h2+.columns,h2+.figures,h2+.tables{{margin-top:14px}}
h3{{font-size:16px;margin:0;line-height:1.35;overflow-wrap:anywhere}}
.about{{color:var(--muted);margin:0 0 16px;max-width:72ch}}
.group{{margin:24px 0 10px;font-size:15px;font-weight:600}}
.card{{background:var(--card);border:1px solid var(--rule);border-radius:12px}}
.cards{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,168px),1fr));gap:14px;margin-top:28px}}
.cards .card{{padding:15px 16px 14px}}
.cards dt{{color:var(--muted);font-size:13px;font-weight:600}}
.cards dd{{margin:0}}
.cards .big{{font-size:27px;font-weight:680;letter-spacing:-.025em;line-height:1.2;margin-top:5px}}
.cards .big small{{font-size:15px;font-weight:600;letter-spacing:0;color:var(--muted)}}
.cards .detail{{color:var(--muted);font-size:13.5px;line-height:1.4;margin-top:4px;overflow-wrap:anywhere}}
.figures{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr));gap:16px}}
.figures .high{{grid-row:span 2}}
.small-figures{{grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}}
.small-figures .chart{{font-size:14px}}
figure{{margin:0;padding:16px 18px 12px;break-inside:avoid;min-width:0;display:flex;flex-direction:column}}
figcaption .caption{{color:var(--muted);font-size:13.5px;line-height:1.45;margin:2px 0 8px}}
.chart{{display:block;width:100%;height:auto;overflow:visible}}
.links{{display:flex;gap:14px;align-items:baseline;flex-wrap:wrap;font-size:13px;padding-top:8px;color:var(--muted)}}
figure .links{{margin-top:auto}}
details>summary{{cursor:pointer;color:var(--accent);font-size:13px}}
.links details[open]{{flex-basis:100%}}
.scroll{{overflow-x:auto;max-width:100%}}
.tall{{max-height:340px;overflow:auto}}
table{{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14.5px;width:100%}}
th,td{{text-align:left;padding:9px 14px 9px 0;border-bottom:1px solid var(--rule);vertical-align:top}}
thead th{{color:var(--muted);font-size:13px;font-weight:600;white-space:nowrap;vertical-align:bottom}}
tbody tr:last-child>*{{border-bottom:0}}
th:last-child,td:last-child{{padding-right:0}}
td.n,th.n{{text-align:right}}
td small,th small{{color:var(--muted);display:block;font-size:12.5px;font-weight:400;line-height:1.35}}
.wide{{padding:6px 18px}}
.small table{{font-size:13px}}
.small th,.small td{{padding:4px 12px 4px 0}}
.dot{{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px;flex:none}}
{"".join(f".dot.c{i}{{background:var(--c{i})}}" for i in range(NUM_COLORS))}
.name{{font-weight:600;overflow-wrap:anywhere}}
pre{{font:13px/1.55 {MONO};white-space:pre-wrap;overflow-wrap:anywhere;margin:0;unicode-bidi:isolate;tab-size:4}}
.sample{{padding:16px 18px;margin-bottom:14px}}
.sample pre{{margin-top:10px;background:var(--sunk);border-radius:8px;padding:14px 16px;max-height:460px;overflow:auto}}
.sample mark{{background:none;color:var(--muted)}}
.sample .more{{margin-top:10px}}
.gains :is(pre,.legend) span{{border-radius:2px;-webkit-print-color-adjust:exact;print-color-adjust:exact}}
{"".join(f".gains .p{i}{{background:rgb(11 133 119/{a})}}" for i, a in enumerate(GAIN_SHADES, 1))}
{"".join(f".gains .n{i}{{background:rgb(209 96 10/{a})}}" for i, a in enumerate(GAIN_SHADES, 1))}
.gains [class^=n]{{text-decoration:underline dotted}}
.figures+.card{{margin-top:16px}}
.gains .begin{{border-left:1px solid var(--muted);margin:0 1px}}
.gains .legend{{font-size:13px;color:var(--muted);margin:0}}
.gains .legend span{{color:var(--ink);padding:0 5px;margin-right:3px;white-space:nowrap}}
.notes{{background:var(--warnbg);border:1px solid var(--warn);border-radius:12px;padding:14px 18px;margin-top:24px}}
.notes h2{{font-size:15px;color:var(--warn)}}
.notes ul{{margin:4px 0 0;padding-left:20px;font-size:14px;overflow-wrap:anywhere}}
.columns{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:14px;align-items:start}}
.card+.columns,.card+.card.wide{{margin-top:14px}}
.run{{padding:14px 18px;min-width:0}}
.run dl{{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:8px 0 10px;font-size:14px}}
.run dt{{color:var(--muted)}}
.run dd{{margin:0;overflow-wrap:anywhere}}
.run pre{{background:var(--sunk);border-radius:8px;padding:14px 16px;margin-top:8px}}
.run dl:last-child{{margin-bottom:0}}
.details{{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:2px 16px;margin:16px 0 0;font-size:14.5px}}
.details dt{{color:var(--muted)}}
.details dd{{margin:0;overflow-wrap:anywhere}}
code{{font:.9em {MONO}}}
.verdicts th:nth-child(1){{width:34%}}
.verdicts th:nth-child(2){{width:24%}}
.verdicts tbody th{{font-weight:600}}
.answer{{display:inline-block;white-space:nowrap;font-weight:650;font-size:13.5px;line-height:1.5}}
.answer{{padding:0 10px;border:1.5px solid currentColor;border-radius:99px}}
.answer.yes{{color:var(--good)}}
.answer.no{{color:var(--bad)}}
.answer.open{{color:var(--warn);border-style:dashed}}
.tables{{display:flex;flex-wrap:wrap;gap:14px;align-items:flex-start}}
.table,.entry{{padding:16px 18px 10px;min-width:0;max-width:100%}}
.entry+.entry{{margin-top:14px}}
.table .caption{{color:var(--muted);font-size:13.5px;line-height:1.45;margin:2px 0 6px;max-width:80ch}}
.table table{{width:auto}}
.table th,.table td{{padding-right:26px}}
.table th:first-child{{position:sticky;left:0;background:var(--card);max-width:46vw}}
.table .scroll{{background:linear-gradient(90deg,var(--card) 40%,transparent),
linear-gradient(270deg,var(--card) 40%,transparent) 100% 0,linear-gradient(90deg,var(--shadow),transparent),
linear-gradient(270deg,var(--shadow),transparent) 100% 0;background-repeat:no-repeat;
background-size:48px 100%,48px 100%,16px 100%,16px 100%;background-attachment:local,local,scroll,scroll}}
.entry>.links{{margin:2px 0 8px;padding:0}}
.entry>.about{{margin-bottom:6px;font-size:14.5px}}
.columns .sample{{margin:0}}
.prose{{max-width:76ch;margin:8px 0 0;padding-left:22px;overflow-wrap:anywhere}}
.prose li{{margin:4px 0}}
footer{{margin-top:56px;padding-top:18px;border-top:1px solid var(--rule);color:var(--muted);font-size:13.5px}}
@media (max-width:700px){{
.page{{padding:0 16px 48px}}
header{{padding-top:26px}}
section{{margin-top:36px}}
.cards{{grid-template-columns:repeat(2,minmax(0,1fr));gap:10px}}
.cards .card{{padding:12px 13px}}
.cards .big{{font-size:23px}}
figure{{padding:14px 12px 10px}}
.table th,.table td{{padding-right:14px}}
.chart{{font-size:14.5px}}
.wide{{padding:2px 14px}}
.stacked thead{{position:absolute;clip-path:inset(50%);height:1px;width:1px;overflow:hidden}}
.stacked tr{{display:grid;grid-template-columns:1fr 1fr;gap:2px 14px;padding:12px 0}}
.stacked tr{{border-bottom:1px solid var(--rule)}}
.stacked tr:last-child{{border-bottom:0}}
.stacked td,.stacked th{{border:0;padding:2px 0;text-align:left!important}}
.stacked tbody th{{grid-column:1/-1}}
.verdicts td{{grid-column:1/-1}}
.verdicts th:nth-child(n){{width:auto}}
.stacked td::before{{content:attr(data-label);display:block;color:var(--muted);font-size:12px}}
}}
@media print{{
body{{background:#fff;font-size:11pt}}
.page{{max-width:none;padding:0}}
nav,.links,summary{{display:none}}
section{{margin-top:28px}}
.chart{{font-size:14px}}
.figures{{grid-template-columns:1fr 1fr}}
.columns{{grid-template-columns:repeat(3,1fr)}}
figure,.sample,.run,tr{{break-inside:avoid}}
h2,h3,.group,.about{{break-after:avoid}}
.sample pre,.tall{{max-height:none;overflow:visible}}
.scroll,.table .scroll{{overflow:visible;background:none}}
.tables{{display:block}}
.table+.table{{margin-top:14px}}
.table table{{font-size:9pt}}
.table th,.table td{{padding-right:10px;white-space:normal}}
}}
"""
