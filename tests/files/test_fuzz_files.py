"""Broken files give one-line errors. `MNEMO_FUZZ=10000 pytest FILE` tries more inputs; see docs/fuzzing.md."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from helpers.fuzz_targets import Target, attempt, attempt_target, seeds, targets, workplace
from helpers.mutations import mutate
from hypothesis import HealthCheck, given, settings

HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
INPUTS = int(os.environ.get("MNEMO_FUZZ", "160"))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One copy of the seeds for all; every try leaves it whole."""
    with pytest.MonkeyPatch.context() as patch, workplace(patch) as place:
        yield place


@pytest.mark.thorough
def test_the_seeds_are_whole(folder: Path) -> None:
    for target in targets():
        tried = attempt_target(folder, target, (seeds() / target.file).read_bytes())
        enough = tried.err.endswith("one step is enough\n") if target.name == "train --resume" else tried.code == 0
        assert enough, (target, tried.err)


BROKEN = given(st.integers(0, 10**6), st.randoms(note_method_calls=False, use_true_random=False))


@settings(max_examples=max(INPUTS // 4, 40), suppress_health_check=HEALTH)
@BROKEN
def test_a_broken_file_is_one_line(folder: Path, number: int, draw: random.Random) -> None:
    known = targets()
    check(folder, known[number % len(known)], draw)


@pytest.mark.thorough
@settings(max_examples=INPUTS, suppress_health_check=HEALTH)
@BROKEN
def test_more_broken_files(folder: Path, number: int, draw: random.Random) -> None:
    known = targets()
    check(folder, known[number % len(known)], draw)


def check(folder: Path, target: Target, draw: random.Random) -> None:
    data = mutate(draw, (seeds() / target.file).read_bytes())
    problem = attempt_target(folder, target, data).problem()
    assert problem is None, f"{target.file}: {problem}"


WORDS = ["--memory", "--segment", "--batch", "--limit", "--tokens", "--prompt", "--memory-length", "--top-k", "--seed"]


@settings(max_examples=INPUTS // 8, suppress_health_check=HEALTH)
@given(
    st.sampled_from(
        ["info", "eval", "generate", "read", "parity", "report", "prepare", "train", "estimate", "nothing"]
    ),
    st.lists(st.sampled_from([*WORDS, "run", "-1", "0", "3", "99999999999999999999", "nan", "", "\udcff", "--json"])),
)
def test_odd_arguments_are_one_line(folder: Path, verb: str, words: list[str]) -> None:
    problem = attempt([verb, *words]).problem()
    assert problem is None, problem
