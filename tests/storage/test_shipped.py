"""Models that come with the package: found by name, loaded from bfloat16, never written to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.tiny_runs import tiny_run
from safetensors.torch import load_file

import mnemo
from mnemo.cli import main
from mnemo.errors import MnemoError
from mnemo.files.json_file import write_json
from mnemo.storage import shipped
from mnemo.storage.run_folder import export_run
from mnemo.storage.run_header import default_run, find_run, load_header
from mnemo.storage.shipped import CARD, load_card, shipped_names, weights_digest

FACTS = dict(title="A stand-in", data="none", licence="none", training="two steps", score="8 bits per byte")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in place of the shipped ones, and an empty working folder."""
    home = tmp_path.resolve() / "shipped"
    monkeypatch.setattr(shipped, "SHIPPED", home)
    home.mkdir()
    export_run(tiny_run(), home / shipped.DEFAULT, half=True)
    write_json(home / shipped.DEFAULT / CARD, FACTS | {"sha256": weights_digest(home / shipped.DEFAULT)})
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return home / shipped.DEFAULT


COMMON = set(
    """the of and a to in he she it was that his her i you not with as had for on at but be him my have said is all
    which so by they were from me this one no or there what would when if your who been them an we their out up could
    are into very do now more little then will did some time like about over down man well must old before than any how
    only know good after never see come our made other such again way through made here where much might should upon go
    think came two these long us own hand eyes first day face back away has can its too without thing life
    house went""".split()
)
"""Words that make up more than half of English prose."""


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_weights_are_stored_in_half_and_loaded_as_float32(stand_in: Path) -> None:
    stored = load_file(stand_in / "weights.safetensors")
    trained = mnemo.open_run(tiny_run(), device="cpu").model.state_dict()
    loaded = mnemo.open_run(shipped.DEFAULT, device="cpu").model.state_dict()
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    for name, tensor in trained.items():
        assert loaded[name].dtype == torch.float32 and torch.equal(loaded[name], tensor.bfloat16().float())


