"""Analyses of a model on a text, compared with slow and simple computations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.mechanisms import MECHANISMS
from helpers.models import random_model, random_tokens
from helpers.tolerances import assert_close

from mnemo import analysis
from mnemo.analysis.attention_distance import by_distance
from mnemo.errors import MnemoError
from mnemo.memory import LSTM, XL, Lookahead, MemoryTokens, Plan
from mnemo.model import Model
from mnemo.model.positions import Learned, NoPositions, Rotary

SEGMENT = 4
ATTENDING = [
    "xl-plan",
    "lookahead",
    "lookahead-signed",
    "compressive",
    "compressive-most-used",
    "rmt",
    "rmt-causal",
    "armt-previous-segment",
    "rmt-with-cache",
    "mt",
    "infinite-sticky",
    "lstm-below-xl",
    "xl-plan-modern",
]


def text(length: int = 26, seed: int = 3) -> torch.Tensor:
    return random_tokens(1, length, seed)[0]


def explained(model: Model, ids: torch.Tensor) -> list[list[Any]]:
    """Every segment's recorded attention, layer by layer."""
    state, found = model.init(1, cached=True), []
    for part in ids.split(SEGMENT):
        _, state, layers = model.explain(part[None], state)
        found.append(layers)
    return found


def test_scores_move_to_their_distances() -> None:
    scores = torch.randn(2, 3, 7, dtype=torch.float64)
    found = by_distance(scores)
    expected = torch.zeros_like(scores)
    for query in range(3):
        for key in range(7 - 3 + query + 1):
            expected[:, query, 7 - 3 + query - key] = scores[:, query, key]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ATTENDING)
def test_attention_by_distance_is_a_distribution(name: str) -> None:
    model = random_model(**MECHANISMS[name])
    found = analysis.attention_by_distance(model, text(), segment=SEGMENT)
    total = found.mass.sum(-1) + found.memory_tokens
    assert_close(total, torch.ones_like(total))
    assert (found.mass[found.reachable[:, None].expand_as(found.mass) == 0] == 0).all()
    tokens = model.config.tokens
    assert (found.memory_tokens > 0).all() == (tokens is not None and tokens.num_read > 0)


def slow_mass(model: Model, ids: torch.Tensor, first: int) -> torch.Tensor:
    """The same by walking over queries and keys, from a segment on; without memory tokens."""
    size = max(layer.probabilities.shape[3] for layers in explained(model, ids) for layer in layers)
    segments = explained(model, ids)[first:]
    mass, queries = torch.zeros(len(segments[0]), model.config.num_heads, size, dtype=torch.float64), 0
    for layers in segments:
        queries += layers[0].probabilities.shape[2]
        for place, layer in enumerate(layers):
            _, heads, rows, keys = layer.probabilities.shape
            for row in range(rows):
                for key in range(keys - rows + row + 1):
                    mass[place, :, keys - rows + row - key] += layer.probabilities[0, :, row, key]
    return mass / queries


@pytest.mark.parametrize("name", ["xl", "xl-plan", "lookahead-upper-layers", "compressive-most-used", "lstm-below-xl"])
def test_attention_by_distance_equals_a_walk_over_pairs(name: str) -> None:
    model = random_model(**MECHANISMS[name])
    slots = max(model.memory_lengths(model.init(1)))
    found = analysis.attention_by_distance(model, text(), segment=SEGMENT)
    assert_close(found.mass, slow_mass(model, text(), math.ceil(slots / SEGMENT)))
    assert found.layers == model.config.memory.attending(3)


def test_a_text_that_never_fills_the_memory_is_counted_whole() -> None:
    model = random_model(memory=50)
    found = analysis.attention_by_distance(model, text(10), segment=SEGMENT)
    assert found.queries == 10
    assert_close(found.reachable[0, :10], torch.arange(10, 0, -1).double() / 10)
    assert_close(found.where_visible()[:, :, 9], found.mass[:, :, 9] * 10)


def made_up(mass: list[list[list[float]]]) -> analysis.AttentionByDistance:
    values = torch.tensor(mass, dtype=torch.float64)
    return analysis.AttentionByDistance(
        layers=(0, 2),
        mass=values,
        reachable=torch.ones(values.shape[0], values.shape[2]),
        memory_tokens=torch.zeros(values.shape[:2]),
        queries=1,
    )


