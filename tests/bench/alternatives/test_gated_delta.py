"""A recurrent library's layers as a memory of Mnemo's model, with plain PyTorch in place of the library."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.own_memories import keep_mechanisms
from helpers.recorders import Rerun
from helpers.stand_in_delta import Convolution, use_stand_in
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.bench.alternatives import gated_delta
from mnemo.bench.alternatives.gated_delta import CONVOLVED, GatedDeltaState, LayerCache
from mnemo.bench.alternatives.recipes import recipe_of, register
from mnemo.bench.alternatives.rows import PRESET, ROWS
from mnemo.errors import MnemoError
from mnemo.memory.own import own_mechanisms
from mnemo.memory.state import State, leaves, tree_map
from mnemo.model import Model
from mnemo.model.layers import DropoutConfig
from mnemo.recipes.presets import preset
from mnemo.storage.weights import build_model
from mnemo.training.optimizers import build_optimizer
from mnemo.training.training_speed import RandomUpdates

HAS_LIBRARY = importlib.util.find_spec("fla") is not None


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)


DELTA_ROWS = ("gated-deltanet", "kimi-delta")


def delta_model(dtype: torch.dtype = torch.float64, row: str = "gated-deltanet") -> Model:
    recipe = recipe_of(ROWS[row], "cpu", miniature=True)
    return Model(recipe.model).to(dtype).eval()


def same(state: State, other: State) -> bool:
    pairs = zip(leaves(state), leaves(other), strict=True)
    return all(torch.equal(tensor, another) for (_, tensor), (_, another) in pairs)


@pytest.mark.parametrize("row", DELTA_ROWS)
def test_a_long_segment_of_gated_delta_equals_two_with_the_state_carried(row: str, stand_in: None) -> None:
    model = delta_model(row=row)
    tokens = torch.randint(256, (2, 20))
    whole, after = model(tokens)
    first, state = model(tokens[:, :7])
    before = tree_map(torch.clone, state)
    second, end = model(tokens[:, 7:], state)
    assert_close(torch.cat([first.hidden, second.hidden], 1), whole.hidden)
    for found, wanted in zip(end, after, strict=True):
        assert type(found) is GatedDeltaState
        assert_close(found.matrices, wanted.matrices)
        assert_close(found.values, wanted.values)
    assert same(state, before)


def test_reading_single_tokens_never_changes_a_state(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library overwrites the inputs of its convolutions then."""
    read = Convolution.forward

    def in_place(self: Convolution, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        y, after = read(self, x, cache)
        return y, cache.copy_(after)

    model = delta_model()
    _, state = model(torch.randint(256, (1, 5)))
    before = tree_map(torch.clone, state)
    monkeypatch.setattr(Convolution, "forward", in_place)
    with torch.no_grad():
        model(torch.randint(256, (1, 1)), state)
    assert same(state, before)


def test_no_token_depends_on_a_later_one_and_no_gradient_leaves_a_segment(stand_in: None) -> None:
    model = delta_model()
    tokens = torch.randint(256, (1, 12))
    changed = torch.cat([tokens[:, :8], (tokens[:, 8:] + 1) % 256], 1)
    assert_close(model(changed)[0].hidden[:, :8], model(tokens)[0].hidden[:, :8])
    _, state = model(tokens)
    assert not any(leaf.requires_grad for layer in state for leaf in layer)


def test_generating_equals_reading(stand_in: None) -> None:
    model = delta_model()
    tokens = torch.randint(256, (1, 6))
    with torch.no_grad():
        decoder = model.decoder(segment=6)
        steps = [decoder.feed(tokens[:, i : i + 1]) for i in range(6)]
        assert_close(torch.cat([model.logits(out) for out in steps], 1), model.logits(model(tokens)[0]))


def test_rows_of_unequal_length_and_positions_are_refused(stand_in: None) -> None:
    with pytest.raises(MnemoError, match="equal length"):
        delta_model()(torch.randint(256, (2, 4)), lengths=torch.tensor([4, 2]))
    with pytest.raises(ValueError, match="no positions"):
        replace(delta_model().config, positions=preset(PRESET).model.positions)


def test_another_form_of_the_library_s_state_is_refused(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def transposed(self: LayerCache, *, layer_idx: int, recurrent_state: Tensor, conv_state: Any, offset: int) -> None:
        self.state = GatedDeltaState(recurrent_state.mT, *conv_state)

    monkeypatch.setattr(LayerCache, "update", transposed)
    with pytest.raises(MnemoError, match="states of another form"):
        delta_model()(torch.randint(256, (1, 4)))


def test_muon_takes_the_matrices_of_the_foreign_layers(stand_in: None) -> None:
    recipe = recipe_of(ROWS["gated-deltanet"], "cpu", miniature=True)
    model = build_model(recipe.model, "fp32")
    matrices, *others = build_optimizer(model, recipe.train.optimizer).param_groups
    shapes = {tuple(parameter.shape) for parameter in matrices["params"]}
    assert {(32, 32), (64, 32), (32, 64), (2, 32)} <= shapes
    adam = [parameter for group in others for parameter in group["params"]]
    assert any(parameter.shape == (64, 1, CONVOLVED) for parameter in adam)
    assert len(matrices["params"]) + len(adam) == len(list(model.parameters()))


def test_updates_are_recorded_with_the_state_in_buffers(stand_in: None) -> None:
    recipe = recipe_of(ROWS["gated-deltanet"], "cpu", miniature=True)
    model = replace(recipe.model, dropout=DropoutConfig())
    # Recorded rates are float32: they must be exact there, alone and multiplied.
    optimizer = replace(recipe.train.optimizer, lr=2.0**-7, adam_lr=2.0**-8, weight_decay=0.0)
    config = replace(recipe.train, batch=2, segment=8, precision="fp64", optimizer=optimizer)
    plain, recorded = (RandomUpdates(model, config, recorder=each) for each in (None, Rerun()))
    assert recorded.engine.not_recorded is None
    assert plain.run(3) == pytest.approx(recorded.run(3), rel=1e-10)
    for (_, found), (_, wanted) in zip(leaves(recorded.states), leaves(plain.states), strict=True):
        assert_close(found, wanted)


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(MnemoError, match="pip install flash-linear-attention"):
        gated_delta.require_library(torch.device("cuda"))


def test_kinds_of_memory_are_unchanged_until_a_row_needs_another() -> None:
    assert "gated-delta" not in own_mechanisms()


@pytest.mark.skipif(not HAS_LIBRARY, reason="flash-linear-attention is not installed")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", DELTA_ROWS)
def test_the_library_s_block_has_as_many_weights_as_a_layer_of_the_memory_model(row: str) -> None:
    recipe, memory = (recipe_of(ROWS[name], "cpu") for name in (row, "memory"))
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in Model(each.model).parameters()) for each in (recipe, memory)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    with pytest.raises(MnemoError, match="need a CUDA device"):
        gated_delta.require_library(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_LIBRARY, reason="flash-linear-attention is not installed")
@pytest.mark.parametrize("row", DELTA_ROWS)
def test_the_library_carries_its_state_on_a_gpu(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_mechanisms(monkeypatch)
    register()
    model = delta_model(torch.float32, row).to("cuda")
    tokens = torch.randint(256, (2, 192), device="cuda")
    whole, _ = model(tokens)
    first, state = model(tokens[:, :128])
    second, _ = model(tokens[:, 128:], state)
    parts = torch.cat([first.hidden, second.hidden], 1)
    assert_close(parts.bfloat16(), whole.hidden.bfloat16())  # the kernels multiply in less than float32
