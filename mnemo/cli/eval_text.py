"""Score a run on a text, in the mode that the flags of `mnemo eval` choose."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mnemo.cli import console, opened_run
from mnemo.cli.eval import Args, lengths_of
from mnemo.cli.eval_output import Evaluated, EvaluationOutput, LossPlot, length_remark
from mnemo.cli.run_arguments import BITS_PER_SYMBOL
from mnemo.cli.second_segment import why_one_segment
from mnemo.data.corpus import Corpus, Split
from mnemo.errors import MnemoError
from mnemo.evaluation.length_search import find_length, sweep_memory
from mnemo.evaluation.perplexity import TEMPERATURES, score_split
from mnemo.evaluation.score import Score
from mnemo.evaluation.settings import EvaluationSettings, trained_memory
from mnemo.recipes.tied_lengths import length_for
from mnemo.session.text_run import OpenedRun
from mnemo.storage.run_folder import LoadedRun


def score_text(args: Args) -> int:
    opened, corpus = opened_run.open_with_corpus(args)
    if args.find_length and args.split == "test":
        print(
            "mnemo: warning: a length chosen on test flatters the score there: choose it on valid",
            file=sys.stderr,
        )
    half = opened_run.half_precision(args.precision, opened.run, segments=True)
    evaluation = _Evaluation(args, opened, corpus)
    with opened_run.computing_in(half, opened.run):
        found = evaluation.run()
    opened_run.require_finite(*(score.loss for score in found.scores))
    _output(args, opened, evaluation.settings, half).finish(found)
    return 0


class _Evaluation:
    """One evaluation of a run on a text, in the mode that the flags choose."""

    def __init__(self, args: Args, opened: OpenedRun, corpus: Corpus) -> None:
        self.args, self.opened, self.corpus = args, opened, corpus
        self.model, self.split = opened.run.model, corpus.split(args.split or "valid")
        self.settings = _settings(args, opened.run)

    def run(self) -> Evaluated:
        if self.args.sweep_memory is not None:
            return self._sweep(lengths_of(self.args.sweep_memory))
        if self.args.find_length:
            return self._find_length()
        self._warn_of_one_segment()
        if self.args.fit_temperature is not None:
            return self._fit_temperature(self.args.fit_temperature)
        return self._score()

    def _require_two_segments(self) -> None:
        """Raise an error if scores at all lengths would be equal."""
        if (why := why_one_segment(self.split, self.settings)) is not None:
            raise MnemoError(why)

    def _warn_of_one_segment(self) -> None:
        config, settings = self.model.config, self.settings
        if settings.no_memory or settings.sliding:
            return
        lengths = config.memory.lengths(config.num_layers, length_for(config, settings.memory))
        if not any(lengths) and config.tokens is None:
            return
        if (why := why_one_segment(self.split, settings)) is not None:
            print(f"mnemo: warning: {why}", file=sys.stderr)

    def _json(self, score: Score, by_position: bool = False) -> dict[str, Any]:
        """The score as JSON, with bits per symbol under its usual name."""
        bpc = {"bpc": score.bits_per_token} if self.opened.unit in BITS_PER_SYMBOL else {}
        return score.to_json(by_position) | bpc

    def _at(self, split: Split, temperatures: Sequence[float]) -> list[Score]:
        return score_split(self.model, split, self.settings, temperatures, console.progress)

    def _score(self) -> Evaluated:
        (score,) = self._at(self.split, (1.0 if self.args.temperature is None else self.args.temperature,))
        by_position = self.args.by_position
        plot = LossPlot(
            x=range(1, len(score.by_position) + 1),
            losses=score.by_position,
            x_label=f"position in the segment, after a memory of {score.memory}",
            title="loss by position",
        )
        return Evaluated(
            kind="positions" if by_position else "score",
            lengths=_lengths_of(score),
            content={"score": self._json(score, by_position)},
            scores=[score],
            plot=plot if by_position else None,
            by_position=by_position,
        )

    def _fit_temperature(self, fitted_on: str) -> Evaluated:
        tried = self._at(self.corpus.split(fitted_on), TEMPERATURES)
        best = min(tried, key=lambda score: score.loss)
        scores = self._at(self.split, (1.0, best.temperature))
        return Evaluated(
            kind="temperature",
            lengths=_lengths_of(best),
            content={
                "fitted_on": fitted_on,
                "temperature": best.temperature,
                "tried": [[score.temperature, score.loss] for score in tried],
                "scores": [self._json(score) for score in scores],
            },
            scores=scores,
            remark=f"temperature {best.temperature:g}, fitted on {fitted_on} (ppl {best.perplexity:.3f} there)",
        )

    def _sweep(self, lengths: Sequence[int]) -> Evaluated:
        config = self.model.config
        if not any(config.memory.lengths(config.num_layers, 1)):
            raise MnemoError("this model's memory has no length: --sweep-memory would score the same model every time")
        if any(lengths):
            self._require_two_segments()
        scores = sweep_memory(self.model, self.split, self.settings, lengths, console.progress)
        trained = trained_memory(config)
        plot = LossPlot(
            x=[score.memory for score in scores],
            losses=[score.loss for score in scores],
            x_label="memory length (tokens)",
            title="loss by length",
            mark=trained,
            mark_label=f"trained with {trained}",
        )
        content = {"scores": [self._json(score) for score in scores]}
        return Evaluated(kind="sweep", lengths=f"s{scores[0].segment}", content=content, scores=scores, plot=plot)

    def _find_length(self) -> Evaluated:
        self._require_two_segments()
        train = self.opened.run.recipe.train
        found = find_length(
            self.model,
            self.split,
            self.settings,
            trained_span=train.segment + train.context,
            progress=console.progress,
        )
        plot = LossPlot(
            x=[score.attention for score in found.tried],
            losses=[score.loss for score in found.tried],
            x_label="attention length: memory and segment (tokens)",
            title="loss by length",
            mark=found.shortest.attention,
            mark_label=f"shortest within {found.tolerance:.1%} of the best: {found.shortest.attention}",
        )
        scores = {name: self._json(getattr(found, name)) for name in ("initial", "best", "shortest")}
        return Evaluated(
            kind="find-length",
            lengths=f"s{found.initial.segment}",
            content=scores | {"tolerance": found.tolerance, "tried": [self._json(score) for score in found.tried]},
            scores=found.tried,
            plot=plot,
            remark=length_remark(found, self.opened.unit in BITS_PER_SYMBOL),
        )


def _settings(args: Args, run: LoadedRun) -> EvaluationSettings:
    """What the flags, the recipe's `test` configuration and its training configuration resolve to."""
    names = ("memory", "segment", "context", "batch", "clamp", "limit")
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    test = run.recipe.test
    config = replace(test, **given, same_length=args.same_length or test.same_length)
    settings = EvaluationSettings.of_recipe(run.recipe, config)
    if args.documents is not None or args.sliding_window:
        settings = replace(settings, documents=args.documents or "ignore", order="contiguous")
    if args.find_length:
        # The search extends the memory to cover the context of training.
        settings = replace(settings, context=config.context or 0)
    has_one_memory = settings.is_one_text and not (args.sliding_window or args.no_memory)
    start = args.start or (run.start if has_one_memory else "empty")
    return replace(settings, start=start, sliding=args.sliding_window, no_memory=args.no_memory)


