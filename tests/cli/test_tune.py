"""The command line of tuning: mistakes and help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.real_models import TINY_LLAMA

from mnemo.cli import main


def test_a_run_is_no_model_to_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    assert main(["tune", str(tmp_path), "--out", str(tmp_path / "tuned")]) == 2
    assert f"'{tmp_path}' is a run of mnemo train, not a Hugging Face model" in capsys.readouterr().err


def test_a_segment_without_room_names_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(TINY_LLAMA), "--out", str(tmp_path), "--device", "cpu"]) == 2
    assert "use segment=496 or less (--segment 496)" in capsys.readouterr().err


def test_help_of_a_switch_that_is_off_says_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--help"]) == 0
    words = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "--no-bounded removes the limit, as published. (default: limited)" in words
