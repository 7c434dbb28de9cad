"""Scoring a model on a split: bits per token and perplexity, at any memory and segment length.

The published protocol cuts the text into `batch` rows that start with an empty memory and are read in step, segment
by segment; the loss is an exact mean over tokens. Memories keep projected keys and values, positions are projected
once. Word-level perplexity of a byte, character or BPE model is exp(loss x tokens per word), where words are what
stands between white space and both counts are those of the whole split, even when only its beginning is scored.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from mnemo.data.corpus import Split
from mnemo.data.streams import Batch, ContiguousStream, SentenceStream, Stream, one_epoch, stacked
from mnemo.errors import MnemoError
from mnemo.inference.segment_scorer import Scorer, can_record, losses_at, open_scorer, with_dtype
from mnemo.memory.state import Start
from mnemo.model import Model
from mnemo.model.memory_limits import require_state_room
from mnemo.model.positions import Learned, Sinusoidal
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.recipe import EvalConfig

TOKENS_AT_ONCE = 16384
"""Of windows that know nothing of each other."""
Documents = Literal["ignore", "reset"]
Order = Literal["contiguous", "sentences"]
LOSSES_IN_FLIGHT = 32
"""Segments whose losses stay on the device before they are fetched."""
TEMPERATURES = tuple(round(0.8 + 0.01 * step, 2) for step in range(51))
"""Among which one is fitted: the loss near the best one is flat."""
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Score:
    loss: float
    """Nats per token."""
    tokens: int
    """How many tokens were predicted."""
    tokens_per_word: float | None
    """Of the whole split; None where its words were not counted."""
    seconds: float
    split: str
    memory: int
    """Memory length of the long-range layers."""
    segment: int
    """New tokens of a segment; tokens of a sliding window."""
    context: int
    """Tokens before the segment that are encoded again."""
    batch: int
    clamp: int | None
    same_length: bool
    documents: Documents
    order: Order
    sliding: bool
    by_position: tuple[float, ...]
    """Nats per token at each position of the segment; only the last position has many in a sliding window."""
    temperature: float = 1.0
    """What logits were divided by."""

    @property
    def bits_per_token(self) -> float:
        return bits(self.loss)

    @property
    def perplexity(self) -> float:
        return perplexity(self.loss)

    @property
    def word_perplexity(self) -> float | None:
        return None if self.tokens_per_word is None else perplexity(self.loss * self.tokens_per_word)

    @property
    def attention(self) -> int:
        """How many tokens a segment's last token may attend to, itself included."""
        return self.memory + self.context + self.segment

    def to_json(self, by_position: bool = False) -> dict[str, Any]:
        """Plain data; a perplexity beyond all numbers is None."""
        derived = ("bits_per_token", "perplexity", "word_perplexity", "attention")
        values = dataclasses.asdict(self) | {name: getattr(self, name) for name in derived}
        if not by_position:
            del values["by_position"]
        return {name: None if value == math.inf else value for name, value in values.items()}


def bits(nats: float) -> float:
    return nats / math.log(2)


