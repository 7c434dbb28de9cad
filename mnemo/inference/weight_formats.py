"""Names of the formats in which weights can be kept for generating; imports no torch."""

from __future__ import annotations

from typing import Literal, get_args

WeightFormat = Literal["fp32", "bf16", "int8"]
WEIGHT_FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