def test_wide_heads_and_buckets() -> None:
    found = made_up([[[1, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0]], [[0.5, 0, 0, 0, 0.5], [0, 0, 0, 0, 1]]])
    assert found.wide_heads(0.5) == [(2, 1, 4.0), (2, 0, 2.0)]
    assert found.wide_heads() == [(2, 1, 4.0)]
    assert found.rows() == ["1.1", "1.2", "3.1", "3.2"]
    labels, shares = found.buckets()
    assert labels == ("0", "1", "2-3", "4")
    assert_close(shares, torch.tensor([[0.5, 0.25, 0.25, 0], [0.25, 0, 0, 0.75]], dtype=torch.float64))
    labels, shares = found.buckets([0, 3])
    assert labels == ("0-2", "3-4")
    assert_close(shares.sum(-1), torch.ones(2, dtype=torch.float64))
    with pytest.raises(MnemoError, match="share"):
        found.wide_heads(0)


def test_score_terms_by_distance() -> None:
    model, ids = random_model(memory=5), text()
    found = analysis.score_terms(model, ids, segment=SEGMENT)
    segments = explained(model, ids)[2:]
    assert sorted(found.means) == ["a", "b", "c", "d"]
    for name in found.means:
        values: dict[int, list[float]] = {}
        alone = torch.zeros(9, dtype=torch.float64)
        for layers in segments:
            term, rows = layers[1].terms[name][0, 0], layers[1].probabilities.shape[2]
            for row in range(rows):
                end = 5 + row + 1
                for key in range(end):
                    values.setdefault(5 + row - key, []).append(float(term[row, key]))
                alone[:end] += term[row, :end].softmax(-1).flip(-1)
        means = torch.tensor([sum(values[d]) / len(values[d]) for d in range(9)], dtype=torch.float64)
        assert_close(found.means[name][1, 0], means)
        assert_close(found.attention[name][1, 0], alone / sum(len(layers[0].visible[0, 0]) for layers in segments))


def test_positions_without_relative_terms_have_one_term() -> None:
    kinds: list[dict[str, Any]] = [dict(positions=Rotary()), dict(positions=Learned(length=9), memory=0)]
    for changes in kinds:
        assert list(analysis.score_terms(random_model(**changes), text(), segment=SEGMENT).means) == ["a"]


def test_largest_attention_per_interval() -> None:
    model, ids = random_model(memory=8), text(30)
    found = analysis.interval_maxima(model, ids, segment=SEGMENT, interval=5)
    largest: dict[int, list[torch.Tensor]] = {}
    for layers in explained(model, ids)[2:]:
        probabilities = layers[-1].probabilities[0]
        for row in range(probabilities.shape[1]):
            nearest_first = probabilities[:, row, : 8 + row + 1].flip(-1)
            for begin in range(0, nearest_first.shape[1] - 4, 5):
                largest.setdefault(begin, []).append(nearest_first[:, begin : begin + 5].amax(-1))
    assert found.begins == tuple(sorted(largest)) == (0, 5)
    assert_close(found.by_head, torch.stack([torch.stack(largest[begin]).mean(0) for begin in found.begins], 1))
    assert_close(found.mean, found.by_head.mean(0))
    first = analysis.interval_maxima(model, ids, segment=SEGMENT, layer=0)
    assert not torch.allclose(first.by_head, found.by_head)


def test_a_map_of_memory_tokens_and_cache() -> None:
    model, ids = random_model(tokens=MemoryTokens(num=2), memory=5), text(11)
    found = analysis.attention_map(model, ids, segment=SEGMENT, layer=1, number=1)
    expected = explained(model, ids)[1][1].probabilities[0]
    assert torch.equal(found.heads, expected)
    assert found.row_kinds == ("read",) * 2 + ("token",) * 4 + ("write",) * 2
    assert found.column_kinds == ("memory",) * 5 + found.row_kinds
    assert found.row_ids == (-1, -1, *ids[4:8].tolist(), -1, -1)
    assert found.column_ids == (*ids[1:4].tolist(), -1, -1, *found.row_ids)
    blocks = found.blocks()
    assert blocks["read", "memory"] == blocks["read", "token"] == blocks["token", "write"] == 0
    assert blocks["write", "token"] > 0 and blocks["token", "read"] > 0
    assert sum(blocks["write", kind] for kind in set(found.column_kinds)) == pytest.approx(1)


