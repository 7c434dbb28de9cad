"""Look-ahead memory: against a literal rewriting of the published code, and the identities that it must have."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import published_lamemo
from helpers.marks import few
from helpers.models import SMALL, random_model, random_tokens, read
from helpers.tolerances import PARITY, assert_close
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.parity import lamemo
from mnemo.interop.parity.comparison import check
from mnemo.interop.parity.reference import Reference
from mnemo.memory import XL, Lookahead, LookaheadState, Plan
from mnemo.memory.lookahead import modules as lookahead_modules
from mnemo.memory.lookahead.modules import LookaheadStage, coefficient
from mnemo.memory.state import leaves, tree_map
from mnemo.model import Model, ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.layers import rows as layer_rows
from mnemo.model.positions import Relative, Rotary, Shaw
from mnemo.model.positions.modules import sinusoids
from mnemo.ops import Causal, KeyLimit
from mnemo.storage.memory_file import load_memory, save_memory

LENGTHS = {
    "as long as a segment": dict(mem_len=4, seg_lens=[4, 4, 4, 4]),
    "longer": dict(mem_len=7, seg_lens=[3, 3, 3, 3, 3]),
    "shorter": dict(mem_len=2, seg_lens=[5, 5, 5]),
    "one slot": dict(mem_len=1, seg_lens=[3, 3, 3]),
    "segments of mixed lengths": dict(mem_len=6, seg_lens=[4, 1, 1, 5, 2, 7, 3]),
}
CHANGES = {
    "plain": {},
    "pre-norm": dict(pre_lnorm=True),
    "clamp": dict(clamp_len=3, n_layer=3),
    "factorised embedding": dict(d_embed=6, n_head=3, tie_projs=[True]),
    "large epsilon": dict(eps=0.3),
}
CHOICES: dict[str, dict[str, Any]] = {
    "default window": dict(window="previous"),
    "a coefficient without gradient": dict(alpha="detached"),
    "without interpolation": dict(alpha="zero"),
    "without look-ahead": dict(alpha="one"),
    "signed encoding": dict(encoding="signed"),
    "signed encoding with clamp": dict(encoding="signed", clamp_len=2, window="previous"),
}
each_length = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))


def lookahead_model(seed: int = 0, changes: dict[str, Any] | None = None, **memory: Any) -> Model:
    return random_model(seed, memory=Plan(long=Lookahead(**{"length": 6, **memory})), **changes or {})


def stage_of(model: Model) -> LookaheadStage:
    (stage,) = model.stages
    assert isinstance(stage, LookaheadStage)
    return stage


def as_xl(model: Model, length: int) -> Model:
    """Transformer-XL with the same weights."""
    other = Model(replace(model.config, memory=Plan(long=XL(length=length)))).double()
    weights = {name: value for name, value in model.state_dict().items() if not name.endswith("v_minus")}
    for name in list(weights):
        if name.startswith("stages.0.layers."):
            index, _, rest = name.removeprefix("stages.0.layers.").partition(".")
            weights[f"stages.{index}.layer.{rest}"] = weights.pop(name)
    other.load_state_dict(weights)
    return other.eval()


def test_published_numbers(golden: Path) -> None:
    result = check(golden / "lamemo" / "lamemo_mem_gt_tgt.safetensors")
    assert result.status == "passed"
    assert set(result.errors) == {"positions", "losses", "memories", "alphas", "gradients"}


@pytest.mark.skipif("MNEMO_GOLDEN" not in os.environ, reason="MNEMO_GOLDEN names no folder of reference files")
def test_more_published_numbers() -> None:
    files = sorted(Path(os.environ["MNEMO_GOLDEN"]).rglob("lamemo*.safetensors"))
    assert {path.name: check(path).error for path in files if not (check(path).error or 1) <= PARITY} == {}


def pairs_of(others: dict[str, Any]) -> list[Any]:
    """All pairs with a length; thorough where neither is the first of its kind."""
    pairs = [(length, other) for length in LENGTHS for other in others]
    return few(pairs, lambda length, other: length == next(iter(LENGTHS)) or other == next(iter(others)))


@pytest.mark.parametrize(("length", "change"), pairs_of(CHANGES))
def test_loops_over_positions_give_the_same_file(length: str, change: str, tmp_path: Path) -> None:
    result = check(published_lamemo.write(tmp_path / "model.safetensors", **LENGTHS[length], **CHANGES[change]))
    assert result.status == "passed", f"{result.worst}: {result.errors}"


@pytest.mark.parametrize(("length", "name"), pairs_of(CHOICES))
def test_loops_over_positions_give_the_same_for_other_choices(length: str, name: str) -> None:
    choice = CHOICES[name]
    config, tensors = published_lamemo.compute({**LENGTHS[length], **choice})
    reference = Reference("lamemo-golden-1", config, tensors)
    fields = {name: value for name, value in choice.items() if name in published_lamemo.CHOICES}
    memory = Lookahead(length=config["mem_len"], refresh_last=True, **{"window": "current", **fields})
    lamemo.compare(reference, lamemo.load(reference, memory))
    reference.refuse_leftovers()
    assert max(reference.errors.values()) <= PARITY, reference.worst


@each_length
def test_each_direction_has_its_own_dropout_mask(lengths: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    size, dim = lengths["mem_len"] + max(lengths["seg_lens"]), published_lamemo.DEFAULTS["d_model"]
    draw = torch.Generator().manual_seed(1)
    masks = [
        published_lamemo.PositionMasks(*torch.randint(3, (2, size, dim), generator=draw).double())
        for _ in lengths["seg_lens"]
    ]
    config, tensors = published_lamemo.compute({**lengths, "masks": masks})
    reference = Reference("lamemo-golden-1", config, tensors)
    model = lamemo.load(reference, Lookahead(length=config["mem_len"], refresh_last=True, window="current"))
    left = iter([mask for both in masks for mask in both])
    monkeypatch.setattr(layer_rows, "keep_mask", lambda shape, rate, like: next(left)[: shape[0]].flip(0))
    model.positions.drop.rate = 0.5  # type: ignore[union-attr]
    lamemo.compare(reference, model.train())
    assert max(reference.errors.values()) <= PARITY, reference.worst
    assert next(left, None) is None


def test_parity_refuses_what_is_not_lamemo(tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match="attn_type 31 is not LaMemo's"):
        check(published_lamemo.write(tmp_path / "a.safetensors", attn_type=31))
    config, tensors = published_lamemo.compute({})
    del tensors["r_r_bias_future"]
    with pytest.raises(MnemoError, match="'r_r_bias_future' is missing"):
        lamemo.check(Reference("lamemo-golden-1", config, tensors))


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("length", "segments"), [(4, [4] * 4), (7, [3] * 5), (2, [5] * 3), (6, [4, 1, 5, 2])])
def test_without_look_ahead_it_is_transformer_xl(length: int, segments: list[int], norm: str) -> None:
    model = lookahead_model(length=length, alpha="one", changes=dict(norm=norm))
    tokens = random_tokens(2, sum(segments))
    ours, _ = read(model, tokens, segments)
    assert_close(ours, read(as_xl(model, length), tokens, segments)[0])
    looking, _ = read(lookahead_model(length=length, changes=dict(norm=norm)), tokens, segments)
    assert (ours - looking).abs().max() > 1e-3


def test_one_layer_is_transformer_xl_with_its_gradients() -> None:
    model, tokens = lookahead_model(changes=dict(num_layers=1)), random_tokens(2, 12)
    other = as_xl(model, 6)
    for each in (model, other):
        _, state = each(tokens[:, :4])
        out, _ = each(tokens[:, 4:11], state)
        each.loss(out, tokens[:, 5:]).sum().backward()
    assert_close(read(model, tokens, 4)[0], read(other, tokens, 4)[0])
    ours = {name.replace("layers.0", "layer"): parameter.grad for name, parameter in model.named_parameters()}
    assert ours.pop("stages.0.v_minus") is None
    for name, parameter in other.named_parameters():
        gradient = ours.pop(name)
        assert gradient is not None
        assert parameter.grad is not None
        assert_close(gradient, parameter.grad)


def both_sides(model: Model, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """One softmax over all T rows (B, T, D), in the first layer: contexts (B, T, H, d), log-sum-exps (B, T, H)."""
    layer, size = model.layers()[0], inputs.shape[1]
    q, (k, v) = layer.queries(inputs), layer.keys_values(inputs)
    weights = model.state_dict()
    u, past, ahead = (weights[name].view(2, 6) for name in ("positions.u", "positions.v", "stages.0.v_minus"))
    index = torch.arange(size)
    distance = index[:, None] - index
    encoding = sinusoids(size, SMALL["dim"], None, inputs.dtype, inputs.device).flip(0)  # of distances 0 ... T - 1
    r = (encoding @ weights["positions.projections.0.weight"].T).view(size, 2, 6).transpose(0, 1)[:, distance.abs()]
    bias = torch.where((distance >= 0)[None, :, :, None], past[:, None, None], ahead[:, None, None])
    content = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    position = ((q[:, :, :, None] + bias) * r).sum(-1)
    scores = (content + position) / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1).transpose(1, 2)


@pytest.mark.parametrize("segments", [[3, 3, 3, 1], [4, 1, 1, 5, 2, 3, 1]])
def test_interpolation_is_one_softmax_over_both_sides(segments: list[int]) -> None:
    """The first layer's queries, keys and values of a token never change, so its contexts must be exact (App. A)."""
    model = lookahead_model(length=sum(segments), epsilon=0.0)
    tokens = random_tokens(2, sum(segments))
    _, (state,) = read(model, tokens, segments)
    with torch.no_grad():
        contexts, lse = both_sides(model, state.inputs)
    assert_close(state.contexts[0], contexts)
    assert_close(state.lse[0], lse)


