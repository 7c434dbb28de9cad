"""Reading a text and writing on: prompts of any lengths, many continuations of one memory, constant cost per token.

A reading is everything that a text's continuation depends on: the memory, the open segment, the last token's output.
Row r of a call draws from a random generator of its own, seeded with `seed + r` (with several continuations, the k-th
of prompt i is row i x continuations + k). So a row does not depend on the rows beside it: alone, with that seed, it
is the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.cuda_graph import Recorded
from mnemo.inference.decoder import Decoder, DecodeState
from mnemo.inference.ring_decoder import RingDecoder
from mnemo.memory.state import State
from mnemo.model import Model, Output, evaluating
from mnemo.progress import ShowProgress, silent

NOT_FINITE = "the model's output is not finite: its weights are damaged or its training diverged"
OnToken = Callable[[int, Tensor], None]
"""Called with the number of the step, from 0, and the tokens (R,) that it chose."""


class Reading(NamedTuple):
    state: DecodeState
    hidden: Tensor
    """(B, D): the output of each row's last token, which predicts the next"""
    tokens: Tensor
    """(B,) tokens read so far"""


AnyState = Reading | DecodeState | State | None
"""What was read before: a reading, a decoder's state, a plain state, or nothing."""


class Sampling(NamedTuple):
    temperature: float = 1.0
    """0 takes the likeliest token"""
    top_k: int | None = None
    """Choose among the k likeliest tokens"""
    top_p: float | None = None
    """Choose among the likeliest tokens whose sum reaches p, the one that passes it included; after top_k"""

    def check(self) -> None:
        if not self.temperature >= 0:
            raise MnemoError(f"temperature {self.temperature} is negative")
        if self.top_k is not None and self.top_k < 1:
            raise MnemoError(f"top_k {self.top_k} must be positive")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise MnemoError(f"top_p {self.top_p} is not in (0, 1]")


class Generated(NamedTuple):
    tokens: Tensor
    """(R, num_tokens), on the CPU"""
    reading: Reading
    """Everything read and written, to go on from"""


def generate(
    model: Model,
    prompts: Sequence[Tensor] | Tensor | None = None,
    *,
    num_tokens: int,
    segment: int,
    state: AnyState = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    continuations: int = 1,
    on_token: OnToken | None = None,
) -> Generated:
    """Continue every prompt (token ids, of any lengths) `continuations` times by `num_tokens`.

    `state`: what was read before the prompts, a row each; a reading needs no prompt. `segment`: how many tokens are
    open before they enter the memory.
    """
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check()
    for name, value in (("number of tokens", num_tokens), ("number of continuations", continuations)):
        if value < 1:
            raise MnemoError(f"{name} {value} must be positive")
    with evaluating(model):
        rows = _rows(prompts)
        runner = _Runner.read(model, rows, state, segment) if rows else _Runner.resume(model, state, segment)
        runner = runner.fork(continuations)
        writer = Writer(model, runner.decoder, runner.hidden, sampling)
        written = []
        for step, draw in enumerate(_draws(seed, len(runner.hidden), num_tokens).to(writer.draw)):
            written.append(writer.write(draw))
            if on_token is not None:
                writer.check()
                on_token(step, written[-1].cpu())
        writer.check()
        tokens = torch.stack(written, 1).cpu()
        return Generated(tokens, runner.behind(writer.hidden, num_tokens).reading())


def _draws(seed: int, num_rows: int, num_tokens: int) -> Tensor:
    """(num_tokens, R), uniform in [0, 1): each row's from a generator of its own."""
    dice = [torch.Generator().manual_seed(seed + row) for row in range(num_rows)]
    return torch.stack([torch.rand(num_tokens, generator=die, dtype=torch.float64) for die in dice], 1)


