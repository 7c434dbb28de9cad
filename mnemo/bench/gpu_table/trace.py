"""Kernels of a torch profiler's trace, each with the operation that launched it.

Bytes are a lower bound: every input of an operation counts once. FLOPs are those of matrix products.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
OPTIMIZER = "Optimizer.step#"
"""How torch names the range of an optimizer's step."""
ITEM_BYTES = {
    "double": 8,
    "long int": 8,
    "float": 4,
    "int": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "short int": 2,
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
    "TensorList": 4,
}
"""Lists of tensors are those of an optimizer, whose moments and weights have 4 bytes."""
PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""Places of the factors among the inputs."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    name: str
    begin: float
    """Microseconds."""
    duration: float
    op: str = ""
    """The operation that launched it; empty if unknown, as in a replayed CUDA graph."""
    in_optimizer: bool = False
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def end(self) -> float:
        return self.begin + self.duration


def load_kernels(path: Path) -> list[Kernel]:
    return kernels_of(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def kernels_of(events: Sequence[Mapping[str, Any]]) -> list[Kernel]:
    """Return kernels, copies and fills in the order of their begin."""
    ops = {event["args"]["External id"]: event for event in events if event.get("cat") == "cpu_op"}
    ranges = [(e["ts"], e["ts"] + e["dur"]) for e in events if str(e.get("name", "")).startswith(OPTIMIZER)]
    launched = {event["args"].get("correlation"): event["ts"] for event in events if event.get("cat") in LAUNCHES}
    found = list(_kernels(events, ops, ranges, launched))
    return sorted(found, key=lambda kernel: kernel.begin)


def _kernels(
    events: Sequence[Mapping[str, Any]],
    ops: Mapping[int, Mapping[str, Any]],
    ranges: Sequence[tuple[float, float]],
    launched: Mapping[int, float],
) -> Iterator[Kernel]:
    counted: set[int] = set()
    for event in events:
        if event.get("cat") not in KERNELS:
            continue
        number = event["args"].get("External id")
        op = ops.get(number, {})
        # One operation can launch several kernels; its work counts once.
        work = (0.0, 0.0) if number in counted else work_of(op)
        counted.add(number)
        when = launched.get(event["args"].get("correlation"), -1.0)
        yield Kernel(
            name=event["name"],
            begin=event["ts"],
            duration=event["dur"],
            op=op.get("name", ""),
            in_optimizer=any(begin <= when <= end for begin, end in ranges),
            flops=work[0],
            bytes=work[1],
        )


def work_of(op: Mapping[str, Any]) -> tuple[float, float]:
    """Return the FLOPs and bytes of an operation from the shapes of its inputs; zero if they are unknown."""
    args = op.get("args", {})
    shapes, types = args.get("Input Dims", []), args.get("Input type", [])
    inputs = zip(shapes, types, strict=False)
    size = float(sum(_elements(shape) * ITEM_BYTES.get(kind, 0) for shape, kind in inputs))
    if op.get("name") not in PRODUCTS:
        return 0.0, size
    first, second = (shapes[place] for place in PRODUCTS[op["name"]])
    return 2.0 * math.prod(first) * second[-1], size


def _elements(shape: Sequence[Any]) -> int:
    """Return the number of elements of a tensor, or of all tensors of a list."""
    if shape and isinstance(shape[0], list):
        return sum(math.prod(one) for one in shape)
    return math.prod(shape)


def busy(kernels: Iterable[Kernel]) -> float:
    """Return the microseconds in which at least one of the kernels runs."""
    total, until = 0.0, -math.inf
    for kernel in sorted(kernels, key=lambda kernel: kernel.begin):
        total += max(0.0, kernel.end - max(kernel.begin, until))
        until = max(until, kernel.end)
    return total