def test_the_published_window_passes_positions_by_where_lengths_change() -> None:
    tokens, model = random_tokens(2, 16), lookahead_model(length=16)
    published = lookahead_model(length=16, window="current")
    assert torch.equal(read(model, tokens, 4)[0], read(published, tokens, 4)[0])
    mixed = [4, 1, 1, 5, 2, 3]
    assert (read(model, tokens, mixed)[0] - read(published, tokens, mixed)[0]).abs().max() > 1e-3
    assert Lookahead(length=16).published() == Lookahead(length=16, window="current", first_bias="xavier")


@pytest.mark.parametrize("memory", [{}, dict(window="current"), dict(encoding="signed"), dict(alpha="zero", length=2)])
def test_no_token_influences_an_earlier_output_whatever_the_lengths(memory: dict) -> None:
    model, segments = lookahead_model(**memory), [4, 1, 3, 5, 1, 2]
    tokens = random_tokens(1, 16)
    before, _ = read(model, tokens, segments)
    for where in range(16):
        changed = tokens.clone()
        changed[0, where] = (changed[0, where] + 1) % SMALL["vocab_size"]
        difference = (read(model, changed, segments)[0] - before)[0].abs().amax(-1)
        assert float(difference[:where].sum()) == 0
        assert float(difference[where]) > 1e-6


