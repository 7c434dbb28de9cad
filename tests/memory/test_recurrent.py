"""LSTM and QRNN against the papers' equations, token by token; what holds for a state without slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.mechanisms import MECHANISMS
from helpers.models import SMALL, random_model, random_tokens, read
from helpers.tolerances import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mnemo.data.corpus import Split
from mnemo.evaluation.perplexity import evaluate
from mnemo.memory import LSTM, QRNN, XL, LSTMState, MemoryTokens, Plan, QRNNState
from mnemo.memory.protocol import Layer, Relation, Segment
from mnemo.memory.recurrent.modules import RecurrentStage, pool
from mnemo.memory.state import leaves
from mnemo.model import Model, ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import NoPositions, Relative
from mnemo.recipes.recipe import EvalConfig
from mnemo.storage.memory_file import load_memory, save_memory

DIM, BATCH = 5, 3


class NoTables:
    def relation(self, layer: Layer, num_keys: int, ahead: int = 0) -> Relation:
        raise AssertionError("recurrent layers have no positions")

    def mirrored(self, layer: Layer, num_keys: int) -> Relation | None:
        raise AssertionError("recurrent layers have no positions")


SEGMENT = Segment(tables=NoTables())


def build(config: LSTM | QRNN, **changes: Any) -> Model:
    return random_model(memory=Plan(long=config), positions=NoPositions(), **changes)


def stage_of(config: LSTM | QRNN) -> RecurrentStage:
    torch.manual_seed(1)
    stage: Any = config.build(DIM, torch.nn.Identity()).double().eval()
    return stage


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def naive_lstm(stage: RecurrentStage, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
    cells: Any = stage.cells
    w = dict(cells.lstm.named_parameters())
    hidden, cell, rows = *state, []
    for token in x.unbind(1):
        gates = token @ w["weight_ih_l0"].T + w["bias_ih_l0"] + hidden @ w["weight_hh_l0"].T + w["bias_hh_l0"]
        i, f, g, o = gates.chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        rows.append(hidden)
    return torch.stack(rows, 1), LSTMState(hidden, cell)


def naive_qrnn(stage: RecurrentStage, x: Tensor, state: QRNNState) -> tuple[Tensor, QRNNState]:
    """Equations 1 and 3 of the paper: each gate a sum over the kernel's taps, then fo-pooling."""
    cells: Any = stage.cells
    kernel, width = cells.kernel, cells.width
    taps = cells.gates.weight.view(3, width, kernel, DIM)
    bias = cells.gates.bias.view(3, width)
    inputs, cell, rows = torch.cat([state.inputs, x], 1), state.cell, []
    for t in range(x.shape[1]):
        z, f, o = (bias[gate] + sum(inputs[:, t + i] @ taps[gate, :, i].T for i in range(kernel)) for gate in range(3))
        f = 1 - (1 - f.sigmoid()) * (1 - cells.zoneout)
        cell = f * cell + (1 - f) * z.tanh()
        rows.append(o.sigmoid() * cell)
    return torch.stack(rows, 1), QRNNState(cell, inputs[:, x.shape[1] :])


CONFIGS = [
    LSTM(),
    LSTM(width=7),
    QRNN(),
    QRNN(kernel=1, width=4),
    QRNN(kernel=4, zoneout=0.3),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 7])
def test_outputs_states_and_gradients_are_those_of_the_equations(config: LSTM | QRNN, length: int) -> None:
    stage = stage_of(config)
    naive: Any = naive_lstm if isinstance(config, LSTM) else naive_qrnn
    x = random(BATCH, length, DIM).requires_grad_()
    state = stage.init(BATCH, 9, x.detach())
    state = type(state)(*(random(*leaf.shape) for leaf in state))
    rows, after = stage(x, state, SEGMENT)
    expected, final = naive(stage, x, state)
    expected = stage.project(expected)
    assert rows.shape == x.shape
    assert_close(rows, expected)
    for new, wanted in zip(after, final, strict=True):
        assert_close(new, wanted.detach())
    probe, wrt = random(*rows.shape), [x, *stage.parameters()]
    pairs = zip(*(torch.autograd.grad((out * probe).sum(), wrt) for out in (rows, expected)), strict=True)
    for ours, theirs in pairs:
        assert_close(ours, theirs)


