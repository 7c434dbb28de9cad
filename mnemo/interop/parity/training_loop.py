"""Compare with reference files of the authors' training loop: losses, learning rates and weights of every step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from mnemo.data.corpus import Split
from mnemo.data.streams import Batch, ContiguousStream, read_on
from mnemo.errors import unknown
from mnemo.evaluation.perplexity import evaluate
from mnemo.interop.parity.reference import Reference, Refused, as_tensor
from mnemo.interop.parity.segment_runner import refuse_defects, settings
from mnemo.interop.parity.transformer_xl import AUTHORS, load
from mnemo.interop.parity.weights import check_tensors
from mnemo.memory.state import State
from mnemo.model import Model
from mnemo.recipes.recipe import EvalConfig, OptimizerConfig, ScheduleConfig
from mnemo.training.optimizers import build_optimizer, clip_gradients, learning_rate, set_learning_rate

SCHEDULES = {"cosine": "cosine", "inv_sqrt": "inverse_sqrt", "constant": "constant", "dev_perf": "plateau"}
"""Their names and ours. Their plateau schedule gets no evaluations in these files."""
NUMBER = r"([0-9.eE+-]*[0-9])"


def check(reference: Reference) -> None:
    config = reference.config
    (setting,) = settings(config, {}, 1)
    refuse_defects(config.get("attn_type", 0), bool(config.get("pre_lnorm", False)), [setting])
    if setting.extended and setting.memory:
        raise Refused("defect of the published code: with ext_len the memory holds tokens that are also encoded again")
    model = load(reference, AUTHORS, config)
    _check_steps(reference, list(_train(reference, model)))
    weights = dict(model.named_parameters())
    check_tensors(reference, "final weights", "final/", weights, AUTHORS.tensor_map(model))
    reference.check("evaluation", "eval/loss", as_tensor([_evaluate(reference, model)]))


def _check_steps(reference: Reference, steps: list[dict[str, float]]) -> None:
    columns = {"loss": "losses", "grad_norm": "gradient norms", "lr": "rates", "epoch": "batches", "seq_len": "batches"}
    for column, group in columns.items():
        reference.check(group, f"train/{column}", as_tensor([step[column] for step in steps]))


def _train(reference: Reference, model: Model) -> Iterator[dict[str, float]]:
    """Update the model `steps` times and yield what the authors' loop logs for each step."""
    base, parts, count = _optimizer(reference), reference.setting("batch_chunk", int), reference.setting("steps", int)
    schedule, stream = _schedule(reference), _stream(reference, "train_stream", "batch", "tgt_len")
    optimizer, cursor = build_optimizer(model, base), stream.start()
    states: list[State | None] = [None] * parts
    model.train()
    for step in range(count):
        batch, cursor = read_on(stream, cursor)
        rate = learning_rate(schedule, base.lr, step, count)
        set_learning_rate(optimizer, rate)
        optimizer.zero_grad()
        loss = _accumulate(model, batch, states)
        norm = clip_gradients(model.parameters(), base.clip)
        optimizer.step()
        length = batch.targets.shape[1]
        yield {"loss": loss, "grad_norm": float(norm), "lr": rate, "epoch": cursor["epoch"] + 1, "seq_len": length}
    model.eval()


def _accumulate(model: Model, batch: Batch, states: list[State | None]) -> float:
    """Accumulate the gradients of the batch's parts; each part has its own memory."""
    total = 0.0
    parts = [_split(part, len(states)) for part in (batch.tokens, batch.targets, batch.starts)]
    for index, (tokens, targets, starts) in enumerate(zip(*parts, strict=True)):
        out, states[index] = model(tokens, states[index], starts=starts)
        loss = model.loss(out, targets).mean() / len(states)
        loss.backward()
        total += float(loss.detach())
    return total


def _split(rows: Tensor | None, parts: int) -> list[Tensor | None]:
    return [None] * parts if rows is None else list(rows.chunk(parts))


def _stream(reference: Reference, key: str, batch: str, segment: str) -> ContiguousStream:
    ids, context = reference.take(key).numpy(), reference.config.get("ext_len", 0)
    return ContiguousStream(ids, reference.setting(batch, int), reference.setting(segment, int), context=context)


def _optimizer(reference: Reference) -> OptimizerConfig:
    """Parse a description such as `adam betas 0.9 0.999 eps 1e-8, no weight decay`."""
    text = reference.setting("optimizer", str)
    kind = text.split()[0]
    if kind not in ("adam", "sgd"):
        raise unknown("optimizer", kind, ("adam", "sgd"))
    betas = re.search(f"betas {NUMBER} {NUMBER}", text)
    eps, momentum = re.search(f"eps {NUMBER}", text), re.search(f"momentum {NUMBER}", text)
    default = OptimizerConfig()
    return OptimizerConfig(
        kind=kind,
        lr=reference.setting("lr", (int, float)),
        betas=(float(betas[1]), float(betas[2])) if betas else default.betas,
        eps=float(eps[1]) if eps else default.eps,
        momentum=float(momentum[1]) if momentum else default.momentum,
        clip=reference.setting("clip", (int, float)),
    )


def _schedule(reference: Reference) -> ScheduleConfig:
    name = reference.setting("scheduler", str)
    if name not in SCHEDULES:
        raise unknown("scheduler", name, SCHEDULES)
    return ScheduleConfig(
        kind=SCHEDULES[name],  # type: ignore[arg-type]
        warmup=reference.setting("warmup", int),
        min_lr=reference.setting("eta_min", (int, float)),
        published=True,
    )


def _evaluate(reference: Reference, model: Model) -> float:
    ids = reference.take("valid_stream").numpy()
    config = EvalConfig(
        batch=reference.setting("eval_batch", int),
        segment=reference.setting("eval_tgt_len", int),
        memory=reference.setting("eval_mem_len", int),
    )
    split = Split("valid", ids, None, len(ids), 0, 0)
    context = reference.config.get("ext_len", 0)
    return evaluate(model, split, config, segment=reference.setting("eval_tgt_len", int), context=context).loss
