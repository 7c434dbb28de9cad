"""Presets of LaMemo's and RMT's tables, and of recurrent baselines: built without weights."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from mnemo.memory import Compressive, Infinite, Lookahead, MemoryTokens, Plan
from mnemo.model import Model
from mnemo.recipes.lamemo import PRESETS as LAMEMO
from mnemo.recipes.presets import PRESETS, description, preset
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.recipes.rmt import PRESETS as RECURRENT


def count_parameters(recipe: Recipe) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Model(recipe.model).parameters())


PARAMETERS = {
    "lamemo-wikitext103": 151_106_715,
    "lamemo-wikitext103-transformer": 151_106_305,
    "lamemo-wikitext103-transformer-xl": 151_106_305,
    "lamemo-wikitext103-compressive": 151_106_305 + 16 * (4 * 410 * 410 + 410),
    "lamemo-wikitext103-infinite": 151_106_305 + 16 * (3 * 410 * 410 + 2 * 150) + 3 * 410 * 410 + 410,
    "lamemo-wikitext103-no-lookahead": 151_106_715,
    "lamemo-wikitext103-no-interpolation": 151_106_715,
    "lamemo-wikitext103-signed": 151_106_305,
    "lamemo-enwik8": 41_055_436 + 8 * 64,
    "lamemo-enwik8-transformer": 41_055_436,
    "lamemo-enwik8-transformer-xl": 41_055_436,
    "lamemo-text8": 40_964_635 + 8 * 64,
    "lamemo-text8-transformer": 40_964_635,
    "lamemo-text8-transformer-xl": 40_964_635,
}
"""LaMemo and Transformer-XL on WikiText-103 as counted on the published models, the others by formula."""


def test_every_row_of_lamemos_tables_has_its_size() -> None:
    assert {name: count_parameters(preset(name)) for name in LAMEMO} == PARAMETERS


@pytest.mark.parametrize("name", LAMEMO)
def test_a_lamemo_preset_names_its_own_size(name: str) -> None:
    text = LAMEMO[name].__doc__ or ""
    exact = f"{PARAMETERS[name]:,} parameters"
    assert exact in text or "Otherwise as:" in text


def test_ablations_change_what_their_rows_say() -> None:
    base = preset("lamemo-wikitext103")
    changes = {
        "no-interpolation": {"alpha": "zero"},
        "no-lookahead": {"alpha": "one"},
        "signed": {"encoding": "signed"},
    }
    memory = base.model.memory.long
    assert isinstance(memory, Lookahead)
    for name, change in changes.items():
        model = replace(base.model, memory=Plan(long=replace(memory, **change)))
        assert preset(f"lamemo-wikitext103-{name}") == replace(base, model=model)


def test_lamemos_protocol() -> None:
    words, characters = preset("lamemo-wikitext103"), preset("lamemo-enwik8")
    assert (words.train.steps, words.train.batch, words.train.segment) == (250_000, 64, 150)
    assert (characters.train.steps, characters.train.batch, characters.train.segment) == (100_000, 40, 512)
    assert words.train.optimizer.clip == 0.5 and words.train.schedule.warmup == 0
    assert words.data.rotate and words.model.embedding.cutoffs == ()
    assert words.test == EvalConfig(batch=16)
    baseline = preset("lamemo-text8-transformer-xl")
    assert baseline.model.memory.lengths(12) == (512,) * 12
    assert preset("lamemo-text8-transformer").model.memory.lengths(12) == (0,) * 12


def test_baselines_with_more_memory_have_150_of_it() -> None:
    compressive = preset("lamemo-wikitext103-compressive").model.memory.long
    infinite = preset("lamemo-wikitext103-infinite").model.memory.long
    assert isinstance(compressive, Compressive) and isinstance(infinite, Infinite)
    assert (compressive.length, compressive.compressed, compressive.ratio) == (150, 150, 4)
    assert (infinite.length, infinite.basis, infinite.block, infinite.sticky) == (150, 150, 150, True)


TABLES_2_TO_4 = """
wikitext103-seg150 wikitext103-seg50 enwik8-seg128
wikitext103-seg150-mt10 wikitext103-seg150-mt25 wikitext103-seg150-mt75 wikitext103-seg150-mt150
wikitext103-seg150-xl150 wikitext103-seg150-xl75 wikitext103-seg150-xl25
wikitext103-seg150-m10-bptt0 wikitext103-seg150-m10-bptt1 wikitext103-seg150-m10-bptt2 wikitext103-seg150-m10-bptt3
wikitext103-seg150-m25-bptt0 wikitext103-seg150-m25-bptt1 wikitext103-seg150-m25-bptt2
wikitext103-seg50-xl200 wikitext103-seg50-xl100 wikitext103-seg50-xl50 wikitext103-seg50-xl25 wikitext103-seg50-xl10
wikitext103-seg50-xl5 wikitext103-seg50-xl1
wikitext103-seg50-m1-bptt0 wikitext103-seg50-m1-bptt1 wikitext103-seg50-m1-bptt2 wikitext103-seg50-m1-bptt3
wikitext103-seg50-m5-bptt0 wikitext103-seg50-m5-bptt1 wikitext103-seg50-m5-bptt2 wikitext103-seg50-m5-bptt3
wikitext103-seg50-m5-bptt4 wikitext103-seg50-m10-bptt0 wikitext103-seg50-m10-bptt1 wikitext103-seg50-m10-bptt2
wikitext103-seg50-m10-bptt3 wikitext103-seg50-m10-bptt4 wikitext103-seg50-m25-bptt0 wikitext103-seg50-m25-bptt1
wikitext103-seg50-m25-bptt2 wikitext103-seg50-m50-bptt0 wikitext103-seg50-m50-bptt1
enwik8-seg512-xl512 enwik8-seg128-xl200 enwik8-seg128-xl100 enwik8-seg128-xl75 enwik8-seg128-xl40 enwik8-seg128-xl20
enwik8-seg128-xl10 enwik8-seg128-m5-bptt1 enwik8-seg128-m5-bptt2 enwik8-seg128-m10-bptt1 enwik8-seg128-m10-bptt2
enwik8-seg128-m20-bptt0 enwik8-seg128-m20-bptt1 enwik8-seg128-m20-bptt2
"""


def test_every_row_of_rmts_tables_has_a_preset() -> None:
    assert sorted(RECURRENT) == sorted(f"rmt-{name}" for name in TABLES_2_TO_4.split())


def parse(name: str) -> tuple[int, dict[str, int]]:
    """Segment length, and the numbers after `xl`, `mt`, `m` and `bptt`."""
    match = re.fullmatch(r"rmt-\w+-seg(\d+)(.*)", name)
    assert match is not None
    return int(match[1]), {key: int(number) for key, number in re.findall(r"-?([a-z]+)(\d+)", match[2])}


@pytest.mark.parametrize("name", RECURRENT)
def test_an_rmt_preset_is_what_its_name_says(name: str) -> None:
    recipe = preset(name)
    segment, numbers = parse(name)
    assert recipe.train.segment == segment
    assert set(recipe.model.memory.lengths(recipe.model.num_layers)) == {numbers.get("xl", 0)}
    assert recipe.train.bptt == numbers.get("bptt", 0) and recipe.train.bptt_window == "sliding"
    tokens = None
    if "m" in numbers or "mt" in numbers:
        tokens = MemoryTokens(num=numbers.get("m", numbers.get("mt", 0)), write="m" in numbers)
    assert recipe.model.tokens == tokens
    batches = {("wikitext103", 150): 60, ("wikitext103", 50): 128, ("enwik8", 128): 64, ("enwik8", 512): 22}
    assert recipe.train.batch == batches[name.split("-")[1], segment]
    assert recipe.test == recipe.evaluation


def test_memory_tokens_add_a_row_each() -> None:
    def size(name: str) -> int:
        return count_parameters(preset(name))

    words, characters = size("rmt-wikitext103-seg150"), size("rmt-enwik8-seg128")
    assert (words, characters) == (151_107_538, 41_055_436)
    assert size("rmt-wikitext103-seg150-m10-bptt2") == words + 10 * 410
    assert size("rmt-wikitext103-seg150-mt75") == words + 75 * 410
    assert size("rmt-wikitext103-seg50-xl200") == words
    assert size("rmt-enwik8-seg128-m20-bptt1") == characters + 20 * 512
    assert size("rmt-quadratic-seg30-m30") == size("rmt-quadratic-seg180") + 30 * 128


def test_published_rmt_has_its_quirks() -> None:
    plain, quirks = (preset(f"rmt-wikitext103-seg50-m10-bptt2{form}") for form in ("", "@published"))
    assert quirks.train.bptt_stale and not plain.train.bptt_stale
    assert isinstance(quirks.model.tokens, MemoryTokens) and quirks.model.tokens.identical_init
    assert quirks.model.tokens.ahead == "wrap"
    prefix = preset("rmt-wikitext103-seg150-mt10@published").model.tokens
    assert prefix is not None and prefix.carry_read


@pytest.mark.parametrize("name", ["wikitext103-qrnn", "wikitext103-lstm"])
def test_recurrent_baselines_have_the_same_budget(name: str) -> None:
    recipe = preset(name)
    size = count_parameters(recipe)
    assert round(size / 1e6) == 151 and f"{size:,} parameters" in (PRESETS[name].__doc__ or "")
    assert "151M" in description(name) and not any(recipe.model.memory.lengths(4))
