"""The headline rows of the overview: about a dozen claims with their data, the paper's number, ours and a verdict.

A row is shown only if its claim holds, or if it reports a finding of our own; claims that do not hold at the budget of
the stored results, and those that are open, are in the verdicts of their experiments. Every number comes from a stored
file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from statistics import fmean
from typing import Any, NamedTuple

from mnemo.papers.evidence import Evidence
from mnemo.papers.experiment import Budget
from mnemo.papers.gpu.lamemo import STILL_PREDICTS
from mnemo.papers.lamemo.models import LAMEMO, TRANSFORMER_XL
from mnemo.papers.main_figures import ARMT_PAPER, trained_length
from mnemo.papers.records import score_in_words, scores_that_count, seconds_in_words, seeds_in_words
from mnemo.papers.xl.language_modelling import ENWIK8

HOLDS, FINDING = "yes", "our finding"


class Headline(NamedTuple):
    claim: str
    data: str
    """What it was measured on, and what the paper's claim is about if that is something else."""
    paper: str
    ours: str
    verdict: str
    page: str
    """Name of the experiment, or of a page of the documentation (`speed.md`)."""


class Source(NamedTuple):
    """A claim of an experiment whose verdict makes a row."""

    experiment: str
    budget: Budget
    claim: str
    """As the experiment words it."""
    data: str


class Claimed(NamedTuple):
    """A row that is made from the first source whose claim holds."""

    sentence: str
    sources: tuple[Source, ...]

    def __call__(self, evidence: Evidence) -> Headline | None:
        for source in self.sources:
            verdict = evidence.verdict(source.experiment, source.budget, source.claim)
            if verdict is not None and verdict.holds:
                return Headline(self.sentence, source.data, verdict.paper, verdict.brief, HOLDS, source.experiment)
        return None


def headlines(evidence: Evidence) -> list[Headline]:
    """All rows whose evidence is stored."""
    return [row for make in ROWS if (row := make(evidence)) is not None]


def enwik8(evidence: Evidence) -> Headline | None:
    run = evidence.measurement("h200-enwik8")
    entry = next(each for each in ENWIK8.entries if each.name == "xl-12")
    if run is None or entry.paper is None or fmean(scores_that_count(run)) > entry.paper:
        return None
    ours = (
        f"{score_in_words(run)} bpc with {run['parameters'] / 1e6:.0f}M parameters after "
        f"{seconds_in_words(run)} s of training on one H200 ({seeds_in_words(run)})"
    )
    return Headline(
        "A 12-layer model with a memory reaches Transformer-XL's score in 15 minutes, with a recipe of today.",
        "enwik8",
        f"{entry.paper} bpc with {entry.millions:g}M parameters",
        ours,
        HOLDS,
        "speedrun.md",
    )


def longer_memories(evidence: Evidence) -> Headline | None:
    """LaMemo without dropout, in our code and in the authors'."""
    verdict = evidence.verdict("lamemo-extrapolation", "small", "The gap grows with the memory.")
    authors = evidence.measurement("lamemo-authors")
    if verdict is None or authors is None:
        return None
    code = {model: authors["models"][model]["by_multiple"]["10"] for model in (LAMEMO, TRANSFORMER_XL)}
    listed = ", ".join(f"{model} {bits:.3f}" for model, bits in code.items())
    ours = f"{verdict.brief.partition(' against ')[0]}; the authors' code: {listed}"
    dropped = evidence.verdict("gpu-lamemo", "gpu", STILL_PREDICTS)
    if dropped is not None and dropped.holds:
        ours += f"; with dropout, on enwik8: {dropped.brief}"
    return Headline(
        "Trained without dropout, LaMemo fails with memories longer than in training; the authors' code does, too.",
        "novels (the paper: WikiText-103, with dropout); m: memory length in multiples of the targets",
        "gains up to a memory of 7 targets (Figure 5)",
        ours,
        FINDING,
        "lamemo.md",
    )


def facts_in_books(evidence: Evidence) -> Headline | None:
    compared = evidence.measurement("h200-babilong-comparison")
    run = evidence.measurement("h200-babilong-associative")
    if compared is None or run is None:
        return None
    trained, shown = trained_length(run), {each["length"]: each for each in run["results"]}
    longer = [_share(shown[length], compared["chance"]) for length in sorted(shown) if length >= trained]
    published = {label: dict(points) for label, points in map(itemgetter("label", "points"), compared["published"])}
    return Headline(
        "With an associative memory, a small model finds facts in texts far longer than those of its training.",
        f"BABILong qa1, SmolLM2-135M, trained on up to {trained:,} tokens for {run['options']['minutes']:g} minutes",
        f"{published['ARMT'][131_072]:.1%} at 128k tokens, GPT-2 of 137M ({ARMT_PAPER})",
        f"{', '.join(longer)} tokens (1 run)",
        FINDING,
        "babilong.md",
    )


def _share(result: Mapping[str, Any], chance: float) -> str:
    least, _ = result["interval"]
    return f"{result['accuracy']:.1%}" + (" (a guess)" if least <= chance else "") + f" at {result['length']:,}"


