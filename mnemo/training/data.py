"""The training stream of a run and its validation score, from a corpus or a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mnemo.data.corpus import Corpus, Split
from mnemo.data.prepare import load
from mnemo.data.streams import ContiguousStream, SentenceStream, Stream
from mnemo.data.tasks import AnyTask
from mnemo.errors import MnemoError, plural
from mnemo.evaluation.perplexity import first_symbols, score_split
from mnemo.evaluation.settings import EvaluationSettings
from mnemo.model import Model
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.training.distributed import Rows
from mnemo.training.processes import Alone, AnyWorld
from mnemo.training.task_data import answer_loss, check_task, task_info, task_stream


class Scored(NamedTuple):
    loss: float
    """Nats per token"""
    tokens: int


@dataclass(frozen=True)
class Data:
    """The training stream of a run, and how it is validated."""

    info: dict[str, Any]
    """Description in recipe.json: name, unit, vocab_size"""
    stream: Stream
    score: Callable[[Model, ShowProgress], Scored] | None = None
    """Scores a model on the validation set; None without one"""
    tokenizer: dict[str, Any] | None = None
    """The tokenizer as JSON; None if the data is not text"""
    row_tokens: int | None = None
    """Tokens of a contiguous text in each row of a batch; None for shuffled sentences and tasks"""
    divided: bool = False
    """Whether `score` scores only this process's rows of the validation set"""


def open_data(recipe: Recipe, show: ShowProgress = silent, world: AnyWorld | None = None) -> Data:
    """Open the task or corpus of a recipe; the processes of `world` divide the rows of an evaluation."""
    if recipe.data.task is not None:
        return _open_task(recipe, recipe.data.task)
    corpus = load(recipe.data.corpus, show=show)
    info = {"name": corpus.name, "unit": corpus.tokenizer.unit, "vocab_size": corpus.vocab_size}
    valid = corpus.split("valid") if "valid" in corpus.splits else None

    def score(model: Model, show: ShowProgress) -> Scored:
        assert valid is not None
        part, config = (valid, recipe.evaluation) if not divided else _own_rows(valid, recipe.evaluation, world)
        if not config.batch:
            return Scored(0.0, 0)
        (result,) = score_split(model, part, EvaluationSettings.of_recipe(recipe, config), progress=show)
        return Scored(result.loss, result.tokens)

    divided = world is not None and world.size > 1 and recipe.data.order == "contiguous"
    if valid is not None:
        _check_long_enough(recipe, valid)
    train_split = corpus.split("train")
    info |= {"documents": train_split.documents is not None, "fingerprint": corpus.fingerprint()}
    stream = build_stream(recipe, train_split, corpus)
    rows = len(train_split.ids) // recipe.train.batch if recipe.data.order == "contiguous" else None
    return Data(info, stream, None if valid is None else score, corpus.tokenizer.to_json(), rows, divided)


def _open_task(recipe: Recipe, task: AnyTask) -> Data:
    check_task(recipe, task)

    def score(model: Model, show: ShowProgress) -> Scored:
        return Scored(*answer_loss(model, task, recipe.evaluation, recipe.train.segment, show))

    return Data(task_info(task), task_stream(recipe, task), score)


def _own_rows(valid: Split, config: EvalConfig, world: AnyWorld | None) -> tuple[Split, EvalConfig]:
    """The part of the text that holds this process's rows: rows follow each other in the text."""
    rows = Rows.of(world or Alone(), config.batch)
    if not len(rows):
        return valid, replace(config, batch=0)
    whole = first_symbols(valid, config.limit)
    width = len(whole.ids) // config.batch
    begin, end = rows.begin * width, rows.end * width
    documents = whole.documents
    if documents is not None:
        documents = documents[(documents >= begin) & (documents < end)] - begin
        # Every row begins at an edge anyway, but the stream needs at least one edge.
        documents = documents if len(documents) else np.zeros(1, dtype=np.int64)
    return replace(whole, ids=whole.ids[begin:end], documents=documents), replace(config, batch=len(rows), limit=None)


def _check_long_enough(recipe: Recipe, valid: Split) -> None:
    """Raise MnemoError if the validation set is too short, before training instead of at the first evaluation."""
    config = recipe.evaluation
    count = len(valid.ids) if config.limit is None else min(config.limit, len(valid.ids))
    if count < 2 * config.batch:
        rows = plural(config.batch, "row")
        raise MnemoError(f"the validation set's {plural(count, 'token')} are too short for {rows} of evaluation")


def check_rows(recipe: Recipe, data: Data) -> None:
    """Raise MnemoError if the text is shorter than a segment in every row: no memory would carry anything there."""
    rows, segment, tokens = recipe.train.batch, recipe.train.segment, data.row_tokens
    if tokens is None or tokens > segment:
        return
    fewer = rows * tokens // (segment + 1)
    batch = f"--train.batch {fewer} or less, " if fewer else ""
    raise MnemoError(
        f"{plural(rows, 'row')} leave {plural(tokens, 'token')} of the text in each, less than a segment of "
        f"{segment:,} and its targets: "
        f"use {batch}--train.segment {tokens - 1} or less, or a longer text"
    )


def why_uneven(recipe: Recipe) -> str | None:
    """The reason why training segments differ in length, or None."""
    if recipe.train.vary_segment:
        return "vary_segment draws other lengths"
    task = recipe.data.task
    if recipe.data.leak and task is not None and task.num_tokens % recipe.train.segment:
        return "the last segment of a sample is shorter"
    return "segments are cut at documents" if recipe.data.documents == "reset" else None


def build_stream(recipe: Recipe, split: Split, corpus: Corpus) -> Stream:
    train, data = recipe.train, recipe.data
    common: dict[str, Any] = {"context": train.context, "seed": train.seed, "vocab_size": corpus.vocab_size}
    by_document = data.documents == "reset" or data.order == "sentences"
    if by_document and split.documents is None:
        raise MnemoError(f"corpus '{corpus.name}' has no documents or lines to separate")
    if data.order == "sentences" and (data.rotate or data.drop_last or train.vary_segment or data.documents == "reset"):
        raise MnemoError("shuffled sentences take no rotate, no drop_last, no vary_segment and no documents=reset")
    if data.order == "sentences" and split.documents is not None:
        return SentenceStream(split.ids, split.documents, train.batch, train.segment, **common)
    documents = split.documents if by_document else None
    common |= {"documents": documents, "rotate": data.rotate, "vary": train.vary_segment, "drop_last": data.drop_last}
    return ContiguousStream(split.ids, train.batch, train.segment, **common)
