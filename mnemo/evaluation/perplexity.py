"""Scoring a model on a split: bits per token and perplexity, at any memory and segment length.

The published protocol cuts the text into `batch` rows that start with an empty memory and are read in step, segment
by segment; the loss is an exact mean over tokens. Memories keep projected keys and values, positions are projected
once. Word-level perplexity of a byte, character or BPE model is exp(loss x tokens per word), where words are separated
by white space and both counts are those of the whole split, even if only its beginning is scored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemo.data.corpus import Split
from mnemo.data.streams import Batch, ContiguousStream, SentenceStream, Stream, one_epoch, stacked
from mnemo.errors import MnemoError, require_positive
from mnemo.evaluation.score import LossSums, Score
from mnemo.evaluation.settings import Documents, EvaluationSettings, Order, resolve
from mnemo.inference.segment_scorer import Scorer, can_record, losses_at, open_scorer, with_dtype
from mnemo.memory.configuration import Start
from mnemo.model import Model, evaluating
from mnemo.model.memory_limits import require_state_room
from mnemo.model.positions import Learned, Sinusoidal
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.recipe import EvalConfig
from mnemo.recipes.tied_lengths import length_for

TOKENS_AT_ONCE = 16384
"""Tokens in one batch of windows that are independent of each other."""
TEMPERATURES = tuple(round(0.8 + 0.01 * step, 2) for step in range(51))
"""Candidates when a temperature is fitted: the loss near the best one is flat."""


def evaluate(
    model: Model,
    split: Split,
    config: EvalConfig,
    *,
    segment: int,
    context: int = 0,
    documents: Documents = "ignore",
    order: Order = "contiguous",
    limit: int | None = None,
    sliding: bool = False,
    windows: int | None = None,
    no_memory: bool = False,
    start: Start = "empty",
    temperature: float = 1.0,
    progress: ShowProgress | None = None,
) -> Score:
    """Score one pass over `split`.

    `segment`: tokens of a segment, if `config` has none
    `context`: tokens before each segment that are encoded again and carry no loss, if `config` has none
    `documents`: "reset": segments end with their document, and the memory is emptied there
    `order`: "sentences": documents are sentences packed into rows; nothing is predicted across two of them, and the
        memory is kept (One Billion Word)
    `limit`: score only this many tokens from the beginning
    `sliding`: no memory; every token is predicted from the `segment` tokens before it, as models without memory are
        scored; only the tokens of the first window have fewer
    `windows`: windows in one batch, with `sliding`; None chooses a number that suits the device
    `no_memory`: no layer has a memory, the short-range ones included
    `start`: "zeros": the memory is full of zeros at first, which are attended to, as in TensorFlow and Hugging Face
    `temperature`: divides the logits
    """
    settings = replace(
        resolve(config, segment=segment, context=context, documents=documents, order=order, start=start),
        limit=config.limit if limit is None else limit,
        sliding=sliding,
        windows=windows,
        no_memory=no_memory,
    )
    (score,) = score_split(model, split, settings, (temperature,), progress)
    return score


def score_split(
    model: Model,
    split: Split,
    settings: EvaluationSettings,
    temperatures: Sequence[float] = (1.0,),
    progress: ShowProgress | None = None,
) -> list[Score]:
    """Score one pass over `split` at every temperature."""
    for temperature in temperatures:
        require_positive("temperature", temperature)
    if settings.sliding:
        settings = replace(settings, batch=1, context=0)
    with evaluating(model):
        scored = _configured(model, settings)
        lengths = _memory_lengths(scored, settings)
        part = first_symbols(split, settings.limit)
        score_pass = _score_windows if settings.sliding else _score_segments
        begin = time.monotonic()
        sums = score_pass(scored, part, settings, lengths, temperatures, progress or silent)
        seconds = time.monotonic() - begin
    score = Score(
        loss=math.nan,
        tokens=sums.tokens(),
        tokens_per_word=len(split.ids) / split.num_words if split.num_words else None,
        seconds=seconds,
        split=split.name,
        memory=scored.config.memory.long_length(lengths),
        segment=settings.segment,
        context=settings.context,
        batch=settings.batch,
        clamp=getattr(scored.config.positions, "clamp", None),
        same_length=scored.config.same_length,
        documents=settings.documents,
        order=settings.order,
        sliding=settings.sliding,
        by_position=(),
    )
    found = zip(sums.means(), sums.by_position(), temperatures, strict=True)
    return [replace(score, loss=loss, by_position=parts, temperature=at) for loss, parts, at in found]


def _configured(model: Model, settings: EvaluationSettings) -> Model:
    """The model with the settings' clamp and same_length."""
    if settings.context and model.config.tokens is not None:
        raise MnemoError("a model with memory tokens cannot encode earlier tokens again: the context must be 0")
    changes = {"clamp": settings.clamp, "same_length": settings.same_length}
    changes = {name: value for name, value in changes.items() if value is not None}
    return model.variant(**changes) if changes else model


