"""How far back the final layer looks (Figure 1): the largest attention in every 5 tokens, over 15K tokens."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from mnemo.analysis import interval_maxima
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Figure, Results, Table
from mnemo.papers.grid import Grid
from mnemo.papers.jobs import Place, job
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.lamemo.models import LAMEMO, PAPER, TRANSFORMER_XL
from mnemo.papers.lamemo.trained import TRAINED, measured, open_trained, trained_then_measured
from mnemo.report.plots import Line, line_figure

MODELS = (LAMEMO, TRANSFORMER_XL)
TOKENS, INTERVAL, CONTEXT = 15_000, 5, 100
MORE = 1.1
"""Ratio of attention that counts as clearly more: there is one seed of each model."""
OLD = 50
"""The older half of the figure begins this many tokens back."""


@job("lamemo-attention")
def measure_attention(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    opened = open_trained(settings, place)
    memory = max(opened.run.recipe.model.memory.lengths(opened.run.recipe.model.num_layers))
    found = interval_maxima(
        opened.run.model,
        opened.corpus.split("test").ids[: memory + settings["tokens"]],
        segment=opened.segment,
        interval=settings["interval"],
        progress=place.progress,
    )
    pairs = zip(found.begins, found.mean.tolist(), strict=True)
    return {"maxima": [[begin, value] for begin, value in pairs if begin < settings["context"]]}


def cells(budget: Budget) -> list[Cell]:
    settings = {"tokens": TOKENS, "interval": INTERVAL, "context": CONTEXT}
    if budget == "self-test":
        settings = {"tokens": 64, "interval": 2, "context": 8}
    return trained_then_measured(budget, MODELS, "lamemo-attention", settings)


def old_share(found: CellResult) -> float:
    """The largest attention of intervals in the older half, averaged."""
    return fmean(value for begin, value in found.values["maxima"] if 2 * begin >= found.cell.settings["context"])


def _attends_further(results: Results) -> Outcome | None:
    found = measured(results, *MODELS)
    if len(found) < len(MODELS):
        return None
    ahead, static = (old_share(found[model]) for model in MODELS)
    ours = f"{ahead:.5f} against {static:.5f} in intervals {OLD} to {CONTEXT} tokens back ({ahead / static:.2f} times)"
    return Outcome(ours, None if static < ahead < MORE * static else ahead > static, 1)


CLAIMS = (
    Observed(
        f"In the final layer, LaMemo attends more to old context than Transformer-XL, {MORE} times as much at least.",
        "Transformer-XL quickly loses attention to older contexts, LaMemo does not (Figure 1)",
        _attends_further,
    ),
)


def figures(results: Results) -> list[Figure]:
    lines = [
        Line(model, [(float(begin), value) for begin, value in each.values["maxima"]])
        for model, each in measured(results, *MODELS).items()
    ]
    if not lines:
        return []
    caption = (
        "The largest attention in every interval of tokens to the left, averaged over tokens and heads; log scale."
    )
    return [
        line_figure(
            "attention",
            "Attention of the final layer (Figure 1)",
            caption,
            lines,
            x_label="tokens back",
            y_label="largest attention",
            y_logarithmic=True,
        )
    ]


def tables(results: Results) -> list[Table]:
    rows = [
        (model, f"{fmean(value for _, value in each.values['maxima']):.5f}", f"{old_share(each):.5f}")
        for model, each in measured(results, *MODELS).items()
    ]
    headers = ("model", "all intervals", "older half")
    caption = "Mean of the largest attention per interval. The paper shows this as a figure, without numbers."
    return [Table("Attention to the context", headers, rows, caption)] if rows else []


ATTENTION = Experiment(
    name="lamemo-attention",
    title="How far back the final layer looks",
    paper=PAPER,
    covers=("Figure 1",),
    claim="In the final layer Transformer-XL loses attention to older context, and LaMemo keeps it.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, CLAIMS),
    figures=figures,
    tables=tables,
    notes=(
        "The paper says that maxima of 5 tokens are scaled to a context of 100: here these are the 20 intervals of "
        "the last 100 tokens, averaged over heads; only tokens after a full memory count.",
        TRAINED,
        "small: bytes of novels, segment and memory of 128; 100 bytes are a sentence, not a paragraph.",
    ),
)
