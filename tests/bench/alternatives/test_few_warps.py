"""Variants of a library's products with many warps are left out, and nothing else."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mnemo.bench.alternatives.few_warps import MOST_WARPS, tuned_kernels, use_few_warps


def multiply(tl: Any, a: Any, b: Any) -> Any:
    return tl.dot(a, b)


def add(tl: Any, a: Any) -> Any:
    return tl.sum(a)


def kernel(function: Any, *warps: int) -> Any:
    """A decorated kernel: conditions around variants around the function."""
    variants = [SimpleNamespace(num_warps=count) for count in warps]
    return SimpleNamespace(fn=SimpleNamespace(configs=variants, fn=SimpleNamespace(fn=function)))


def warps(decorated: Any) -> list[int]:
    return [variant.num_warps for variant in decorated.fn.configs]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in [each for each in sys.modules if each.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)
    found = ModuleType("fla.ops")
    monkeypatch.setitem(sys.modules, "fla.ops", found)
    return found


def test_only_products_lose_their_variants_with_many_warps(library: ModuleType) -> None:
    product, again = kernel(multiply, 1, 2, 4, 8), kernel(multiply, 4, 8)
    library.__dict__.update(product=product, alias=product, again=again, total=kernel(add, 4, 8), number=3)
    assert use_few_warps() == ["product"]
    assert warps(product) == [1, 2] and max(warps(product)) == MOST_WARPS
    assert warps(again) == [4, 8]  # it has no others
    assert warps(library.__dict__["total"]) == [4, 8] and use_few_warps() == []


@pytest.mark.skipif(find_spec("fla") is None, reason="flash-linear-attention is not installed")
@pytest.mark.filterwarnings("ignore")
def test_kernels_of_the_library_are_found() -> None:
    import fla.layers  # pyright: ignore[reportMissingImports]

    assert fla.layers
    kernels = dict(tuned_kernels())
    variants = {name: each.configs for name, each in kernels.items()}
    try:
        changed = use_few_warps()
    finally:
        for name, each in kernels.items():
            each.configs = variants[name]
    assert {"chunk_kda_bwd_kernel_wy_dqkg_fused", "chunk_gla_fwd_kernel_o"} <= set(changed) < set(kernels)