@settings(deadline=None, max_examples=30)
@given(length=st.integers(1, 20), seed=st.integers(0, 99))
def test_pooling_in_rounds_equals_the_loop(length: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    keep, add = torch.rand(2, 2, length, 3, dtype=torch.float64, generator=generator)
    first = torch.rand(2, 3, dtype=torch.float64, generator=generator)
    cells = [first]
    for t in range(length):
        cells.append(keep[:, t] * cells[-1] + add[:, t])
    assert_close(pool(keep, add, first), torch.stack(cells, 1))


@pytest.mark.parametrize("config", [LSTM(width=4), QRNN(kernel=3)], ids=str)
def test_lengths_choose_the_state_but_all_rows_are_computed(config: LSTM | QRNN) -> None:
    """Tokens that a next segment reads again have outputs, too: only what is stored ends at a row's length."""
    stage, x = stage_of(config), random(4, 6, DIM)
    state = stage.init(4, 0, x)
    state = type(state)(*(random(*leaf.shape) for leaf in state))
    whole, _ = stage(x, state, SEGMENT)
    lengths = torch.tensor([6, 0, 1, 4])
    rows, after = stage(x, state, Segment(tables=NoTables(), lengths=lengths))
    assert torch.equal(rows, whole)
    for row, length in enumerate(lengths.tolist()):
        own = type(state)(*(leaf[row : row + 1] for leaf in state))
        if length:
            _, own = stage(x[row : row + 1, :length], own, SEGMENT)
        for got, wanted in zip(after, own, strict=True):
            assert_close(got[row : row + 1], wanted)
            assert length or torch.equal(got[row : row + 1], wanted)


@settings(deadline=None, max_examples=20)
@given(
    segments=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    plan=st.sampled_from(
        [
            Plan(long=LSTM(width=5)),
            Plan(long=QRNN(kernel=4), short=QRNN(kernel=1), num_long=2),
            Plan(long=LSTM(), short=XL(length=30), num_long=2, arrangement="first"),
            Plan(long=QRNN(kernel=3), short=XL(length=30), num_long=1, arrangement="middle"),
        ]
    ),
)
def test_one_long_pass_equals_segments(segments: list[int], plan: Plan) -> None:
    positions = Relative() if plan.attending(3) else NoPositions()
    model, tokens = random_model(memory=plan, positions=positions), random_tokens(2, sum(segments))
    assert_close(read(model, tokens, segments)[0], read(model, tokens, len(tokens[0]))[0])


@pytest.mark.parametrize("config", [LSTM(), QRNN()], ids=str)
def test_the_first_token_influences_all_later_ones(config: LSTM | QRNN) -> None:
    model, tokens = build(config, num_layers=1), random_tokens(1, 12)
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % SMALL["vocab_size"]
    difference = (read(model, tokens, 2)[0] - read(model, changed, 2)[0]).abs().amax(-1)
    assert (difference > 0).all()


def parameters(**changes: Any) -> dict[str, int]:
    model = random_model(**changes)
    return {name: parameter.numel() for name, parameter in model.named_parameters()}


def test_there_are_no_dead_weights() -> None:
    vocab, layers, dim = (SMALL[name] for name in ("vocab_size", "num_layers", "dim"))
    ends = vocab * dim + vocab
    plain = dict(positions=NoPositions())
    lstm = sum(parameters(memory=Plan(long=LSTM()), **plain).values())
    assert lstm == ends + layers * (8 * dim * dim + 8 * dim)
    wide = sum(parameters(memory=Plan(long=LSTM(width=20)), **plain).values())
    assert wide == ends + layers * (4 * 20 * (dim + 20 + 2) + 20 * dim)
    qrnn = sum(parameters(memory=Plan(long=QRNN(kernel=3)), **plain).values())
    assert qrnn == ends + layers * 3 * dim * (3 * dim + 1)


@pytest.mark.parametrize("name", [name for name in MECHANISMS if "lstm" in name or "qrnn" in name])
def test_every_weight_is_trained(name: str) -> None:
    model, tokens = random_model(**MECHANISMS[name]).train(), random_tokens(2, 13)
    _, state = model(tokens[:, :4])
    out, _ = model(tokens[:, 4:12], state)
    model.loss(out, tokens[:, 5:13]).sum().backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert unused == []


def test_positions_are_those_of_the_layers_that_attend() -> None:
    plan = Plan(long=LSTM(), short=XL(length=3), num_long=2, arrangement="first")
    names = parameters(memory=plan, positions=Relative(biases_per_layer=True))
    heads, size, dim = (SMALL[name] for name in ("num_heads", "head_dim", "dim"))
    own = {name: count for name, count in names.items() if name.startswith("positions")}
    assert own == {
        "positions.u": heads * size,
        "positions.v": heads * size,
        "positions.projections.0.weight": dim * heads * size,
    }
    assert [layer.index for layer in random_model(memory=plan).layers()] == [0]


@pytest.mark.parametrize("config", [LSTM(width=64), QRNN(width=64)], ids=str)
def test_recurrent_weights_are_drawn_evenly_by_their_width(config: LSTM | QRNN) -> None:
    torch.manual_seed(0)
    model = Model(ModelConfig(num_layers=2, dim=32, memory=Plan(long=config), positions=NoPositions()))
    bound = 64**-0.5  # of the hidden size for an LSTM; of the gates' 2 * 32 inputs for a QRNN
    for stage in model.stages:
        for weight in stage.cells.parameters():  # type: ignore[union-attr]
            assert 0.95 * bound < float(weight.detach().abs().max()) <= bound
    assert 0.018 < float(model.embedding.tables[0].detach().std()) < 0.022


def test_dropout_is_between_layers_and_may_be_locked() -> None:
    def hidden(**rates: Any) -> Tensor:
        model = build(LSTM(), dropout=DropoutConfig(**rates), dtype=torch.float32).train()
        inputs: list[Tensor] = []
        model.stages[1].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        out, _ = model(random_tokens(2, 8))
        assert not (out.hidden == 0).any()
        return inputs[0] == 0

    assert not hidden(projection=0.0).any()
    free, locked = hidden(projection=0.5), hidden(projection=0.5, locked=True)
    assert not torch.equal(free, free[:, :1].expand_as(free))
    assert locked.any() and torch.equal(locked, locked[:, :1].expand_as(locked))


def test_zoneout_keeps_cells_in_training() -> None:
    stage = stage_of(QRNN(kernel=1, zoneout=0.4)).train()
    x = random(8, 1, DIM).expand(8, 20, DIM)
    state = stage.init(8, 0, x)
    cells: Any = stage.cells
    before, changes = state.cell, []
    for token in x.split(1, 1):
        _, state = cells(token, state, None)
        changes.append(state.cell != before)
        before = state.cell
    share = torch.stack(changes).double().mean()
    assert abs(float(share) - 0.6) < 0.05


def test_memory_lengths_leave_a_recurrence_as_it_is() -> None:
    plan = Plan(long=LSTM(), short=XL(length=4), num_long=1)
    assert plan.lengths(3) == plan.lengths(3, 99) == (4, 4, 0)
    assert plan.attending(3) == (0, 1)
    model, tokens = build(QRNN()), random_tokens(2, 8)
    logits, state = read(model, tokens, 4)
    again, _ = read(model, tokens, 4, model.zeros(2, lengths=99))
    assert torch.equal(logits, again)
    assert model.memory_lengths(state) == (0, 0, 0)
    resized = model.resize(state, 7)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(state), leaves(resized), strict=True))