def test_it_is_used_when_there_is_no_run(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(stand_in)
    assert main(["generate", "--tokens", "5", "--device", "cpu", "--prompt", "the cat"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("the cat")
    assert err == "mnemo: there is no trained run in runs: using novels-small, which comes with mnemo\n"
    assert mnemo.open_run(device="cpu").path == stand_in == default_run()
    Path("runs").mkdir()
    Path("runs/mine").symlink_to(tiny_run())
    assert default_run() == Path("runs/mine") and find_run(shipped.DEFAULT) == stand_in
    assert files(stand_in) == before


def test_runs_in_folders_of_runs_are_used_only_by_name(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/demo/begun").mkdir(parents=True)
    Path("runs/demo/begun/recipe.json").write_text((tiny_run() / "recipe.json").read_text())
    options = ["--tokens", "2", "--device", "cpu", "--prompt", "the cat"]
    assert main(["generate", *options]) == 0
    assert "there is no trained run in runs: using" in capsys.readouterr().err
    Path("runs/demo/bytes").symlink_to(tiny_run())
    assert main(["generate", *options]) == 0
    which = "(those in its folders must be named, such as demo/bytes)"
    said = f"mnemo: there is no trained run in runs itself {which}: using novels-small, which comes with mnemo\n"
    assert capsys.readouterr().err == said
    assert main(["export", "--out", "small"]) == 2
    assert f"in runs itself {which}: train one" in capsys.readouterr().err
    assert main(["generate", "demo/bytes", *options]) == 0


def test_unknown_runs_are_answered_with_the_names_that_are_listed(
    stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs/demo").mkdir(parents=True)
    for name in ("mine", "demo/bytes"):
        Path("runs", name).symlink_to(tiny_run())
    answers = {
        "nosuch": "unknown run 'nosuch'; known: demo/bytes, mine",
        "bytes": "unknown run 'bytes'; did you mean 'demo/bytes'?",
        "demo": "demo is a folder of runs, not a run: name one of them, such as runs/demo/bytes",
        ".": ". is not a run: it has no recipe.json; mnemo train . trains on a folder of texts, other verbs take a "
        "single one",
    }
    for name, answer in answers.items():
        assert main(["generate", name]) == 2
        assert capsys.readouterr().err == f"mnemo: error: {answer}\n"
    assert main(["info", "bytes"]) == 2
    assert "'demo/bytes'" in capsys.readouterr().err


def test_every_verb_finds_it_and_none_writes_to_it(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(stand_in)
    Path("text.txt").write_text("the cat sat under a tree\n" * 4)
    name, cpu = shipped.DEFAULT, ["--device", "cpu"]
    assert main(["read", name, "text.txt", "--save", "a.memory", *cpu]) == 0
    assert main(["generate", name, "--memory", "a.memory", "--tokens", "3", *cpu]) == 0
    assert main(["eval", name, *cpu]) == 0
    assert main(["info", name]) == 0
    assert "licence: none" in capsys.readouterr().out
    assert main(["analyse", name, "text.txt", *cpu]) == 0
    assert Path("analyses/text/report.html").is_file()
    assert main(["report", name]) == 0
    assert Path("runs/report.html").is_file()
    assert main(["verify", name]) == 0
    assert "export" in capsys.readouterr().out
    assert main(["export", name]) == 2
    assert "with --out" in capsys.readouterr().err
    assert main(["export", name, "--output", "out"]) == 0
    assert main(["train", "--from", name, "--train.steps", "1", "--train.device", "cpu", "--name", "more"]) == 0
    assert main(["train", "--resume", name]) == 2
    assert "is an export" in capsys.readouterr().err
    assert files(stand_in) == before


def test_a_run_of_the_same_name_comes_first(stand_in: Path) -> None:
    Path("runs").mkdir()
    (Path("runs") / shipped.DEFAULT).symlink_to(tiny_run())
    assert find_run(shipped.DEFAULT) == Path("runs") / shipped.DEFAULT


def test_it_shows_its_card(stand_in: Path) -> None:
    shown = repr(mnemo.open_run(shipped.DEFAULT, device="cpu"))
    assert re.search(r"licence +none", shown) and re.search(r"score +8 bits per byte", shown)
    (stand_in / CARD).write_text(json.dumps({"format_version": 1, "title": 3}))
    with pytest.raises(MnemoError, match="its 'title' is missing or not text"):
        load_card(stand_in)


def test_half_exports_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tiny_run()), "--half", "--output", str(tmp_path / "half")]) == 0
    whole, half = (sum(path.stat().st_size for path in folder.rglob("weights*")) for folder in (tiny_run(), tmp_path))
    assert half < 0.7 * whole
    content = json.loads((tmp_path / "half" / "export.json").read_text())
    assert content["half"] is True
    write_json(tmp_path / "half" / "export.json", {"step": 2, "half": "yes"})
    with pytest.raises(MnemoError, match="its 'half' is missing or out of range"):
        mnemo.open_run(tmp_path / "half")


def test_the_model_that_comes_with_the_package_is_whole() -> None:
    assert shipped_names() == [shipped.DEFAULT]
    folder = find_run(shipped.DEFAULT)
    card = load_card(folder)
    assert weights_digest(folder) == card["sha256"]
    assert "public domain" in card["licence"] and "bits per byte" in card["score"] and "novels" in card["data"]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 9_000_000


def test_it_writes_english() -> None:
    run = mnemo.open_run(shipped.DEFAULT, device="cpu")
    text = run.generate("It was late in the evening when", 250, temperature=0.7, seed=1)
    words = re.findall(r"[a-z]+", text.lower())[:-1]
    assert len(words) > 30 and sum(word in COMMON for word in words) > 0.4 * len(words)
    english = run.score("She had never been so happy in her life, and yet she could not help crying a little.")
    nonsense = run.score("Lte hda ervne eenb os ypahp ni rhe ifle, nad eyt hse docul ton phel ycrngi a tlitel.")
    assert english.bits_per_token is not None and nonsense.bits_per_token is not None
    assert english.bits_per_token < 2.2 < 4 < nonsense.bits_per_token


def test_its_curves_can_be_drawn() -> None:
    assert "validation, bpc" in repr(mnemo.open_run(shipped.DEFAULT, device="cpu").plot())


def test_it_is_of_the_preset_of_the_same_name() -> None:
    recipe, trained = mnemo.preset(shipped.DEFAULT), load_header(find_run(shipped.DEFAULT)).recipe
    assert (trained.model, trained.data) == (recipe.model, recipe.data)
