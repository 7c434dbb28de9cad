"""Figures 5 to 7: attention by distance, attention maps of wide heads, and the terms of the attention score."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mnemo.analysis import DistanceObserver, TermsObserver, attending_layers, attention_map, observe
from mnemo.data.corpus import Corpus
from mnemo.data.prepare import load
from mnemo.model import Model
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Sample, Table
from mnemo.papers.grid import Grid
from mnemo.papers.jobs import RUN, Place, job, training_cell
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.xl.benchmark import PAPER
from mnemo.papers.xl.recipes import on_gpu, self_test, small_bytes
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe
from mnemo.report.files import is_number
from mnemo.report.plots import heat_figure
from mnemo.storage.run_folder import open_run

ATTENTION = "xl-attention"
OBSERVING = "attention"
"""Name of the cell that observes the trained model."""
TERMS = {"a": "content", "b": "content-dependent position", "d": "global position"}
"""The paper leaves out (c), the global content: it does not depend on the query."""
NEAR = 0.1
"""Share of the distances that count as near."""
MOSTLY, MORE = 2.0, 1.1
"""Attention to near tokens, as a multiple of uniform attention's: of all terms together, and of a term that favours
them."""
WIDE, UNIFORM, FLATTER = 0.75, 0.95, 0.005
"""As shares of uniform attention's: the reach of a wide head, the entropy of a uniform term, and the difference of
entropies that makes one term flatter than another."""

PASSAGE = (
    "Mrs. Alder had kept the lighthouse for eleven winters when the letter came. She read it twice by the window, "
    'folded it, and put it under the clock. "Tom," she said, "your brother is coming home." Tom Alder looked at the '
    'sea, and then at the clock, and asked whether the letter said anything about the boat. "It says," said Mrs. '
    'Alder, "that he has sold the boat."'
)
"""The text of the attention maps; `paper` takes the validation set, which fills its longer memory."""


class Scale(NamedTuple):
    memory: int
    segment: int
    tokens: int
    """Of the validation set, for the averages."""
    bins: int
    """Columns of the figures by distance."""
    rows: int
    """Target positions of a map."""


SCALES: dict[Budget, Scale] = {
    "self-test": Scale(16, 8, 64, 8, 2),
    "small": Scale(256, 64, 20_000, 64, 12),
    "paper": Scale(640, 64, 217_646, 80, 40),
}


def recipe(budget: Budget) -> Recipe:
    if budget == "paper":
        return on_gpu(preset("wikitext103-base"))
    if budget == "self-test":
        return self_test()
    made = small_bytes()
    return replace(made, model=replace(made.model, num_heads=8, head_dim=32))


def cells(budget: Budget) -> list[Cell]:
    training = training_cell("model", recipe(budget), {"part": "training"})
    passage = None if budget == "paper" else PASSAGE
    settings = {"run": training.name, "split": "valid", "passage": passage} | SCALES[budget]._asdict()
    observing = Cell(
        name=OBSERVING, job=ATTENTION, settings=settings, labels={"part": "attention"}, after=(training.name,)
    )
    return [training, observing]


@job(ATTENTION)
def observe_attention(settings: dict[str, Any], place: Place) -> dict[str, Any]:
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
    """(N, H, D) of attention by distance -> (heads, span), as shares of the attention within the memory's length."""
    inside = mass[..., :span].flatten(0, 1).double()
    return inside / inside.sum(-1, keepdim=True).clamp(min=1e-12)


def reach(span: Tensor) -> Tensor:
    """(heads,): mean distance."""
    return (span * torch.arange(span.shape[-1], dtype=span.dtype)).sum(-1)


def measures(span: Tensor, whole: Tensor) -> dict[str, float]:
    """Attention to near tokens, entropy of the average, and mean total variation of heads from the whole attention."""
    mean = span.mean(0)
    entropy = float(-(mean * mean.clamp(min=1e-12).log()).sum()) / float(np.log(span.shape[-1]))
    near = max(1, round(NEAR * span.shape[-1]))
    return {
        "near": float(mean[:near].sum()),
        "evenness": entropy,
        "from_whole": float(0.5 * (span - whole).abs().sum(-1).mean()),
    }


