"""LaMemo (look-ahead) and RMT (memory tokens) in the formulation of their published code.

Both extend the published Transformer-XL. LaMemo's look-ahead scores are shifted by padding too, and memory rows pass
through all layers, including the last one, whose rows are never used. Memory tokens are rows of a longer segment; the
position of a later key is its negative distance, as by default in Mnemo.

Shapes: q segment, m memory, k = m + q keys, B batch, D model width, H heads, d head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.bench.published_xl import Positions, PublishedLayer, PublishedModel, relative_shift, token_losses
from mnemo.memory.lookahead.modules import LookaheadStage, coefficient
from mnemo.model import Model


class LamemoMemories(NamedTuple):
    embedded: Tensor
    """(m, B, D)"""
    contexts: list[Tensor]
    """(m, B, H, d) for every layer"""
    lse: list[Tensor]
    """(m, B, H) for every layer"""


class PublishedLamemo(nn.Module):
    def __init__(self, base: PublishedModel, v_minus: Tensor, epsilon: float) -> None:
        super().__init__()
        self.base, self.epsilon = base, epsilon
        self.v_minus = nn.Parameter(v_minus.detach().clone())

    @staticmethod
    def of(model: Model, memory: int) -> PublishedLamemo:
        (stage,) = model.stages
        assert isinstance(stage, LookaheadStage) and stage.v_minus is not None
        return PublishedLamemo(PublishedModel.of(model, memory), stage.v_minus, stage.config.epsilon)

    def zeros(self, batch: int) -> LamemoMemories:
        embedded, *layers = self.base.zeros(batch)
        heads = (self.base.config.num_heads, self.base.config.head_dim)
        contexts = [rows.new_zeros(*rows.shape[:2], *heads) for rows in layers]
        return LamemoMemories(embedded, contexts, [rows[..., 0].clone() for rows in contexts])

    def forward(
        self, tokens: Tensor, targets: Tensor, memories: LamemoMemories | None = None
    ) -> tuple[Tensor, LamemoMemories]:
        """tokens, targets (q, B) -> losses (q, B) and the memories after this segment."""
        current = self.base.embed(tokens)
        rows = current if memories is None else torch.cat([memories.embedded, current], 0)
        num_memories, embedded, contexts, lses = len(rows) - len(current), rows, [], []
        r = self._sinusoids(len(rows), num_memories, current)
        for index, layer in enumerate(self.base.layers):
            assert isinstance(layer, PublishedLayer)
            cached = None if memories is None else (memories.contexts[index], memories.lse[index])
            context, lse = self._attend(layer, rows, num_memories, r, cached)
            rows = layer.feed_forward(layer.attention.finish(rows, context.flatten(2)))
            contexts.append(context)
            lses.append(lse)
        losses = token_losses(self.base.logits(rows[num_memories:]), targets)
        return losses, self._update(embedded, contexts, lses)

    def _sinusoids(self, num_keys: int, num_memories: int, like: Tensor) -> Tensor:
        """Return sinusoids of the distances k-1 ... 0 to earlier rows, then of 1 ... m to later rows."""
        earlier, ahead = torch.arange(num_keys - 1, -1, -1.0), torch.arange(1.0, num_memories + 1)
        return self.base.sinusoids(torch.cat([earlier, ahead]).to(self.base.frequency))

    def _attend(
        self, layer: PublishedLayer, rows: Tensor, num_memories: int, r: Tensor, cached: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Return contexts (k, B, H, d) and log-sum-exps (k, B, H) of memory rows (looking ahead) and segment rows."""
        part = layer.attention
        heads, num_new = (part.num_heads, part.head_dim), len(rows) - num_memories
        q, k, v = (x.unflatten(2, heads) for x in part.qkv(rows).chunk(3, -1))
        earlier, ahead = part.position(r)[:, 0].unflatten(1, heads).split([len(rows), num_memories])
        hidden = torch.triu(rows.new_ones(num_new, len(rows)), diagonal=1 + num_memories).bool()
        scores = self._scores(q[num_memories:], k, relative_shift, earlier, self.base.v)
        context, lse = _look(scores, hidden, v)
        if cached is None:
            return context, lse
        seen = min(num_memories, num_new)
        keys = slice(num_memories + 1 - seen, num_memories + 1)
        hidden = torch.triu(rows.new_ones(num_memories, num_memories))[:, -seen:] == 0

        def shift(x: Tensor) -> Tensor:
            return shift_ahead(x)[:, -seen:]

        scores = self._scores(q[:num_memories], k[keys], shift, ahead, self.v_minus)
        found, found_lse = _look(scores, hidden, v[keys])
        old, old_lse = cached
        alpha = coefficient(old_lse, found_lse, self.epsilon)[..., None]
        refreshed = torch.nan_to_num(alpha * old + (1 - alpha) * found).to(context.dtype)
        refreshed_lse = torch.logaddexp(old_lse, found_lse)
        return torch.cat([refreshed, context], 0), torch.cat([refreshed_lse, lse], 0)

    def _scores(self, q: Tensor, k: Tensor, shift: Callable[[Tensor], Tensor], r: Tensor, v: Tensor) -> Tensor:
        content = torch.einsum("ibnd,jbnd->ijbn", q + self.base.u, k)
        position = shift(torch.einsum("ibnd,jnd->ijbn", q + v, r))
        return (content + position).mul_(q.shape[-1] ** -0.5)

    @torch.no_grad()
    def _update(self, embedded: Tensor, contexts: list[Tensor], lses: list[Tensor]) -> LamemoMemories:
        begin = max(0, len(embedded) - self.base.lengths[0])

        def newest(rows: list[Tensor]) -> list[Tensor]:
            return [part[begin:].detach() for part in rows]

        return LamemoMemories(embedded[begin:].detach(), newest(contexts), newest(lses))


