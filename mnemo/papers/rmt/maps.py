"""Attention maps of a trained model on a task: writing, reading and rewriting of memory.

Rows of a segment are [read m, tokens L, write m]; keys are those of the cache, followed by the same rows. Samples of a
task differ in their symbols, not in their positions, so a mean over samples shows attention by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemo.data.tasks import AnyTask, samples, segments
from mnemo.model import Model

SAMPLES = 64


@dataclass(frozen=True)
class Block:
    """A part of a map: which rows look at which keys."""

    name: str
    rows: slice
    keys: slice


@dataclass(frozen=True)
class Layout:
    memory: int
    """Memory tokens."""
    tokens: int
    cached: int

    def blocks(self) -> list[Block]:
        """The parts of a segment's map that involve memory."""
        m, length, cached = self.memory, self.tokens, self.cached
        read, text = slice(cached, cached + m), slice(cached + m, cached + m + length)
        text_rows, write_rows = slice(m, m + length), slice(m + length, 2 * m + length)
        found = [Block("cache", text_rows, slice(0, cached))] if cached else []
        if m:
            found += [
                Block("read", text_rows, read),
                Block("write", write_rows, text),
                Block("rewrite", write_rows, read),
            ]
        return found


@torch.no_grad()
def _maps(model: Model, task: AnyTask, segment: int) -> Iterator[tuple[int, Layout, Tensor]]:
    """Every segment with the mean maps (N, H, Q, K) of all layers."""
    device = model.device
    tokens, targets = next(samples(task, "test", SAMPLES))
    config, state = model.config, None
    num = 0 if config.tokens is None else config.tokens.num
    for number, (inputs, _) in enumerate(segments(tokens, targets, segment)):
        _, state, record = model.explain(inputs.to(device), state)
        maps = torch.stack([layer.probabilities.float().mean(0) for layer in record]).cpu()
        written = num if config.tokens is not None and config.tokens.write else 0
        yield number, Layout(num if written else 0, segment, maps.shape[3] - maps.shape[2]), maps


def attention_maps(model: Model, task: AnyTask, segment: int) -> dict[str, Any]:
    """For every operation of memory, the head that shows it most clearly: where each row looks most at one key."""
    model.eval()
    best: dict[str, dict[str, Any]] = {}
    first_answer = int(task.predicted.argmax()) // segment
    for number, layout, maps in _maps(model, task, segment):
        for block in layout.blocks():
            if not _belongs(block.name, number, first_answer):
                continue
            found = _clearest(maps, block) | {"segment": number + 1}
            if block.name not in best or found["focus"] > best[block.name]["focus"]:
                best[block.name] = found | {"memory": layout.memory, "tokens": segment, "cached": layout.cached}
    return best


def _belongs(operation: str, segment: int, first_answer: int) -> bool:
    """Writing counts before the segment of the first answer, reading from there on, rewriting after segment 0."""
    if operation == "rewrite":
        return segment > 0
    return segment < max(1, first_answer) if operation == "write" else segment >= first_answer


def _clearest(maps: Tensor, block: Block) -> dict[str, Any]:
    part = maps[:, :, block.rows, block.keys]
    focus = part.amax(-1).mean(-1)  # (N, H)
    layer, head = divmod(int(focus.argmax()), focus.shape[1])
    chosen = part[layer, head]
    return {
        "layer": layer + 1,
        "head": head + 1,
        "focus": round(float(focus[layer, head]), 4),
        "mass": round(float(chosen.sum(-1).mean()), 4),
        "order": round(order(chosen.numpy()), 4),
        "map": [[round(value, 3) for value in row] for row in maps[layer, head].tolist()],
    }


def order(part: np.ndarray) -> float:
    """Correlation of rows with the keys that they look at most: 1 in straight order, -1 backwards."""
    keys = part.argmax(1).astype(float)
    rows = np.arange(len(keys), dtype=float)
    if len(keys) < 2 or keys.std() == 0:
        return 0.0
    return float(np.corrcoef(rows, keys)[0, 1])
