"""Table 6, Figures 3 and 4: the relative effective context length (RECL) of two groups of models."""

from __future__ import annotations

from collections.abc import Sequence
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
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.jobs import RUN, Place, job, training_cell
from mnemo.papers.xl.ablation import BY_NAME, recipe_of
from mnemo.papers.xl.comparing import judged, undecided
from mnemo.papers.xl.recipes import on_gpu, recurrent, small_bytes, smoke
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe
from mnemo.report.plots import Line, line_figure
from mnemo.storage.run_folder import open_run

LOSSES, COMPARE = "xl-context-losses", "xl-context-compare"
FILE = "losses.safetensors"
SHARES = (0.1, 0.5, 1.0)
"""The paper's r: the hardest tenth of the tokens, half of them, all of them."""

STEPS = 2
"""Of the context, that lengths must differ by: a seed may well move one of them by a step."""


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
    """What contexts grow by"""
    longest: int
    targets: int
    """Tokens that are scored behind every context"""
    memory: int
    """Slots of Transformer-XL; the other models keep what they were trained with"""

    @property
    def contexts(self) -> list[int]:
        return list(range(self.step, self.longest + 1, self.step))


SCALES: dict[Budget, Scale] = {
    "smoke": Scale(4, 12, 12, 8),
    "small": Scale(32, 640, 4000, 384),
    "paper": Scale(100, 1200, 20_000, 640),
}
PRESETS = {"xl-large": "wikitext103-base", "qrnn": "wikitext103-qrnn", "lstm": "wikitext103-lstm"}
LSTM_WIDTH, QRNN_WIDTH = 654, 1424
"""Cells that make recurrent layers as large, together, as six transformer layers of 256."""


def recipe_for(name: str, budget: Budget) -> Recipe:
    if name in BY_NAME:
        return recipe_of(BY_NAME[name], budget)
    if budget == "paper":
        return on_gpu(preset(PRESETS[name]))
    base = small_bytes() if budget == "small" else smoke()
    if name == "qrnn":
        return recurrent(base, QRNN(width=QRNN_WIDTH if budget == "small" else None))
    return recurrent(base, LSTM(width=LSTM_WIDTH if budget == "small" else None))


def trained_as(name: str, budget: Budget) -> str:
    """Away from the paper both groups have one size, so that one Transformer-XL serves both."""
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
    """Losses of the same tokens of the validation set behind every length of context."""
    opened = open_run(place.of(settings["run"]) / RUN, device=place.device)
    model, train = opened.model, opened.recipe.train
    ids = np.asarray(load(opened.recipe.data.corpus, show=place.progress).split(settings["split"]).ids)
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
    """The most that a model with a table of absolute positions can read; None where there is no such limit."""
    positions = model.config.positions
    return positions.length if isinstance(positions, Learned) else None