def test_switches_remove_what_they_name() -> None:
    tokens = random_tokens(2, 12)
    _, (state,) = read(lookahead_model(), tokens[:, :8], 4)
    other = state._replace(contexts=tree_map(lambda leaf: leaf + 1, state.contexts))

    def changes(**fields: Any) -> float:
        model = lookahead_model(**fields)
        ours, theirs = (read(model, tokens[:, 8:], 4, (memory,))[0] for memory in (state, other))
        return float((ours - theirs).abs().max())

    assert changes(alpha="zero") == 0
    assert changes(alpha="one") > 1e-3
    assert changes() > 1e-3
    assert stage_of(lookahead_model(encoding="signed")).v_minus is None


def test_the_last_refresh_is_dead_work() -> None:
    tokens = random_tokens(2, 16)
    model, refreshing = lookahead_model(), lookahead_model(refresh_last=True)
    ours, (state,) = read(model, tokens, 4)
    theirs, (full,) = read(refreshing, tokens, 4)
    assert torch.equal(ours, theirs)
    assert len(state.contexts) == len(state.lse) == 2
    assert len(full.contexts) == len(full.lse) == 3
    assert all(torch.equal(a, b) for a, b in zip(state.contexts, full.contexts[:2], strict=True))


def test_the_memorising_coefficient_can_be_read() -> None:
    model, tokens = lookahead_model(length=9), random_tokens(2, 8)
    _, state = read(model, tokens[:, :4], 4)
    notes: dict[str, Tensor] = {}
    model(tokens[:, 4:], state, notes=notes)
    assert list(notes) == ["alpha.0", "alpha.1"]
    for alpha in notes.values():
        assert alpha.shape == (2, 9, 2)
        assert not alpha.requires_grad
        assert float(alpha[:, 5:].min()) > 0
        assert float(alpha[:, 5:].max()) < 1