def test_a_map_of_a_cache_marks_what_is_read_most() -> None:
    model, ids = random_model(memory=5), text(9)
    found = analysis.attention_map(model, ids, segment=SEGMENT)
    assert (found.layer, found.segment, found.heads.shape) == (2, 2, (2, 1, 6))
    assert found.column_ids == tuple(ids[3:9].tolist())
    marked = found.strongest(0, share=0.4)
    assert marked.sum() == 2 and not marked[0, 5]
    inside = found.heads[0, 0, :5]
    assert inside[marked[0, :5]].min() >= inside[~marked[0, :5]].max()
    begin = analysis.attention_map(model, ids, segment=SEGMENT, number=0)
    assert begin.column_kinds == ("empty",) * 5 + ("token",) * 4 and begin.blocks()["token", "empty"] == 0


def test_a_map_of_a_compressive_memory_tells_its_slots_apart() -> None:
    model = random_model(**MECHANISMS["compressive"])
    found = analysis.attention_map(model, text(26), segment=SEGMENT)
    assert found.column_kinds == ("compressed",) * 4 + ("memory",) * 5 + ("token",) * 2
    early = analysis.attention_map(model, text(26), segment=SEGMENT, number=1)
    assert early.column_kinds == ("empty",) * 5 + ("memory",) * 4 + ("token",) * 4


def test_alpha_is_averaged_over_segments_with_a_full_memory() -> None:
    model, ids = random_model(memory=Plan(long=Lookahead(length=6))), text(30)
    found = analysis.alpha(model, ids, segment=SEGMENT, segments=3)
    state, noted = model.init(1, cached=True), []
    for part in ids.split(SEGMENT):
        notes: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            _, state = model(part[None], state, notes=notes)
        noted.append(notes)
    assert found.layers == (0, 1) and found.segments == 3
    for layer in (0, 1):
        expected = torch.stack([notes[f"alpha.{layer}"][0] for notes in noted[2:5]]).mean(0)
        assert_close(found.by_head[layer], expected.T)
        assert_close(found.mean[layer], expected.mean(-1))


def test_who_has_an_alpha() -> None:
    found = {name for name, changes in MECHANISMS.items() if analysis.has_alpha(random_model(**changes))}
    assert found == {name for name in MECHANISMS if "Lookahead(" in str(MECHANISMS[name])} - {"lookahead-lower-layers"}
    alone = Plan(long=Lookahead(length=6), short=XL(length=2), num_long=1)
    assert not analysis.has_alpha(random_model(memory=alone))  # nothing reads what it would refresh
    with pytest.raises(MnemoError, match="no look-ahead memory"):
        analysis.alpha(random_model(), text(), segment=SEGMENT)
    with pytest.raises(MnemoError, match="never fills"):
        analysis.alpha(random_model(memory=Plan(long=Lookahead(length=60))), text(), segment=SEGMENT)


@pytest.mark.parametrize("name", [*ATTENDING, "lstm", "qrnn", "mt-published"])
def test_losses_with_and_without_memory(name: str) -> None:
    model, ids = random_model(**MECHANISMS[name]), text(15)
    found = analysis.gain_from_memory(model, ids, segment=SEGMENT)
    state, found_losses, alone = None, [], []
    with torch.no_grad():
        for tokens, targets in zip(ids[:-1].split(SEGMENT), ids[1:].split(SEGMENT), strict=True):
            out, state = model(tokens[None], state)
            found_losses.append(model.loss(out, targets[None])[0])
            alone.append(model.loss(model(tokens[None])[0], targets[None])[0])
    assert_close(torch.from_numpy(found.with_memory), torch.cat(found_losses))
    assert_close(torch.from_numpy(found.without), torch.cat(alone))
    assert_close(torch.from_numpy(found.gain[:SEGMENT]), torch.zeros(SEGMENT, dtype=torch.float64))
    assert analysis.keeps_memory(model) == bool(np.abs(found.gain).max() > 1e-6)


def test_gain_by_position_leaves_the_first_segment_out() -> None:
    gain = analysis.Gain(with_memory=np.zeros(7), without=np.array([0, 0, 0, 1.0, 2, 3, 5]), segment=3)
    assert gain.by_position().tolist() == [3.0, 2.0, 3.0]


def test_losses_at_memory_lengths() -> None:
    model, ids = random_model(memory=5), text()
    found = analysis.losses_at_memory(model, ids, [0, 5], segment=SEGMENT)
    assert_close(
        torch.from_numpy(found[0]), torch.from_numpy(analysis.gain_from_memory(model, ids, segment=SEGMENT).without)
    )
    assert_close(torch.from_numpy(found[5]), torch.from_numpy(analysis.token_losses(model, ids, segment=SEGMENT)))
    assert np.abs(found[0] - found[5]).max() > 1e-3