def perplexity(nats: float) -> float:
    return math.inf if nats > 700 else math.exp(nats)


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

    `segment` and `context`: what the configuration leaves out; the context is tokens before each segment that are
    encoded again and carry no loss. `documents="reset"`: segments end with their document, and the memory with them.
    `order="sentences"`: documents are sentences packed into rows, nothing is predicted across two of them, and the
    memory runs on (One Billion Word). `limit`: only the first symbols. `no_memory`: every layer's memory off, the
    short-range ones' too. `sliding`: no memory, and every token predicted from a window of its own, the `segment`
    tokens before it (how the vanilla model is scored); only the first window's tokens see less. `windows`: how many of
    them are read at a time; as many as make good use of the device when left out. `start="zeros"`: the memory is first
    full of zeros that are attended to, as in TensorFlow and Hugging Face. `temperature`: logits are divided by it.
    """
    (score,) = evaluate_at(
        model,
        split,
        config,
        (temperature,),
        segment=segment,
        context=context,
        documents=documents,
        order=order,
        limit=limit,
        sliding=sliding,
        windows=windows,
        no_memory=no_memory,
        start=start,
        progress=progress,
    )
    return score


def evaluate_at(
    model: Model,
    split: Split,
    config: EvalConfig,
    temperatures: Sequence[float],
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
    progress: ShowProgress | None = None,
) -> list[Score]:
    """`evaluate` at every temperature, in one pass."""
    was_training = model.training
    model.eval()
    try:
        reader = _configured(model, config)
        setup = _Setup(
            segment=_positive("segment length", segment if config.segment is None else config.segment),
            context=0 if sliding else context if config.context is None else config.context,
            batch=1 if sliding else _positive("batch", config.batch),
            lengths=_memory_lengths(reader, config.memory, off=no_memory or sliding),
            forget=no_memory,
            documents=documents,
            order=order,
            zeros=start == "zeros",
            sliding=sliding,
            temperatures=tuple(_positive("temperature", temperature) for temperature in temperatures),
            windows=None if windows is None else _positive("windows at a time", windows),
        )
        _require_sense(reader, setup)
        part = first_symbols(split, config.limit if limit is None else limit)
        begin = time.monotonic()
        totals = (_read_windows if sliding else _read_stream)(reader, part, setup, progress or silent)
        seconds = time.monotonic() - begin
    finally:
        model.train(was_training)
    return _scores(reader, split, setup, totals, seconds)


class _Setup(NamedTuple):
    segment: int
    context: int
    batch: int
    lengths: tuple[int, ...]
    """Memory length of every layer"""
    forget: bool
    """Start every segment from an empty state: some memories have no length that could be 0"""
    documents: Documents
    order: Order
    zeros: bool = False
    """Start from a memory full of zeros"""
    sliding: bool = False
    """Predict every token from a window of its own"""
    temperatures: tuple[float, ...] = (1.0,)
    windows: int | None = None
    """Sliding windows that are read at a time"""

    @property
    def runs_on(self) -> bool:
        """Whether the text is read as one, whatever its documents."""
        return (self.documents, self.order) == ("ignore", "contiguous")


def _require_sense(model: Model, setup: _Setup) -> None:
    """Refuse choices that contradict each other."""
    if setup.sliding and not setup.runs_on:
        raise MnemoError("a sliding window runs over the whole text: it takes no documents and no sentences")
    if setup.zeros and (setup.sliding or setup.forget or not setup.runs_on):
        raise MnemoError("a memory that starts full of zeros is for one text that runs on")
    if setup.context and model.config.tokens is not None:
        raise MnemoError("memory tokens are written behind each segment's last token: none can be encoded again")


def _positive(name: str, value: Number) -> Number:
    if not 0 < value < math.inf:
        raise MnemoError(f"{name} {value} must be positive")
    return value


def _configured(model: Model, config: EvalConfig) -> Model:
    if config.clamp is not None:
        _positive("clamp", config.clamp)
    changes = {"clamp": config.clamp, "same_length": config.same_length}
    changes = {name: value for name, value in changes.items() if value is not None}
    return model.variant(**changes) if changes else model


def _memory_lengths(model: Model, memory: int | None, off: bool) -> tuple[int, ...]:
    if memory is not None and memory < 0:
        raise MnemoError(f"memory length {memory} is negative")
    num_layers = model.config.num_layers
    lengths = (0,) * num_layers if off else model.config.memory.lengths(num_layers, memory)
    if any(lengths) and isinstance(model.config.positions, (Learned, Sinusoidal)):
        raise MnemoError(f"{type(model.config.positions).__name__} positions are absolute: this model takes no memory")
    return lengths


def _long_range(model: Model, lengths: tuple[int, ...]) -> int:
    long_layers = model.config.memory.long_layers(len(lengths))
    return lengths[long_layers[0]] if long_layers else max(lengths)


def first_symbols(split: Split, limit: int | None) -> Split:
    """The split cut after `limit` symbols; counts of bytes, words and lines stay those of the whole."""
    if limit is None:
        return split
    _positive("limit", limit)
    documents = None if split.documents is None else split.documents[split.documents < limit]
    return replace(split, ids=split.ids[:limit], documents=documents)


def _scores(model: Model, split: Split, setup: _Setup, totals: _Totals, seconds: float) -> list[Score]:
    """One for every temperature."""
    score = Score(
        loss=math.nan,
        tokens=totals.tokens(),
        tokens_per_word=len(split.ids) / split.num_words if split.num_words else None,
        seconds=seconds,
        split=split.name,
        memory=_long_range(model, setup.lengths),
        segment=setup.segment,
        context=setup.context,
        batch=setup.batch,
        clamp=getattr(model.config.positions, "clamp", None),
        same_length=model.config.same_length,
        documents=setup.documents,
        order=setup.order,
        sliding=setup.sliding,
        by_position=(),
    )
    found = zip(totals.means(), totals.by_position(), setup.temperatures, strict=True)
    return [replace(score, loss=loss, by_position=parts, temperature=at) for loss, parts, at in found]


class _Totals:
    """Sums of losses by temperature and position, in float64; they are fetched many segments at a time."""

    def __init__(self, temperatures: int, positions: int) -> None:
        self.sums = torch.zeros(temperatures, positions, dtype=torch.float64)
        self.counts = torch.zeros(positions, dtype=torch.int64)
        self.waiting: list[Tensor] = []

    def add(self, nll: Tensor, targets: Tensor) -> int:
        """Add losses (S, B, T) of the targets (B, T) that are not -1; returns how many these are."""
        self.waiting.append(nll)
        if len(self.waiting) >= LOSSES_IN_FLIGHT:
            self._fetch()
        counted = (targets >= 0).sum(0)
        self.counts[: len(counted)] += counted
        return int(counted.sum())

    def add_last(self, nll: Tensor) -> int:
        """Add losses (S, B, 1) of the last position."""
        self.sums[:, -1] += nll.cpu().double().sum((1, 2))
        self.counts[-1] += nll.shape[1]
        return nll.shape[1]

    def _fetch(self) -> None:
        for nll in self.waiting:
            self.sums[:, : nll.shape[2]] += nll.cpu().double().sum(1)
        self.waiting.clear()

    def tokens(self) -> int:
        return int(self.counts.sum())

    def means(self) -> list[float]:
        self._fetch()
        return (self.sums.sum(1) / self.tokens()).tolist()

    def by_position(self) -> list[tuple[float, ...]]:
        self._fetch()
        seen = self.counts > 0
        return [tuple(part) for part in (self.sums[:, seen] / self.counts[seen]).tolist()]


@torch.no_grad()
def _read_stream(model: Model, split: Split, setup: _Setup, progress: ShowProgress) -> _Totals:
    stream = _stream(split, setup, model.config.vocab_size)
    lengths, span = setup.lengths, setup.segment + setup.context
    require_state_room(model.config, _device(model), batch=setup.batch, segment=span, lengths=lengths, cached=True)
    # Attention without memory leaves nothing behind, whatever is said of how much of it counts.
    remembers = any(setup.lengths) or not can_record(model)
    apart = setup.context > 0 and setup.runs_on and not remembers
    at_once = max(1, TOKENS_AT_ONCE // (span * setup.batch)) if apart else 1
    light, precision = _stored_as_computed(model)
    with precision:
        scorers = {rows: _scorer(light, setup, rows) for rows in {setup.batch, at_once * setup.batch}}
    totals, device = _Totals(len(setup.temperatures), setup.segment), _device(model)
    label = f"scoring {split.name} (memory {_long_range(model, setup.lengths)}, segment {setup.segment})"
    with progress(label, len(split.ids) - setup.batch, unit="tokens") as bar, precision:
        for number, batch in enumerate(stacked(one_epoch(stream), at_once)):
            # Memories are empty at first, or zeros that are to stay.
            starts = None if number == 0 or setup.zeros else _starts(batch, setup.forget)
            stored = _stored(batch, setup.context) if remembers else batch.lengths
            losses = scorers[len(batch.tokens)].score(
                _sent(batch.tokens, device), _sent(batch.targets, device), _to(stored, device), _to(starts, device)
            )
            bar.advance(totals.add(losses, batch.targets))
    for scorer in scorers.values():
        scorer.close()
    return totals


def _stored_as_computed(model: Model) -> tuple[Model, AbstractContextManager[Any]]:
    """The model to read with, and the context to read in.

    In half precision on a GPU the weights, which are only read, are stored so: nothing is left to be cast.
    """
    device = _device(model).type
    if device == "cuda" and torch.is_autocast_enabled(device) and can_record(model):
        return with_dtype(model, torch.get_autocast_dtype(device)), torch.autocast(device, enabled=False)
    return model, nullcontext()


def _scorer(model: Model, setup: _Setup, rows: int) -> Scorer:
    """Of so many rows at a time, behind empty memories or zeros."""
    state = (model.zeros if setup.zeros else model.init)(rows, setup.lengths, cached=True)
    return open_scorer(model, state, setup.segment + setup.context, setup.temperatures)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _stream(split: Split, setup: _Setup, vocab_size: int) -> Stream:
    if setup.runs_on:
        return ContiguousStream(split.ids, setup.batch, setup.segment, context=setup.context, vocab_size=vocab_size)
    if split.documents is None:
        raise MnemoError(f"split '{split.name}' has no documents: its memory cannot be reset at their edges")
    if setup.order == "contiguous":
        return ContiguousStream(
            split.ids,
            setup.batch,
            setup.segment,
            context=setup.context,
            documents=split.documents,
            vocab_size=vocab_size,
        )
    return SentenceStream(
        split.ids,
        split.documents,
        setup.batch,
        setup.segment,
        context=setup.context,
        shuffle=False,
        vocab_size=vocab_size,
    )


def _stored(batch: Batch, context: int) -> Tensor | None:
    """How many tokens of each row enter the memory: none that the next segment encodes again."""
    if not context:
        return batch.lengths
    rows, width = batch.tokens.shape
    return torch.full((rows,), max(0, width - context))


def _starts(batch: Batch, forget: bool) -> Tensor | None:
    return torch.ones(len(batch.tokens), dtype=torch.bool) if forget else batch.starts


def _to(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


@torch.no_grad()
def _read_windows(model: Model, split: Split, setup: _Setup, progress: ShowProgress) -> _Totals:
    if len(split.ids) < 2:
        raise MnemoError(f"split '{split.name}' has {len(split.ids)} tokens: there is nothing to predict")
    totals, device, length = _Totals(len(setup.temperatures), setup.segment), _device(model), setup.segment
    tables = model.tables(length, model.init(1, setup.lengths, cached=True))

    def losses(windows: np.ndarray, scored: int) -> Tensor:
        text = torch.from_numpy(windows.astype(np.int64)).to(device)
        empty = model.init(len(windows), setup.lengths, cached=True)
        out, _ = model(text[:, :-1], empty, tables=tables)
        return losses_at(model, setup.temperatures, out, text[:, -scored:])

    with progress(f"sliding over {split.name}", len(split.ids) - 1, unit="tokens") as bar:
        first = np.asarray(split.ids[: length + 1])[None]
        bar.advance(totals.add(losses(first, first.shape[1] - 1), torch.from_numpy(first[:, 1:].astype(np.int64))))
        for windows in _windows_after_first(split.ids, length, setup.windows or max(1, TOKENS_AT_ONCE // length)):
            bar.advance(totals.add_last(losses(windows, 1)))
    return totals


def _windows_after_first(ids: np.ndarray, length: int, at_once: int) -> Iterator[np.ndarray]:
    """Windows of `length` tokens and the token they predict, so many at once."""
    if len(ids) <= length + 1:
        return
    windows = np.lib.stride_tricks.sliding_window_view(ids, length + 1)
    for begin in range(1, len(windows), at_once):
        yield windows[begin : begin + at_once]


def _device(model: Model) -> torch.device:
    return next(model.parameters()).device


def sweep_memory(
    model: Model,
    split: Split,
    config: EvalConfig,
    lengths: Sequence[int],
    *,
    segment: int,
    context: int = 0,
    documents: Documents = "ignore",
    order: Order = "contiguous",
    limit: int | None = None,
    start: Start = "empty",
    progress: ShowProgress | None = None,
) -> list[Score]:
    """A score at every memory length of the long-range layers, in the given order."""
    return [
        evaluate(
            model,
            split,
            replace(config, memory=length),
            segment=segment,
            context=context,
            documents=documents,
            order=order,
            limit=limit,
            start=start,
            progress=progress,
        )
        for length in lengths
    ]


@dataclass(frozen=True, kw_only=True)
class LengthSearch:
    """The columns 'PPL init', 'PPL best' and 'Attn Len' of the Transformer-XL paper's table 5."""

    initial: Score
    """At the attention length of training."""
    best: Score
    shortest: Score
    """At the shortest attention length within `tolerance` of the best."""
    tolerance: float
    tried: tuple[Score, ...]
    """Every length that was scored, shortest first."""


