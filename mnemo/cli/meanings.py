"""Options that users of other programs try, and the options of Mnemo that mean the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mnemo.errors import MnemoError, unknown

SAME: dict[str, Sequence[str]] = {
    "lr": ("--train.optimizer.lr",),
    "learning-rate": ("--train.optimizer.lr",),
    "steps": ("--train.steps",),
    "max-steps": ("--train.steps",),
    "iters": ("--train.steps",),
    "iterations": ("--train.steps",),
    "epochs": ("--train.steps",),
    "num-epochs": ("--train.steps",),
    "batch": ("--train.batch",),
    "batch-size": ("--train.batch", "--batch"),
    "bs": ("--train.batch", "--batch"),
    "seed": ("--train.seed",),
    "layers": ("--model.num-layers",),
    "n-layers": ("--model.num-layers",),
    "n-layer": ("--model.num-layers",),
    "num-layers": ("--model.num-layers",),
    "depth": ("--model.num-layers",),
    "dim": ("--model.dim",),
    "d-model": ("--model.dim",),
    "width": ("--model.dim",),
    "hidden-size": ("--model.dim",),
    "heads": ("--model.num-heads",),
    "n-heads": ("--model.num-heads",),
    "n-head": ("--model.num-heads",),
    "dropout": ("--model.dropout.output",),
    "device": ("--train.device",),
    "gpu": ("--train.device cuda", "--device cuda"),
    "cuda": ("--train.device cuda", "--device cuda"),
    "cpu": ("--train.device cpu", "--device cpu"),
    "bf16": ("--train.precision bf16", "--precision bf16"),
    "fp16": ("--train.precision fp16",),
    "amp": ("--train.precision bf16", "--precision bf16"),
    "precision": ("--train.precision",),
    "segment": ("--train.segment",),
    "seq-len": ("--train.segment", "--segment"),
    "tgt-len": ("--train.segment", "--segment"),
    "block-size": ("--train.segment", "--segment"),
    "context": ("--train.segment",),
    "context-length": ("--train.segment", "--segment"),
    "mem-len": ("--model.memory.long.length", "--memory-length", "--memory"),
    "memory-length": ("--model.memory.long.length", "--memory"),
    "length": ("--model.memory.long.length", "--tokens"),
    "optimizer": ("--train.optimizer.kind",),
    "optim": ("--train.optimizer.kind",),
    "weight-decay": ("--train.optimizer.weight-decay",),
    "wd": ("--train.optimizer.weight-decay",),
    "clip": ("--train.optimizer.clip",),
    "grad-clip": ("--train.optimizer.clip",),
    "warmup": ("--train.schedule.warmup",),
    "warmup-steps": ("--train.schedule.warmup",),
    "scheduler": ("--train.schedule.kind",),
    "schedule": ("--train.schedule.kind",),
    "compile": ("--train.compile",),
    "corpus": ("--data", "--data.corpus"),
    "dataset": ("--data",),
    "text": ("--data", "--prompt-file"),
    "file": ("--data", "--prompt-file"),
    "input": ("--data", "--prompt-file"),
    "out": ("--out", "--save", "--name"),
    "output": ("--out", "--save", "--name"),
    "output-dir": ("--out", "--runs"),
    "out-dir": ("--out", "--runs"),
    "save": ("--out", "--name"),
    "run-name": ("--name",),
    "checkpoint": ("--from", "--which"),
    "load": ("--from", "--which"),
    "init-from": ("--from",),
    "max-tokens": ("--tokens",),
    "max-new-tokens": ("--tokens",),
    "num-tokens": ("--tokens",),
    "n": ("--tokens", "--continuations", "--seeds"),
    "temp": ("--temperature",),
    "num-samples": ("--continuations",),
    "samples": ("--continuations",),
    "seeds": ("--seeds",),
    "memories": ("--memory",),
    "jobs": ("--jobs",),
}
"""Last word of an option, and what it means; of several, the first that the verb has."""
HINTS = {
    "epochs": "Training is counted in steps; --dry-run shows how many times the text is read.",
    "num-epochs": "Training is counted in steps; --dry-run shows how many times the text is read.",
    "dropout": "Every place has its own rate; --help lists them after --model.dropout.",
}


def unknown_option(option: str, known: Iterable[str]) -> MnemoError:
    """An error that suggests the option of the same meaning, of the same last word, or of similar spelling."""
    known = list(dict.fromkeys(known))
    last = option.lstrip("-").replace("_", "-").rpartition(".")[2]
    found = next((use for use in SAME.get(last, ()) if use.partition(" ")[0] in known), None) or _same_word(last, known)
    if found is None:
        return unknown("option", option, known)
    hint = f" {HINTS[last]}" if last in HINTS else ""
    return MnemoError(f"unknown option '{option}'; did you mean '{found}'?{hint}")


def _same_word(last: str, known: Sequence[str]) -> str | None:
    """The shortest option that ends in the same word."""
    same = [name for name in known if name.lstrip("-").rpartition(".")[2] == last]
    return min(same, key=len, default=None)