def binned(span: Tensor, bins: int) -> list[list[float]]:
    """Averages of neighbouring distances, at most `bins` of them."""
    width = -(-span.shape[-1] // bins)
    short = torch.nn.functional.pad(span, (0, -span.shape[-1] % width)).unflatten(-1, (-1, width)).mean(-1)
    return [[round(value, 8) for value in row] for row in short.tolist()]


def chosen(reaches: Tensor, layers: Sequence[int]) -> list[tuple[int, int]]:
    """The widest head of the first, a middle and the last layer, as the paper shows them: layer and head from 0."""
    by_layer = reaches.view(len(layers), -1)
    places = dict.fromkeys((0, (len(layers) - 1) // 2, len(layers) - 1))
    return [(layers[place], int(by_layer[place].argmax())) for place in places]


def pick_out(model: Model, corpus: Corpus, ids: np.ndarray, scale: Scale, layer: int, head: int) -> dict[str, Any]:
    """One head's attention from a few neighbouring tokens to the memory, and the fifth of the slots with the most."""
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
Values = Mapping[str, Any]


def observed(results: Results) -> Values | None:
    """Values of the cell that observes attention; None if they are missing or not finite."""
    found = results.one(OBSERVING)
    if found is None or not found.values:
        return None
    measured = [number for term in found.values["measures"].values() for number in term.values()]
    return found.values if all(map(is_number, [*measured, *found.values["reach"]])) else None


def near(values: Values) -> Outcome:
    share = values["measures"]["whole"]["near"]
    return Outcome(f"{share:.0%} on the nearest tenth", share >= MOSTLY * NEAR, 1)


def wide(values: Values) -> Outcome:
    reaches = [one / (values["memory"] / 2) for one in values["reach"]]
    widest, usual = max(reaches), statistics.median(reaches)
    text = f"{widest:.2f} times uniform attention's reach; the median head {usual:.2f}"
    return Outcome(text, widest >= WIDE > usual, 1)


def content_is_even(values: Values) -> Outcome:
    entropy = {name: values["measures"][name]["evenness"] for name in TERMS}
    return Outcome(_entropies(entropy), entropy["a"] >= UNIFORM and entropy["a"] > entropy["b"] + FLATTER, 1)


def position_has_the_trend(values: Values) -> Outcome:
    distance = {name: values["measures"][name]["from_whole"] for name in TERMS}
    text = f"total variation from the whole attention, mean of heads: {_listed(distance)}"
    return Outcome(text, distance["b"] < min(distance["a"], distance["d"]), 1)


def global_position_is_flatter(values: Values) -> Outcome:
    entropy = {name: values["measures"][name]["evenness"] for name in ("b", "d")}
    share = values["measures"]["d"]["near"]
    flatter = entropy["d"] > entropy["b"] + FLATTER
    return Outcome(f"{_entropies(entropy)}; (d): {share:.0%} near", flatter and share > MORE * NEAR, 1)


def _entropies(entropy: Mapping[str, float]) -> str:
    return f"entropy of the average, as a share of uniform attention's: {_listed(entropy)}"


def _listed(by_term: Mapping[str, float]) -> str:
    return ", ".join(f"({name}) {value:.3f}" for name, value in by_term.items())


def _claim(text: str, paper: str, look: Callable[[Values], Outcome]) -> Observed:
    return Observed(text, paper, lambda results: look(values) if (values := observed(results)) else None)


CLAIMS = (
    _claim("On average, heads attend to near tokens.", "Figure 5", near),
    _claim(
        "Some heads attend widely, over the whole memory.",
        "Figure 5: head 8 of layer 1, 78 of layer 8, 158 of layer 16",
        wide,
    ),
    _claim("Content alone, term (a), attends nearly evenly.", "Figure 7a: essentially uniform", content_is_even),
    _claim(
        "The content-dependent position, term (b), has the whole attention's trend.",
        "Figure 7b: highly resembles Figure 5",
        position_has_the_trend,
    ),
    _claim(
        "The global position, term (d), favours near tokens too, but less than term (b).",
        "Figure 7c: flatter than (b)",
        global_position_is_flatter,
    ),
)


def tables(results: Results) -> list[Table]:
    values = observed(results)
    if values is None:
        return []
    names = {"whole": "whole attention"} | {name: f"({name}) {term}" for name, term in TERMS.items()}
    rows = [
        (names[name], f"{one['near']:.1%}", f"{one['evenness']:.3f}", f"{one['from_whole']:.3f}")
        for name, one in values["measures"].items()
    ]
    headers = ("scores", "on the nearest tenth", "entropy / uniform entropy", "total variation from the whole")
    return [Table("Attention over the memory's length", headers, rows)]


def figures(results: Results) -> list[Figure]:
    values = observed(results)
    if values is None:
        return []
    wide = ", ".join(values["row_names"][row] for row in values["wide"])
    marked = f"{AVERAGED} (layer.head). Marked: the fifth of the heads that reach farthest, {wide}."
    terms = [
        _by_head(
            f"figure-7{name}", f"Figure 7: term ({name}), {term}", f"Softmax of this term. {AVERAGED}.", values, name
        )
        for name, term in TERMS.items()
    ]
    whole = _by_head("figure-5", "Figure 5: attention by distance", marked, values, "whole")
    return [whole, *terms, *(figure for one in values["maps"] for figure in _map_figures(one))]


def _by_head(slug: str, title: str, caption: str, values: Values, name: str) -> Figure:
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


def _map_figures(one: Values) -> list[Figure]:
    """All attention of a head's map, then only the strongest fifth."""
    title, slug = f"Figure 6: {_head(one)}", f"figure-6-{one['layer'] + 1}-{one['head'] + 1}"
    caption = "Attention of neighbouring tokens of the passage to the memory"
    strongest = [list(map(float, row)) for row in one["marked"]]
    drawn = [
        (slug, title, f"{caption}; logarithmic colours.", one["rows"], True),
        (f"{slug}-top", f"{title}, top 20%", f"{caption}: the strongest fifth is dark.", strongest, False),
    ]
    return [
        heat_figure(
            slug,
            title,
            caption,
            rows,
            x_label="place in the memory, oldest first",
            y_label="token",
            row_labels=[_visible(target) for target in one["targets"]],
            logarithmic=logarithmic,
        )
        for slug, title, caption, rows, logarithmic in drawn
    ]


def _head(one: Values) -> str:
    return f"head {one['head'] + 1} of layer {one['layer'] + 1}"


def _visible(token: str) -> str:
    """Spaces and line ends as signs."""
    return token.replace(" ", "␣").replace("\n", "⏎")


def samples(results: Results) -> list[Sample]:
    values = observed(results)
    return [] if values is None else [_sample(one) for one in values["maps"]]


def _sample(one: Values) -> Sample:
    """The text in the memory, with brackets around the tokens that the most attentive query favours."""
    mass, row = max((sum(values), row) for row, values in enumerate(one["rows"]))
    tokens = zip(one["context"], one["marked"][row], strict=True)
    runs = (("".join(token for token, _ in run), marked) for marked, run in groupby(tokens, key=itemgetter(1)))
    return Sample(
        title=f"Text that {_head(one)} attends to",
        text="".join(f"[{text}]" if marked else text for text, marked in runs),
        note=f"In brackets: the fifth of the memory that the token '{_visible(one['targets'][row])}' attends to most. "
        f"The memory gets {mass:.1%} of its attention.",
    )


XL_ATTENTION = Experiment(
    name="xl-attention",
    title="Where heads attend, and by which term of the score",
    paper=PAPER,
    covers=("Figure 5", "Figure 6", "Figure 7", "Appendix D"),
    claim="Heads attend to near tokens, by the content-dependent position term; a few attend to the whole memory.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, CLAIMS),
    figures=figures,
    tables=tables,
    samples=samples,
    notes=(
        "small: bytes of novels, 6 layers of 8 heads, memory 256; the paper's model has 16 layers of 10 heads and a "
        "memory of 640 words.",
        "The softmax of a term is taken over all visible tokens; terms are compared over distances up to the memory's "
        "length.",
        "The paper picks its three heads by eye; here they are the widest of the first, a middle and the last layer.",
        "Figure 6 and the samples take a passage that was written for this experiment. Some of its tokens hardly "
        "attend to the memory, and the tokens that they favour mean little.",
    ),
)
