"""The comparison of `make same`: the smallest difference is found, and only declared ones pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tools.same import __main__ as same
from tools.same.cases import CASES
from tools.same.compare import Difference, compare_case
from tools.same.declared import Declared
from tools.same.judge import applying, judge, report

WEIGHTS = "runs/tiny/checkpoints/step-00000024/weights.safetensors"
METRICS = "runs/tiny/metrics.jsonl"
TENSORS = {"layers.0.weight": torch.arange(6.0).view(2, 3), "half": torch.ones(3, dtype=torch.bfloat16)}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The output of a case, as `run_cases.py` leaves it."""
    folder = tmp_path / "base"
    write_tensors(folder / WEIGHTS, TENSORS)
    write_tensors(folder / "page.memory", {"0.length": torch.tensor([3])}, {"layout": '{"batch": 1, "open": 2}'})
    write(folder / METRICS, '{"step": 3, "loss": 2.5}\n{"step": 6, "loss": 2.25}\n')
    write(folder / "outputs/03-eval.json", json.dumps({"score": {"loss": 2.5, "seconds": 0.1}, "files": ["a", "b"]}))
    write(folder / "outputs/09-generate.txt", "the cat\nsat\n")
    write(folder / "outputs/09-generate.stderr", "reading: 3 tokens in 0s\n")
    write(folder / "data/corpus/train.bin", "\1\2\3")
    return folder


@pytest.fixture
def tree(base: Path) -> Path:
    return shutil.copytree(base, base.with_name("tree"))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata)


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def only(base: Path, tree: Path) -> Difference:
    (difference,) = compare_case("xl", base, tree)
    return difference


def test_equal_outputs_have_no_differences(base: Path, tree: Path):
    assert compare_case("xl", base, tree) == []


def test_the_last_bit_of_one_number_in_a_tensor_is_found(base: Path, tree: Path):
    changed = TENSORS["layers.0.weight"].clone()
    changed[1, 2] = torch.nextafter(changed[1, 2], torch.tensor(6.0))
    write_tensors(tree / WEIGHTS, {**TENSORS, "layers.0.weight": changed})
    found = only(base, tree)
    assert (found.file, found.field) == (WEIGHTS, "layers.0.weight")
    assert found.what == "1 of 6 numbers differ, by 4.77e-07 at most"


def test_the_sign_of_a_zero_and_a_bit_of_bfloat16_are_found(base: Path, tree: Path):
    changed = TENSORS["layers.0.weight"].clone()
    changed[0, 0] = -0.0
    half = torch.tensor([1.0, 1.0, 1.0078125], dtype=torch.bfloat16)
    write_tensors(tree / WEIGHTS, {"layers.0.weight": changed, "half": half})
    assert {each.field for each in compare_case("xl", base, tree)} == {"layers.0.weight", "half"}


def test_names_types_and_shapes_of_tensors_are_compared(base: Path, tree: Path):
    weight = TENSORS["layers.0.weight"]
    write_tensors(tree / WEIGHTS, {"layers.1.weight": weight, "half": TENSORS["half"].float()})
    found = {each.field: each.what for each in compare_case("xl", base, tree)}
    assert found == {
        "layers.0.weight": "only at BASE",
        "layers.1.weight": "only in the working tree",
        "half": "BF16 [3] at BASE, F32 [3] now",
    }


def test_metadata_of_memory_files_is_compared(base: Path, tree: Path):
    write_tensors(tree / "page.memory", {"0.length": torch.tensor([3])}, {"layout": '{"open": 3, "batch": 1}'})
    assert str(only(base, tree)) == "page.memory: metadata.layout.open: 2 at BASE, 3 now"


