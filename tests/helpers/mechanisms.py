"""Every mechanism and composition that the state contract is tested on, as changes to the small test model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mnemo.memory import LSTM, QRNN, XL, Associative, Compressive, Infinite, Lookahead, MemoryTokens, Plan, WriteTokens
from mnemo.model.positions import Learned, NoPositions, Relative, Rotary


def infinite(**options: Any) -> Infinite:
    return Infinite(**{**dict(length=4, basis=6, block=3, samples=5, widths=(0.1, 0.3)), **options})


def compressive(**options: Any) -> Plan:
    return Plan(long=Compressive(**options))


MECHANISMS: dict[str, dict[str, Any]] = {
    "xl": dict(memory=5),
    "xl-plan": dict(memory=Plan(long=XL(length=7), short=XL(length=2), num_long=1)),
    "lookahead": dict(memory=Plan(long=Lookahead(length=6, refresh_last=True))),
    "lookahead-shorter-than-a-segment": dict(memory=Plan(long=Lookahead(length=3)), norm="pre"),
    "lookahead-published": dict(memory=Plan(long=Lookahead(length=6).published()), positions=Relative(clamp=3)),
    "lookahead-signed": dict(memory=Plan(long=Lookahead(length=5, encoding="signed")), same_length=True),
    "lookahead-upper-layers": dict(
        memory=Plan(long=Lookahead(length=5), short=XL(length=2), num_long=2, arrangement="last"),
    ),
    "lookahead-lower-layers": dict(
        memory=Plan(long=Lookahead(length=7, alpha="zero"), short=XL(length=4), num_long=2, arrangement="first"),
        positions=Relative(shared_projection=True),
    ),
    "compressive": dict(memory=compressive(length=5, compressed=4, ratio=2)),
    "compressive-uneven": dict(memory=compressive(length=3, compressed=3, ratio=3, function="mean"), norm="pre"),
    "compressive-published": dict(memory=Plan(long=Compressive(length=2, compressed=3, ratio=3).published())),
    "compressive-most-used": dict(memory=compressive(length=4, compressed=4, ratio=2, function="most_used")),
    "compressive-dilated-long-range": dict(
        memory=replace(
            compressive(length=4, compressed=2, ratio=4, function="dilated"), short=XL(length=2), num_long=1
        ),
    ),
    "rmt": dict(tokens=MemoryTokens(num=2), memory=0),
    "rmt-published": dict(tokens=MemoryTokens(num=3).published(), memory=6),
    "rmt-causal": dict(tokens=MemoryTokens(num=3, mask="causal"), memory=4, same_length=True),
    "rmt-learned-positions": dict(tokens=MemoryTokens(num=2), memory=0, positions=Learned(length=9)),
    "rmt-with-cache": dict(tokens=MemoryTokens(num=3, ahead="zero"), memory=7, norm="pre", final_norm=True),
    "rmt-reads-cache": dict(
        tokens=MemoryTokens(num=2, memory_sees_cache=True),
        memory=Plan(long=XL(length=9), short=XL(length=1), num_long=2),
        positions=Rotary(),
    ),
    "rmt-lookahead": dict(
        tokens=MemoryTokens(num=3).published(),
        memory=Plan(long=Lookahead(length=7), short=XL(length=3), num_long=2, arrangement="last"),
    ),
    "mt": dict(tokens=MemoryTokens(num=3, write=False), memory=5),
    "mt-published": dict(tokens=MemoryTokens(num=4, write=False).published(), memory=0),
    "armt": dict(tokens=WriteTokens(num=2), memory=Plan(long=Associative(key_dim=4))),
    "armt-heads-gates": dict(
        tokens=WriteTokens(num=3),
        # Heads with few features share hardly any: what they read is divided by almost zero, and rounding is amplified.
        memory=Plan(
            long=Associative(key_dim=16, heads=2, gate="channel", nu=2, unit_keys=False), short=XL(length=3), num_long=2
        ),
        norm="pre",
    ),
    "armt-previous-segment": dict(
        tokens=WriteTokens(num=2),
        memory=Plan(long=Associative(key_dim=4, length=6, normaliser=False)),
        positions=Rotary(),
    ),
    "armt-learned-positions": dict(
        tokens=WriteTokens(num=1),
        memory=Plan(long=Associative(key_dim=8, correction=False)),
        positions=Learned(length=9),
    ),
    "armt-rmt": dict(
        tokens=MemoryTokens(num=2, mask="causal"),
        memory=Plan(long=Associative(key_dim=4), short=Lookahead(length=3), num_long=1),
    ),
    "infinite": dict(memory=Plan(long=infinite())),
    "infinite-sticky": dict(memory=Plan(long=infinite(sticky=True, gate="shared", block=4, length=3)), norm="pre"),
    "infinite-long-range": dict(
        memory=Plan(long=infinite(gate="layer", block=2), short=XL(length=2), num_long=1),
    ),
    "lstm": dict(memory=Plan(long=LSTM()), positions=NoPositions()),
    "lstm-below-xl": dict(
        memory=Plan(long=LSTM(width=7), short=XL(length=4), num_long=2, arrangement="first"),
        positions=Relative(biases_per_layer=True),
    ),
    "lstm-among-learned-positions": dict(
        memory=Plan(long=LSTM(), short=XL(length=0), num_long=1, arrangement="middle"), positions=Learned(length=9)
    ),
    "qrnn": dict(memory=Plan(long=QRNN()), positions=NoPositions()),
    "qrnn-kernels": dict(
        memory=Plan(long=QRNN(kernel=6, width=5, zoneout=0.2), short=QRNN(kernel=1), num_long=1),
        positions=NoPositions(),
    ),
    "rmt-qrnn-above-lookahead": dict(
        tokens=MemoryTokens(num=2, mask="causal"),
        memory=Plan(long=QRNN(), short=Lookahead(length=3), num_long=1, arrangement="last"),
    ),
    "xl-without-positions": dict(memory=5, positions=NoPositions()),
    "xl-plan-modern": dict(
        memory=Plan(long=XL(length=7), short=XL(length=2), num_long=1),
        positions=Rotary(),
        norm="pre",
        final_norm=True,
        norm_kind="rms",
        qk_norm=True,
        head_gate=True,
        activation="squared_relu",
    ),
    "compressive-qk-norm": dict(
        memory=compressive(length=4, compressed=3, ratio=2), norm="pre", norm_kind="rms", qk_norm=True
    ),
    "lookahead-qk-norm": dict(memory=Plan(long=Lookahead(length=5)), norm_kind="rms", qk_norm=True, head_gate=True),
}

FEW = (
    "xl-plan",
    "lookahead-upper-layers",
    "compressive",
    "rmt",
    "rmt-with-cache",
    "mt",
    "armt",
    "infinite",
    "lstm-below-xl",
    "qrnn",
)
"""One of each mechanism, some of them composed with another one."""


def few_first() -> list[Any]:
    """Names of all mechanisms for tests other than the state contract; those that are not in FEW are thorough."""
    return [pytest.param(name, marks=() if name in FEW else pytest.mark.thorough) for name in MECHANISMS]
