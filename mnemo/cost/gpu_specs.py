"""Specifications of GPUs, from data sheets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from mnemo.errors import MnemoError, unknown

GB, TERA = 10**9, 10**12


@dataclass(frozen=True, kw_only=True)
class Gpu:
    name: str
    memory: float
    """Bytes."""
    half: float
    """FLOP/s of matrix products in bf16 or fp16, dense."""
    single: float
    """FLOP/s in fp32, without TF32."""
    double: float
    """FLOP/s in fp64."""
    bandwidth: float
    """Bytes/s of the GPU's memory."""
    watts: float
    """Maximum power of the board."""
    link: float
    """Bytes/s that a GPU sends to others of its node, one way."""
    source: str

    def peak(self, precision: str) -> float:
        return {"bf16": self.half, "fp16": self.half, "fp32": self.single, "fp64": self.double}[precision]


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="h200",
            memory=141 * GB,
            half=989 * TERA,
            single=67 * TERA,
            double=34 * TERA,
            bandwidth=4.8 * TERA,
            watts=700,
            link=450 * GB,
            source="NVIDIA H200 SXM data sheet: 1,979 TFLOPS bf16, sparse, half of it dense; NVLink 900 GB/s both ways",
        ),
        Gpu(
            name="h100",
            memory=80 * GB,
            half=989 * TERA,
            single=67 * TERA,
            double=34 * TERA,
            bandwidth=3.35 * TERA,
            watts=700,
            link=450 * GB,
            source="NVIDIA H100 SXM data sheet: 80 GB, otherwise as h200",
        ),
        Gpu(
            name="a100",
            memory=80 * GB,
            half=312 * TERA,
            single=19.5 * TERA,
            double=9.7 * TERA,
            bandwidth=2.039 * TERA,
            watts=400,
            link=300 * GB,
            source="NVIDIA A100 80GB SXM data sheet: 312 TFLOPS bf16 dense; NVLink 600 GB/s both ways",
        ),
        Gpu(
            name="l40s",
            memory=48 * GB,
            half=362 * TERA,
            single=91.6 * TERA,
            double=1.4 * TERA,
            bandwidth=864 * GB,
            watts=350,
            link=32 * GB,
            source="NVIDIA L40S data sheet: 362 TFLOPS bf16 dense; PCIe Gen4 x16, 64 GB/s both ways",
        ),
        Gpu(
            name="rtx4090",
            memory=24 * GB,
            half=165 * TERA,
            single=82.6 * TERA,
            double=1.3 * TERA,
            bandwidth=1008 * GB,
            watts=450,
            link=32 * GB,
            source="NVIDIA Ada white paper, GeForce RTX 4090: 165.2 TFLOPS bf16 with fp32 sums; PCIe Gen4 x16",
        ),
    )
}
GPUS_PER_NODE = 8
NETWORK = 50 * GB
"""Bytes/s that a GPU sends to other nodes, one way: one 400 Gbit/s port each, as in NVIDIA's DGX H100."""
GPU_HOURS_PER_FAILURE = 50_000
"""419 unexpected interruptions in 54 days on 16,384 H100s (The Llama 3 Herd of Models, 2024, section 3.3.4) are one in
50,700 GPU hours."""


class Efficiency(NamedTuple):
    share: float
    """FLOPs of the model by `mnemo info`, divided by the GPU's peak over the same time."""
    source: str


ASSUMED = Efficiency(0.30, "assumed, not measured: `mnemo bench --json` measures it, and --bench reads that")


def find_gpu(name: str) -> Gpu:
    if name not in GPUS:
        raise MnemoError(
            f"{unknown('GPU', name, GPUS)}; others: --gpu custom --gpu-memory GB --tflops T --watts W --link GB/s"
        )
    return GPUS[name]


def custom_gpu(*, memory: float | None, tflops: float | None, watts: float | None, link: float | None) -> Gpu:
    """A GPU that is not in the table; every number must be given."""
    given = {"--gpu-memory": memory, "--tflops": tflops, "--watts": watts, "--link": link}
    missing = [flag for flag, value in given.items() if value is None]
    if missing or memory is None or tflops is None or watts is None or link is None:
        raise MnemoError(f"--gpu custom needs {', '.join(missing)} too")
    blank = Gpu(name="custom", memory=0, half=0, single=0, double=0, bandwidth=0, watts=0, link=0, source="as given")
    return changed(blank, memory=memory, tflops=tflops, watts=watts, link=link)


def changed(gpu: Gpu, *, memory: float | None, tflops: float | None, watts: float | None, link: float | None) -> Gpu:
    """The same GPU with other numbers, in GB, TFLOP/s, watts and GB/s."""
    for flag, value in {"--gpu-memory": memory, "--tflops": tflops, "--watts": watts, "--link": link}.items():
        if value is not None and not 0 < value < 1e9:
            raise MnemoError(f"{flag} {value} must be positive and less than 1e9")
    if memory is not None:
        gpu = replace(gpu, memory=memory * GB)
    if tflops is not None:
        gpu = replace(gpu, half=tflops * TERA, single=tflops * TERA, double=tflops * TERA)
    if watts is not None:
        gpu = replace(gpu, watts=watts)
    return gpu if link is None else replace(gpu, link=link * GB)
