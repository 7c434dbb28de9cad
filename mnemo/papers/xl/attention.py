"""Figures 5 to 7: where heads look on average, what wide heads pick out, and which terms of the score do it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mnemo.analysis import DistanceObserver, TermsObserver, attending_layers, attention_map, observe
from mnemo.data.corpus import Corpus
from mnemo.data.prepare import load
from mnemo.model import Model
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Figure, Results, Sample, Table, Verdict
from mnemo.papers.jobs import RUN, Place, job, training_cell
from mnemo.papers.xl.comparing import judged, undecided
from mnemo.papers.xl.recipes import on_gpu, small_bytes, smoke
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe
from mnemo.report.plots import heat_figure
from mnemo.storage.run_folder import open_run

ATTENTION = "xl-attention"
TERMS = {"a": "content", "b": "content-dependent position", "d": "global position"}
"""The paper leaves out (c), how much a word is attended to whatever reads it."""
NEAR = 0.1
"""The share of the span that counts as near."""
MOSTLY, MORE = 2.0, 1.1
"""How many times their share near tokens must get, for attention to be mostly near, and for a term to favour them."""
WIDE, UNIFORM, FLATTER = 0.75, 0.95, 0.005
"""Of what uniform attention has: reach that makes a head wide, entropy that makes a term uniform, and how much more of
it makes one term flatter than another."""

PASSAGE = (
    "Mrs. Alder had kept the lighthouse for eleven winters when the letter came. She read it twice by the window, "
    'folded it, and put it under the clock. "Tom," she said, "your brother is coming home." Tom Alder looked at the '
    'sea, and then at the clock, and asked whether the letter said anything about the boat. "It says," said Mrs. '
    'Alder, "that he has sold the boat."'
)
"""Read in the pictures of single heads; `paper` has room for more and reads the validation set."""


class Scale(NamedTuple):
    memory: int
    segment: int
    tokens: int
    """Of the validation set, that are averaged over"""
    bins: int
    """Columns of a picture"""
    rows: int
    """Target positions of a map"""


SCALES: dict[Budget, Scale] = {
    "smoke": Scale(16, 8, 64, 8, 2),
    "small": Scale(256, 64, 20_000, 64, 12),
    "paper": Scale(640, 64, 217_646, 80, 40),
}


def recipe(budget: Budget) -> Recipe:
    if budget == "paper":
        return on_gpu(preset("wikitext103-base"))
    if budget == "smoke":
        return smoke()
    made = small_bytes()
    return replace(made, model=replace(made.model, num_heads=8, head_dim=32))


def cells(budget: Budget) -> list[Cell]:
    training = training_cell("model", recipe(budget), {"part": "training"})
    passage = None if budget == "paper" else PASSAGE
    settings = {"run": training.name, "split": "valid", "passage": passage} | SCALES[budget]._asdict()
    watching = Cell(
        name="attention", job=ATTENTION, settings=settings, labels={"part": "attention"}, after=(training.name,)
    )
    return [training, watching]


@job(ATTENTION)
def watch(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    opened = open_run(place.of(settings["run"]) / RUN, device=place.device)
    corpus = load(opened.recipe.data.corpus, show=place.progress)
    scale = Scale(*(settings[name] for name in Scale._fields))
    ids = np.asarray(corpus.split(settings["split"]).ids[: scale.tokens])
    layers = attending_layers(opened.model)
    distances, terms = DistanceObserver(layers), TermsObserver(layers)
    observe(opened.model, ids, [distances, terms], segment=scale.segment, memory=scale.memory, progress=place.progress)
    whole, parts = distances.result(), terms.result()
    found = {"whole": whole.mass} | {name: parts.attention[name] for name in TERMS}
    spans = {name: over_span(mass, scale.memory) for name, mass in found.items()}
    wide = [(head.layer, head.head) for head in whole.wide_heads()]
    passage = ids if settings["passage"] is None else corpus.tokenizer.encode(settings["passage"])
    return {
        "layers": len(layers),
        "heads": whole.mass.shape[1],
        "memory": scale.memory,
        "pictures": {name: binned(span, scale.bins) for name, span in spans.items()},
        "measures": {name: measures(span, spans["whole"]) for name, span in spans.items()},
        "reach": reach(spans["whole"]).tolist(),
        "row_names": whole.rows(),
        "wide": [whole.rows().index(f"{layer + 1}.{head + 1}") for layer, head in wide],
        "maps": [
            pick_out(opened.model, corpus, passage, scale, layer, head)
            for layer, head in chosen(reach(spans["whole"]), layers)
        ],
    }


def over_span(mass: Tensor, span: int) -> Tensor:
    """(N, H, D) of attention by distance -> (heads, span), as shares of what falls inside the memory's length."""
    inside = mass[..., :span].flatten(0, 1).double()
    return inside / inside.sum(-1, keepdim=True).clamp(min=1e-12)


def reach(span: Tensor) -> Tensor:
    """(heads,): mean distance."""
    return (span * torch.arange(span.shape[-1], dtype=span.dtype)).sum(-1)


