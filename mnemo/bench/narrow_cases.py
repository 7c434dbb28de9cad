"""The CPU cases with fewer bits: as `--train.precision bf16`, `--precision bf16` and `--weights` select them.

The cases of a GPU are in bf16 from the start and have no such variants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mnemo.bench.cases import Case

if TYPE_CHECKING:
    import torch


def narrow_obstacle(case: Case, device: torch.device) -> str | None:
    """Why a case in fp32 on a CPU is not measured with fewer bits; None if it is, or if it is not such a case."""
    from mnemo.inference.narrow_weights import obstacle

    return obstacle("bf16", device) if _is_wide(case, device) else None


def narrow_cases(case: Case, device: torch.device) -> dict[str, Case]:
    """Variants of a case for Mnemo, by the name of the contender; empty if there are none on this device."""
    if not _is_wide(case, device) or narrow_obstacle(case, device) is not None:
        return {}
    if case.section == "generation":  # memories stay in fp32: a token reads few of their numbers more than once
        return {f"mnemo, {kind} weights": replace(case, weights=kind) for kind in ("bf16", "int8")}
    return {"mnemo, bf16": replace(case, precision="bf16")}


def _is_wide(case: Case, device: torch.device) -> bool:
    return device.type == "cpu" and case.precision == "fp32" and case.weights == "fp32"