def find_length(
    model: Model,
    split: Split,
    config: EvalConfig,
    *,
    segment: int,
    context: int = 0,
    documents: Documents = "ignore",
    order: Order = "contiguous",
    limit: int | None = None,
    tolerance: float = 1e-3,
    longest: int | None = None,
    start: Start = "empty",
    progress: ShowProgress | None = None,
) -> LengthSearch:
    """Lengthen the attention (memory + segment) until the relative gain in perplexity is under `tolerance`.

    From the training length on, the attention doubles until a doubling gains less than the tolerance, or until
    `longest` or a row of text ends. Then the shortest length whose perplexity is within the tolerance of the best is
    found by bisection, to a sixteenth of the training length; it may be shorter than that. `segment` and `context` are
    those of training. A model without memory gets a longer re-encoded context instead.
    """
    new = config.segment or segment
    trained = max(model.config.memory.lengths(model.config.num_layers))

    @functools.cache
    def at(attention: int) -> Score:
        beyond = max(0, attention - new)
        changed = replace(config, memory=beyond) if trained else replace(config, context=beyond)
        return evaluate(
            model,
            split,
            changed,
            segment=segment,
            documents=documents,
            order=order,
            limit=limit,
            start=start,
            progress=progress,
        )

    initial = at(max(new, segment + context + trained))
    scores = [initial, *_grow(at, initial.attention, tolerance, _longest(model, split, config, limit, longest))]
    best = min(scores, key=lambda score: score.loss)
    scores += _shorten(at, new, best, tolerance, resolution=max(1, initial.attention // 16))
    tried = tuple(sorted(set(scores), key=lambda score: score.attention))
    shortest = next(score for score in tried if _reaches(score, best, tolerance))
    return LengthSearch(initial=initial, best=best, shortest=shortest, tolerance=tolerance, tried=tried)


def _longest(model: Model, split: Split, config: EvalConfig, limit: int | None, longest: int | None) -> int:
    """The longest attention worth a try: a row of text, or the table of a model with learned positions."""
    row = len(first_symbols(split, config.limit if limit is None else limit).ids) // config.batch
    positions = model.config.positions
    ends = [row, longest, positions.length if isinstance(positions, Learned) else None]
    return min(end for end in ends if end is not None)


def _grow(at: Callable[[int], Score], attention: int, tolerance: float, longest: int) -> Iterator[Score]:
    while attention < longest:
        longer = min(2 * attention, longest)
        yield at(longer)
        if 1 - at(longer).perplexity / at(attention).perplexity < tolerance:
            return
        attention = longer


def _shorten(
    at: Callable[[int], Score], shortest: int, best: Score, tolerance: float, resolution: int
) -> Iterator[Score]:
    low, high = shortest, best.attention
    yield at(low)
    if _reaches(at(low), best, tolerance):
        return
    while high - low > resolution:
        middle = (low + high) // 2
        yield at(middle)
        if _reaches(at(middle), best, tolerance):
            high = middle
        else:
            low = middle


def _reaches(score: Score, best: Score, tolerance: float) -> bool:
    return score.perplexity <= best.perplexity * (1 + tolerance)
