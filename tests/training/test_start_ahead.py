from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from mnemo import ModelConfig
from mnemo.recipes.recipe import TrainConfig
from mnemo.training import start_ahead
from mnemo.training.training_speed import training_speed

CONFIG = TrainConfig(batch=2, segment=4, device="cpu")
CUDA = torch.device("cuda", 0)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, bool]]:
    """What is done ahead: a name, its argument, and whether it is done in another thread."""
    done: list[tuple[str, Any, bool]] = []

    def note(name: str) -> Any:
        return lambda given: done.append((name, given, threading.current_thread() is not threading.main_thread()))

    monkeypatch.setattr(start_ahead.importlib, "import_module", note("import"))
    monkeypatch.setattr(start_ahead, "_create_context", note("context"))
    return done


def test_the_compilers_are_imported_and_the_context_is_made_in_threads(work: list[Any]) -> None:
    with start_ahead.start_ahead(CUDA, CONFIG):
        pass
    wanted = [("context", CUDA, True), *(("import", name, True) for name in start_ahead.COMPILERS)]
    assert sorted(work, key=str) == sorted(wanted, key=str)


def test_no_compiler_is_imported_if_nothing_is_compiled(work: list[Any]) -> None:
    with start_ahead.start_ahead(CUDA, replace(CONFIG, compile=False)):
        pass
    assert work == [("context", CUDA, True)]


def test_nothing_is_done_ahead_on_a_cpu(work: list[Any]) -> None:
    with start_ahead.start_ahead(torch.device("cpu"), CONFIG):
        pass
    assert work == []


def test_threads_end_with_the_body_and_errors_in_them_are_left_to_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise ImportError("broken")

    monkeypatch.setattr(start_ahead.importlib, "import_module", fail)
    monkeypatch.setattr(torch, "empty", fail)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="body"), start_ahead.start_ahead(CUDA, CONFIG):
        raise RuntimeError("body")
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's compilers, when imported
def test_compilers_in_a_thread_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig(vocab_size=16, num_layers=1, dim=16, num_heads=1, head_dim=16, inner_dim=16)
    plain = training_speed(model, CONFIG, updates=1, rounds=1).loss

    def ahead(device: torch.device, config: TrainConfig) -> Any:
        return original(CUDA, config)

    original = start_ahead.start_ahead
    monkeypatch.setattr(start_ahead, "_create_context", lambda device: None)
    monkeypatch.setattr("mnemo.training.training_speed.start_ahead", ahead)
    assert training_speed(model, CONFIG, updates=1, rounds=1).loss == plain
    assert "torch._inductor.compile_fx" in sys.modules
