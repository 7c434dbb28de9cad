"""The output folder of tuning: nothing is replaced unasked, and only a checkpoint that fits is resumed."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.real_models import TINY_LLAMA, tiny_llama
from helpers.tiny_tuning import tiny_tuning

from mnemo import MnemoError
from mnemo.cli import main
from mnemo.data.babilong import folder
from mnemo.hf.tuning.output_folder import checkpoints, describe, last_checkpoint, record, require_same
from mnemo.hf.tuning.tune import tune
from mnemo.recipes.tuning import Tuning


def options(out: Path, **changes: Any) -> Tuning:
    small: dict[str, Any] = dict(promote=0.0, batch=2, micro_batch=2, steps=2, check_samples=2, test=("2:2",))
    return tiny_tuning(out=out, **(small | changes))


@pytest.fixture(autouse=True, scope="module")
def little_text() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "GENERATED_SENTENCES", 500)
        yield


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize("name", ["results.json", "model", "adapter", "checkpoint-3"])
def test_what_an_earlier_call_has_left_is_not_replaced(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).mkdir()
    words = ["tune", str(TINY_LLAMA), "--out", str(tmp_path)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / name} is of an earlier call, and would be replaced" in said and "name another --out" in said
    assert ("--resume" in said) == name.startswith("checkpoint")
    assert main([*words, "--zero-shot"]) == 2
    assert str(tmp_path / name) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_a_test_without_training_does_not_replace_results_of_training(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(MnemoError, match="is of a trained model"):
        tune(options(tmp_path, zero_shot=True, resume=True))


def test_a_file_as_output_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["tune", str(TINY_LLAMA), "--out", str(tmp_path / "file")]) == 2
    assert f"{tmp_path / 'file'} is a file; --out names a folder" in capsys.readouterr().err


def test_the_last_checkpoint_is_that_of_the_most_steps(tmp_path: Path) -> None:
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-old"):
        (tmp_path / name).mkdir()
    assert checkpoints(options(tmp_path)) == [tmp_path / "checkpoint-9", tmp_path / "checkpoint-10"]


def test_metrics_of_a_call_without_a_checkpoint_are_not_continued(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("{}\n")
    tune(options(tmp_path), say=silent)
    assert len(metrics.read_text().splitlines()) == 1 and "accuracy" in metrics.read_text()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """Options of a folder that has reached its second stage."""
    made = options(tmp_path_factory.mktemp("trained"), stages=("1x96", "2"))
    tune(made, say=silent)
    return dataclasses.replace(made, resume=True)


@pytest.fixture(scope="module")
def with_lora(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    pytest.importorskip("peft")
    made = options(tmp_path_factory.mktemp("lora"), lora=2)
    tune(made, say=silent)
    return made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 8}, "was made with --tokens 4: resume with what it was made with, or name another --out"),
        ({"memory": "associative"}, "was made with --memory tokens:"),
        ({"lora": 4}, "was made with --lora 0:"),
        ({"lora": 4, "steps": 9}, "was made with --lora 0:"),
        ({"freeze": True, "attend_previous": True}, "was made without --attend-previous and without --freeze:"),
        ({"stages": ("1x96",)}, "checkpoint-2 has reached stage 2; the stages are 1x96: give more with --stages"),
    ],
)
def test_other_options_than_those_of_the_checkpoint_are_refused(
    changes: dict[str, Any], message: str, trained: Tuning
) -> None:
    before = (trained.out / "results.json").read_bytes()
    with pytest.raises(MnemoError, match=message):
        tune(dataclasses.replace(trained, **changes), say=silent)
    assert (trained.out / "results.json").read_bytes() == before


def test_options_that_do_not_define_the_weights_can_change(trained: Tuning) -> None:
    changed = dataclasses.replace(trained, segment=96, rate=1e-5, bounded=False, seed=3, test=("1:2",))
    assert [result.tokens for result in tune(changed, say=silent).results] == [96]


def test_another_model_is_refused_whatever_its_folder_is(tmp_path: Path) -> None:
    made, model = options(tmp_path), tiny_llama()
    record(made, describe(made, model))
    moved = dataclasses.replace(made, model="elsewhere")
    require_same(moved, describe(moved, model))
    model.model.layers[-1].mlp.up_proj.weight.data[0, 0] += 1
    with pytest.raises(MnemoError, match=f"was made with {TINY_LLAMA}: resume"):
        require_same(moved, describe(moved, model))
    with pytest.raises(MnemoError, match=f"was made with other weights of {TINY_LLAMA}: resume"):
        require_same(made, describe(made, model))


def test_an_unbounded_memory_is_not_resumed_as_a_bounded_one(tmp_path: Path) -> None:
    made = options(tmp_path, memory="associative", bounded=False)
    record(made, describe(made, tiny_llama()))
    bounded = dataclasses.replace(made, bounded=True)
    with pytest.raises(MnemoError, match="was made with --no-bounded: resume"):
        require_same(bounded, describe(bounded, tiny_llama()))


def test_folders_of_earlier_versions_are_resumed(trained: Tuning, tmp_path: Path) -> None:
    older = dataclasses.replace(trained, out=tmp_path / "older")
    shutil.copytree(trained.out, older.out)
    (older.out / "tuning.json").unlink()
    assert tune(older, say=silent).results


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("*.safetensors", damage, "is not the file that was saved: its checksum is another one"),
        ("*.safetensors", empty, "is truncated or not safetensors"),
        ("*.safetensors", Path.unlink, "checkpoint-2 has no weights"),
        ("optimizer.pt", damage, "optimizer.pt is damaged"),
        ("optimizer.pt", empty, "optimizer.pt is damaged"),
        ("optimizer.pt", Path.unlink, "optimizer.pt is missing"),
        ("rng_state.pth", empty, "rng_state.pth is damaged"),
        ("scheduler.pt", Path.unlink, "scheduler.pt is missing"),
        ("trainer_state.json", empty, "trainer_state.json"),
        ("curriculum.json", Path.unlink, "curriculum.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_not_resumed(
    lora: int, name: str, change: Any, message: str, trained: Tuning, with_lora: Tuning, tmp_path: Path
) -> None:
    source = (with_lora if lora else trained).out
    shutil.copytree(source / "checkpoint-2", tmp_path / "checkpoint-2")
    further = options(tmp_path, resume=True, lora=lora, steps=3)
    assert last_checkpoint(further) == tmp_path / "checkpoint-2"
    (path,) = (tmp_path / "checkpoint-2").glob(name)
    change(path)
    with pytest.raises(MnemoError, match=message):
        last_checkpoint(further)
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(MnemoError, match=f"{message}.*; without checkpoint-2, --resume continues checkpoint-1"):
        last_checkpoint(further)


def test_a_test_alone_needs_no_optimizer(trained: Tuning, tmp_path: Path) -> None:
    shutil.copytree(trained.out / "checkpoint-2", tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / "optimizer.pt").unlink()
    assert tune(options(tmp_path, resume=True), say=silent).results
