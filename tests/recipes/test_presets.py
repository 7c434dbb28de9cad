from __future__ import annotations

import json

import pytest
import torch

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.model.positions import Learned, Relative, Shaw, Sinusoidal
from mnemo.recipes.presets import PRESETS, description, documentation, preset
from mnemo.recipes.recipe import EvalConfig, Recipe

PARAMETERS = {
    "enwik8-base": 41_055_436,
    "enwik8-large": 277_231_820,
    "text8-base": 40_964_635,
    "text8-large": 277_050_395,
    "wikitext103-base": 151_107_538,
    "wikitext103-large": 285_170_506,
    "lm1b-base": 357_812_082,
    "lm1b-large": 841_295_982,
    "wikitext103-base-tf": 151_119_838,
    "wikitext103-large-tf": 285_205_322,
    "ptb": 24_040_400,
}
"""Counted on the published models; the TensorFlow ones by formula."""


def count_parameters(recipe: Recipe) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Model(recipe.model).parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    assert count_parameters(preset(name)) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "size"), [("enwik8-18l", 88), ("wikitext103-ablation", 128), ("lm1b-0.46b", 459), ("long-enwik8", 277)]
)
def test_models_without_a_script_have_the_papers_size(name: str, size: int) -> None:
    assert round(count_parameters(preset(name)) / 1e6) == size


def test_every_plan_has_as_many_parameters() -> None:
    plans = [name for name in PRESETS if name.startswith("long-enwik8")]
    assert len(plans) == 12
    assert {count_parameters(preset(name)) for name in plans} == {277_231_820}


def test_every_recipe_survives_json() -> None:
    for name in [*PRESETS, "enwik8-base@published"]:
        recipe = preset(name)
        assert from_json(Recipe, json.loads(json.dumps(to_json(recipe)))) == recipe, name


def test_every_recipe_fits_itself() -> None:
    for name in PRESETS:
        recipe = preset(name)
        positions, train = recipe.model.positions, recipe.train
        longest = max(recipe.model.memory.lengths(recipe.model.num_layers)) + train.segment
        assert not isinstance(positions, Learned) or positions.length >= train.segment, name
        assert not isinstance(positions, Shaw) or positions.distances == longest, name
        assert train.schedule.warmup < train.steps, name
        assert train.schedule.min_lr < train.optimizer.lr, name
        assert train.batch % train.accumulate == 0, name


def test_every_preset_says_what_it_is_and_whence() -> None:
    for name in PRESETS:
        first, *rest = documentation(name).strip().splitlines()
        assert first == description(name), name
        assert 40 < len(first) <= 110 and first.endswith("."), name
        assert any(line.strip() for line in rest), name


EVALUATIONS = {
    "enwik8-base": EvalConfig(segment=80, memory=2100, clamp=820, same_length=True),
    "enwik8-large": EvalConfig(segment=128, memory=3800, clamp=1000, same_length=True),
    "wikitext103-base": EvalConfig(segment=64, memory=640, clamp=400, same_length=True),
    "wikitext103-large": EvalConfig(segment=128, memory=1600, clamp=1000, same_length=True),
    "lm1b-base": EvalConfig(batch=64, segment=32, memory=128, same_length=True),
    "lm1b-large": EvalConfig(batch=8, segment=32, memory=128, same_length=True),
    "long-enwik8-4-last": EvalConfig(memory=6000),
    "ptb": EvalConfig(batch=1, segment=10, context=130),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_the_published_evaluation_is_the_recipes_test(name: str) -> None:
    assert preset(name).test == EVALUATIONS[name]


@pytest.mark.parametrize(
    ("name", "segment", "memory"), [("enwik8-base", 128, 896), ("enwik8-large", 128, 1408), ("lm1b-base", 32, 32)]
)
def test_validation_keeps_the_context_of_training(name: str, segment: int, memory: int) -> None:
    assert preset(name).evaluation == EvalConfig(batch=10, segment=segment, memory=memory)


def test_long_range_plans_are_the_papers() -> None:
    model = preset("long-enwik8-4-interleaved").model
    assert model.memory.long_layers(24) == (5, 11, 17, 23)
    assert sorted(set(model.memory.lengths(24))) == [128, 2304]
    assert preset("long-enwik8-4-middle").model.memory.long_layers(24) == (10, 11, 12, 13)
    assert preset("long-enwik8-0").model.memory.lengths(24) == (128,) * 24
    assert preset("long-wikitext103-3-interleaved").model.memory.long_layers(18) == (5, 11, 17)
    assert preset("long-enwik8").evaluation.limit == 500_000


def test_the_ablation_changes_what_its_row_says() -> None:
    full, half = preset("wikitext103-ablation"), preset("wikitext103-ablation-sinusoidal-half")
    assert (full.train.segment, full.train.loss, full.model.memory.long.length) == (128, "full", 128)
    assert (half.train.segment, half.train.loss, half.model.memory.long.length) == (128, "half", 0)
    assert isinstance(half.model.positions, Sinusoidal)
    assert preset("wikitext103-ablation-no-memory-176").train.segment == 176


def test_penn_treebank_is_the_authors_recipe() -> None:
    recipe = preset("ptb")
    model, train = recipe.model, recipe.train
    assert isinstance(model.positions, Relative) and model.positions.shared_projection
    assert model.dropout.locked and model.memory.lengths(16) == (0,) * 16
    assert (train.context, train.segment, train.batch, train.vary_segment) == (70, 70, 10, True)
    assert train.average is not None and train.average.start == train.schedule.steps == 166_000
    assert train.optimizer.scale_lr_by_length and train.optimizer.embedding_lr_factor == 2


def test_published_sets_the_quirks_and_nothing_else() -> None:
    plain, quirks = preset("enwik8-vanilla"), preset("enwik8-vanilla@published")
    assert quirks.train.schedule.published and not plain.train.schedule.published
    assert quirks.model == plain.model.published() != plain.model
    assert (quirks.data, quirks.evaluation, quirks.test) == (plain.data, plain.evaluation, plain.test)


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(MnemoError, match="unknown preset 'enwik8-bse'; did you mean 'enwik8-base'"):
        preset("enwik8-bse")
    with pytest.raises(MnemoError, match="'ptb@published'"):
        preset("ptb@paper")
