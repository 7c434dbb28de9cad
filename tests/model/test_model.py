"""The state contract, held by properties that every configuration must have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.doc_pages import ROOT, blocks, run_block
from helpers.mechanisms import FEW, MECHANISMS, infinite
from helpers.models import SMALL, random_model, random_tokens, read
from helpers.own_memories import keep_mechanisms
from helpers.tolerances import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError
from mnemo.memory import XL, AnyMemory, Compressive, MemoryTokens, Plan
from mnemo.memory.state import detach, leaves, nbytes, reset, select, to
from mnemo.model import Model, ModelConfig
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Learned, Relative, Rotary, Shaw, Sinusoidal

RELATIVE = [
    Relative(),
    Relative(clamp=3, biases_per_layer=True),
    Relative(shared_projection=True),
    Shaw(distances=6),
    Rotary(),
]
ABSOLUTE = [Sinusoidal(), Sinusoidal(countdown=True), Learned(length=9), Learned(length=9, align_end=True)]
ADAPTIVE = EmbeddingConfig(cutoffs=(5, 11), div_val=2, tie_projections=(False, True, True))
PLAN = Plan(long=XL(length=7), short=XL(length=2), num_long=1)


def some_models():
    yield from MECHANISMS.values()
    for positions in RELATIVE:
        yield dict(positions=positions)
        yield dict(positions=positions, norm="pre", final_norm=True, memory=PLAN)
    yield dict(embedding=ADAPTIVE, memory=PLAN)
    yield dict(same_length=True)
    for positions in ABSOLUTE:
        yield dict(positions=positions, memory=0)


def name(changes: dict) -> str:
    for known, mechanism in MECHANISMS.items():
        if mechanism is changes:
            return known
    return "-".join(f"{type(v).__name__ if not isinstance(v, (str, bool, int)) else v}" for v in changes.values())


every_model = pytest.mark.parametrize("changes", list(some_models()), ids=name)
one_of_each = pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=known, marks=() if known in FEW or known not in MECHANISMS else pytest.mark.thorough)
        for changes in some_models()
        for known in [name(changes)]
    ],
)
"""For properties that follow from those of every model where rows are independent."""


@every_model
def test_rows_are_independent(changes):
    model, tokens = random_model(**changes), random_tokens(3, 12)
    together, state = read(model, tokens, 4)
    for row in range(3):
        alone, own = read(model, tokens[row : row + 1], 4)
        assert_close(together[row : row + 1], alone)
        for (_, a), (_, b) in zip(leaves(select(state, torch.tensor([row]))), leaves(own), strict=True):
            assert_close(a, b)


@one_of_each
def test_rows_of_different_lengths_equal_rows_alone(changes):
    model = random_model(**changes)
    tokens, sizes = random_tokens(3, 12), [[4, 4, 4], [2, 0, 3], [1, 4, 2]]
    state = model.init(3)
    alone = [model.init(1) for _ in range(3)]
    begin = [0, 0, 0]
    for lengths in zip(*sizes, strict=True):
        segment = torch.stack([_slice(tokens[row], begin[row], 4) for row in range(3)])
        out, state = model(segment, state, lengths=torch.tensor(lengths))
        logits = model.logits(out)
        for row, count in enumerate(lengths):
            if count:
                own, alone[row] = model(segment[row : row + 1, :count], alone[row])
                assert_close(logits[row : row + 1, :count], model.logits(own))
            begin[row] += count
    for row in range(3):
        ours = leaves(select(state, torch.tensor([row])))
        for (_, a), (_, b) in zip(ours, leaves(alone[row]), strict=True):
            assert_close(a, b)


PENALTIES: dict[str, Any] = {"activation_penalty": 0.2, "temporal_penalty": 0.1}
AUXILIARY: dict[str, dict[str, Any]] = {
    "infinite": {"memory": Plan(long=infinite(kl_weight=0.3))},
    "compressive": {"memory": Plan(long=Compressive(length=4, compressed=6, ratio=2))},
    "autoencoding": {"memory": Plan(long=Compressive(length=4, compressed=6, ratio=2, loss="autoencoding"))},
    "penalties": {"memory": 4, **PENALTIES},
    "penalties of memory tokens": {"memory": 4, "tokens": MemoryTokens(num=3), **PENALTIES},
}


@pytest.mark.parametrize("changes", AUXILIARY.values(), ids=AUXILIARY)
def test_auxiliary_losses_leave_padding_out(changes):
    model = random_model(**changes).train()
    tokens = random_tokens(1, 19)
    state = None
    for segment in tokens[:, :16].split(4, 1):
        state = model(segment, state)[1]
    expected = model(tokens[:, 16:], state)[0].aux
    assert expected and all(value > 0 for value in expected.values())
    for width in (3, 4, 9):
        padded = torch.nn.functional.pad(tokens[:, 16:], (0, width - 3))
        found = model(padded, state, lengths=torch.tensor([3]))[0].aux
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert_close(value, expected[name])


def test_penalties_are_means_of_all_tokens_of_a_batch():
    model = random_model(**PENALTIES).train()
    tokens = random_tokens(3, 6)
    out = model(tokens, lengths=torch.tensor([6, 0, 1]))[0]
    valid = torch.cat([out.hidden[0], out.hidden[2, :1]])
    assert_close(out.aux["activation"], 0.2 * valid.square().mean())
    assert_close(out.aux["temporal"], 0.1 * out.hidden[0].diff(dim=0).square().mean())
    assert all(value == 0 for value in model(tokens, lengths=torch.zeros(3, dtype=torch.int64))[0].aux.values())


def _slice(row: torch.Tensor, begin: int, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(row[begin : begin + length], (0, max(0, begin + length - len(row))))


@every_model
def test_a_row_reset_equals_a_fresh_start_of_that_row(changes):
    model, tokens = random_model(**changes), random_tokens(2, 12)
    _, state = read(model, tokens[:, :8], 4)
    starts = torch.tensor([False, True])
    with torch.no_grad():
        out, after = model(tokens[:, 8:], state, starts=starts)
        carried, kept = model(tokens[:, 8:], state)
        fresh, new = model(tokens[:, 8:])
    assert torch.equal(out.hidden[0], carried.hidden[0])
    assert torch.equal(out.hidden[1], fresh.hidden[1])
    for (_, got), (_, a), (_, b) in zip(leaves(after), leaves(kept), leaves(new), strict=True):
        assert torch.equal(got[0], a[0])
        assert torch.equal(got[1], b[1])
    for (_, cleared), (_, empty) in zip(leaves(reset(state, starts)), leaves(model.init(2)), strict=True):
        assert torch.equal(cleared[1], empty[1])


@every_model
def test_no_token_influences_an_earlier_loss(changes):
    model, tokens = random_model(**changes), random_tokens(2, 12)
    changed = tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % SMALL["vocab_size"]
    before, _ = read(model, tokens, 4)
    after, _ = read(model, changed, 4)
    tolerance = 1e-12 if "embedding" in changes else 0.0
    assert (before[:, :6] - after[:, :6]).abs().max() <= tolerance
    assert (before[:, 6] - after[:, 6]).abs().max() > 1e-6


@every_model
def test_decoding_equals_the_parallel_segment(changes):
    model, tokens = random_model(**changes), random_tokens(2, 14)
    segment = 4
    whole, _ = read(model, tokens[:, :12], segment)
    decoder = model.decoder(batch=2, segment=segment)
    pieces = [model.logits(decoder.feed(part)) for part in tokens[:, :12].split([1, 2, 1, 3, 5], 1)]
    assert_close(torch.cat(pieces, 1), whole)

    decoder.feed(tokens[:, 12:14], lengths=[2, 1])
    state = decoder.state()
    again = model.decoder(state, segment=segment)
    kept = [leaf.clone() for _, leaf in leaves(state)]
    assert torch.equal(again.feed(tokens[:, :1]).hidden, decoder.feed(tokens[:, :1]).hidden)
    assert all(torch.equal(a, b) for a, (_, b) in zip(kept, leaves(state), strict=True))


@one_of_each
def test_decoding_rows_out_of_step_equals_rows_alone(changes):
    model, tokens = random_model(**changes), random_tokens(2, 11)
    decoder = model.decoder(batch=2, segment=4)
    decoder.feed(tokens[:, :3], lengths=[3, 1])
    steps = torch.stack([tokens[0, 3:10], tokens[1, 1:8]])
    got = torch.cat([model.logits(decoder.feed(steps[:, i : i + 1])) for i in range(7)], 1)
    for row, begin in ((0, 3), (1, 1)):
        alone = model.decoder(batch=1, segment=4)
        expected = model.logits(alone.feed(tokens[row : row + 1, : begin + 7]))[:, begin:]
        assert_close(got[row : row + 1], expected)


@one_of_each
def test_cached_keys_and_values_give_equal_numbers(changes):
    model, tokens = random_model(**changes), random_tokens(2, 14)
    expected, _ = read(model, tokens, 4)
    state = model.init(2, cached=True)
    tables = model.tables(4, state)
    pieces = []
    for part in tokens.split(4, 1):
        out, state = model(part, state, tables=tables if part.shape[1] == 4 else None)
        pieces.append(model.logits(out))
    assert_close(torch.cat(pieces, 1), expected)


@every_model
def test_the_given_state_is_never_changed(changes):
    model, tokens = random_model(**changes).train(), random_tokens(2, 8)
    _, state = model(tokens[:, :4])
    kept = [leaf.clone() for _, leaf in leaves(state)]
    out, _ = model(tokens[:, 4:], state, starts=torch.tensor([True, False]), lengths=torch.tensor([3, 4]))
    model.loss(out, tokens[:, 4:]).sum().backward()
    assert all(torch.equal(a, b) for a, (_, b) in zip(kept, leaves(state), strict=True))
    assert all(leaf.is_contiguous() for _, leaf in leaves(state))
    # only memory tokens, and the associative memories that they write, carry gradient on
    carrying = ("memory", "matrix", "normaliser")
    assert not any(leaf.requires_grad for path, leaf in leaves(state) if path.rpartition(".")[2] not in carrying)


def guide_mechanism() -> AnyMemory:
    (block,) = [block for block in blocks(ROOT / "CONTRIBUTING.md") if "class Average" in block]
    assert len([line for line in block.splitlines() if line.strip()]) < 60
    return run_block(block)["Average"]()


def example_mechanism() -> AnyMemory:
    return run_block((ROOT / "examples" / "own_memory.py").read_text())["Pooled"](length=4)


@pytest.mark.parametrize("build", [guide_mechanism, example_mechanism])
def test_mechanisms_of_the_documentation_keep_the_contract(
    build: Callable[[], AnyMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_mechanisms(monkeypatch)
    changes = dict(memory=Plan(long=build()))
    for test in (
        test_rows_are_independent,
        test_rows_of_different_lengths_equal_rows_alone,
        test_a_row_reset_equals_a_fresh_start_of_that_row,
        test_no_token_influences_an_earlier_loss,
        test_decoding_equals_the_parallel_segment,
        test_decoding_rows_out_of_step_equals_rows_alone,
        test_the_given_state_is_never_changed,
    ):
        test(changes)


@settings(deadline=None, max_examples=40)
@given(
    segments=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    positions=st.sampled_from([Relative(), Rotary(), Shaw(distances=30)]),
    norm=st.sampled_from(["post", "pre"]),
    seed=st.integers(0, 99),
)
def test_one_long_pass_equals_segments_when_the_memory_holds_everything(segments, positions, norm, seed):
    model = random_model(seed, memory=30, positions=positions, norm=norm)
    tokens = random_tokens(2, sum(segments), seed)
    whole, _ = read(model, tokens, len(tokens[0]))
    parts, _ = read(model, tokens, segments)
    assert_close(parts, whole)


@settings(deadline=None, max_examples=40)
@given(
    num_layers=st.integers(1, 3),
    segment=st.integers(1, 4),
    memories=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    position=st.integers(0, 23),
    seed=st.integers(0, 9),
)
def test_influence_reaches_exactly_as_far_as_the_memories(num_layers, segment, memories, position, seed):
    """Layer by layer from the top, a row sees back to its segment's start minus that layer's memory."""
    model, tokens = random_model(seed, num_layers=num_layers), random_tokens(1, 24, seed)
    reach = position
    for layer in reversed(range(num_layers)):
        reach = max(0, reach // segment * segment - memories[layer])
    initial = model.init(1, lengths=memories[:num_layers])

    def influence(where: int) -> float:
        changed = tokens.clone()
        changed[0, where] = (changed[0, where] + 1) % SMALL["vocab_size"]
        return float((read(model, changed, segment, initial)[0] - before)[0, position].abs().max())

    before, _ = read(model, tokens, segment, initial)
    assert influence(reach) > 0
    if reach:
        assert influence(reach - 1) == 0


def test_same_length_lets_every_query_see_as_many_keys():
    model = random_model(same_length=True, num_layers=1, memory=3)
    tokens = random_tokens(1, 12)
    before, _ = read(model, tokens, 4)
    for where in range(9):
        changed = tokens.clone()
        changed[0, where] = (changed[0, where] + 1) % SMALL["vocab_size"]
        influenced = (read(model, changed, 4)[0] - before)[0].abs().amax(-1).nonzero().squeeze(1).tolist()
        assert influenced == [where, where + 1, where + 2]


def test_states_change_length_without_touching_weights():
    model, tokens = random_model(memory=4), random_tokens(2, 20)
    long, _ = read(model, tokens, 4, model.init(2, lengths=12))
    short, _ = read(model, tokens, 4)
    assert (long - short).abs().max() > 1e-6
    _, state = read(model, tokens[:, :16], 4, model.init(2, lengths=12))
    _, expected = read(model, tokens[:, :16], 4)
    bottom, resized = expected[0], model.resize(state, 4)[0]
    assert torch.equal(bottom.hidden, resized.hidden)
    grown = model.resize(resized_all := model.resize(state, 4), 6)
    assert [int(memory.length[0]) for memory in grown] == [4, 4, 4]
    assert torch.equal(grown[0].hidden[:, 2:], resized_all[0].hidden)


def test_zeros_are_attended_and_empty_is_not():
    model, tokens = random_model(), random_tokens(2, 4)
    empty, _ = read(model, tokens, 4, model.init(2))
    zeros, _ = read(model, tokens, 4, model.zeros(2))
    none, _ = read(model, tokens, 4)
    assert torch.equal(empty, none)
    assert (zeros - empty).abs().max() > 1e-6


def test_state_functions():
    model, tokens = random_model(), random_tokens(2, 8)
    _, state = read(model, tokens, 4)
    doubled = select(state, torch.tensor([1, 1, 0]))
    assert torch.equal(doubled[0].hidden[0], state[0].hidden[1])
    assert to(state, dtype=torch.float32)[0].hidden.dtype == torch.float32
    assert to(state, dtype=torch.float32)[0].length.dtype == torch.int64
    layers, batch, slots, width = 3, 2, 5, 12
    assert nbytes(state) == layers * batch * (slots * width * 8 + 8)
    assert [path for path, _ in leaves(state)][:2] == ["0.hidden", "0.length"]
    assert detach(state)[0].hidden.data_ptr() == state[0].hidden.data_ptr()


@pytest.mark.parametrize(
    "embedding",
    [
        EmbeddingConfig(),
        EmbeddingConfig(dim=8, tie_weights=False),
        ADAPTIVE,
        EmbeddingConfig(cutoffs=(5, 11), dim=8, tie_projections=(False, True, False)),
        EmbeddingConfig(cutoffs=(5, 11), div_val=3, tie_weights=False),
    ],
)
def test_losses_are_the_log_probabilities_of_the_targets_in_token_order(embedding, monkeypatch):
    model, tokens = random_model(embedding=embedding), random_tokens(2, 9)
    out, _ = model(tokens[:, :-1])
    probabilities = torch.log_softmax(model.logits(out), -1)
    torch.testing.assert_close(probabilities.exp().sum(-1), torch.ones(2, 8, dtype=torch.float64))
    expected = -probabilities.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    assert_close(model.loss(out, tokens[:, 1:]), expected)
    padded = tokens[:, 1:].clone()
    padded[0, 3] = -1
    assert model.loss(out, padded)[0, 3] == 0
    assert_close(model.loss(out, tokens[:, 5:]), expected[:, 4:])

    whole = torch.autograd.grad(model.loss(out, tokens[:, 1:]).sum(), out.hidden, retain_graph=True)[0]
    monkeypatch.setattr("mnemo.ops.cross_entropy.CPU_LOGITS", 30)
    chunked = model.loss(out, tokens[:, 1:])
    assert_close(chunked, expected)
    assert_close(torch.autograd.grad(chunked.sum(), out.hidden)[0], whole)


def test_explain_gives_probabilities_and_terms_for_every_layer():
    model, tokens = random_model(), random_tokens(2, 8)
    _, state = read(model, tokens[:, :4], 4)
    out, _, layers = model.explain(tokens[:, 4:], state)
    assert_close(model.logits(out), read(model, tokens, 4)[0][:, 4:])
    assert len(layers) == 3
    assert layers[0].probabilities.shape == (2, 2, 4, 5 + 4)
    assert set(layers[0].terms) == {"a", "b", "c", "d"}


def test_variant_shares_weights_under_another_configuration():
    model, tokens = random_model(), random_tokens(1, 12)
    same = model.variant(same_length=True)
    assert same.config.same_length
    assert same.embedding.tables[0].data_ptr() == model.embedding.tables[0].data_ptr()
    assert (read(same, tokens, 4)[0] - read(model, tokens, 4)[0]).abs().max() > 1e-6
    clamped = model.variant(clamp=2)
    assert clamped.config.positions == Relative(clamp=2)
    assert (read(clamped, tokens, 4)[0] - read(model, tokens, 4)[0]).abs().max() > 1e-6


def test_fingerprint_tells_weights_and_meaning_apart_but_not_lengths():
    model = random_model()
    assert model.fingerprint() == random_model().fingerprint()
    assert model.fingerprint() == model.variant(same_length=True).fingerprint()
    assert model.fingerprint() != random_model(seed=1).fingerprint()
    assert model.fingerprint() != model.variant(clamp=2).fingerprint()


def test_locked_dropout_uses_one_mask_for_all_positions():
    model = random_model(dropout=DropoutConfig(output=0.5, locked=True), dtype=torch.float32).train()
    out, _ = model(random_tokens(2, 8))
    zero = out.hidden == 0
    assert zero.any()
    assert torch.equal(zero, zero[:, :1].expand_as(zero))
    assert not torch.equal(zero[0], zero[1])


@pytest.mark.parametrize(
    "site", ["word", "input", "positions", "qkv", "attention", "projection", "inner", "feed_forward", "output"]
)
def test_every_dropout_site_acts_in_training_only(site):
    model = random_model(dropout=replace(DropoutConfig(), **{site: 0.5}), dtype=torch.float32)
    tokens = random_tokens(2, 8)
    evaluated = model(tokens)[0].hidden
    assert torch.equal(evaluated, model(tokens)[0].hidden)
    model.train()
    assert not torch.equal(evaluated, model(tokens)[0].hidden)


def test_penalties_enter_training_only():
    model = random_model(activation_penalty=0.2, temporal_penalty=0.1)
    tokens = random_tokens(2, 8)
    assert model(tokens)[0].aux == {}
    out = model.train()(tokens)[0]
    hidden = out.hidden
    torch.testing.assert_close(out.aux["activation"], 0.2 * hidden.square().mean())
    torch.testing.assert_close(out.aux["temporal"], 0.1 * hidden.diff(dim=1).square().mean())


def test_initialisation_is_the_published_one():
    torch.manual_seed(0)
    model = Model(ModelConfig(vocab_size=200, dim=64, embedding=EmbeddingConfig(dim=48)))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert math.isclose(float(weights["embedding.tables.0"].std()), 0.02, rel_tol=0.05)
    assert math.isclose(float(weights["embedding.projections.0"].std()), 0.01, rel_tol=0.05)
    norm = weights["stages.0.layer.norm_attention.weight"]
    assert abs(float(norm.mean()) - 1) < 0.02
    assert 0.01 < float(norm.std()) < 0.03
    assert float(weights["stages.0.layer.feed_forward.inner.bias"].abs().max()) == 0
    assert float(weights["softmax.biases.0"].abs().max()) == 0
    assert 0.015 < float(weights["positions.u"].std()) < 0.025


@every_model
def test_configurations_survive_json(changes):
    config = random_model(**changes).config
    assert from_json(ModelConfig, to_json(config)) == config


def test_wrong_configurations_are_refused_with_the_reason():
    with pytest.raises(MnemoError, match="'num_layer' in configuration.*'num_layers'|unknown field.*num_layers"):
        from_json(ModelConfig, {"num_layer": 3})
    with pytest.raises(ValueError, match="absolute"):
        ModelConfig(positions=Sinusoidal(), memory=Plan(long=XL(length=4)))
    with pytest.raises(ValueError, match="even"):
        ModelConfig(dim=13)
    with pytest.raises(ValueError, match="cutoff 300"):
        Model(ModelConfig(vocab_size=256, embedding=EmbeddingConfig(cutoffs=(300,))))
    with pytest.raises(ValueError, match="ascending"):
        EmbeddingConfig(cutoffs=(9, 3))
    with pytest.raises(ValueError, match=r"dropout input = 1.5"):
        DropoutConfig(input=1.5)


def test_token_ids_beyond_the_vocabulary_are_refused():
    model = random_model()
    with pytest.raises(MnemoError, match="token id 23 is outside the vocabulary of 23"):
        model(torch.tensor([[1, 23]]))
    out, _ = model(torch.tensor([[1, 2]]))
    with pytest.raises(MnemoError, match="token id -2"):
        model.loss(out, torch.tensor([[1, -2]]))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"memory": XL(length=8)}, r"memory = XL\(.* is not a plan: write memory=Plan\(long="),
        ({"memory": "xl"}, "memory = 'xl' is not a plan"),
        ({"positions": "rotary"}, "positions = 'rotary' are no configuration: write positions=Rotary"),
        ({"norm_kind": "foo"}, "norm_kind = 'foo' is not one of layer, rms"),
        ({"norm": "before"}, "norm = 'before' is not one of post, pre"),
        ({"activation": "swish"}, "activation = 'swish' is not one of relu, "),
    ],
)
def test_values_of_another_kind_are_refused_by_name(field: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**field)


def test_states_that_do_not_belong_to_the_tokens_are_refused() -> None:
    model = Model(ModelConfig(vocab_size=7, dim=8, num_layers=1, num_heads=1, head_dim=8, inner_dim=8))
    tokens = torch.zeros(3, 4, dtype=torch.int64)
    both: Any = model(tokens)
    with pytest.raises(MnemoError, match="the state has 3 rows .*, the tokens have 2"):
        model(tokens[:2], both[1])
    with pytest.raises(MnemoError, match="not the output with it: out, state = model"):
        model(tokens, both)