def measures(span: Tensor, whole: Tensor) -> dict[str, float]:
    """What is near, how even the average is, and how far single heads are from the whole attention's."""
    mean = span.mean(0)
    entropy = float(-(mean * mean.clamp(min=1e-12).log()).sum()) / float(np.log(span.shape[-1]))
    near = max(1, round(NEAR * span.shape[-1]))
    return {
        "near": float(mean[:near].sum()),
        "evenness": entropy,
        "from_whole": float(0.5 * (span - whole).abs().sum(-1).mean()),
    }


def binned(span: Tensor, bins: int) -> list[list[float]]:
    """Averages of neighbouring distances: as many columns as a picture can show."""
    width = -(-span.shape[-1] // bins)
    short = torch.nn.functional.pad(span, (0, -span.shape[-1] % width)).unflatten(-1, (-1, width)).mean(-1)
    return [[round(value, 8) for value in row] for row in short.tolist()]


def chosen(reaches: Tensor, layers: Sequence[int]) -> list[tuple[int, int]]:
    """The widest head of the first, a middle and the last layer, as the paper shows them: layer and head from 0."""
    by_layer = reaches.view(len(layers), -1)
    places = dict.fromkeys((0, (len(layers) - 1) // 2, len(layers) - 1))
    return [(layers[place], int(by_layer[place].argmax())) for place in places]


def pick_out(model: Model, corpus: Corpus, ids: np.ndarray, scale: Scale, layer: int, head: int) -> dict[str, Any]:
    """One head's attention to the memory from a few neighbouring tokens, and the fifth of it that each favours."""
    kept = scale.memory // scale.rows * scale.rows
    found = attention_map(model, ids[: kept + scale.rows], segment=scale.rows, layer=layer, memory=kept)
    memory = [index for index, kind in enumerate(found.column_kinds) if kind == "memory"]
    rows = found.heads[head][:, memory]
    marked = found.strongest(head)[:, memory]
    gap = " " if corpus.tokenizer.unit == "word" else ""
    return {
        "layer": layer,
        "head": head,
        "rows": [[round(value, 8) for value in row] for row in rows.tolist()],
        "marked": marked.tolist(),
        "targets": [corpus.tokenizer.decode([token]) for token in found.row_ids],
        "context": [corpus.tokenizer.decode([found.column_ids[index]]) + gap for index in memory],
    }


AVERAGED = "Averaged over validation text, logarithmic colours, one row a head"


def observed(results: Results) -> CellResult | None:
    return next((cell for cell in results.select(part="attention") if cell.values), None)


CLAIMS = (
    "On average, heads attend to what is near.",
    "Some heads attend widely, over the whole memory.",
    "Content alone, term (a), attends nearly evenly.",
    "The content-dependent position, term (b), has the whole attention's trend.",
    "The global position, term (d), favours near tokens too, but less than term (b).",
)
PAPER = (
    "Figure 5",
    "Figure 5: head 8 of layer 1, 78 of layer 8, 158 of layer 16",
    "Figure 7a: essentially uniform",
    "Figure 7b: highly resembles Figure 5",
    "Figure 7c: flatter than (b)",
)


def verdicts(results: Results) -> list[Verdict]:
    found = observed(results)
    if found is None:
        return [undecided(claim, paper, ["attention"]) for claim, paper in zip(CLAIMS, PAPER, strict=True)]
    whole, a, b, d = (found.values["measures"][name] for name in ("whole", "a", "b", "d"))
    reaches = [one / (found.values["memory"] / 2) for one in found.values["reach"]]
    widest, usual = max(reaches), statistics.median(reaches)
    ours = (
        (f"{whole['near']:.0%} on the nearest tenth", whole["near"] >= MOSTLY * NEAR),
        (f"{widest:.2f} times uniform attention's reach; the median head {usual:.2f}", widest >= WIDE > usual),
        (_evenness(a=a, b=b, d=d), a["evenness"] >= UNIFORM and _flatter(a, b)),
        (_distances(a=a, b=b, d=d), b["from_whole"] < min(a["from_whole"], d["from_whole"])),
        (f"{_evenness(b=b, d=d)}; (d): {d['near']:.0%} near", _flatter(d, b) and d["near"] > MORE * NEAR),
    )
    return [
        judged(results, claim, paper, text, holds)
        for claim, paper, (text, holds) in zip(CLAIMS, PAPER, ours, strict=True)
    ]


def _flatter(first: dict[str, float], second: dict[str, float]) -> bool:
    return first["evenness"] > second["evenness"] + FLATTER


def _evenness(**terms: dict[str, float]) -> str:
    values = ", ".join(f"({name}) {term['evenness']:.3f}" for name, term in terms.items())
    return f"entropy of the average, of a uniform one's: {values}"


def _distances(**terms: dict[str, float]) -> str:
    values = ", ".join(f"({name}) {term['from_whole']:.3f}" for name, term in terms.items())
    return f"total variation from the whole attention, mean of heads: {values}"


def tables(results: Results) -> list[Table]:
    found = observed(results)
    if found is None:
        return []
    names = {"whole": "whole attention"} | {name: f"({name}) {what}" for name, what in TERMS.items()}
    rows = [
        [names[name], f"{one['near']:.1%}", f"{one['evenness']:.3f}", f"{one['from_whole']:.3f}"]
        for name, one in found.values["measures"].items()
    ]
    headers = ["scores", "on the nearest tenth", "entropy, of a uniform one's", "total variation from the whole"]
    return [Table(title="Attention over the memory's length", headers=headers, rows=rows)]


def figures(results: Results) -> list[Figure]:
    found = observed(results)
    if found is None:
        return []
    values = found.values
    wide = ", ".join(values["row_names"][row] for row in values["wide"])
    pictures = [
        _by_head(
            "figure-5",
            "Figure 5: attention by distance",
            f"{AVERAGED} (layer.head). Marked: the fifth of the heads that reach farthest, {wide}.",
            values,
            "whole",
        )
    ]
    for name, what in TERMS.items():
        caption = f"The softmax of term ({name}) alone. {AVERAGED}."
        pictures.append(_by_head(f"figure-7{name}", f"Figure 7: term ({name}), {what}", caption, values, name))
    return [*pictures, *(figure for one in values["maps"] for figure in _map_figures(one))]


def _by_head(slug: str, title: str, caption: str, values: dict[str, Any], name: str) -> Figure:
    grid = values["pictures"][name]
    width = -(-values["memory"] // len(grid[0]))
    return heat_figure(
        slug,
        title,
        caption,
        grid,
        x_label="distance",
        y_label="head",
        row_labels=values["row_names"],
        column_labels=[column * width for column in range(len(grid[0]))],
        logarithmic=True,
        marked=frozenset(values["wide"]) if name == "whole" else frozenset(),
    )


def _map_figures(one: dict[str, Any]) -> list[Figure]:
    name = f"head {one['head'] + 1} of layer {one['layer'] + 1}"
    slug = f"figure-6-{one['layer'] + 1}-{one['head'] + 1}"
    caption = "Attention of neighbouring tokens of the passage to the memory"
    marks = [[float(marked) for marked in row] for row in one["marked"]]
    return [
        _map_figure(slug, f"Figure 6: {name}", f"{caption}; logarithmic colours.", one["rows"], one, logarithmic=True),
        _map_figure(
            f"{slug}-top", f"Figure 6: {name}, top 20%", f"{caption}: dark is the fifth that each favours.", marks, one
        ),
    ]


def _map_figure(
    slug: str, title: str, caption: str, grid: list[list[float]], one: dict[str, Any], logarithmic: bool = False
) -> Figure:
    return heat_figure(
        slug,
        title,
        caption,
        grid,
        x_label="place in the memory, oldest first",
        y_label="token",
        row_labels=[_visible(target) for target in one["targets"]],
        logarithmic=logarithmic,
    )


def _visible(token: str) -> str:
    """Spaces and line ends as signs."""
    return token.replace(" ", "␣").replace("\n", "⏎")


def samples(results: Results) -> list[Sample]:
    found = observed(results)
    return [] if found is None else [_sample(one) for one in found.values["maps"]]


def _sample(one: dict[str, Any]) -> Sample:
    """The memory's text as the token reads it that attends to it most, what it favours in brackets."""
    mass, row = max((sum(values), row) for row, values in enumerate(one["rows"]))
    text, inside = "", False
    for token, marked in zip(one["context"], one["marked"][row], strict=True):
        text += "[" if marked and not inside else "]" if inside and not marked else ""
        text, inside = text + token, marked
    title = f"What head {one['head'] + 1} of layer {one['layer'] + 1} picks out"
    note = (
        f"In brackets: the fifth of the memory that the token '{_visible(one['targets'][row])}' attends to most. All "
        f"of the memory has {mass:.1%} of its attention."
    )
    return Sample(title=title, text=text + ("]" if inside else ""), note=note)


XL_ATTENTION = Experiment(
    name="xl-attention",
    title="Where heads look, and why",
    paper="Transformer-XL",
    covers=("Figure 5", "Figure 6", "Figure 7", "Appendix D"),
    claim=(
        "Heads attend to what is near, by the content-dependent position term; a few of them scan or pick from the "
        "whole memory."
    ),
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    samples=samples,
    notes=(
        "small: bytes of novels, 6 layers of 8 heads, memory 256; the paper's model has 16 layers of 10 heads and a "
        "memory of 640 words.",
        "Terms are softmaxed over all that a token sees, then compared over distances up to the memory's length.",
        "The paper picks its three heads by eye: here they are the widest of the first, a middle and the last layer.",
        "Figures 5 and 7 are averages over the validation text. Figure 6 and the samples read a passage that was "
        "written for this experiment; some of its tokens hardly attend to the memory, and what they favour there means "
        "little.",
    ),
)