def parity(evidence: Evidence) -> Headline | None:
    measured = evidence.measurement("parity")
    if measured is None:
        return None
    passed = [each["error"] for each in measured["files"] if each["status"] == "passed"]
    refused = [each for each in measured["files"] if each["status"] == "refused"]
    if len(passed) + len(refused) < len(measured["files"]):
        return None
    return Headline(
        f"Losses, memories and gradients equal those of the authors' code, to {measured['tolerance']:.0e}.".replace(
            "e-0", "e-"
        ),
        "reference files of Transformer-XL, RMT, LaMemo, infinity-former and ARMT, float64",
        "the same numbers",
        f"{len(passed)} of {len(measured['files'])} files, worst error {max(passed):.0e}; {len(refused)} refused: they "
        "need a defect of that code",
        HOLDS,
        "published-defects.md",
    )


def speed(evidence: Evidence) -> Headline | None:
    measured = evidence.measurement("h200-inference")
    if measured is None:
        return None
    cases = {each["case"]: each for each in measured["cases"]}
    timed = {words: cases[name] for words, name in (("evaluation", "eval-long"), ("generation", "generate-long"))}
    ours = [f"{words} {_speed(case, 'mnemo')} ({_ratios(case)})" for words, case in timed.items()]
    published = [f"{words} {_speed(case, 'published')}" for words, case in timed.items()]
    return Headline(
        "Evaluation and generation with a memory of 3,800 are over 25 times as fast as the published formulation.",
        f"Transformer-XL base, random text, one {measured['machine']['name']}",
        f"{', '.join(published)} (run on the same GPU)",
        ", ".join(ours),
        HOLDS,
        "speed.md",
    )


def _ratios(case: Mapping[str, Any]) -> str:
    narrow = _rate(case, "mnemo") / _rate(case, "published, bf16 weights")
    return f"{case['ratio']:.0f} times; {narrow:.0f} if its weights are bf16, as ours are"


def _rate(case: Mapping[str, Any], contender: str) -> float:
    return float(case["contenders"][contender]["tokens_per_second"])


def _speed(case: Mapping[str, Any], contender: str) -> str:
    return f"{_rate(case, contender):,.0f} tokens/s"


ROWS: tuple[Callable[[Evidence], Headline | None], ...] = (
    enwik8,
    Claimed(
        "A memory of earlier segments is better than none.",
        (
            Source("gpu-xl", "gpu", "Transformer-XL is better than the same model without memory.", "enwik8"),
            Source(
                "lamemo-novels",
                "small",
                "A memory of the last segment is better than none.",
                "enwik8 claim, measured on novels",
            ),
            Source(
                "laptop-xl", "laptop", "Transformer-XL's memory is better than none.", "enwik8 claim, measured on songs"
            ),
        ),
    ),
    Claimed(
        "A memory is better than none also if both models train for the same time.",
        (
            Source(
                "gpu-xl",
                "gpu",
                "It is better than the same model without memory that trains for the same time.",
                "enwik8, 6,000 steps with memory",
            ),
        ),
    ),
    Claimed(
        "Evaluation that reuses the state is three orders of magnitude faster than a sliding window.",
        (
            Source(
                "xl-evaluation-speed",
                "small",
                "At an attention length of 3,800, state reuse is three orders of magnitude faster.",
                "random text: speed only",
            ),
        ),
    ),
    Claimed(
        "Long memories in a sixth of the layers are as good as in all of them.",
        (
            Source(
                "gpu-long-range",
                "gpu",
                "Long memories in a sixth of the layers, interleaved, are as good as in all.",
                "enwik8",
            ),
            Source(
                "long-wikitext103",
                "small",
                "Long memories in a sixth of the layers, interleaved, are as good as in all.",
                "WikiText-103 claim, measured on WikiText-2",
            ),
            Source(
                "laptop-long-range",
                "laptop",
                "A long memory in one layer of three is as good as in all.",
                "enwik8 claim, measured on songs",
            ),
        ),
    ),
    Claimed(
        "Long memories in a sixth of the layers halve the time of a training step, in the published formulation.",
        (
            Source(
                "long-profile",
                "small",
                "A sixth of the layers long range takes half the time per token or less, in the published formulation.",
                "random text: speed only",
            ),
        ),
    ),
    Claimed(
        "Memory tokens copy a sequence over 9 segments, where Transformer-XL with as many slots fails.",
        (
            Source(
                "laptop-rmt",
                "laptop",
                "Transformer-XL is far below RMT (mean lower by 0.1 or more).",
                "copy: 9 symbols (the paper: 24)",
            ),
        ),
    ),
    Claimed(
        "Memory tokens find a value by its key when the pairs are cut into 3 segments.",
        (
            Source(
                "gpu-retrieval",
                "gpu",
                "RMT solves retrieval in 3 segments (every run at 0.99 or better).",
                "retrieval: 4 pairs, 6 layers as published",
            ),
        ),
    ),
    Claimed(
        "Ten memory tokens make a language model better than no memory.",
        (Source("gpu-rmt", "gpu", "RMT with 10 memory tokens is better than no memory.", "enwik8, segments of 128"),),
    ),
    Claimed(
        "A memory that looks ahead is better than none.",
        (
            Source("gpu-lamemo", "gpu", "LaMemo is better than no memory.", "enwik8"),
            Source(
                "laptop-lamemo",
                "laptop",
                "A memory that looks ahead is better than none.",
                "enwik8 claim, measured on songs (synthetic text)",
            ),
        ),
    ),
    longer_memories,
    facts_in_books,
    parity,
    speed,
)