@pytest.mark.parametrize(
    "file, old, new, field",
    [
        (METRICS, "2.25", "2.2500000000000004", "[1].loss"),
        (METRICS, '"step": 3', '"step": 3.0', "[0].step"),
        (METRICS, '{"step": 6, "loss": 2.25}\n', "", ""),
        ("outputs/03-eval.json", '"b"', '"c"', "files[1]"),
        ("outputs/03-eval.json", '"loss"', '"nats"', "score.loss"),
        ("outputs/09-generate.txt", "sat", "sit", "line[1]"),
        ("data/corpus/train.bin", "\3", "\4", ""),
    ],
)
def test_one_number_word_or_byte_is_found(base: Path, tree: Path, file: str, old: str, new: str, field: str):
    replace_text(tree / file, old, new)
    found = compare_case("xl", base, tree)[0]
    assert (found.case, found.file, found.field) == ("xl", file, field)


def test_files_of_one_side_are_found(base: Path, tree: Path):
    (tree / METRICS).rename(tree / "runs/tiny/other.jsonl")
    found = {each.file: each.what for each in compare_case("xl", base, tree)}
    assert found == {METRICS: "only at BASE", "runs/tiny/other.jsonl": "only in the working tree"}


def test_times_and_messages_may_differ(base: Path, tree: Path):
    replace_text(tree / "outputs/03-eval.json", "0.1", "0.2")
    replace_text(tree / "outputs/09-generate.stderr", "0s", "1s")
    assert compare_case("xl", base, tree) == []


LOSS = Difference("xl", METRICS, "[1].loss", "2.25 at BASE, 2.5 now")
DECLARATION = Declared("xl", METRICS, "*.loss", after="f4b474d", why="the loss is a mean over tokens")


def test_a_declared_difference_passes_and_is_shown():
    verdict = judge([LOSS], [DECLARATION])
    assert verdict.passed
    assert list(report(verdict, ["xl"])) == [
        f"declared: 1 difference(s) of xl, {METRICS}, *.loss: the loss is a mean over tokens"
    ]


def test_the_report_names_each_file_once_training_first():
    score = Difference("xl", "outputs/03-eval.json", "score.loss", "2 at BASE, 3 now")
    lines = list(report(judge([score, LOSS, LOSS._replace(field="[2].loss")], []), ["lstm", "xl"]))
    assert lines == ["xl: 3 difference(s), 2 file(s); the first of each file:", f"  {LOSS}", f"  {score}"]


@pytest.mark.parametrize("other", [{"case": "lstm"}, {"file": "outputs/03-eval.json"}, {"field": "[0].loss"}])
def test_a_declaration_covers_nothing_else(other: dict[str, str]):
    verdict = judge([LOSS, LOSS._replace(**other)], [DECLARATION._replace(field="[[]1].loss")])
    assert verdict.undeclared == [LOSS._replace(**other)] and not verdict.passed


def test_a_declaration_that_matches_nothing_fails():
    verdict = judge([], [DECLARATION])
    assert not verdict.passed
    assert "declared but not found" in "\n".join(report(verdict, ["xl"]))


def test_a_declaration_applies_to_bases_with_the_old_numbers_and_to_complete_selections():
    every = [DECLARATION, DECLARATION._replace(case="*")]
    assert applying(every, {"xl", "lstm"}, {"xl", "lstm"}, lambda each: True) == every
    assert applying(every, {"xl"}, {"xl", "lstm"}, lambda each: True) == [DECLARATION]
    assert applying(every, {"xl"}, {"xl", "lstm"}, lambda each: each.after != "f4b474d") == []


def test_wrong_calls_exit_with_2(capsys: pytest.CaptureFixture[str]):
    assert same.main(["HEAD", "--cases", "no-such-case"]) == 2
    assert same.main(["no-such-commit"]) == 2
    with pytest.raises(SystemExit, match="2"):
        same.main([])
    assert "make same BASE=<commit>" in capsys.readouterr().err


def test_cases_are_listed(capsys: pytest.CaptureFixture[str]):
    assert same.main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [case.name for case in CASES] and len(set(listed)) == len(listed)