def _memory_lengths(model: Model, settings: EvaluationSettings) -> tuple[int, ...]:
    """The memory length of every layer."""
    num_layers = model.config.num_layers
    off = settings.no_memory or settings.sliding
    long = length_for(model.config, settings.memory)
    lengths = (0,) * num_layers if off else model.config.memory.lengths(num_layers, long)
    if any(lengths) and isinstance(model.config.positions, (Learned, Sinusoidal)):
        raise MnemoError(f"{type(model.config.positions).__name__} positions are absolute: this model takes no memory")
    return lengths


def first_symbols(split: Split, limit: int | None) -> Split:
    """The split cut after `limit` symbols; counts of bytes, words and lines stay those of the whole."""
    if limit is None:
        return split
    require_positive("limit", limit)
    documents = None if split.documents is None else split.documents[split.documents < limit]
    return replace(split, ids=split.ids[:limit], documents=documents)


def _score_segments(
    model: Model,
    split: Split,
    settings: EvaluationSettings,
    lengths: tuple[int, ...],
    temperatures: Sequence[float],
    progress: ShowProgress,
) -> LossSums:
    stream = _stream(split, settings, model.config.vocab_size)
    span, device = settings.segment + settings.context, model.device
    require_state_room(model.config, device, batch=settings.batch, segment=span, lengths=lengths, cached=True)
    # Attention without memory keeps nothing between segments, whatever part of a segment would be stored.
    remembers = any(lengths) or not can_record(model)
    independent = settings.context > 0 and settings.is_one_text and not remembers
    at_once = max(1, TOKENS_AT_ONCE // (span * settings.batch)) if independent else 1
    light, precision = _stored_as_computed(model)
    with precision:
        scorers = {
            rows: _scorer(light, settings, lengths, temperatures, rows)
            for rows in {settings.batch, at_once * settings.batch}
        }
    sums = LossSums(len(temperatures), settings.segment)
    label = f"scoring {split.name} (memory {model.config.memory.long_length(lengths)}, segment {settings.segment})"
    with progress(label, len(split.ids) - settings.batch, unit="tokens") as bar, precision:
        for number, batch in enumerate(stacked(one_epoch(stream), at_once)):
            # The first states are empty already; a start from zeros must not be reset.
            starts = None if number == 0 or settings.start == "zeros" else _starts(batch, settings.no_memory)
            stored = _stored(batch, settings.context) if remembers else batch.lengths
            losses = scorers[len(batch.tokens)].score(
                _sent(batch.tokens, device), _sent(batch.targets, device), _to(stored, device), _to(starts, device)
            )
            bar.advance(sums.add(losses, batch.targets))
    for scorer in scorers.values():
        scorer.close()
    return sums


def _stored_as_computed(model: Model) -> tuple[Model, AbstractContextManager[Any]]:
    """The model to score with, and the context to score in.

    In half precision the weights are stored in half precision as well, so that no step has to cast them; on a CPU,
    threads that score some of the rows each need that, because autocast is not active in them.
    """
    device = model.device.type
    if device in ("cuda", "cpu") and torch.is_autocast_enabled(device) and can_record(model):
        return with_dtype(model, torch.get_autocast_dtype(device)), torch.autocast(device, enabled=False)
    return model, nullcontext()


def _scorer(
    model: Model, settings: EvaluationSettings, lengths: tuple[int, ...], temperatures: Sequence[float], rows: int
) -> Scorer:
    """A scorer of `rows` rows that starts from an empty memory or from zeros, of the type of training."""
    device = model.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    state = (model.zeros if settings.start == "zeros" else model.init)(rows, lengths, cached=True, dtype=dtype)
    return open_scorer(model, state, settings.segment + settings.context, temperatures)


def _stream(split: Split, settings: EvaluationSettings, vocab_size: int) -> Stream:
    batch, segment, context = settings.batch, settings.segment, settings.context
    if settings.is_one_text:
        return ContiguousStream(split.ids, batch, segment, context=context, vocab_size=vocab_size)
    edges = split.documents
    if edges is None:
        raise MnemoError(f"split '{split.name}' has no documents: its memory cannot be reset at their edges")
    if settings.order == "contiguous":
        return ContiguousStream(split.ids, batch, segment, context=context, documents=edges, vocab_size=vocab_size)
    return SentenceStream(split.ids, edges, batch, segment, context=context, shuffle=False, vocab_size=vocab_size)


def _stored(batch: Batch, context: int) -> Tensor | None:
    """How many tokens of each row enter the memory: none that the next segment encodes again."""
    if not context:
        return batch.lengths
    rows, width = batch.tokens.shape
    return torch.full((rows,), max(0, width - context))


def _starts(batch: Batch, no_memory: bool) -> Tensor | None:
    """The rows whose state is emptied: all, or those in which a document begins."""
    return torch.ones(len(batch.tokens), dtype=torch.bool) if no_memory else batch.starts


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _to(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def _score_windows(
    model: Model,
    split: Split,
    settings: EvaluationSettings,
    lengths: tuple[int, ...],
    temperatures: Sequence[float],
    progress: ShowProgress,
) -> LossSums:
    if len(split.ids) < 2:
        raise MnemoError(f"split '{split.name}' has {len(split.ids)} tokens: there is nothing to predict")
    length, device = settings.segment, model.device
    sums = LossSums(len(temperatures), length)
    tables = model.tables(length, model.init(1, lengths, cached=True))

    def losses(windows: np.ndarray, scored: int) -> Tensor:
        text = torch.from_numpy(windows.astype(np.int64)).to(device)
        empty = model.init(len(windows), lengths, cached=True)
        out, _ = model(text[:, :-1], empty, tables=tables)
        return losses_at(model, temperatures, out, text[:, -scored:])

    with progress(f"sliding over {split.name}", len(split.ids) - 1, unit="tokens") as bar:
        first = np.asarray(split.ids[: length + 1])[None]
        bar.advance(sums.add(losses(first, first.shape[1] - 1), torch.from_numpy(first[:, 1:].astype(np.int64))))
        for windows in _windows_after_first(split.ids[:], length, settings.windows or max(1, TOKENS_AT_ONCE // length)):
            bar.advance(sums.add_last(losses(windows, 1)))
    return sums


def _windows_after_first(ids: np.ndarray, length: int, at_once: int) -> Iterator[np.ndarray]:
    """Batches (N, length + 1) of windows, each with the token that it predicts; N is at most `at_once`."""
    if len(ids) <= length + 1:
        return
    windows = np.lib.stride_tricks.sliding_window_view(ids, length + 1)
    for begin in range(1, len(windows), at_once):
        yield windows[begin : begin + at_once]