class Writer:
    """Chooses a token of every row and reads it, again and again, without waiting for the device.

    In rings the whole step is recorded: logits, choice, embedding, layers.
    """

    def __init__(self, model: Model, decoder: Decoder | RingDecoder, hidden: Tensor, sampling: Sampling) -> None:
        self.model, self.decoder, self.sampling = model, decoder, sampling
        self.hidden = hidden.clone()
        """(R, D): the output of each row's last token"""
        exact = torch.float32 if hidden.device.type == "mps" else torch.float64
        self.draw = torch.zeros(len(hidden), dtype=exact, device=hidden.device)
        self.finite = torch.ones((), dtype=torch.bool, device=hidden.device)
        kept = (*decoder.open_rings().cursors, self.hidden, self.finite) if isinstance(decoder, RingDecoder) else ()
        self.step = Recorded(self._step, hidden.device, kept) if kept else self._step

    @torch.no_grad()
    def write(self, draw: Tensor) -> Tensor:
        """The tokens (R,) where `draw` (R,), uniform in [0, 1), falls."""
        self.draw.copy_(draw)
        return self.step().clone()

    def _step(self) -> Tensor:
        logits = self.model.logits(Output(self.hidden[:, None], {}))[:, 0]
        self.finite &= torch.isfinite(logits.amax(-1)).all()
        tokens = pick(logits, self.draw, self.sampling)
        if isinstance(self.decoder, RingDecoder):
            out = self.model.finish(self.decoder.open_rings().read(tokens[:, None]))
        else:
            self.check()
            out = self.decoder.feed(tokens[:, None])
        self.hidden.copy_(out.hidden[:, -1])
        return tokens

    def check(self) -> None:
        if not self.finite:
            raise MnemoError(NOT_FINITE)


class TextScore(NamedTuple):
    nats: float
    tokens: int
    """Predicted tokens: all, but for a text's very first"""


def read(
    model: Model,
    text: Tensor,
    *,
    segment: int,
    state: AnyState = None,
    progress: ShowProgress | None = None,
) -> tuple[Reading, TextScore]:
    """Read one text (T,) of token ids behind `state`, segment by segment, and score it on the way."""
    (text,) = _rows([text])
    with evaluating(model):
        decoder = _decoder(model, state, segment, batch=1)
        hidden = state.hidden if isinstance(state, Reading) else None
        nats, predicted = 0.0, 0
        with (progress or silent)("reading", len(text), unit="tokens") as bar:
            for piece in text.split(segment):
                tokens = piece[None].to(_device(model))
                out = decoder.feed(tokens)
                losses = _losses(model, hidden, out, tokens)
                nats, predicted = nats + float(losses.cpu().double().sum()), predicted + losses.numel()
                hidden = out.hidden[:, -1]
                bar.advance(len(piece))
        assert hidden is not None
        reading = Reading(decoder.state(), hidden.clone(), _tokens_read(state, 1) + len(text))
    return reading, TextScore(nats, predicted)


def _losses(model: Model, before: Tensor | None, out: Output, tokens: Tensor) -> Tensor:
    """Losses of tokens (1, T), each under the output before it; `before` (1, D) predicts the first."""
    predicting = out.hidden[:, :-1]
    if before is None:
        return model.loss(Output(predicting, {}), tokens[:, 1:])
    return model.loss(Output(torch.cat([before[:, None], predicting], 1), {}), tokens)


def choose(logits: Tensor, draws: Tensor, sampling: Sampling) -> Tensor:
    """As `pick`, but no token of an output that is not finite."""
    if not torch.isfinite(logits.amax(-1)).all():
        raise MnemoError(NOT_FINITE)
    return pick(logits, draws, sampling)


def pick(logits: Tensor, draws: Tensor, sampling: Sampling) -> Tensor:
    """One token a row of logits (R, V): where `draws` (R,), uniform in [0, 1), falls in the cumulated probabilities."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scores = logits.float() if logits.device.type == "mps" else logits.double()
    probabilities = torch.softmax((scores - scores.amax(-1, keepdim=True)) / sampling.temperature, -1)
    if sampling.top_k is None and sampling.top_p is None:
        return _invert(probabilities, draws)
    probabilities, order = probabilities.sort(dim=-1, descending=True, stable=True)
    kept = _keep_likeliest(probabilities, sampling)
    return order.gather(-1, _invert(kept, draws)[:, None])[:, 0]


def _keep_likeliest(probabilities: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities in descending order with the excluded ones set to 0."""
    if sampling.top_k is not None:
        probabilities = probabilities.clone()
        probabilities[:, sampling.top_k :] = 0
    if sampling.top_p is not None:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities * (before < sampling.top_p * probabilities.sum(-1, keepdim=True))
    return probabilities


