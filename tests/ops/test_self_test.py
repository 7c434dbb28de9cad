"""Tests of kernels before their first use: the record of those that passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mnemo.ops.cuda import self_test

CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a test asks of a GPU, and an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(self_test, "_gpu", lambda index: f"card {index}")


def counted(problem: str | None) -> tuple[self_test.SelfTest, list[Any]]:
    calls: list[Any] = []

    def failure(*given: Any) -> str | None:
        calls.append(given)
        return problem

    return self_test.SelfTest("kernels", failure), calls


@pytest.mark.usefixtures("gpu")
def test_a_passed_test_is_not_repeated_by_later_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for repeats in (1, 0):  # each new object stands for a process
        test, calls = counted(None)
        for _ in range(2):
            assert test.obstacle(CUDA, torch.float16, 64) is None
        assert len(calls) == repeats
    assert test.obstacle(CUDA, torch.float16, 32) is None and len(calls) == 1
    monkeypatch.setattr(self_test, "_gpu", lambda index: "another card")
    test, calls = counted(None)
    assert test.obstacle(CUDA, torch.float16, 64) is None and len(calls) == 1
    monkeypatch.setenv("MNEMO_TEST_KERNELS", "1")
    test, calls = counted(None)
    assert test.obstacle(CUDA, torch.float16, 64) is None and len(calls) == 1


@pytest.mark.usefixtures("gpu")
def test_a_failed_test_is_reported_once_and_repeated_by_later_processes() -> None:
    for _ in range(2):
        test, calls = counted("error 1.0")
        with pytest.warns(UserWarning, match="kernels are off, going on slower: error 1.0"):
            assert test.obstacle(CUDA, torch.float16, 64) == "error 1.0"
        assert test.obstacle(CUDA, torch.float16, 64) == "error 1.0" and len(calls) == 1


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("content", ["", "[]", '{"format_version": 1, "passed": 3}', '{"format_version": 9}'])
def test_a_damaged_record_of_passed_tests_is_replaced(content: str) -> None:
    path = self_test.passed_file()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    for repeats in (1, 0):
        test, calls = counted(None)
        assert test.obstacle(CUDA, torch.float16, 64) is None
        assert len(calls) == repeats


@pytest.mark.usefixtures("gpu")
def test_a_compiler_finds_what_was_tested_before() -> None:
    test, _ = counted(None)

    def doubled(x: Tensor) -> Tensor:
        return x * 2 if test.obstacle(CUDA, torch.float16, 64) is None else x

    x = torch.ones(2)
    assert torch.compile(doubled, backend="eager", fullgraph=True)(x).tolist() == [1, 1]
    assert test.obstacle(CUDA, torch.float16, 64) is None
    torch.compiler.reset()
    assert torch.compile(doubled, backend="eager", fullgraph=True)(x).tolist() == [2, 2]
