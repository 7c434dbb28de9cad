"""Memories by the name of their paper, the list of presets in groups, and the memory at the start of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.toy_runs import toy

from mnemo import cli
from mnemo.cli import overrides
from mnemo.cli.train import NewRun
from mnemo.memory import Infinite, Lookahead, MemoryTokens
from mnemo.model import ModelConfig
from mnemo.recipes.presets import GROUPS, PRESETS
from mnemo.recipes.recipe import Recipe
from mnemo.storage.run_folder import load_header

TINY = [
    *("--data.corpus", "toy", "--train.steps", "2", "--train.batch", "2", "--train.segment", "4"),
    *("--evaluation.batch", "2", "--model.num-layers", "2", "--train.device", "cpu"),
    *("--model.dim", "8", "--model.num-heads", "1", "--model.head-dim", "4", "--model.inner-dim", "8"),
]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy()
    monkeypatch.chdir(tmp_path)


def parse(*argv: str) -> Recipe:
    default = NewRun(recipe=Recipe(model=ModelConfig()))
    return overrides.parse(NewRun, default, argv, prog="mnemo train x", description="").recipe


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["train", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert cli.main(["train", "--list", *words]) == 0
    return [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]


def test_presets_are_listed_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(PRESETS)
    assert [line for line in lines if line and not line.startswith(" ")] == list(GROUPS)


def test_presets_are_listed_by_a_word_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    enwik8 = listed(capsys, "enwik8")
    assert {"enwik8-base", "long-enwik8", "lamemo-enwik8", "rmt-enwik8-seg128"} <= set(enwik8)
    assert not any("wikitext103" in name or "bytes" in name for name in enwik8)
    rmt = listed(capsys, "RMT")
    assert "tiny-bytes-rmt" in rmt and "rmt-copy-seg24-m24" in rmt and "enwik8-base" not in rmt
    assert listed(capsys, "rmt", "enwik8") == [name for name in rmt if "enwik8" in name]
    assert listed(capsys, "infinity-former") == ["tiny-bytes-infinite", "lamemo-wikitext103-infinite"]


def test_a_word_matches_the_beginning_of_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    memory_transformers = listed(capsys, "mt")
    assert "rmt-copy-seg24-mt24" in memory_transformers and "rmt-copy-seg24-m24" not in memory_transformers


def test_a_list_without_a_match_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no preset matches 'hippocampus'; mnemo info --list shows all" in complaint(capsys, "--list", "hippocampus")
    assert "unknown option '--long'" in complaint(capsys, "--list", "--long")


def test_info_lists_the_same_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--list", "lamemo"]) == 0
    expected = capsys.readouterr().out
    assert cli.main(["info", "--list", "lamemo"]) == 0
    assert capsys.readouterr().out == expected
    assert cli.main(["info", "--list", "--json", "lamemo"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == listed(capsys, "lamemo")


def test_the_name_of_a_memory_is_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "rmt", *TINY, "--model.tokens.num", "2"]) == 0
    assert "rmt: training tiny-bytes-rmt; mnemo train --list rmt shows related presets" in capsys.readouterr().err
    header = load_header(Path("runs/tiny-bytes-rmt-1"))
    assert header.preset == "tiny-bytes-rmt" and header.recipe.train.bptt == 2
    assert cli.main(["info", "transformer-xl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory_in_words"] == "64 slots in every layer (XL)"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("none", "none"),
        ("lamemo", "64 slots in every layer (Lookahead)"),
        ("transformer-xl", "64 slots in every layer (XL)"),
        ("long-range", "21 slots in layer 1 (XL), 384 slots in layer 2 (XL)"),
        ("rmt", "4 memory tokens carried from segment to segment"),
        ("memory-transformer", "4 memory tokens read anew by every segment"),
        ("compressive", "64 slots and 64 compressed slots of 4 rows in every layer (Compressive)"),
        ("infinity-former", "64 slots and a signal of 64 basis functions in every layer (Infinite)"),
    ],
)
def test_any_preset_takes_the_memory_of_a_paper(given: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["--model.tokens.num", "4"] if "tokens" in words else []
    assert cli.main(["train", "tiny-bytes", "--model.memory", given, *TINY, *tokens, "--name", "x"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert f"memory: {words}" in lines and not any(line.startswith("hint") for line in lines)


def test_other_flags_change_the_memory_of_a_paper(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--model.memory.long.compressed", "8", "--model.memory.num-long", "1"]
    assert cli.main(["train", "tiny-bytes", *TINY, *more, "--model.memory", "compressive", "--name", "x"]) == 0
    words = "128 slots in layer 1 (XL), 64 slots and 8 compressed slots of 4 rows in layer 2 (Compressive)"
    assert f"memory: {words}\n" in capsys.readouterr().err


def test_names_of_papers_name_mechanisms(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("--model.memory.long", "lamemo").model.memory.long == Lookahead(length=512)
    assert parse("--model.memory.long", "infinity-former").model.memory.long == Infinite(length=512)
    assert parse("--model.tokens", "rmt").model.tokens == MemoryTokens()
    line = complaint(capsys, "tiny-bytes", "--model.memory.long", "rmt")
    assert "--model.memory.long cannot be 'rmt': use --model.memory rmt" in line
    assert "unknown memory 'hippocampus'" in complaint(capsys, "tiny-bytes", "--model.memory", "hippocampus")
    assert "unknown value for --model.positions 'rmt'" in complaint(capsys, "tiny-bytes", "--model.positions", "rmt")


def test_memory_tokens_that_are_no_rmt_are_hinted_at(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["--model.tokens", "memory-tokens", "--model.tokens.num", "2"]

    def hints(name: str, *options: str) -> list[str]:
        assert cli.main(["train", "tiny-bytes", *TINY, *tokens, *options, "--name", name]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith("hint: ")]

    both = hints("a")
    assert "cannot learn what to pass on" in both[0] and "--train.bptt" in both[0]
    assert "up to 64 slots beside the memory tokens" in both[1]
    assert hints("b", "--train.bptt", "1") == both[1:]
    assert hints("c", "--model.memory.long.length", "0") == both[:1]
    assert hints("d", "--train.bptt", "1", "--model.memory.long.length", "0") == []
    assert hints("e", "--model.tokens.no-write", "--model.memory.long.length", "0") == [], "MT learns nothing across"
    assert cli.main(["info", "runs/a"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("hint: ")] == both