def _invert(weights: Tensor, draws: Tensor) -> Tensor:
    """The first index whose cumulated weight exceeds the draw's share of the total."""
    cumulated = weights.cumsum(-1)
    share = draws.to(weights)[:, None] * cumulated[:, -1:]
    index = torch.searchsorted(cumulated, share, right=True)[:, 0]
    last = (weights > 0).cumsum(-1).argmax(-1)
    return torch.minimum(index, last)


class _Runner:
    """A decoder with the output of each row's last token."""

    def __init__(self, decoder: Decoder | RingDecoder, hidden: Tensor, tokens: Tensor) -> None:
        self.decoder, self.hidden, self.tokens = decoder, hidden, tokens

    @classmethod
    def resume(cls, model: Model, reading: object, segment: int) -> _Runner:
        if not isinstance(reading, Reading):
            raise MnemoError("nothing to go on from: give a prompt of at least one token, or a reading")
        return cls(_decoder(model, reading, segment, len(reading.hidden)), reading.hidden, reading.tokens)

    @classmethod
    def read(cls, model: Model, prompts: list[Tensor], state: AnyState, segment: int) -> _Runner:
        device, lengths = _device(model), [len(prompt) for prompt in prompts]
        decoder = _decoder(model, state, segment, len(prompts))
        hidden = torch.empty(len(prompts), model.config.dim, device=device)
        for begin in range(0, max(lengths), segment):
            pieces = _padded([prompt[begin : begin + segment] for prompt in prompts]).to(device)
            used = [min(segment, max(0, length - begin)) for length in lengths]
            out = decoder.feed(pieces, used).hidden
            hidden = torch.stack([out[row, n - 1] if n else hidden[row] for row, n in enumerate(used)])
        return cls(decoder, hidden, _tokens_read(state, len(prompts)) + torch.tensor(lengths))

    def fork(self, count: int) -> _Runner:
        if count == 1:
            return self
        rows = torch.arange(len(self.hidden)).repeat_interleave(count)
        on_device = rows.to(self.hidden.device)
        return _Runner(self.decoder.select(on_device), self.hidden[on_device], self.tokens[rows])

    def behind(self, hidden: Tensor, num_tokens: int) -> _Runner:
        """The same decoder when it has read so many tokens more."""
        return _Runner(self.decoder, hidden, self.tokens + num_tokens)

    def reading(self) -> Reading:
        return Reading(self.decoder.state(), self.hidden.clone(), self.tokens)


def _padded(rows: Sequence[Tensor]) -> Tensor:
    """Rows of ids (B, T), padded on the right."""
    padded = torch.zeros(len(rows), max(len(row) for row in rows), dtype=torch.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def _rows(prompts: Sequence[Tensor] | Tensor | None) -> list[Tensor]:
    rows = [] if prompts is None else [row.to("cpu", torch.int64) for row in prompts]
    if any(row.dim() != 1 or len(row) == 0 for row in rows):
        raise MnemoError("a prompt is a row of at least one token id")
    return rows


def _decoder(model: Model, state: AnyState, segment: int, batch: int) -> Decoder | RingDecoder:
    inner = state.state if isinstance(state, Reading) else state
    inner = model.init(batch, cached=True) if inner is None else inner
    decoder = model.decoder(inner, segment=segment)
    if decoder.batch != batch:
        raise MnemoError(f"{batch} prompts, but the memory has {decoder.batch} rows")
    return decoder


def _tokens_read(state: AnyState, batch: int) -> Tensor:
    return state.tokens if isinstance(state, Reading) else torch.zeros(batch, dtype=torch.int64)


def _device(model: Model) -> torch.device:
    return next(model.parameters()).device
