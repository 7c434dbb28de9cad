"""The program of docs/give-your-model-a-memory.md is the example file, is short, and runs with a small real model."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path

import pytest
from helpers.doc_pages import ROOT

EXAMPLE = ROOT / "examples" / "give_your_model_a_memory.py"
GUIDE = ROOT / "docs" / "give-your-model-a-memory.md"


def test_the_guide_shows_the_example() -> None:
    program = EXAMPLE.read_text()
    assert f"```py\n{program}```" in GUIDE.read_text()
    assert len(program.splitlines()) < 60


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    evaluator = pytest.importorskip("lm_eval.evaluator")
    from helpers.real_models import TINY_LLAMA

    spec = importlib.util.spec_from_file_location("guide", EXAMPLE)
    assert spec is not None and spec.loader is not None
    guide = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guide)
    monkeypatch.chdir(tmp_path)
    # Without the index of the harness's own tasks, for which it reads thousands of files.
    monkeypatch.setattr(evaluator, "TaskManager", functools.partial(evaluator.TaskManager, include_defaults=False))
    guide.main(str(TINY_LLAMA), minutes=1e-6, samples=2)
    assert "babilong_qa1_200" in capsys.readouterr().out
    assert json.loads(Path("tuned/results.json").read_text())["results"]
    memory, whole = (
        sum(path.stat().st_size for path in Path(f"tuned/{name}").iterdir()) for name in ("memory", "model")
    )
    assert memory < whole / 5