def test_the_coefficient_is_the_share_of_exponential_sums() -> None:
    past, ahead = torch.randn(2, 50, dtype=torch.float64)
    assert_close(coefficient(past, ahead, 0.0), past.exp() / (past.exp() + ahead.exp()))
    far = torch.tensor([1e4, -1e4, 0.0], dtype=torch.float64)
    assert coefficient(far, torch.zeros_like(far), 0.0).tolist() == [1.0, 0.0, 0.5]
    assert_close(coefficient(far, far, 0.5), torch.full_like(far, 1 / 2.5))


def test_extreme_weights_of_either_side_give_numbers() -> None:
    model, tokens = lookahead_model(), random_tokens(2, 8)
    _, (state,) = read(model, tokens[:, :4], 4)
    for weight in (-1e30, 1e30):
        extreme = state._replace(lse=tuple(torch.full_like(leaf, weight) for leaf in state.lse))
        out, after = model(tokens[:, 4:], (extreme,))
        model.loss(out, tokens[:, 4:]).sum().backward()
        finite = [leaf.isfinite().all() for _, leaf in leaves(after)]
        assert all([*finite, out.hidden.isfinite().all()])
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_only_new_positions_are_looked_at() -> None:
    stage = stage_of(model := lookahead_model(length=12))
    _, (state,) = read(model, random_tokens(3, 12), 3)
    horizon = stage.horizon(state, 5)
    assert horizon == (3, Causal(), None)
    published = stage_of(lookahead_model(length=12, window="current"))
    assert published.horizon(state, 5) == (5, Causal(), None)
    ragged = published.horizon(state, 5, torch.tensor([2, 0, 4]))
    assert (ragged.num_keys, type(ragged.mask)) == (4, KeyLimit)
    assert ragged.refreshed is not None
    assert ragged.refreshed.all(1).tolist() == [True, False, True]
    empty = state._replace(length=torch.tensor([12, 0, 12]), previous=torch.tensor([3, 0, 3]))
    assert stage.horizon(empty, 5)[:2] == (3, Causal())


def test_rows_of_any_lengths_look_at_what_is_new_to_them() -> None:
    model, tokens = lookahead_model(length=9), random_tokens(4, 24)
    sizes = torch.tensor([[3, 0, 4, 1], [1, 4, 0, 4], [4, 4, 4, 4], [0, 0, 2, 3]])
    state: Any = model.init(4)
    for lengths in sizes.T:
        before, (state,) = state[0], model(tokens[:, :4], state, lengths=lengths)[1]
        for index, (_, leaf) in enumerate(leaves(state)):
            assert torch.equal(leaf[lengths == 0], list(leaves(before))[index][1][lengths == 0])
        state = (state,)
    assert state[0].previous.tolist() == [1, 4, 4, 3]
    assert state[0].length.tolist() == [8, 9, 9, 5]
    assert all(leaf.isfinite().all() for _, leaf in leaves(state))


def test_states_change_length_and_none_is_no_memory() -> None:
    model, tokens = lookahead_model(length=8), random_tokens(2, 8)
    _, state = read(model, tokens, 4)
    (short,), (long,) = model.resize(state, 3), model.resize(state, 11)
    assert isinstance(short, LookaheadState)
    assert torch.equal(short.contexts[1], state[0].contexts[1][:, 5:])
    assert torch.equal(long.lse[0][:, 3:], state[0].lse[0])
    assert (short.length.tolist(), long.length.tolist(), short.previous.tolist()) == ([3, 3], [8, 8], [4, 4])
    assert torch.equal(read(model, tokens, 4, (long,))[0], read(model, tokens, 4, model.resize((long,), 11))[0])
    none, _ = read(model, tokens, 4, model.init(2, lengths=0))
    assert_close(none, read(as_xl(model, 0), tokens, 4)[0])


