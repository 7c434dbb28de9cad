"""Every option of `ModelConfig` as a small model configuration, found from the fields of its dataclasses.

A switch or a choice between names is found by its type; a union of dataclasses is tried with each of them, and with
every field of each. Other fields take their values from VALUES. So a new switch is tested without a new test, and a
new number without values is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mnemo.memory import LSTM, QRNN, XL, Associative, Compressive, Infinite, Lookahead, MemoryTokens, Plan, WriteTokens
from mnemo.model import InitConfig, ModelConfig
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Learned, NoPositions, Relative, Rotary, Shaw, Sinusoidal

LARGEST_SEGMENT = 6
PLAN = Plan(long=XL(length=7), short=XL(length=2), num_long=2)
SMALL = ModelConfig(vocab_size=23, num_layers=3, dim=16, num_heads=2, head_dim=8, inner_dim=24, memory=PLAN)
BASES: dict[str, ModelConfig] = {
    "post": SMALL,
    "pre": replace(SMALL, norm="pre", final_norm=True, head_gate=True, qk_norm=True, activation="gelu"),
    "modern": replace(
        SMALL,
        norm="pre",
        final_norm=True,
        norm_kind="rms",
        qk_norm=True,
        head_gate=True,
        activation="squared_relu",
        positions=Rotary(),
    ),
}
"""Configurations that options are changed in, one at a time."""

EXAMPLES: dict[type, Any] = {
    EmbeddingConfig: EmbeddingConfig(cutoffs=(5, 11), div_val=2),
    Relative: Relative(),
    Shaw: Shaw(distances=5),
    Sinusoidal: Sinusoidal(),
    Learned: Learned(length=LARGEST_SEGMENT + 4),
    Rotary: Rotary(),
    NoPositions: NoPositions(),
    Plan: PLAN,
    XL: XL(length=5),
    Lookahead: Lookahead(length=5),
    Compressive: Compressive(length=4, compressed=3, ratio=2),
    Infinite: Infinite(length=4, basis=6, block=3, samples=5, widths=(0.1, 0.3)),
    LSTM: LSTM(),
    QRNN: QRNN(),
    Associative: Associative(key_dim=32),
    MemoryTokens: MemoryTokens(num=2),
    WriteTokens: WriteTokens(num=2),
    DropoutConfig: DropoutConfig.published(0.2, attention=0.1),
    InitConfig: InitConfig(),
}
"""A small instance of every dataclass that a configuration may hold."""

VALUES: dict[type, dict[str, list[Any]]] = {
    ModelConfig: {
        "vocab_size": [30],
        "num_layers": [2, 4],
        "dim": [20],
        "num_heads": [3],
        "head_dim": [6],
        "inner_dim": [10],
        "norm_eps": [0.1],
        "logit_cap": [2.0],
        "activation_penalty": [0.3],
        "temporal_penalty": [0.3],
    },
    EmbeddingConfig: {"dim": [8], "cutoffs": [(7,), (3, 5, 17)], "div_val": [1, 2], "tie_projections": [(True,)]},
    Relative: {"clamp": [3]},
    Shaw: {"distances": [9], "clamp": [3]},
    Sinusoidal: {"clamp": [2]},
    Learned: {"length": [LARGEST_SEGMENT + 5]},
    Rotary: {"base": [100.0]},
    Plan: {"num_long": [None, 0, 1]},
    XL: {"length": [0, 3, 9]},
    Lookahead: {"length": [2, 8], "epsilon": [0.1]},
    Compressive: {"length": [0, 7], "compressed": [5], "ratio": [3]},
    Infinite: {
        "length": [2],
        "basis": [8],
        "widths": [(0.2,)],
        "block": [2],
        "samples": [4],
        "tau": [0.5],
        "ridge": [0.5],
        "min_variance": [0.01],
        "kl_weight": [0.1],
        "kl_deviation": [0.1],
        "kl_mean": [0.4],
        "seed": [5],
    },
    LSTM: {"width": [7]},
    QRNN: {"width": [7], "kernel": [1, 4], "zoneout": [0.2]},
    Associative: {"length": [4], "key_dim": [12], "nu": [1], "heads": [2], "row_size": [2.0]},
    MemoryTokens: {"num": [1, 4], "std": [0.5]},
    WriteTokens: {"num": [1, 4], "std": [0.5]},
    DropoutConfig: {field.name: [0.3] for field in fields(DropoutConfig) if field.name != "locked"},
    InitConfig: {"std": [0.1], "projection_std": [0.1], "norm_bias_std": [0.1], "bound": [0.2]},
}
"""Values of fields whose type does not say which there are, at most a few each."""

NOT_ENTERED = {(Plan, "short")}
"""Fields that take the same dataclasses as another one: each of them is tried, but not its fields again."""


def values(owner: type, name: str, current: Any) -> list[Any]:
    """Values of a field that a test should try, in place of the current one."""
    if name in VALUES.get(owner, {}):
        return VALUES[owner][name]
    kind = get_type_hints(owner)[name]
    if kind is bool:
        return [not current]
    if get_origin(kind) is Literal:
        return [value for value in get_args(kind) if value != current]
    members = [member for member in get_args(kind) or (kind,) if is_dataclass(member)]
    if not members:
        raise LookupError(f"no value of {owner.__name__}.{name} is tested: name some in VALUES of model_options.py")
    return [EXAMPLES[member] for member in members]  # type: ignore[index]


def changed(config: Any) -> Iterator[tuple[str, Any]]:
    """A dataclass with one field changed, for every field and value, and what has been changed."""
    for field in fields(config):
        current = getattr(config, field.name)
        for value in values(type(config), field.name, current):
            yield f"{field.name}={_text(value)}", _fitting(config, field.name, value)
        if (type(config), field.name) in NOT_ENTERED:
            continue
        for value in (current, *values(type(config), field.name, current)):
            for name, other in changed(value) if is_dataclass(value) else ():
                yield f"{field.name}={type(value).__name__}.{name}", _fitting(config, field.name, other)


def _text(value: Any) -> str:
    return type(value).__name__ if is_dataclass(value) else str(value)


def _fitting(config: Any, name: str, value: Any) -> Any:
    """With a field changed, and with those that would contradict it."""
    changes: dict[str, Any] = {name: value}
    if name == "positions" and isinstance(value, (Sinusoidal, Learned)):
        changes["memory"] = Plan(long=XL(length=0))
    if isinstance(value, Plan) and any(isinstance(memory, Lookahead) for memory in value.memories(config.num_layers)):
        changes["positions"] = config.positions if isinstance(config.positions, Relative) else Relative()
    if name == "tokens" and value is not None and isinstance(config.positions, Rotary):
        changes["positions"] = Relative()  # rotary positions have no "wrap" and no "zero"
    if isinstance(value, Plan) and any(isinstance(memory, Associative) for memory in value.memories(config.num_layers)):
        changes["tokens"] = WriteTokens(num=2)
    if isinstance(value, WriteTokens):
        changes["memory"] = Plan(long=Associative(key_dim=32))
    if isinstance(config, MemoryTokens) and name == "carry_read":
        changes["write"] = not value
    return replace(config, **changes)


@cache
def options(base: ModelConfig) -> dict[str, ModelConfig]:
    """Every option of a model by name, each configuration once; the unchanged one first."""
    found: dict[ModelConfig, str] = {base: "base"}
    for name, config in changed(base):
        found.setdefault(config, name)
    return {name: config for config, name in found.items()}
