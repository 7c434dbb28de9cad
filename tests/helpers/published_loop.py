"""The published iterators and training loop, which write reference files. See published_xl.py."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from helpers.published_xl import (
    DEFAULTS,
    Config,
    Parameters,
    hidden_states,
    log_probabilities,
    parameters,
    save,
    ties,
    trainable,
)
from torch import Tensor

TRAINING: Config = {
    "steps": 7,
    "scheduler": "cosine",
    "lr": 0.01,
    "warmup": 3,
    "clip": 0.25,
    "batch_chunk": 1,
    "eta_min": 0.0,
    "eval_tgt_len": 3,
    "eval_mem_len": 6,
    "eval_batch": 2,
    "optimizer": "adam betas 0.9 0.999 eps 1e-8, no weight decay",
}


def ordered(stream: Tensor, batch: int, length: int, extended: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, time first."""
    steps = len(stream) // batch
    columns = stream[: steps * batch].view(batch, steps).T
    for i in range(0, steps - 1, length):
        end = i + min(length, steps - 1 - i)
        yield columns[max(0, i - extended) : end], columns[i + 1 : end + 1]


def shuffled(sentences: list[Tensor], batch: int, length: int, extended: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    waiting = iter(sentences)
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(batch)]
    recent = torch.zeros(0, batch, dtype=torch.int64)
    while True:
        for column in pairs:
            while len(column) < length:
                sentence = next(waiting, None)
                if sentence is None:
                    return
                column += zip(sentence[:-1].tolist(), sentence[1:].tolist(), strict=True)
        taken = torch.tensor([column[:length] for column in pairs]).permute(2, 1, 0)
        pairs = [column[length:] for column in pairs]
        inputs = torch.cat([recent, taken[0]])
        yield inputs, taken[1]
        recent = inputs[max(0, len(inputs) - extended) :]


def write_batches(path: Path, cases: list[Config]) -> Path:
    described, tensors = [], {}
    for index, case in enumerate(cases):
        stream = torch.randint(50, (case["n"],))
        name = f"{case['kind']}{index}"
        tensors[f"{name}/stream"] = stream
        if case["kind"] == "ordered":
            batches = list(ordered(stream, case["bsz"], case["bptt"], case["ext_len"]))
        else:
            lengths = [1 + (7 * i) % 9 for i in range(case["n"])]
            lengths = [n for i, n in enumerate(lengths) if sum(lengths[: i + 1]) <= case["n"]]
            tensors[f"{name}/stream"] = stream = stream[: sum(lengths)]
            tensors[f"{name}/sent_len"] = torch.tensor(lengths)
            batches = list(shuffled(list(stream.split(lengths)), case["bsz"], case["bptt"], case["ext_len"]))
        for k, (inputs, targets) in enumerate(batches):
            tensors |= {f"{name}/batch{k}/input": inputs, f"{name}/batch{k}/target": targets}
        described.append({**case, "index": index, "n_batch": len(batches)})
    return save(path, "txl-golden-data-1", {"cases": described}, tensors)


def rate(config: Config, n: int) -> float:
    lr, warmup = config["lr"], config["warmup"]
    if config["scheduler"] == "inv_sqrt":
        return lr * (1.0 if n == warmup == 0 else n**-0.5 if n > warmup else n / warmup**1.5)
    if 0 < n < warmup:
        return lr * n / warmup
    if config["scheduler"] == "cosine":
        return config["eta_min"] + (lr - config["eta_min"]) * (1 + math.cos(math.pi * n / config["steps"])) / 2
    return lr * (warmup - 1) / warmup if n and warmup > 1 else lr


def losses(
    p: Parameters, config: Config, memory: list[Tensor], ids: Tensor, targets: Tensor
) -> tuple[Tensor, list[Tensor]]:
    states = hidden_states(p, config, ids, memory)
    scores = log_probabilities(p, config, states[-1])
    both = [torch.cat([m, h]).detach() for m, h in zip(memory, states, strict=True)]
    kept = [rows[max(0, len(rows) - config["mem_len"]) :] for rows in both]
    return -scores[-len(targets) :].gather(-1, targets[..., None]).squeeze(-1), kept


def empty(config: Config, batch: int) -> list[Tensor]:
    return [torch.zeros(0, batch, config["d_model"], dtype=torch.float64) for _ in range(config["n_layer"] + 1)]


def train(p: Parameters, config: Config, stream: Tensor) -> dict[str, list[float]]:
    canonical = list({id(value): value for value in p.values()}.values())
    optimizer = torch.optim.Adam(canonical, lr=config["lr"])
    log: dict[str, list[float]] = {name: [] for name in ("loss", "grad_norm", "lr", "epoch", "seq_len")}
    sizes = [part.numel() for part in torch.arange(config["batch"]).chunk(config["batch_chunk"])]
    epoch = 0
    while True:
        epoch += 1
        memories = [empty(config, size) for size in sizes]
        for ids, targets in ordered(stream, config["batch"], config["tgt_len"]):
            step = len(log["loss"])
            if step == config["steps"]:
                return log
            optimizer.param_groups[0]["lr"] = rate(config, step)
            optimizer.zero_grad()
            total = 0.0
            for i, (part, goal) in enumerate(zip(ids.split(sizes, 1), targets.split(sizes, 1), strict=True)):
                loss, memories[i] = losses(p, config, memories[i], part, goal)
                loss = loss.mean() / len(sizes)
                loss.backward()
                total += float(loss.detach())
            for name, parameter in p.items():
                if name.startswith(("crit", "word_emb")) and parameter.grad is not None and not parameter.grad.any():
                    parameter.grad = None  # a bin without tokens, which the published code skips
            norm = torch.nn.utils.clip_grad_norm_(canonical, config["clip"])
            optimizer.step()
            values = (total, float(norm), rate(config, step), epoch, len(targets))
            for column, value in zip(log.values(), values, strict=True):
                column.append(value)


def evaluation_loss(p: Parameters, config: Config, stream: Tensor) -> float:
    longer = {**config, "mem_len": config["eval_mem_len"]}
    memory, total, count = empty(config, config["eval_batch"]), 0.0, 0
    for ids, targets in ordered(stream, config["eval_batch"], config["eval_tgt_len"]):
        loss, memory = losses(p, longer, memory, ids, targets)
        total, count = total + float(loss.detach().sum()), count + loss.numel()
    return total / count


def write_training(path: Path, **changes: Any) -> Path:
    config = {**DEFAULTS, **TRAINING, **changes}
    canonical, p = trainable(config, parameters(config))
    tensors = {f"param/{name}": value.detach().clone() for name, value in canonical.items()}
    text, valid = torch.randint(config["n_token"], (43,)), torch.randint(config["n_token"], (31,))
    for name, column in train(p, config, text).items():
        dtype = torch.int64 if name in ("epoch", "seq_len") else torch.float64
        tensors[f"train/{name}"] = torch.tensor(column, dtype=dtype)
    tensors |= {f"final/{name}": value.detach() for name, value in canonical.items()}
    tensors["eval/loss"] = torch.tensor([evaluation_loss(p, config, valid)], dtype=torch.float64)
    tensors |= {"train_stream": text, "valid_stream": valid}
    return save(path, "txl-golden-train-1", {**config, "tied": ties(config)}, tensors)