def loss_behind(model: Model, ids: torch.Tensor, target: int, sizes: list[int]) -> float:
    state, out = None, None
    with torch.no_grad():
        for part in ids[target - sum(sizes) : target].split(sizes):
            out, state = model(part[None], state)
        return float(model.loss(out, ids[None, target : target + 1])[0, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["xl", "lookahead", "compressive", "rmt", "armt", "lstm", "infinite", "mt-published"])
@pytest.mark.parametrize(("context", "sizes"), [(3, [3]), (8, [4, 4]), (10, [2, 4, 4])])
def test_losses_behind_a_context(name: str, context: int, sizes: list[int]) -> None:
    model, ids = random_model(**MECHANISMS[name]), text()
    targets = analysis.context_targets(len(ids), 10, 4)
    assert targets.tolist() == [10, 15, 20, 25]
    found = analysis.losses_at_context(model, ids, context, segment=SEGMENT, targets=targets)
    sizes = sizes if analysis.keeps_memory(model) else [context]
    assert found == pytest.approx([loss_behind(model, ids, target, sizes) for target in targets], abs=1e-10)


def test_a_model_without_memory_reads_its_context_in_one_piece() -> None:
    model, ids = random_model(memory=0), text()
    found = analysis.losses_at_context(model, ids, 9, segment=SEGMENT, targets=[9, 20])
    assert found == pytest.approx([loss_behind(model, ids, target, [9]) for target in (9, 20)], abs=1e-10)


def test_blocks_of_targets_share_their_context() -> None:
    model, ids = random_model(memory=0), text()
    found = analysis.losses_at_context(model, ids, 5, segment=SEGMENT, targets=[6, 14], block=3)
    places = [(target + k, 5 + k) for target in (6, 14) for k in range(3)]
    assert found == pytest.approx([loss_behind(model, ids, at, [size]) for at, size in places], abs=1e-10)


def brute_force(
    losses: dict[str, dict[int, list[float]]], model: str, top: float, threshold: float
) -> tuple[int, bool]:
    """Appendix C, word by word."""
    contexts = sorted(losses[model])
    step = contexts[1] - contexts[0]
    c = contexts[0]
    while c + step in contexts:
        count = len(losses[model][c])
        b = [min(losses[name][c][t] for name in losses) for t in range(count)]
        chosen = sorted(range(count), key=lambda t: (-b[t], t))[: max(1, round(top * count))]

        def f(c_long: int, b: list[float] = b, chosen: list[int] = chosen) -> float:
            return sum(min(b[t], losses[model][c_long][t]) for t in chosen) / len(chosen)

        assert f(c) == pytest.approx(sum(b[t] for t in chosen) / len(chosen))
        gain = (math.exp(f(c)) - math.exp(f(c + step))) / math.exp(f(c))
        if gain < threshold:
            return c, False
        c += step
    return c, True


@pytest.mark.parametrize("top", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_relative_effective_context_length_equals_the_definition(top: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    contexts, tokens = range(10, 70, 10), draw.exponential(3.0, 40)
    scale = {"long": 0.02, "middle": 0.008, "short": 0.0}
    losses = {
        name: {c: tokens * np.exp(-gain * c) + draw.normal(0, 0.002, 40) for c in contexts}
        for name, gain in scale.items()
    }
    found = analysis.relative_effective_context_length(losses, top=top)
    plain = {name: {c: row.tolist() for c, row in own.items()} for name, own in losses.items()}
    for name in losses:
        assert (found[name].length, found[name].at_least) == brute_force(plain, name, top, 0.01)
    assert found["long"].length >= found["middle"].length >= found["short"].length
    assert found["long"].at_least and found["short"].length == 10


def test_a_gain_counts_only_below_the_best_short_context_of_the_group() -> None:
    """The weak model gains much over itself, and nothing over the strong one."""
    weak = {1: np.array([4.0, 4.0]), 2: np.array([3.0, 3.0])}
    strong = {1: np.array([2.0, 1.0]), 2: np.array([1.0, 1.0])}
    group = analysis.Group({"weak": weak, "strong": strong}, top=0.5)
    assert group.hardest(1).tolist() == [0]
    assert group.relative_gain("weak", 1, 2) == 0
    assert group.unnormalised_gain("strong", 1, 2) == pytest.approx(math.exp(2) - math.exp(1))
    assert group.relative_gain("strong", 1, 2) == pytest.approx(1 - math.exp(-1))
    assert group.effective_length("weak").length == 1 and group.effective_length("strong").at_least
    assert analysis.relative_effective_context_length({"weak": weak})["weak"].at_least


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({}, "at least one model"),
        ({"a": {1: [1.0]}}, "equally spaced"),
        ({"a": {1: [1.0], 2: [1.0], 4: [1.0]}}, "equally spaced"),
        ({"a": {1: [1.0], 2: [1.0]}, "b": {1: [1.0], 3: [1.0]}}, "differ"),
        ({"a": {1: [1.0], 2: [1.0, 2.0]}}, "the same tokens in every context"),
        ({"a": {1: [], 2: []}}, "the same tokens in every context"),
    ],
)
def test_groups_that_cannot_be_compared(losses: Any, message: str) -> None:
    with pytest.raises(MnemoError, match=message):
        analysis.Group(losses)


def test_repetition() -> None:
    assert analysis.repetition("abcdefgh") == 0
    assert analysis.repetition("abababab", 2) == pytest.approx(1 - 2 / 7)
    assert analysis.repetition([1, 2]) == 0
    assert analysis.repetition("one two one two one two".split(), 2) == pytest.approx(3 / 5)
    with pytest.raises(MnemoError, match="positive"):
        analysis.repetition("abc", 0)


def test_recurrent_layers_have_no_attention() -> None:
    model = random_model(memory=Plan(long=LSTM()), positions=NoPositions())
    for function in (analysis.attention_by_distance, analysis.score_terms, analysis.interval_maxima):
        with pytest.raises(MnemoError, match="LSTM layers have none"):
            function(model, text(), segment=SEGMENT)
    with pytest.raises(MnemoError, match="LSTM layers have none"):
        analysis.attention_map(model, text(), segment=SEGMENT)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: analysis.token_losses(m, [1], segment=4), "too short"),
        (lambda m: analysis.token_losses(m, [1, 2, 99], segment=4), "outside the vocabulary"),
        (lambda m: analysis.token_losses(m, text()[None], segment=4), "one row of token ids"),
        (lambda m: analysis.token_losses(m, text(), segment=0), "must be positive"),
        (lambda m: analysis.token_losses(m, text(), segment=4, memory=-1), "negative"),
        (lambda m: analysis.losses_at_context(m, text(), 9, segment=4, targets=[8]), "9 tokens before them"),
        (lambda m: analysis.losses_at_context(m, text(), 9, segment=4, targets=[]), "no targets"),
        (lambda m: analysis.losses_at_context(m, text(), 9, segment=4, targets=[9], block=5), "longer than a segment"),
        (lambda m: analysis.losses_at_context(m, text(), 0, segment=4, targets=[9]), "must be positive"),
        (lambda m: analysis.context_targets(10, 10, 3), "too short for a context"),
        (lambda m: analysis.interval_maxima(m, text(), segment=4, layer=7), "layer 7 has no attention"),
        (lambda m: analysis.interval_maxima(m, text(), segment=4, interval=0), "must be positive"),
        (lambda m: analysis.attention_map(m, text(), segment=4, number=9), "no segment 9"),
    ],
)
def test_wrong_questions(call: Any, message: str) -> None:
    with pytest.raises(MnemoError, match=message):
        call(random_model())


