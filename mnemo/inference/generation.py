"""Reading texts and generating their continuations, at a constant cost per token.

Prompts may have different lengths, and one prompt may get several continuations. Row r of a call draws from its own
random generator, seeded with `seed + r` (with several continuations, the k-th of prompt i is row
i x continuations + k). So a row does not depend on the other rows: alone, with that seed, it gives the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError, require_positive
from mnemo.inference.cuda_graph import RecordedFunction
from mnemo.inference.decoder import Decoder, DecodeState
from mnemo.inference.fused_layers import fused_logits
from mnemo.inference.ring_decoder import RingDecoder
from mnemo.inference.sampling import sample, uniform_draws
from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import State
from mnemo.model import Model, Output, evaluating
from mnemo.ops.cuda import decode_rows
from mnemo.progress import ShowProgress, silent

NOT_FINITE = "the model's output is not finite: its weights are damaged or its training diverged"
OnToken = Callable[[int, Tensor], None]
"""Called with the number of the step, from 0, and the tokens (R,) that it chose."""


class TextState(NamedTuple):
    """Everything that the continuation of a text depends on."""

    state: DecodeState
    """The memory and the open segment"""
    hidden: Tensor
    """(B, D): the output of each row's last token, which predicts the next"""
    tokens: Tensor
    """(B,) tokens read so far"""


AnyState = TextState | DecodeState | State | None
"""The state before a text: after another text, of a decoder, of a model, or None to start empty."""


class Generated(NamedTuple):
    tokens: Tensor
    """(R, num_tokens), on the CPU"""
    text_state: TextState
    """The state after prompts and generated tokens, to continue from"""


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

    Return the generated `tokens` (prompts x continuations, num_tokens) and `text_state`, the state to continue from.
    `mnemo.Run.generate` does the same for a text.

    `segment`: the number of tokens after which an open segment is committed to the memory, as in training
    `state`: the state before the prompts, with a row for each; a `TextState` can be continued without a prompt
    `temperature`: divides the logits; 0 takes the likeliest token
    `top_k`: draw among the k likeliest tokens
    `top_p`: draw among the likeliest tokens whose probabilities add up to p
    `on_token`: called with the number and the tokens (rows,) of each step
    """
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check()
    for name, value in (("number of tokens", num_tokens), ("number of continuations", continuations)):
        require_positive(name, value)
    with evaluating(model):
        text = _start(model, _rows(prompts), state, segment).fork(continuations)
        writer = TokenWriter(model, text.decoder, text.hidden, sampling)
        written = []
        for step, draw in enumerate(uniform_draws(seed, len(text.hidden), num_tokens).to(writer.draw)):
            written.append(writer.write(draw))
            if on_token is not None:
                writer.check()
                on_token(step, written[-1].cpu())
        writer.check()
        tokens = torch.stack(written, 1).cpu()
        return Generated(tokens, text.written(writer, num_tokens))


class TextWriter:
    """Continues texts by single tokens, as long as the caller wants; `state()` is valid after every token.

    `text`: the state after the texts, one a row. The tokens equal those of `generate` for the same draws.
    """

    def __init__(self, model: Model, text: TextState, segment: int, sampling: Sampling) -> None:
        sampling.check()
        self.model, self.count = model, 0
        with evaluating(model):
            self.text = _start(model, [], text, segment)
            self.writer = TokenWriter(model, self.text.decoder, self.text.hidden, sampling)

    def write(self, draw: Tensor) -> Tensor:
        """Choose and feed the tokens (R,) at `draw` (R,), uniform in [0, 1)."""
        with evaluating(self.model):
            tokens = self.writer.write(draw)
        self.count += 1
        self.writer.check()
        return tokens.cpu()

    def state(self) -> TextState:
        """The state after the tokens written so far, to continue from."""
        with evaluating(self.model):
            return self.text.written(self.writer, self.count)


def _start(model: Model, prompts: list[Tensor], state: AnyState, segment: int) -> _Text:
    """The texts to continue: prompts after a state, or texts that were read before."""
    if prompts:
        return _Text.open(model, state, segment, len(prompts)).read(model, prompts, segment)
    if not isinstance(state, TextState):
        raise MnemoError("nothing to continue: give a prompt of at least one token, or the state after a text")
    return _Text.open(model, state, segment, len(state.hidden))


class TokenWriter:
    """Chooses a token for every row and feeds it to the decoder, again and again, without waiting for the device.

    With a ring decoder on a GPU the whole step is recorded as a CUDA graph: logits, choice, embedding, layers.
    """

    def __init__(self, model: Model, decoder: Decoder | RingDecoder, hidden: Tensor, sampling: Sampling) -> None:
        self.model, self.decoder, self.sampling = model, decoder, sampling
        self.hidden = hidden.clone()
        """(R, D): the output of each row's last token"""
        exact = torch.float32 if hidden.device.type == "mps" else torch.float64
        self.draw = torch.zeros(len(hidden), dtype=exact, device=hidden.device)
        self.finite = torch.ones((), dtype=torch.bool, device=hidden.device)
        changed = decoder.changed_tensors()
        self.waits = not changed
        self.step = self._step
        if changed:
            self.step = RecordedFunction(self._step, hidden.device, (*changed, self.hidden, self.finite))

    @torch.no_grad()
    def write(self, draw: Tensor) -> Tensor:
        """Choose and feed the tokens (R,) at `draw` (R,), uniform in [0, 1)."""
        if self.sampling.temperature > 0:
            self.draw.copy_(draw)
        tokens = self.step().clone()
        if self.waits:
            self.check()
        return tokens

    def _step(self) -> Tensor:
        tokens = self._choose(fused_logits(self.model, self.hidden))
        self.hidden.copy_(self.decoder.feed_single(tokens[:, None]).hidden[:, -1])
        return tokens

    def _choose(self, logits: Tensor) -> Tensor:
        """A token for each row of logits (R, V)."""
        if self.sampling.temperature == 0 and decode_rows.can_take(logits):
            return decode_rows.take_likeliest(logits, self.finite)
        self.finite &= torch.isfinite(logits.amax(-1)).all()
        return sample(logits, self.draw, self.sampling)

    def check(self) -> None:
        """Raise MnemoError if any logits so far were not finite."""
        if not self.finite:
            raise MnemoError(NOT_FINITE)


