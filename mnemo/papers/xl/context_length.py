"""Table 6, Figures 3 and 4: the relative effective context length (RECL) of two groups of models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mnemo.analysis import Group, context_targets, losses_at_context, relative_effective_context_length
from mnemo.data.prepare import load
from mnemo.files.tensor_file import load_tensors, write_tensors
from mnemo.memory import LSTM, QRNN
from mnemo.model import Model
from mnemo.model.positions import Learned
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Figure, Results, Table
from mnemo.papers.figures import whole_points
from mnemo.papers.grid import Grid
from mnemo.papers.jobs import RUN, Place, job, training_cell
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.xl.ablation import BY_NAME, recipe_of
from mnemo.papers.xl.benchmark import PAPER
from mnemo.papers.xl.recipes import on_gpu, recurrent, self_test, small_bytes
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe
from mnemo.report.plots import Line, line_figure
from mnemo.storage.run_folder import open_run

LOSSES, COMPARE = "xl-context-losses", "xl-context-compare"
FILE = "losses.safetensors"
SHARES = (0.1, 0.5, 1.0)
"""The paper's r: the hardest tenth of the tokens, half of them, all of them."""
STEPS = 2
"""Steps of the context by which lengths must differ: another seed may move a length by one step."""


class Member(NamedTuple):
    """A model of a group, and the paper's lengths at each share."""

    name: str
    label: str
    paper: tuple[int, int, int]


LARGE = (
    Member("xl-large", "Transformer-XL", (900, 800, 700)),
    Member("qrnn", "QRNN", (500, 400, 300)),
    Member("lstm", "LSTM", (400, 300, 200)),
)
ABLATED = (
    Member("xl", "Transformer-XL", (700, 600, 500)),
    Member("shaw", "Shaw's encoding", (400, 400, 300)),
    Member("no-memory", "no recurrence", (300, 300, 300)),
    Member("al-rfou-half", "Transformer", (128, 128, 128)),
)
GROUPS = {"recurrent": LARGE, "ablated": ABLATED}
TITLES = {"recurrent": "recurrent networks (paper: 151M)", "ablated": "parts taken away (paper: 128M)"}


class Scale(NamedTuple):
    step: int
    """Between the lengths of context."""
    longest: int
    targets: int
    """Tokens that are scored after every context."""
    memory: int
    """Slots of Transformer-XL; the other models have the memory of their training."""

    @property
    def contexts(self) -> list[int]:
        return list(range(self.step, self.longest + 1, self.step))


SCALES: dict[Budget, Scale] = {
    "self-test": Scale(4, 12, 12, 8),
    "small": Scale(32, 640, 4000, 384),
    "paper": Scale(100, 1200, 20_000, 640),
}
PRESETS = {"xl-large": "wikitext103-base", "qrnn": "wikitext103-qrnn", "lstm": "wikitext103-lstm"}
LSTM_WIDTH, QRNN_WIDTH = 654, 1424
"""Widths that make the recurrent layers together as large as six transformer layers of 256."""


def recipe_for(name: str, budget: Budget) -> Recipe:
    if name in BY_NAME:
        return recipe_of(BY_NAME[name], budget)
    if budget == "paper":
        return on_gpu(preset(PRESETS[name]))
    base = small_bytes() if budget == "small" else self_test()
    if name == "qrnn":
        return recurrent(base, QRNN(width=QRNN_WIDTH if budget == "small" else None))
    return recurrent(base, LSTM(width=LSTM_WIDTH if budget == "small" else None))


def trained_as(name: str, budget: Budget) -> str:
    """Except at `paper`, both groups have models of one size and share their Transformer-XL."""
    return "xl" if name == "xl-large" and budget != "paper" else name


def cells(budget: Budget) -> list[Cell]:
    names = dict.fromkeys(trained_as(member.name, budget) for group in GROUPS.values() for member in group)
    scale, made = SCALES[budget], []
    for name in names:
        recipe = recipe_for(name, budget)
        training = training_cell(name, recipe, {"model": name, "part": "training"})
        made += [training, _losses_cell(training, name, scale)]
    return [*made, *(_compare_cell(group, budget) for group in GROUPS)]


def _losses_cell(training: Cell, name: str, scale: Scale) -> Cell:
    memory = scale.memory if name in ("xl", "xl-large") else None
    return Cell(
        name=f"{name}-losses",
        job=LOSSES,
        settings={"run": training.name, "split": "valid", "memory": memory} | scale._asdict(),
        labels={"model": name, "part": "losses"},
        after=(training.name,),
    )


def _compare_cell(group: str, budget: Budget) -> Cell:
    members = {member.name: f"{trained_as(member.name, budget)}-losses" for member in GROUPS[group]}
    return Cell(
        name=f"{group}-group",
        job=COMPARE,
        settings={"members": members, "shares": list(SHARES)},
        labels={"group": group, "part": "group"},
        after=tuple(members.values()),
    )