@pytest.mark.parametrize("name", ["lstm", "lstm-below-xl", "qrnn-kernels"])
def test_a_memory_file_holds_the_open_segment(name: str, tmp_path: Path) -> None:
    model, tokens = random_model(**MECHANISMS[name]), random_tokens(2, 10)
    decoder = model.decoder(batch=2, segment=4)
    decoder.feed(tokens[:, :5])
    decoder.feed(tokens[:, 5:7], lengths=[2, 0])
    save_memory(tmp_path / "text.memory", model, decoder.state(), segment=4)
    loaded = load_memory(tmp_path / "text.memory", model).memory
    again = model.decoder(loaded, segment=4)
    assert torch.equal(again.feed(tokens[:, 7:]).hidden, decoder.feed(tokens[:, 7:]).hidden)


def test_evaluation_carries_the_state_unless_told_not_to() -> None:
    model = build(LSTM())
    ids = random_tokens(1, 41)
    split = Split("valid", ids[0].numpy().astype(np.uint8), None, num_bytes=41, num_words=8, num_lines=1)
    config = EvalConfig(batch=1)
    carried = evaluate(model, split, config, segment=4)
    whole = torch.nn.functional.cross_entropy(read(model, ids[:, :-1], 40)[0][0], ids[0, 1:])
    assert_close(torch.tensor(carried.loss, dtype=torch.float64), whole)
    context = evaluate(model, split, config, segment=4, context=3)
    assert_close(torch.tensor(context.loss, dtype=torch.float64), whole)
    alone = torch.cat([read(model, part, 4)[0] for part in ids[:, :-1].split(4, 1)], 1)
    forgotten = evaluate(model, split, config, segment=4, no_memory=True)
    expected = torch.nn.functional.cross_entropy(alone[0], ids[0, 1:])
    assert_close(torch.tensor(forgotten.loss, dtype=torch.float64), expected)
    assert abs(forgotten.loss - carried.loss) > 1e-3


