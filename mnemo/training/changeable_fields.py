"""Which fields of a recipe can change when a run is resumed, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterator

from mnemo.errors import MnemoError

OTHER_RUN = "--from starts a new run from these weights"
CHANGEABLE = frozenset(
    f"train.{name}"
    for name in (
        *("steps", "accumulate", "bptt_memory", "device", "compile", "cuda_graph", "recompute", "parallel", "timeout"),
        *("log_every", "eval_every", "checkpoint_every", "checkpoint_minutes", "keep"),
        *("patience", "goal", "on_nan", "spike", "z_loss"),
        *(f"health.{name}" for name in ("loss_rise", "norm_rise", "patience", "weight_growth", "rollbacks")),
        *(f"health.{name}" for name in ("slower", "slower_steps")),
        *(f"schedule.{name}" for name in ("kind", "warmup", "steps", "min_lr", "factor", "patience", "published")),
        *(f"optimizer.{name}" for name in ("lr", "adam_lr", "betas", "eps", "weight_decay", "momentum", "clip")),
        *(f"optimizer.{name}" for name in ("embedding_lr_factor", "scale_lr_by_length", "clip_mean", "update_clip")),
    )
)
REFUSED = {
    "model": f"the saved weights and memory belong to this model; {OTHER_RUN}",
    "data": f"the place in the data is part of the run; {OTHER_RUN}",
    "evaluation": "validation losses before and after could not be compared; mnemo eval takes these settings",
    "test": "mnemo eval takes these settings",
    "train.batch": "each row has a place in the text and a memory; --train.accumulate needs less memory for the same "
    f"batch, and {OTHER_RUN}",
    "train.segment": f"the saved memory and the place in the text are those of this segment length; {OTHER_RUN}",
    "train.context": f"the place in the text is that of this context; {OTHER_RUN}",
    "train.vary_segment": f"the order of the segments depends on it; {OTHER_RUN}",
    "train.loss": f"the losses before and after could not be compared; {OTHER_RUN}",
    "train.bptt": f"the segments of the next update are part of a checkpoint; {OTHER_RUN}",
    "train.bptt_window": f"the segments of the next update are part of a checkpoint; {OTHER_RUN}",
    "train.bptt_loss": f"the losses before and after could not be compared; {OTHER_RUN}",
    "train.bptt_stale": f"the memory before the next update depends on it; {OTHER_RUN}",
    "train.precision": f"the saved weights, moments and memory have this type; {OTHER_RUN}",
    "train.seed": f"the order of the data and the dropout depend on it; {OTHER_RUN}",
    "train.average": f"the averages were summed with these settings; {OTHER_RUN}",
    "train.optimizer.kind": f"the saved moments are those of this optimizer; {OTHER_RUN}",
}
"""The reason why a field, or any field of a group, cannot change."""


def refuse(name: str) -> None:
    """Raise MnemoError if a field cannot change on resume."""
    if name in CHANGEABLE:
        return
    reason = next((REFUSED[group] for group in _groups(name) if group in REFUSED), f"it cannot change; {OTHER_RUN}")
    raise MnemoError(f"--{name.replace('_', '-')} cannot change on resume: {reason}")


def _groups(name: str) -> Iterator[str]:
    """`a.b.c`, `a.b`, `a`."""
    while name:
        yield name
        name = name.rpartition(".")[0]
