"""A slow, literal Recurrent Memory Transformer with the published code's names, which writes reference files.

Time is the first dimension; position scores of later keys are whatever the published shift leaves there; masks are
built pair by pair.
Shapes: q rows [read, tokens, write], k keys [cache, rows], B batch, n heads, d head size, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from helpers import published_xl as xl
from helpers.published_xl import Config, Parameters
from torch import Tensor

from mnemo.bench.published_xl import relative_shift

DEFAULTS: Config = {
    **{name: value for name, value in xl.DEFAULTS.items() if name not in ("seg_lens", "resets")},
    "mem_len": 0,
    "num_mem_tokens": 3,
    "mem_at_end": True,
    "read_mem_from_cache": False,
    "n_seg": 3,
    "bptt": 1,
    "source": "github.com/booydar/LM-RMT",
}


def blocked(config: Config, length: int, cached: int) -> Tensor:
    """(q, k), 1 where a key is hidden from a row."""
    num = config["num_mem_tokens"]
    kinds = ["read"] * num + ["token"] * length + ["write"] * (num if config["mem_at_end"] else 0)
    rows = len(kinds)
    mask = torch.ones(rows, cached + rows, dtype=torch.uint8)
    for i, kind in enumerate(kinds):
        for j in range(-cached, rows):
            if config["same_length"]:
                seen = 0 <= i - j < config["mem_len"]
            elif j < 0:
                seen = kind == "token" or config["read_mem_from_cache"]
            else:
                seen = j <= i or (kind == kinds[j] and kind != "token")
            mask[i, cached + j] = not seen
    return mask


def attend(p: Parameters, config: Config, layer: int, h: Tensor, cache: Tensor, mask: Tensor) -> Tensor:
    q, k, v = xl.project(p, config, layer, torch.cat([cache, h]))
    q, heads = q[len(cache) :], q.shape[2:]
    positions = xl.sinusoid(torch.arange(len(k) - 1, -1, -1), config)
    r = (positions @ p[f"layers.{layer}.dec_attn.r_net.weight"].T).view(len(k), *heads)
    content = torch.einsum("ibnd,jbnd->ijbn", q + p["r_w_bias"], k)
    score = (content + relative_shift(torch.einsum("ibnd,jnd->ijbn", q + p["r_r_bias"], r))) / heads[1] ** 0.5
    share = score.masked_fill(mask.bool()[:, :, None, None], float("-inf")).softmax(1)
    return xl.attention_output(p, config, layer, h, torch.einsum("ijbn,jbnd->ibnd", share, v))


def read(p: Parameters, config: Config, text: Sequence[Tensor], memory: Tensor, caches: list[Tensor]):
    """Losses (L, B), the next memory (m, B, D) and the next caches, of all levels."""
    ids, targets = text
    num, length = config["num_mem_tokens"], len(ids)
    h = torch.cat([memory, xl.embed(p, config, ids), *([memory] if config["mem_at_end"] else [])])
    mask = blocked(config, length, len(caches[0]))
    levels = [h]
    for layer in range(config["n_layer"]):
        h = xl.feed_forward(p, config, layer, attend(p, config, layer, h, caches[layer], mask))
        levels.append(h)
    scores = xl.log_probabilities(p, config, h[num : num + length])
    loss = -scores.gather(-1, targets[..., None]).squeeze(-1)
    joined = [torch.cat([cache, level]).detach() for cache, level in zip(caches, levels, strict=True)]
    caches = [rows[max(0, len(rows) - config["mem_len"]) :] for rows in joined]
    return loss, h[-num:] if config["mem_at_end"] else h[:num], caches


class Run:
    """One model on one text."""

    def __init__(self, config: Config, p: Parameters, texts: Sequence[Sequence[Tensor]], static: bool = False) -> None:
        self.config, self.p, self.texts, self.static = config, p, texts, static
        self.first = p["mem_tokens"].expand(-1, config["batch"], -1)
        empty = torch.zeros(0, config["batch"], config["d_model"], dtype=torch.float64)
        self.no_caches = [empty] * (config["n_layer"] + 1)

    def evaluate(self) -> dict[str, Tensor]:
        found, memory, caches, losses = {}, self.first, self.no_caches, []
        for t, text in enumerate(self.texts):
            found[f"attn_mask/{t}"] = blocked(self.config, len(text[0]), len(caches[0]))
            loss, after, caches = read(self.p, self.config, text, memory, caches)
            memory = self.first if self.static else after
            losses.append(loss)
            found |= {f"losses/{t}": loss, f"mem_after/{t}": after}
            if self.config["mem_len"]:
                found |= {f"cache_after/{t}/{level}": rows for level, rows in enumerate(caches)}
        return found | {"eval_mean_loss": torch.cat(losses).mean()}

    def all_segments(self, detached: bool) -> Tensor:
        """The sum of the segments' mean losses."""
        memory, caches, total = self.first, self.no_caches, torch.zeros((), dtype=torch.float64)
        for text in self.texts:
            loss, after, caches = read(self.p, self.config, text, memory, caches)
            memory = self.first if self.static else after.detach() if detached else after
            total = total + loss.mean()
        return total

    def window(self) -> tuple[Tensor, Tensor, Tensor]:
        """The memory before the last segments, the sum of their mean losses, and the last one's."""
        memory, caches, means = self.first, self.no_caches, []
        for text in self.texts[: -1 - self.config["bptt"]]:
            _, memory, caches = read(self.p, self.config, text, memory, caches)
        start = memory = memory.detach()
        for text in self.texts[-1 - self.config["bptt"] :]:
            loss, memory, caches = read(self.p, self.config, text, memory, caches)
            means.append(loss.mean())
        return start, torch.stack(means).sum(), means[-1]

    def published_loop(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Results of the last step of the training loop, which rereads earlier segments from the newest memory."""
        memory, caches, past, found, losses = self.first, self.no_caches, [], {}, []
        for number, text in enumerate(self.texts):
            memory = memory if number == 0 else memory.detach()
            past = [*past[-self.config["bptt"] :], (text, caches)]
            found, losses = {"window_mem_start": memory}, []
            for i, (old, stored) in enumerate(past):
                loss, memory, caches = read(self.p, self.config, old, memory, stored if old is not text else caches)
                losses.append(loss)
                found |= {f"window_losses/{i}": loss, f"window_mem_after/{i}": memory}
        means = [loss.mean() for loss in losses]
        return found, torch.stack(means).sum(), means[-1]


def sets(run: Run, p: Parameters) -> dict[str, Tensor]:
    """Everything that a file holds of one variant."""
    found = run.evaluate()
    losses = {"grad_bptt0": run.all_segments(True), "grad_full": run.all_segments(False)}
    if run.static:
        del losses["grad_bptt0"]
    else:
        found["window_mem_start"], losses["grad_sum"], losses["grad_last"] = run.window()
    if not run.static and run.config["bptt"]:
        last_step, losses["trainpy_grad_sum"], losses["trainpy_grad_last"] = run.published_loop()
        found |= {f"trainpy_{name}": value for name, value in last_step.items()}
    for name, loss in losses.items():
        found |= {f"{name}/{parameter}": gradient for parameter, gradient in xl.gradients(loss, p).items()}
    return found


def write(path: Path, **changes: Any) -> Path:
    """Write a reference file: one variant, or with a cache or without a write block the published pair of variants."""
    config = {**DEFAULTS, **changes}
    canonical = xl.parameters(config)
    shape = (config["num_mem_tokens"], 1, config["d_model"])
    canonical["mem_tokens"] = torch.randn(shape, dtype=torch.float64)
    canonical, p = xl.trainable(config, canonical)
    stream = torch.randint(config["n_token"], (config["n_seg"] * config["tgt_len"] + 1, config["batch"]))
    texts = list(zip(stream[:-1].split(config["tgt_len"]), stream[1:].split(config["tgt_len"]), strict=True))
    tensors = {f"weights/{name}": value for name, value in p.items()}
    tensors |= {f"data/{t}": ids for t, (ids, _) in enumerate(texts)}
    tensors |= {f"target/{t}": targets for t, (_, targets) in enumerate(texts)}
    runs = {"": Run(config, p, texts)}
    if not config["mem_at_end"]:
        runs = {"carry/": Run(config, p, texts), "static/": Run(config, p, texts, static=True)}
    elif config["mem_len"] and not config["same_length"]:
        runs = {f"rmfc{sees}/": Run({**config, "read_mem_from_cache": bool(sees)}, p, texts) for sees in (0, 1)}
    for prefix, run in runs.items():
        tensors |= {f"{prefix}{name}": value for name, value in sets(run, canonical).items()}
    return xl.save(path, None, config, tensors)