@pytest.mark.parametrize("config", [LSTM(), QRNN(zoneout=0.05)], ids=str)
def test_training_learns_what_only_the_state_knows(config: LSTM | QRNN) -> None:
    """0 0 1 0 0 1 ... in segments of two: what follows a segment's first 0 depends on the segment before."""
    torch.manual_seed(0)
    model = Model(ModelConfig(vocab_size=2, num_layers=2, dim=16, memory=Plan(long=config), positions=NoPositions()))
    text = torch.tensor([[0, 0, 1] * 41, [0, 1, 0] * 41])
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    state, losses = model.init(2), []
    for begin in range(0, 120, 2):
        out, state = model(text[:, begin : begin + 2], state)
        loss = model.loss(out, text[:, begin + 1 : begin + 3]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 0.6
    assert max(losses[-6:]) < 0.1


def test_configurations_that_make_no_sense_are_refused() -> None:
    recurrent = Plan(long=LSTM())
    with pytest.raises(ValueError, match="Relative positions would have no effect: use NoPositions"):
        ModelConfig(memory=recurrent)
    with pytest.raises(ValueError, match='rows in order.*mask="causal"'):
        ModelConfig(memory=recurrent, positions=NoPositions(), tokens=MemoryTokens(num=2))
    with pytest.raises(ValueError, match="as carry_read does"):
        tokens = MemoryTokens(num=2, mask="causal", write=False, carry_read=True)
        ModelConfig(memory=Plan(long=QRNN()), positions=NoPositions(), tokens=tokens)
    with pytest.raises(ValueError, match="kernel 0 must be positive"):
        QRNN(kernel=0)
    with pytest.raises(ValueError, match="zoneout 1.0"):
        QRNN(zoneout=1.0)
    with pytest.raises(ValueError, match="-3 cells"):
        LSTM(width=-3)