def _output(args: Args, opened: OpenedRun, settings: EvaluationSettings, half: torch.dtype | None) -> EvaluationOutput:
    split = args.split or "valid"
    full = "fp64" if opened.run.recipe.train.precision == "fp64" else "fp32"
    words = {
        "sliding": args.sliding_window,
        "no-memory": args.no_memory,
        "zeros": settings.start == "zeros",
        "documents": settings.documents == "reset",
        "same-length": args.same_length,
        "last": args.which == "last",
        "bf16": half is not None,
    }
    numbers = {"batch": args.batch, "clamp": args.clamp, "limit": args.limit, "temperature": args.temperature}
    parts = [split, *(word for word, holds in words.items() if holds)]
    parts += [f"{name}{value}" for name, value in numbers.items() if value is not None]
    return EvaluationOutput(
        opened=opened,
        split=split,
        settings={
            "split": split,
            "which": args.which,
            "precision": full if half is None else "bf16",
            "starts_from": settings.start,
            "no_memory": settings.no_memory,
            "limit": settings.limit,
            "trained_memory": trained_memory(opened.run.model.config),
        },
        label="-".join(parts),
        json=args.json,
    )


def _lengths_of(score: Score) -> str:
    context = f"-c{score.context}" if score.context else ""
    return f"m{score.memory}-s{score.segment}{context}"