def test_memory_files_hold_an_open_segment(tmp_path: Path) -> None:
    model, tokens = lookahead_model(), random_tokens(2, 12)
    decoder = model.decoder(batch=2, segment=4)
    decoder.feed(tokens[:, :7], lengths=[7, 5])
    save_memory(tmp_path / "memory", model, decoder.state(), segment=4)
    again = model.decoder(load_memory(tmp_path / "memory", model).memory, segment=4)
    assert torch.equal(again.feed(tokens[:, 7:]).hidden, decoder.feed(tokens[:, 7:]).hidden)


def test_a_closed_decoder_keeps_the_committed_memory() -> None:
    model, tokens = lookahead_model(refresh_last=True), random_tokens(2, 11)
    _, committed = read(model, tokens[:, :8], 4)
    decoder = model.decoder(batch=2, segment=4)
    decoder.feed(tokens)
    for (_, ours), (_, theirs) in zip(leaves(decoder.state().state), leaves(committed), strict=True):
        assert_close(ours, theirs)


def test_log_sum_exps_stay_in_single_precision() -> None:
    with torch.device("meta"):
        model = Model(ModelConfig(**SMALL, memory=Plan(long=Lookahead(length=6)))).to(torch.bfloat16)
        start = model.init(2)
        _, after = model(torch.zeros(2, 4, dtype=torch.int64), start)
    for (state,) in (start, after):
        assert {leaf.dtype for leaf in state.lse} == {torch.float32}
        assert {leaf.dtype for leaf in (state.inputs, *state.contexts)} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict(positions=Rotary()), "needs Relative positions, not Rotary"),
        (dict(positions=Shaw()), "needs Relative positions, not Shaw"),
        (dict(memory=Plan(long=Lookahead(length=0))), "nothing to refresh"),
        (
            dict(memory=Plan(long=Lookahead(length=8), short=Lookahead(length=4), num_long=1)),
            "form a group.*length=4.*length=8",
        ),
        (dict(memory=Plan(long=Lookahead(epsilon=0.0), short=Lookahead(), num_long=2)), "configured alike"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ModelConfig(**{"memory": Plan(long=Lookahead(length=4)), **change})


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="length -1 is negative"):
        Lookahead(length=-1)
    with pytest.raises(ValueError, match="epsilon -1.0 is negative"):
        Lookahead(epsilon=-1.0)


def test_the_bias_for_what_is_ahead_starts_like_the_others() -> None:
    torch.manual_seed(0)
    model = Model(ModelConfig(memory=Plan(long=Lookahead(length=4)), positions=Relative()))
    start = stage_of(model).v_minus
    assert start is not None
    assert 0.015 < float(start.detach().std()) < 0.025


def test_the_published_bias_for_what_is_ahead_starts_wider() -> None:
    torch.manual_seed(0)
    memory = Plan(long=Lookahead(length=4, first_bias="xavier"))
    start = stage_of(Model(ModelConfig(memory=memory, positions=Relative(), num_heads=10, head_dim=41))).v_minus
    assert start is not None
    assert 0.18 < float(start.detach().std()) < 0.22


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("length", [4, 7])
def test_one_product_for_all_queries_changes_nothing(length: int, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how queries are computed on a GPU: outputs, states and gradients."""
    tokens, results = random_tokens(2, 12), []
    for together in (False, True):
        monkeypatch.setattr(lookahead_modules, "queries_together", lambda rows, together=together: together)
        model = lookahead_model(changes={"norm": norm, "dropout": DropoutConfig()}, length=length).train()
        state, loss = model.init(2), 0.0
        for part in tokens.split(4, 1):
            out, state = model(part, state)
            loss = loss + model.loss(out, part).sum()
        assert isinstance(loss, Tensor)
        loss.backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        results.append([loss.detach(), *gradients, *(leaf for _, leaf in leaves(state))])
    for expected, found in zip(*results, strict=True):
        assert_close(found, expected)
