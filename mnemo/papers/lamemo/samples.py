"""Samples from the same prompts (Tables 6 and 7): memory 512, 256 tokens, top-p 0.95, and how much they repeat."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemo.analysis import repetition
from mnemo.data.tokenizers import AnyTokenizer
from mnemo.inference.generation import generate
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Results, Sample, Table
from mnemo.papers.grid import Grid
from mnemo.papers.intervals import Comparison, Pair, decide
from mnemo.papers.jobs import Place, job
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.lamemo.models import LAMEMO, PAPER, TRANSFORMER_XL
from mnemo.papers.lamemo.trained import BEYOND, TRAINED, measured, open_trained, trained_then_measured

MODELS = (LAMEMO, TRANSFORMER_XL)
MEMORY, TOKENS, TOP_P, SEED = 512, 256, 0.95, 42
PROMPT = 512
"""Tokens of a prompt: as many as the memory has slots."""
PROMPTS = 16
CLAMP = 400
"""The largest distance with an encoding of its own, in the published script."""
SHOWN = 2
"""The paper shows as many."""
GRAM = 4
"""Words whose recurrence counts as a repetition."""
SETTINGS: dict[str, Any] = {
    "memory": MEMORY,
    "tokens": TOKENS,
    "prompt": PROMPT,
    "prompts": PROMPTS,
    "top_p": TOP_P,
    "seed": SEED,
}
SELF_TEST = SETTINGS | {"memory": 16, "tokens": 12, "prompt": 12, "prompts": 2, "clamp": 8}


@job("lamemo-samples")
def write_samples(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    opened = open_trained(settings, place)
    ids = opened.corpus.split("test").ids
    begins = spread(len(ids), settings["prompts"], settings["prompt"])
    prompts = [prompt_at(ids, begin, settings["prompt"]) for begin in begins]
    model, tokenizer = opened.run.model, opened.corpus.tokenizer
    if "clamp" in settings:
        model = model.variant(clamp=settings["clamp"])
    with place.progress("writing samples", settings["tokens"], unit="tokens") as bar:
        written = generate(
            model,
            prompts,
            num_tokens=settings["tokens"],
            segment=opened.segment,
            state=opened.run.first_state(len(prompts), settings["memory"], cached=True),
            top_p=settings["top_p"],
            seed=settings["seed"],
            on_token=lambda step, tokens: bar.advance(1),
        )
    texts = [continuation(tokenizer, prompt, row) for prompt, row in zip(prompts, written.tokens, strict=True)]
    return {
        "begins": begins[:SHOWN],
        "texts": texts[:SHOWN],
        "repetition": [repetition(words_of(text), GRAM) for text in texts],
        "distinct": [len(set(words_of(text))) / max(1, len(words_of(text))) for text in texts],
    }


def spread(size: int, count: int, length: int) -> list[int]:
    """First tokens of prompts that are evenly spread over a text of `size` tokens."""
    return [(2 * number + 1) * (size - length) // (2 * count) for number in range(count)]


def prompt_at(ids: np.ndarray, begin: int, length: int) -> Tensor:
    return torch.from_numpy(np.asarray(ids[begin : begin + length]).astype(np.int64))


def continuation(tokenizer: AnyTokenizer, prompt: Tensor, row: Tensor) -> str:
    """The text after the prompt. The prompt decides whether it begins with a blank, so both are decoded."""
    decoder = tokenizer.decoder()
    decoder.feed(prompt.tolist())
    return decoder.feed(row.tolist()) + decoder.finish()


def words_of(text: str) -> list[str]:
    return text.lower().split()


def cells(budget: Budget) -> list[Cell]:
    settings = SETTINGS
    if budget == "paper":
        settings = SETTINGS | {"clamp": CLAMP}
    if budget == "small":
        settings = SETTINGS | {"tokens": 4 * TOKENS}
    if budget == "self-test":
        settings = SELF_TEST
    return trained_then_measured(budget, MODELS, "lamemo-samples", settings)


def _repeats_less(results: Results) -> Outcome | None:
    found = measured(results, *MODELS)
    if len(found) < len(MODELS):
        return None
    ahead, static = (found[model].values["repetition"] for model in MODELS)
    ours = f"{_mean(ahead)} against {_mean(static)} of the {GRAM}-grams, over {len(ahead)} prompts"
    if "clamp" not in found[LAMEMO].cell.settings:
        ours += "; not decided without a clamp: with memories longer than in training, LaMemo may write no words"
        return Outcome(ours, None, 1)
    return Outcome(ours, _less(ahead, static), 1)


def _mean(shares: list[float]) -> str:
    return f"{statistics.fmean(shares):.1%} ± {statistics.stdev(shares):.1%}" if len(shares) > 1 else f"{shares[0]:.1%}"


def _less(some: list[float], others: list[float]) -> bool | None:
    """Over pairs of samples from one prompt; None if the 95% interval of the difference includes 0."""
    pair = Pair(*MODELS, "share", tuple(other - one for one, other in zip(some, others, strict=True)))
    return decide([Comparison(pair, needed=0.0)])[Comparison(pair, needed=0.0)].holds


CLAIMS = (
    Observed(
        f"LaMemo repeats itself less than Transformer-XL: fewer of its {GRAM}-grams of words have occurred before.",
        "Transformer-XL suffers more severe repetition (two samples, no number)",
        _repeats_less,
    ),
)


def tables(found: Mapping[str, CellResult]) -> list[Table]:
    """How much the samples of every model repeat."""
    rows = [
        (model, len(each.values["repetition"]), _mean(each.values["repetition"]), _mean(each.values["distinct"]))
        for model, each in found.items()
    ]
    headers = ("model", "samples", f"repeated {GRAM}-grams", "distinct words")
    caption = "Means and deviations over samples. Letters that form no words count as distinct words too."
    return [Table("Repetition", headers, rows, caption)] if rows else []


def samples(found: Mapping[str, CellResult]) -> list[Sample]:
    """The place of every prompt, whose text is not stored, followed by the continuation of every model."""
    if not found:
        return []
    shown, first = [], next(iter(found.values()))
    length = first.cell.settings["prompt"]
    for number, begin in enumerate(first.values["begins"]):
        place = f"Tokens {begin:,} to {begin + length - 1:,} of the test set, counted from 0."
        shown.append(Sample(f"Prompt {number + 1}", place, f"The last {length} tokens before the samples."))
        shown.extend(_sample(model, each, number) for model, each in found.items())
    return shown


def _sample(model: str, found: CellResult, number: int) -> Sample:
    share = found.values["repetition"][number]
    return Sample(f"{model}, prompt {number + 1}", found.values["texts"][number], f"{share:.1%} repeated {GRAM}-grams")


SAMPLES = Experiment(
    name="lamemo-samples",
    title="Samples from the same prompts",
    paper=PAPER,
    covers=("Tables 6 and 7", "Section 7"),
    claim="With a memory of 512, LaMemo stays on topic and repeats itself less than Transformer-XL.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, CLAIMS),
    tables=lambda results: tables(measured(results, *MODELS)),
    samples=lambda results: samples(measured(results, *MODELS)),
    notes=(
        "The paper judges two samples by eye; the score here is our own. Whether a text stays on topic is left to "
        "the reader.",
        "Prompts of 512 tokens are spread evenly over the test set, the published ones are random; top-p 0.95, seed "
        "42.",
        "A segment stays open as long as in training before it enters the memory; the published code feeds single "
        "tokens.",
        TRAINED,
        "paper: distances are clamped at 400, as in the published script.",
        "small: bytes of novels, 1,024 of them: some 180 words; no clamp.",
        BEYOND,
    ),
)