def shift_ahead(x: Tensor) -> Tensor:
    """Shift row i of (m, m, B, H) right by i, by padding one column and reshaping."""
    padding = x.new_zeros(x.shape[0], 1, *x.shape[2:])
    padded = torch.cat([x, padding], 1).view(x.shape[1] + 1, x.shape[0], *x.shape[2:])
    return padded[:-1]


def _look(scores: Tensor, hidden: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return contexts (q, B, H, d) and log-sum-exps (q, B, H) from scores (q, k, B, H), in at least float32."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores.masked_fill(hidden[:, :, None, None], float("-inf"))
    context = torch.einsum("ijbn,jbnd->ibnd", F.softmax(scores, 1).to(v.dtype), v)
    return context, torch.logsumexp(scores, 1)


class PublishedTokens(nn.Module):
    """Memory tokens around a model without other memory."""

    def __init__(self, base: PublishedModel, initial: Tensor) -> None:
        super().__init__()
        self.base = base
        self.initial = nn.Parameter(initial.detach().clone())

    @staticmethod
    def of(model: Model) -> PublishedTokens:
        assert model.memory_tokens is not None
        return PublishedTokens(PublishedModel.of(model, 0), model.memory_tokens.initial)

    def forward(self, tokens: Tensor, targets: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """tokens, targets (q, B) -> losses (q, B) and the new memory (m, B, D), with gradient."""
        num = len(self.initial)
        if memory is None:
            memory = self.initial[:, None].expand(-1, tokens.shape[1], -1)
        text = self.base.embedding(tokens) * self.base.config.dim**0.5
        x = self.base.drop_input(torch.cat([memory, text, memory], 0))
        positions = self._positions(len(tokens), num, x)
        nothing = x.new_empty(0, *x.shape[1:])
        for layer in self.base.layers:
            x = layer(x, nothing, positions)
        losses = token_losses(self.base.logits(x[num : num + len(tokens)]), targets)
        return losses, self.base.drop_output(x[num + len(tokens) :])

    def _positions(self, length: int, num: int, like: Tensor) -> Positions:
        """Rows see earlier rows; memory tokens also see all tokens of their block."""
        rows = length + 2 * num
        hidden = torch.triu(like.new_ones(rows, rows), diagonal=1)
        for begin in (0, num + length):
            hidden[begin : begin + num, begin : begin + num] = 0
        distance = torch.arange(rows - 1, -num, -1.0, device=like.device, dtype=self.base.frequency.dtype)
        return Positions(self.base.sinusoids(distance), self.base.u, self.base.v, hidden.bool()[:, :, None])