class TextScore(NamedTuple):
    nats: float
    tokens: int
    """Predicted tokens: all tokens except the very first of a text"""


def read(
    model: Model,
    text: Tensor,
    *,
    segment: int,
    state: AnyState = None,
    progress: ShowProgress | None = None,
) -> tuple[TextState, TextScore]:
    """Read one text (T,) of token ids after `state`, segment by segment, and score it on the way."""
    (ids,) = _rows([text])
    with evaluating(model):
        before = _Text.open(model, state, segment, batch=1)
        hidden, nats, predicted = before.hidden, 0.0, 0
        with (progress or silent)("reading", len(ids), unit="tokens") as bar:
            for piece in ids.split(segment):
                tokens = piece[None].to(model.device)
                out = before.decoder.feed(tokens)
                losses = _losses(model, hidden, out, tokens)
                nats, predicted = nats + float(losses.cpu().double().sum()), predicted + losses.numel()
                hidden = out.hidden[:, -1]
                bar.advance(len(piece))
        after = _Text(before.decoder, hidden, before.tokens + len(ids))
        return after.state(), TextScore(nats, predicted)


def _losses(model: Model, before: Tensor | None, out: Output, tokens: Tensor) -> Tensor:
    """Losses of tokens (1, T), each under the output before it; `before` (1, D) predicts the first."""
    predicting = out.hidden[:, :-1]
    if before is None:
        return model.loss(Output(predicting, {}), tokens[:, 1:])
    return model.loss(Output(torch.cat([before[:, None], predicting], 1), {}), tokens)


class _Text:
    """Texts in progress, one a row: their decoder, their last outputs (B, D), and how many tokens were read (B,)."""

    def __init__(self, decoder: Decoder | RingDecoder, hidden: Tensor, tokens: Tensor) -> None:
        self.decoder, self.hidden, self.tokens = decoder, hidden, tokens

    @classmethod
    def open(cls, model: Model, state: AnyState, segment: int, batch: int) -> _Text:
        """Texts after a state; `hidden` is None unless it is a `TextState`."""
        hidden, tokens = None, torch.zeros(batch, dtype=torch.int64)
        if isinstance(state, TextState):
            state, hidden, tokens = state
        decoder = model.decoder(model.init(batch, cached=True) if state is None else state, segment=segment)
        if decoder.batch != batch:
            raise MnemoError(f"{batch} prompts, but the memory has {decoder.batch} rows")
        return cls(decoder, hidden, tokens)  # type: ignore[arg-type]

    def read(self, model: Model, prompts: list[Tensor], segment: int) -> _Text:
        """The same texts after prompts of any lengths."""
        device, lengths = model.device, [len(prompt) for prompt in prompts]
        hidden = torch.empty(len(prompts), model.config.dim, device=device)
        for begin in range(0, max(lengths), segment):
            pieces = _padded([prompt[begin : begin + segment] for prompt in prompts]).to(device)
            used = [min(segment, max(0, length - begin)) for length in lengths]
            out = self.decoder.feed(pieces, used).hidden
            hidden = torch.stack([out[row, n - 1] if n else hidden[row] for row, n in enumerate(used)])
        return _Text(self.decoder, hidden, self.tokens + torch.tensor(lengths))

    def fork(self, count: int) -> _Text:
        """Each text `count` times."""
        if count == 1:
            return self
        rows = torch.arange(len(self.hidden)).repeat_interleave(count)
        on_device = rows.to(self.hidden.device)
        return _Text(self.decoder.select(on_device), self.hidden[on_device], self.tokens[rows])

    def written(self, writer: TokenWriter, num_tokens: int) -> TextState:
        """The state after a writer has appended `num_tokens` to each text."""
        return _Text(self.decoder, writer.hidden, self.tokens + num_tokens).state()

    def state(self) -> TextState:
        """A copy, to continue from."""
        return TextState(self.decoder.state(), self.hidden.clone(), self.tokens)


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