@job(LOSSES)
def context_losses(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Losses of the same tokens of the validation set after every length of context."""
    opened = open_run(place.of(settings["run"]) / RUN, device=place.device)
    model, train = opened.model, opened.recipe.train
    ids = np.asarray(load(opened.recipe.data.corpus, show=place.progress).split(settings["split"]).ids[:])
    scale = Scale(*(settings[name] for name in Scale._fields if name != "memory"), memory=0)
    targets = context_targets(len(ids), scale.longest, scale.targets)
    limit = sees_at_most(model)
    found: dict[int, np.ndarray] = {}
    for context in scale.contexts:
        seen = context if limit is None else min(context, limit)
        if seen not in found:
            found[seen] = losses_at_context(
                model,
                ids,
                seen,
                segment=train.segment,
                targets=targets,
                memory=settings["memory"],
                progress=place.progress,
            )
        found[context] = found[seen]
    tensors = {str(context): torch.from_numpy(found[context]).clone() for context in scale.contexts}
    write_tensors(place.folder / FILE, tensors)
    ppl = [[context, float(np.exp(found[context].mean()))] for context in scale.contexts]
    return {"perplexity": ppl, "sees_at_most": limit, "targets": len(targets)}


def sees_at_most(model: Model) -> int | None:
    """Length of the table of absolute positions; None if the model has none."""
    positions = model.config.positions
    return positions.length if isinstance(positions, Learned) else None


@job(COMPARE)
def compare(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Every model's length at each share of the tokens, and its gains in perplexity on the hardest tokens."""
    losses = {name: _load(place.of(cell) / FILE) for name, cell in settings["members"].items()}
    lengths: dict[str, dict[str, Any]] = {name: {} for name in losses}
    for share in settings["shares"]:
        for name, found in relative_effective_context_length(losses, top=share).items():
            lengths[name][str(share)] = {"length": found.length, "at_least": found.at_least}
    hardest = Group(losses, top=min(settings["shares"]))
    gains = {
        name: [[long, hardest.unnormalised_gain(name, short, long)] for short, long in pairwise(hardest.contexts)]
        for name in losses
    }
    return {"lengths": lengths, "gains": gains, "longest": hardest.contexts[-1]}


def _load(path: Path) -> dict[int, np.ndarray]:
    return {int(context): losses.numpy() for context, losses in load_tensors(path).items()}


class Length(NamedTuple):
    """A measured effective context length, and how it is written."""

    tokens: int
    text: str


def losses_result(results: Results, member: Member) -> CellResult | None:
    return results.one(f"{trained_as(member.name, results.budget)}-losses")


def lengths_of(results: Results, group: str) -> dict[str, list[Length]]:
    """By label of the model, at each share of the tokens; empty if not measured."""
    found = results.one(f"{group}-group")
    if found is None or not found.values:
        return {}
    return {member.label: [_length(results, found, member, share) for share in SHARES] for member in GROUPS[group]}


def _length(results: Results, found: CellResult, member: Member, share: float) -> Length:
    """At most the number of tokens that the model can read."""
    entry, losses = found.values["lengths"][member.name][str(share)], losses_result(results, member)
    limit = losses.values.get("sees_at_most") if losses else None
    if limit is not None and entry["length"] >= limit:
        return Length(limit, str(limit))
    return Length(entry["length"], f"{'at least ' if entry['at_least'] else ''}{entry['length']}")


def claims() -> list[Observed]:
    texts = {
        "recurrent": "Transformer-XL uses a longer context than recurrent networks.",
        "ablated": "Both ideas are needed for the longest effective context.",
    }
    harder = Observed(
        "The harder the tokens, the longer the context that Transformer-XL uses.",
        "900, 800, 700 and 700, 600, 500 at r = 0.1, 0.5, 1.0",
        _harder_is_longer,
    )
    return [*(_longest(group, text) for group, text in texts.items()), harder]


def _longest(group: str, text: str) -> Observed:
    """The first model of a group has the longest context, at every share of the tokens."""
    paper = {member.label: member.paper[0] for member in GROUPS[group]}
    quoted = "; ".join(f"{label} {length}" for label, length in paper.items())

    def observe(results: Results) -> Outcome | None:
        found = lengths_of(results, group)
        if not found:
            return None
        listed = "; ".join(f"{label} {', '.join(each.text for each in lengths)}" for label, lengths in found.items())
        hardest = ratios({label: lengths[0].tokens for label, lengths in found.items()})
        first, *others = found.values()
        longer = [one.tokens - other.tokens for each in others for one, other in zip(first, each, strict=True)]
        outcome = decide(results.budget, f"{listed} (r = 0.1, 0.5, 1.0)", longer, longer)
        return outcome._replace(test="; ".join(filter(None, (f"at r = 0.1: {hardest}", outcome.test))))

    return Observed(text, f"{quoted} (r = 0.1): {ratios(paper)}", observe)


def ratios(lengths: dict[str, int]) -> str:
    """By how much the first is longer or shorter than each of the others."""
    first, *others = lengths.items()
    shares = ((first[1] / length - 1, label) for label, length in others if length)
    listed = (f"{abs(share):.0%} {'longer' if share >= 0 else 'shorter'} than {label}" for share, label in shares)
    return f"{first[0]} {', '.join(listed)}"


def _harder_is_longer(results: Results) -> Outcome | None:
    found = [list(lengths.values())[0] for group in GROUPS if (lengths := lengths_of(results, group))]
    if len(found) < len(GROUPS):
        return None
    tokens = [[each.tokens for each in lengths] for lengths in found]
    ours = " and ".join(", ".join(map(str, each)) for each in tokens)
    whole = [each[0] - each[-1] for each in tokens]
    steps = [harder - easier for each in tokens for harder, easier in pairwise(each)]
    return decide(results.budget, ours, whole, steps)


def decide(budget: Budget, ours: str, large: Sequence[int], not_negative: Sequence[int]) -> Outcome:
    """Yes if these differences are large and those not negative; no if any is as large in the other direction."""
    needed = STEPS * SCALES[budget].step
    if min(*large, *not_negative) <= -needed:
        return Outcome(ours, False, 1)
    if min(large) >= needed and min(not_negative) >= 0:
        return Outcome(ours, True, 1)
    return Outcome(ours, None, 1, f"differences below {needed} tokens decide nothing")


def tables(results: Results) -> list[Table]:
    rows = [
        (TITLES[group], member.label, *(each.text for each in found[member.label]), *member.paper)
        for group, members in GROUPS.items()
        if (found := lengths_of(results, group))
        for member in members
    ]
    if not rows:
        return []
    names = [f"r = {share}" for share in SHARES]
    caption = (
        f"Contexts grow by {SCALES[results.budget].step} tokens until the next one gains less than 1% of the group's "
        "best perplexity. The paper counts words, in steps of 100"
        + ("." if results.budget == "paper" else "; ours are bytes.")
    )
    headers = ("group", "model", *names, *(f"paper: {name}" for name in names))
    return [Table("Table 6: relative effective context length", headers, rows, caption)]


def figures(results: Results) -> list[Figure]:
    return [figure for group in GROUPS for figure in (*_gains(results, group), *_perplexities(results, group))]


def _gains(results: Results, group: str) -> list[Figure]:
    found = results.one(f"{group}-group")
    gains = found.values.get("gains") if found else None
    if not gains:
        return []
    return [
        line_figure(
            f"gains-{group}",
            f"Figure 3: gains of longer contexts ({TITLES[group]})",
            "Perplexity that a model gains over the group's best with the next shorter context, on the hardest tenth "
            "of the tokens (r = 0.1); not normalised.",
            [Line(member.label, [(x, y) for x, y in gains[member.name]]) for member in GROUPS[group]],
            x_label="context length",
            y_label="gain in perplexity",
        )
    ]


def _perplexities(results: Results, group: str) -> list[Figure]:
    cells = [(member.label, losses_result(results, member)) for member in GROUPS[group]]
    lines = [Line(label, whole_points(cell, "perplexity")) for label, cell in cells if cell and cell.values]
    if not lines:
        return []
    return [
        line_figure(
            f"perplexity-{group}",
            f"Figure 4: perplexity by context length ({TITLES[group]})",
            "The same tokens of the validation set after contexts of every length, starting from an empty memory.",
            lines,
            x_label="context length",
            y_label="perplexity per token",
        )
    ]


CONTEXT_LENGTH = Experiment(
    name="xl-context-length",
    title="Relative effective context length",
    paper=PAPER,
    covers=("Table 6", "Figure 3", "Figure 4", "Appendix C"),
    claim="Transformer-XL uses a context 80% longer than recurrent networks and 450% longer than the vanilla "
    "transformer.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, claims()),
    figures=figures,
    tables=tables,
    notes=(
        "small: bytes of novels instead of words of WikiText-103, contexts in steps of 32 up to 640; one "
        "Transformer-XL is in both groups, and the recurrent networks are as large as it is.",
        "One seed of each model: lengths count as different from two steps of the context on. Ratios of lengths are "
        "reported, not judged.",
        "The definition leaves the step open; the paper's lengths are multiples of 100, which `paper` takes.",
        "Transformer-XL is read with more memory than it was trained with, the other models as they were trained; the "
        "vanilla transformer cannot read beyond its table of positions, so that is its longest length.",
        "Losses are those of tokens spread evenly over the validation set.",
    ),
)