def test_a_model_is_left_as_it_was() -> None:
    model = random_model().train()
    analysis.attention_by_distance(model, text(), segment=SEGMENT)
    analysis.gain_from_memory(model, np.asarray(text(), np.uint16), segment=SEGMENT)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


def everything(model: Model, ids: torch.Tensor) -> list[torch.Tensor]:
    attention = analysis.attention_by_distance(model, ids, segment=SEGMENT)
    terms = analysis.score_terms(model, ids, segment=SEGMENT)
    gain = analysis.gain_from_memory(model, ids, segment=SEGMENT)
    found_losses = analysis.losses_at_context(model, ids, 6, segment=SEGMENT, targets=[7, 20])
    return [
        attention.mass,
        attention.reachable,
        *terms.means.values(),
        *terms.attention.values(),
        analysis.interval_maxima(model, ids, segment=SEGMENT).by_head,
        analysis.attention_map(model, ids, segment=SEGMENT).heads,
        *map(torch.from_numpy, (gain.with_memory, gain.without, found_losses)),
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["xl-plan", "lookahead", "rmt-with-cache", "compressive-most-used"])
def test_every_device_and_form_of_ids_gives_the_same(name: str, device: str) -> None:
    here, there = random_model(**MECHANISMS[name]), random_model(**MECHANISMS[name]).to(device)
    for first, second in zip(everything(here, text()), everything(there, text().to(device)), strict=True):
        assert first.device.type == "cpu"
        assert_close(second, first)
