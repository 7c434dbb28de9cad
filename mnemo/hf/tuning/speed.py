"""Tokens per second of a model with memory, against the plain model with the same segments."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnemo.hf.memory_tokens.backbone import logits_of
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.hf.modeling import IGNORED
from mnemo.hf.tuning.trainer import Say, precision_context
from mnemo.recipes.tuning import Tuning

SEGMENTS = 4
REPEATS, WARM_UP = 10, 2
NUM_LABELS = 4
"""Labels at the end of a sample, as in training on answers"""


def measure_speed(model: Any, options: Tuning, say: Say) -> list[dict[str, Any]]:
    """Measure training and reading: the plain model on single segments, and memory over four segments.

    Gradient checkpointing computes activations twice; it is measured for both. Cases for which the GPU has too little
    memory are left out.
    """
    inner = memory_model(model)
    ids = torch.randint(len(inner.get_input_embeddings().weight), (options.micro_batch, SEGMENTS * options.segment))
    ids = ids.to(inner.device)
    plain, memory = _PlainSteps(inner, options), _MemorySteps(model, inner, options)
    cases: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
        ("training", lambda: plain.train(ids, False), lambda: memory.train(ids, False)),
        ("training, checkpointed", lambda: plain.train(ids, True), lambda: memory.train(ids, True)),
        ("reading", lambda: plain.read(ids), lambda: memory.read(ids)),
    ]
    results = []
    for name, without, with_memory in cases:
        try:
            speeds = [ids.numel() / seconds for seconds in _fastest([without, with_memory], inner.device)]
        except torch.OutOfMemoryError:
            say(f"{name:<24} needs more GPU memory: --micro-batch {options.micro_batch} is too large")
            torch.cuda.empty_cache()
            continue
        result = {"case": name, "plain": speeds[0], "memory": speeds[1], "ratio": speeds[1] / speeds[0]}
        result["gigabytes"] = _peak(inner.device)
        results.append(result)
        say("{case:<24} plain {plain:>11,.0f}  memory {memory:>11,.0f} tokens/s  ratio {ratio:.2f}".format(**result))
    return results


def _fastest(steps: list[Callable[[], None]], device: torch.device) -> list[float]:
    """Return the shortest time of each step. They take turns, so that changes of the machine's speed affect all."""
    times = [[float("inf")] for _ in steps]
    for turn in range(WARM_UP + REPEATS):
        for step, found in zip(steps, times, strict=True):
            _wait(device)
            begin = time.perf_counter()
            step()
            _wait(device)
            if turn >= WARM_UP:  # the first ones compile
                found.append(time.perf_counter() - begin)
    return [min(found) for found in times]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(device: torch.device) -> float | None:
    """Return the largest GPU memory in use, in gigabytes, or None on other devices."""
    return torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None


class _PlainSteps:
    """The backbone without memory: all segments are independent texts, read one after the other."""

    def __init__(self, model: Any, options: Tuning) -> None:
        self.backbone, self.options, self.device = model.backbone, options, model.device

    def train(self, ids: Tensor, checkpointed: bool) -> None:
        self.backbone.train()
        self.backbone.zero_grad()
        for piece in ids.split(self.options.segment, 1):
            with precision_context(self.options, self.device):
                hidden = self._hidden(piece, checkpointed)[:, -NUM_LABELS - 1 : -1]
                logits = logits_of(self.backbone, hidden).float()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), piece[:, -NUM_LABELS:].flatten()).backward()

    def _hidden(self, piece: Tensor, checkpointed: bool) -> Tensor:
        def run(tokens: Tensor) -> Tensor:
            return self.backbone.base_model(input_ids=tokens, use_cache=False).last_hidden_state

        if not checkpointed:
            return run(piece)
        return torch.utils.checkpoint.checkpoint(run, piece, use_reentrant=False)  # type: ignore[return-value]

    @torch.no_grad()
    def read(self, ids: Tensor) -> None:
        self.backbone.eval()
        for piece in ids.split(self.options.segment, 1):
            with precision_context(self.options, self.device):
                self.backbone.base_model(input_ids=piece, use_cache=False)


class _MemorySteps:
    def __init__(self, model: Any, inner: Any, options: Tuning) -> None:
        self.model, self.inner, self.options = model, inner, options

    def train(self, ids: Tensor, checkpointed: bool) -> None:
        self.model.train()
        self.model.zero_grad()
        self.inner.config.backward = "checkpoint" if checkpointed else "plain"
        labels = torch.full_like(ids, IGNORED)
        labels[:, -NUM_LABELS:] = ids[:, -NUM_LABELS:]
        with precision_context(self.options, ids.device):
            loss = self.model(input_ids=ids, labels=labels, return_memory=False).loss
        loss.backward()

    @torch.no_grad()
    def read(self, ids: Tensor) -> None:
        self.model.eval()
        with precision_context(self.options, ids.device):
            self.model(input_ids=ids, return_logits=False)