@job(COMPARE)
def compare(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Every model's length at each share of the tokens, and its gains in perplexity on the hardest."""
    losses = {name: _read(place.of(cell) / FILE) for name, cell in settings["members"].items()}
    lengths: dict[str, dict[str, Any]] = {name: {} for name in losses}
    for share in settings["shares"]:
        for name, found in relative_effective_context_length(losses, top=share).items():
            lengths[name][str(share)] = {"length": found.length, "at_least": found.at_least}
    hardest = Group(losses, top=min(settings["shares"]))
    pairs = list(zip(hardest.contexts, hardest.contexts[1:], strict=False))
    gains = {name: [[long, hardest.unnormalised_gain(name, short, long)] for short, long in pairs] for name in losses}
    return {"lengths": lengths, "gains": gains, "longest": hardest.contexts[-1]}


def _read(path: Path) -> dict[int, np.ndarray]:
    return {int(context): losses.numpy() for context, losses in load_tensors(path).items()}


def group_result(results: Results, group: str) -> CellResult | None:
    return next((cell for cell in results.select(part="group", group=group) if cell.values), None)


def capped(results: Results, found: CellResult, member: Member, share: float) -> tuple[int, str]:
    """A model's length, at most what it can read, and how it is written."""
    entry = found.values["lengths"][member.name][str(share)]
    own = results.select(part="losses", model=trained_as(member.name, results.budget))
    limit = own[0].values.get("sees_at_most") if own else None
    if limit is not None and entry["length"] >= limit:
        return limit, str(limit)
    return entry["length"], f"{'at least ' if entry['at_least'] else ''}{entry['length']}"


def verdicts(results: Results) -> list[Verdict]:
    return [
        _longest(results, "recurrent", "Transformer-XL makes use of a longer context than recurrent networks."),
        _longest(results, "ablated", "Both ideas are needed for the longest effective context."),
        _harder_is_longer(results),
    ]


def _longest(results: Results, group: str, claim: str) -> Verdict:
    first, *others = GROUPS[group]
    published = {member.label: member.paper[0] for member in (first, *others)}
    paper = "; ".join(f"{label} {length}" for label, length in published.items()) + f" (r = 0.1): {ratios(published)}"
    found = group_result(results, group)
    if found is None:
        return undecided(claim, paper, [f"the group {TITLES[group]}"])
    lengths = {member.label: [capped(results, found, member, share) for share in SHARES] for member in (first, *others)}
    ours = "; ".join(f"{label} {', '.join(text for _, text in each)}" for label, each in lengths.items())
    ours += f" (r = 0.1, 0.5, 1.0); at r = 0.1: {ratios({label: each[0][0] for label, each in lengths.items()})}"
    longer = [lengths[first.label][i][0] - lengths[other.label][i][0] for other in others for i in range(len(SHARES))]
    return _one_seed(results, claim, paper, ours, at_least=longer, never_below=longer)


def ratios(lengths: dict[str, int]) -> str:
    """How much longer or shorter the first is than each of the others."""
    first, *others = lengths.items()
    shares = ((first[1] / length - 1, label) for label, length in others if length)
    told = (f"{abs(share):.0%} {'longer' if share >= 0 else 'shorter'} than {label}" for share, label in shares)
    return f"{first[0]} {', '.join(told)}"


def _one_seed(
    results: Results, claim: str, paper: str, ours: str, *, at_least: Sequence[int], never_below: Sequence[int]
) -> Verdict:
    """Holds where these differences are large, and fails where any is as large the other way; there is one seed."""
    needed = STEPS * SCALES[results.budget].step
    if min(*at_least, *never_below) <= -needed:
        return judged(results, claim, paper, ours, False)
    if min(at_least) >= needed and min(never_below) >= 0:
        return judged(results, claim, paper, ours, True)
    return judged(results, claim, paper, f"{ours}; one seed decides nothing below {needed} tokens", None)


def _harder_is_longer(results: Results) -> Verdict:
    claim = "The harder the tokens, the longer the context that Transformer-XL makes use of."
    paper = "900, 800, 700 and 700, 600, 500 at r = 0.1, 0.5, 1.0"
    found = [(group, group_result(results, group)) for group in GROUPS]
    missing = [TITLES[group] for group, result in found if result is None]
    if missing:
        return undecided(claim, paper, missing)
    lengths = [
        [capped(results, result, GROUPS[group][0], share)[0] for share in SHARES]
        for group, result in found
        if result is not None
    ]
    ours = " and ".join(", ".join(map(str, each)) for each in lengths)
    whole = [each[0] - each[-1] for each in lengths]
    each_step = [harder - easier for each in lengths for harder, easier in zip(each, each[1:], strict=False)]
    return _one_seed(results, claim, paper, ours, at_least=whole, never_below=each_step)


def tables(results: Results) -> list[Table]:
    rows = []
    for group, members in GROUPS.items():
        found = group_result(results, group)
        for member in members:
            ours = [capped(results, found, member, share)[1] if found else "not measured" for share in SHARES]
            rows.append([TITLES[group], member.label, *ours, *map(str, member.paper)])
    names = [f"r = {share}" for share in SHARES]
    caption = (
        f"Contexts grow by {SCALES[results.budget].step} tokens until one of them gains less than 1% of perplexity "
        "over the group's best behind the context before. The paper counts words, in steps of 100"
        + ("." if results.budget == "paper" else "; ours are bytes.")
    )
    headers = ["group", "model", *names, *(f"paper: {name}" for name in names)]
    return [Table(title="Table 6: relative effective context length", headers=headers, rows=rows, caption=caption)]


def figures(results: Results) -> list[Figure]:
    made = []
    for group, members in GROUPS.items():
        found = group_result(results, group)
        if found is not None:
            made.append(_gains_figure(group, members, found))
        curves = [(member, _perplexities(results, member)) for member in members]
        if any(points for _, points in curves):
            made.append(_perplexity_figure(group, curves))
    return made


def _gains_figure(group: str, members: Sequence[Member], found: CellResult) -> Figure:
    lines = [Line(member.label, [(x, y) for x, y in found.values["gains"][member.name]]) for member in members]
    return line_figure(
        f"gains-{group}",
        f"Figure 3: gains of longer contexts ({TITLES[group]})",
        "Perplexity that a step to this context takes off the group's best behind the one before, on the hardest tenth "
        "of the tokens (r = 0.1); not normalised.",
        lines,
        x_label="context length",
        y_label="gain in perplexity",
    )


def _perplexities(results: Results, member: Member) -> list[tuple[float, float]]:
    own = results.select(part="losses", model=trained_as(member.name, results.budget))
    return [(context, ppl) for cell in own for context, ppl in cell.values.get("perplexity", [])]


def _perplexity_figure(group: str, curves: Sequence[tuple[Member, list[tuple[float, float]]]]) -> Figure:
    return line_figure(
        f"perplexity-{group}",
        f"Figure 4: perplexity by context length ({TITLES[group]})",
        "Perplexity per token of the same tokens of the validation set, each behind so many tokens and nothing else.",
        [Line(member.label, points) for member, points in curves if points],
        x_label="context length",
        y_label="perplexity per token",
    )


CONTEXT_LENGTH = Experiment(
    name="xl-context-length",
    title="Relative effective context length",
    paper="Transformer-XL",
    covers=("Table 6", "Figure 3", "Figure 4", "Appendix C"),
    claim=(
        "Transformer-XL makes use of a context 80% longer than recurrent networks and 450% longer than the vanilla "
        "transformer."
    ),
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "small: bytes of novels instead of words of WikiText-103, contexts in steps of 32 up to 640; one "
        "Transformer-XL is in both groups, and the recurrent networks are as large as it is.",
        "One seed of each model: lengths count as different from two steps of the context on. How much longer they "
        "are is said, not judged.",
        "The definition leaves the step open; the paper's lengths are multiples of 100, which `paper` takes.",
        "Transformer-XL is read with more memory than it was trained with, the other models as they were trained; the "
        "vanilla transformer cannot read beyond its table of positions, so that is its longest length.",
        "Losses are those of tokens spread evenly over the validation set, each behind a context of exactly that "
        "length and an empty memory.",
    ),
)
