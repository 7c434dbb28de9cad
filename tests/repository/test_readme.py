"""The numbers of the README are those of the measurements, and its tree and commands are those of the repository."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from statistics import fmean
from typing import Any

import pytest
from helpers.doc_pages import ROOT, blocks

from mnemo.interop.parity.reference_files import TOLERANCE
from mnemo.papers.main_figures import trained_length
from mnemo.papers.records import scores_that_count, training_seconds

README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = {
    "XL": "transformer-xl",
    "Lookahead": "lamemo",
    "MemoryTokens": "rmt",
    "Associative": "armt",
    "Infinite": "infinite",
}
"""Folders of reference files by mechanism."""


def measured(name: str) -> Any:
    return json.loads((ROOT / "docs" / "measurements" / f"{name}.json").read_text(encoding="utf-8"))


def headline(number: str) -> str:
    """The row of the README's headline numbers that begins with this one."""
    (row,) = re.findall(rf"^\| \*\*{re.escape(number)}\*\* \|.*$", README, re.MULTILINE)
    return row


def parity() -> dict[str, list[dict[str, Any]]]:
    """Results of all reference files, by folder."""
    found = defaultdict(list)
    for result in measured("parity")["files"]:
        found[result["file"].split("/")[0]].append(result)
    return found


def worst(results: list[dict[str, Any]]) -> float:
    return max(result["error"] for result in results if result["status"] == "passed")


def test_it_is_a_landing_page() -> None:
    assert len(README.splitlines()) <= 140
    assert "\n    make demo " in README and "\n    make test " in README
    assert "3.11 to 3.13" in README and "not on a package index" in README
    (block,) = blocks(ROOT / "README.md")
    assert len([line for line in block.splitlines() if line]) == 6
    assert len(re.findall(r"!\[", README)) == 1


def test_the_tree_has_every_package() -> None:
    listed = re.findall(r"^    mnemo/(\w+)/ ", README, re.MULTILINE)
    packages = [path.name for path in (ROOT / "mnemo").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(listed) == sorted(packages)


def test_bits_per_character_of_enwik8() -> None:
    found = measured("h200-enwik8")
    row = headline(f"{fmean(scores_that_count(found)):.3f}")
    fastest, slowest = (f"{seconds / 60:.1f}" for seconds in training_seconds(found))
    assert f"after {fastest} to {slowest} minutes of training" in row
    assert "38M parameters" in row and "mean of two seeds" in row and len(found["runs"]) == 2


def test_speed_beside_the_published_formulation() -> None:
    cases = {case["case"]: case for case in measured("h200-inference")["cases"]}
    row = headline(f"{cases['eval-long']['ratio']:.0f}x")
    speeds = {each: found["tokens_per_second"] for each, found in cases["generate-long"]["contenders"].items()}
    narrow = speeds["mnemo"] / speeds["published, bf16 weights"]
    assert f"{cases['generate-long']['ratio']:.0f}x in generation ({narrow:.0f}x if its weights" in row
    assert "bf16" in row and cases["eval-long"]["setting"]["memory"] == 3800
    speed = (ROOT / "docs" / "speed.md").read_text()
    ours, theirs = re.findall(r"Transformer-XL base: .*?\| ([\d,]+) \| .*? \| ([\d,]+),", speed)[0]
    ratio = int(ours.replace(",", "")) / int(theirs.replace(",", ""))
    assert f"{ratio:.0f}x in training" in row


def test_answers_with_memory() -> None:
    runs = [measured(f"h200-babilong-{kind}") for kind in ("associative", "memory-tokens")]
    shares = [{each["length"]: f"{100 * each['accuracy']:.0f} %" for each in run["results"]} for run in runs]
    row = headline(shares[0][65_536])
    trained = [f"{trained_length(run):,}" for run in runs]
    assert f"after {runs[0]['options']['minutes']:.0f} minutes of fine-tuning on at most {trained[0]} tokens" in row
    assert f"{shares[0][131_072]} at 131,072 tokens, {shares[0][2**20]}, a guess, at 1,048,576" in row
    tokens = [shares[1][length] for length in (65_536, 131_072, 2**20)]
    assert f"Memory tokens, trained on at most {trained[1]}: {tokens[0]}, {tokens[1]} and {tokens[2]}" in row


def test_parity_of_all_files() -> None:
    results = [result for each in parity().values() for result in each]
    row = headline("1e-9")
    assert measured("parity")["tolerance"] == TOLERANCE == 1e-9
    passed = [result for result in results if result["status"] == "passed"]
    assert f"the worst of {len(passed)} reference files has {worst(results):.1e}".replace("e-0", "e-") in row
    named = {result["file"].split("/")[1] for result in results}
    kept = {
        path.name for folder in FOLDERS.values() for path in (ROOT / "tests/golden").glob(f"{folder}/*.safetensors")
    }
    assert len(kept) >= 20 and kept <= named


@pytest.mark.parametrize("mechanism", FOLDERS)
def test_parity_in_the_table_of_memories(mechanism: str) -> None:
    results = parity()[FOLDERS[mechanism]]
    passed = sum(result["status"] == "passed" for result in results)
    refused = sum(result["status"] == "refused" for result in results)
    (row,) = re.findall(rf"^\| `{mechanism}` \|.*$", README, re.MULTILINE)
    assert f"| {passed} of {len(results)}" in row and f"worst {worst(results):.0e}".replace("e-0", "e-") in row
    assert passed + refused == len(results) and (f"; {refused} refused" in row) == (refused > 0)
