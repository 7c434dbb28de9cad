"""Configuration files: what a file changes, what is refused, and recipes that are written and loaded again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mnemo.config import to_json
from mnemo.errors import MnemoError
from mnemo.memory import MemoryTokens
from mnemo.model.positions import Rotary
from mnemo.recipes.config_file import apply_config, load_config, to_toml
from mnemo.recipes.presets import PRESETS, preset
from mnemo.recipes.recipe import AverageConfig, Recipe
from mnemo.recipes.tied_lengths import settle_lengths

SAME = {
    ".toml": '[train]\nsteps = 7\noptimizer.lr = 1e-3\noptimizer.betas = [0.9, 0.95]\n[model]\npositions = "rotary"\n',
    ".yaml": "train: {steps: 7, optimizer: {lr: 1e-3, betas: [0.9, 0.95]}}\nmodel.positions: rotary\n",
    ".json": '{"train.steps": 7, "train": {"optimizer": {"lr": 0.001, "betas": [0.9, 0.95]}},'
    ' "model": {"positions": {"type": "Rotary"}}}',
}
MISTAKES = {
    "train.lr = 1": "unknown name 'train.lr'; did you mean 'train.optimizer.lr'?",
    "[trian]\nsteps = 1": "did you mean 'train'?",
    "train.stepps = 1": "unknown name in train 'stepps'; did you mean 'steps'?",
    "train.steps = 'abc'": "train.steps: expected a whole number, found 'abc'",
    "train.optimizer.clip = 'abc'": "train.optimizer.clip: expected a number or none, found 'abc'",
    "train.cuda-graph = 1": "train.cuda_graph: expected true or false, found 1",
    "train.steps = -1": "steps = -1 must be positive",
    "train.precision = 'fp31'": "did you mean 'fp32'?",
    "train.average.kind = 'ema'": "train.average needs 'start'",
    "train = 3": "train must be a section",
    "model = 'none'": "model cannot be none",
    "model.positions = 'rotari'": "did you mean 'rotary'?",
    "memory = 3": "memory must be a name",
    "memory = 'rtm'": "did you mean 'rmt'?",
    "steps": "Expected '='",
    "a." * 5000 + "a = 1": "is nested too deeply",
}
YAML_MISTAKES = {
    "!!python/object/apply:os.system ['exit 1']": "could not determine a constructor",
    "a: &a [1]\nb: [*a, *a]": "aliases (*name) are not supported",
    "- 1": "expected names and values, found list",
    "1: 2": "1 is not a name",
    "a: [": "expected the node content",
}


def written(folder: Path, text: str, suffix: str = ".toml") -> Path:
    path = folder / f"mine{suffix}"
    path.write_text(text, encoding="utf-8")
    return path


def applied(folder: Path, text: str, suffix: str = ".toml") -> Recipe:
    return apply_config(preset("tiny-bytes"), load_config(written(folder, text, suffix)))


@pytest.mark.parametrize("suffix", SAME)
def test_the_same_changes_in_every_format(suffix: str, tmp_path: Path) -> None:
    found, base = applied(tmp_path, SAME[suffix], suffix), preset("tiny-bytes")
    optimizer = replace(base.train.optimizer, lr=1e-3, betas=(0.9, 0.95))
    assert found.train == replace(base.train, steps=7, optimizer=optimizer)
    assert found.model == replace(base.model, positions=Rotary())


def test_every_preset_is_the_same_after_writing_and_loading(tmp_path: Path) -> None:
    for name in PRESETS:
        recipe = settle_lengths(preset(name))
        config = load_config(written(tmp_path, to_toml(recipe)))
        assert apply_config(None, config) == recipe, name
        assert apply_config(preset("tiny-bytes-rmt"), config) == recipe, name


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(MnemoError) as error:
        applied(tmp_path, text)
    assert MISTAKES[text] in str(error.value)


@pytest.mark.parametrize("text", YAML_MISTAKES)
def test_yaml_is_data_only(text: str, tmp_path: Path) -> None:
    with pytest.raises(MnemoError) as error:
        applied(tmp_path, text, ".yaml")
    assert YAML_MISTAKES[text] in str(error.value)


def test_none_and_optional_sections(tmp_path: Path) -> None:
    found = applied(tmp_path, "train.average.start = 5\ntrain.optimizer.clip = 'none'")
    assert found.train.average == AverageConfig(start=5) and found.train.optimizer.clip is None


@pytest.mark.parametrize("text", ["memory = 'rmt'", "model.memory = 'rmt'\nmodel.tokens.num = 4"])
def test_memory_of_a_paper(text: str, tmp_path: Path) -> None:
    found = applied(tmp_path, text)
    num = 4 if "num" in text else 10
    assert found.model.tokens == MemoryTokens(num=num) and found.train.bptt == 2


def test_a_longer_test_memory_holds_for_the_presets_memory_only(tmp_path: Path) -> None:
    assert settle_lengths(applied(tmp_path, "train.steps = 5")).test.memory == 256
    assert settle_lengths(applied(tmp_path, "model.memory.long.length = 8")).test.memory is None


def test_the_recipe_of_a_run(tmp_path: Path) -> None:
    recipe = settle_lengths(preset("tiny-bytes"))
    path = written(tmp_path, json.dumps({"format_version": 1, "corpus": {}, "recipe": to_json(recipe)}), ".json")
    assert apply_config(None, load_config(path)) == recipe
