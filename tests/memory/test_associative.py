"""The associative memory of a layer: against the equations written as loops, and what it remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import associative_reference as reference
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.memory import Associations, Associative, AssociativeMemory, MemoryTokens, Plan, WriteTokens
from mnemo.memory.associative.modules import features
from mnemo.model import ModelConfig

DIM, BATCH, TOKENS = 6, 2, 3
CONFIGS = {
    "default": Associative(key_dim=4),
    "paper": Associative(key_dim=4, unit_keys=False),
    "no-correction": Associative(key_dim=4, correction=False),
    "no-normaliser": Associative(key_dim=4, normaliser=False),
    "heads": Associative(key_dim=4, heads=2, nu=2),
    "channels": Associative(key_dim=2, heads=2, gate="channel"),
    "bounded": Associative(key_dim=4, bounded=True),
    "bounded-channels": Associative(key_dim=4, heads=2, gate="channel", normaliser=False, bounded=True),
}


def memory_of(config: Associative) -> AssociativeMemory:
    torch.manual_seed(2)
    memory = AssociativeMemory(config, DIM).double()
    torch.nn.init.normal_(memory.value.weight)
    return memory


def of_head(memory: AssociativeMemory, rows: Tensor, linear: Any, head: int) -> Tensor:
    """(T, w) of one head."""
    return linear(rows).chunk(memory.config.heads, -1)[head]


def slow_read(memory: AssociativeMemory, x: Tensor, state: Associations) -> Tensor:
    config, rows = memory.config, []
    for row in range(len(x)):
        heads = []
        for head in range(config.heads):
            normaliser = state.normaliser[row, head] if config.normaliser else None
            queries = of_head(memory, x[row], memory.query, head)
            found = [reference.features(query, config.nu, config.unit_keys) for query in queries]
            heads.append(torch.stack([reference.lookup(phi, state.matrix[row, head], normaliser) for phi in found]))
        rows.append(torch.cat(heads, -1))
    return torch.stack(rows)


def slow_write(memory: AssociativeMemory, rows: Tensor, state: Associations) -> Associations:
    config = memory.config
    if config.bounded:
        rows = rows / (rows.square().mean(-1, keepdim=True) + torch.finfo(rows.dtype).eps).sqrt()
    matrices, sums = [], []
    for row in range(len(rows)):
        for head in range(config.heads):
            keys = of_head(memory, rows[row], memory.key, head)
            values = of_head(memory, rows[row], memory.value, head)
            strengths = of_head(memory, rows[row], lambda y: memory.strength(y).sigmoid(), head).expand_as(values)
            found = torch.stack([reference.features(key, config.nu, config.unit_keys) for key in keys])
            normaliser = state.normaliser[row, head] if config.normaliser else None
            options = {"correct": config.correction, "unit": config.unit_keys, "bounded": config.bounded}
            matrix, total = reference.write(found, values, strengths, state.matrix[row, head], normaliser, **options)
            matrices.append(matrix)
            sums.append(state.normaliser[row, head] if total is None else total)
    return Associations(torch.stack(matrices).view_as(state.matrix), torch.stack(sums).view_as(state.normaliser))


def three_segments(memory: AssociativeMemory, read: Any, write: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Rows that were read and states of three segments, and the gradients of a function of all of them."""
    torch.manual_seed(5)
    rows = torch.randn(3, BATCH, TOKENS, DIM, dtype=torch.float64).requires_grad_()
    state, found = memory.init(BATCH, rows.detach()), []
    for segment in rows:
        found += [read(memory, segment, state)]
        state = write(memory, segment, state)
        found += list(state)
    memory.zero_grad()
    weights = [torch.randn(part.shape, dtype=torch.float64) for part in found]
    torch.stack([(part * weight).sum() for part, weight in zip(found, weights, strict=True)]).sum().backward()
    gradients = {name: weight.grad.clone() for name, weight in memory.named_parameters() if weight.grad is not None}
    assert rows.grad is not None
    return [part.detach() for part in found], gradients | {"rows": rows.grad}


@pytest.mark.parametrize("name", CONFIGS)
def test_fast_equals_the_equations_with_all_gradients(name: str) -> None:
    memory = memory_of(CONFIGS[name])
    fast, fast_gradients = three_segments(memory, AssociativeMemory.read, AssociativeMemory.write)
    slow, slow_gradients = three_segments(memory, slow_read, slow_write)
    for ours, theirs in zip(fast, slow, strict=True):
        assert_close(ours, theirs)
    assert fast_gradients.keys() == slow_gradients.keys() == {"rows", *(name for name, _ in memory.named_parameters())}
    for name, gradient in slow_gradients.items():
        assert_close(fast_gradients[name], gradient, msg=name)
    assert float(fast[3].abs().max()) > 0  # the second segment reads what the first one wrote


def test_features_are_products_of_shifted_parts() -> None:
    key = torch.tensor([[2.0, -3.0]])  # [relu(k), relu(-k)] = 2 0 0 3
    assert features(key, 1).tolist() == [[6, 0, 0, 0]]
    assert features(key, 3).tolist() == [[6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6]]


def test_a_rewritten_key_returns_its_new_value_only() -> None:
    """The delta rule replaces a value, and the correction keeps the normaliser of that key at one."""
    memory = memory_of(Associative(key_dim=4))
    torch.nn.init.constant_(memory.strength.bias, 100.0)  # write with full strength
    torch.nn.init.zeros_(memory.strength.weight)
    torch.manual_seed(3)
    first, other = torch.randn(2, 1, 1, DIM, dtype=torch.float64)
    with torch.no_grad():
        memory.query.weight.copy_(memory.key.weight)
        state = memory.write(first, memory.init(1, first))
        size = state.normaliser.norm()
        for value in (2.0, -1.0):
            memory.value.weight.copy_(value * torch.eye(DIM, dtype=torch.float64))
            state = memory.write(first, state)
            # 1e-5 is added to the normaliser where it divides.
            assert_close(memory.read(first, state).bfloat16(), (value * first).bfloat16())
        assert_close(state.normaliser.norm(), size)
        kept = memory.write(first, Associations(state.matrix, state.normaliser))
        assert_close(kept.normaliser, state.normaliser)
        assert memory.write(other, state).normaliser.norm() > size


def size_after(config: Associative, segments: int, tokens: int = 16) -> tuple[float, float]:
    """Norm of the matrix and sum of the normaliser after many segments whose memory tokens have similar rows."""
    memory = memory_of(config)
    torch.nn.init.constant_(memory.strength.bias, 3.0)
    chance = torch.Generator().manual_seed(1)
    state = memory.init(1, torch.zeros(1, dtype=torch.float64))
    with torch.no_grad():
        for _ in range(segments):
            text = torch.randn(1, 1, DIM, generator=chance, dtype=torch.float64)
            own = torch.randn(1, tokens, DIM, generator=chance, dtype=torch.float64)
            state = memory.write(text + 0.3 * own, state)
    return float(state.matrix.norm()), float(state.normaliser.sum())


def test_similar_keys_of_a_segment_let_the_matrix_grow_unless_bounded() -> None:
    """In float64, so this is a property of the published rule and not of rounding; the normaliser stays small."""
    published, normaliser = size_after(Associative(key_dim=4), 300)
    bounded, _ = size_after(Associative(key_dim=4, bounded=True), 300)
    assert published > 1e6 and normaliser < 100 and bounded < 100
    assert size_after(Associative(key_dim=4, bounded=True), 1500)[0] < 100
    assert size_after(Associative(key_dim=4), 300, tokens=1)[0] < 100  # a single memory token is stable


def test_rows_that_contain_what_they_read_do_not_grow_if_bounded() -> None:
    """Values of four times the row that is written: each segment reads, and writes its reading again."""
    sizes = {}
    for bounded in (False, True):
        memory = memory_of(Associative(key_dim=4, bounded=bounded))
        torch.manual_seed(6)
        rows = torch.randn(60, 1, 2, DIM, dtype=torch.float64)
        with torch.no_grad():
            memory.value.weight.copy_(4 * torch.eye(DIM, dtype=torch.float64))
            memory.query.weight.copy_(memory.key.weight)
            state = memory.init(1, rows)
            for segment in rows:
                state = memory.write(segment + memory.read(segment, state), state)
        sizes[bounded] = float(state.matrix.norm())
    assert sizes[False] > 1e5 and sizes[True] < 200


def test_the_bound_limits_neither_the_first_segment_nor_single_tokens() -> None:
    torch.manual_seed(4)
    rows = torch.nn.functional.rms_norm(torch.randn(3, 2, 5, DIM, dtype=torch.float64), (DIM,))
    memory, bounded = memory_of(Associative(key_dim=4)), memory_of(Associative(key_dim=4, bounded=True))
    empty = memory.init(2, rows)
    assert_close(bounded.write(rows[0], empty).matrix, memory.write(rows[0], empty).matrix)
    states = [empty, empty]
    for segment in rows:
        states = [each.write(segment[:, :1], state) for each, state in zip((memory, bounded), states, strict=True)]
    assert_close(states[0].matrix, states[1].matrix)


def test_an_empty_memory_adds_nothing_and_bf16_keeps_a_wide_state() -> None:
    memory = memory_of(Associative(key_dim=4)).to(torch.bfloat16)
    rows = torch.randn(2, 3, DIM, dtype=torch.bfloat16)
    state = memory.init(2, rows)
    assert not memory.read(rows, state).any()
    after = memory.write(rows, state)
    assert after.matrix.dtype == after.normaliser.dtype == torch.float32
    assert memory.read(rows, after).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by importing torch.compile
@pytest.mark.parametrize("bounded", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_reading_and_writing_are_one_graph_each(bounded: bool) -> None:
    """So that a compiler can fuse all operations; nothing waits for values on a GPU."""
    memory = memory_of(Associative(key_dim=4, bounded=bounded)).float()
    rows = torch.randn(2, 3, DIM)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        state = memory.write(rows, memory.init(2, rows))
        read = torch.compile(memory.read, backend="eager", fullgraph=True)
        write = torch.compile(memory.write, backend="eager", fullgraph=True)
        assert_close(read(rows, state), memory.read(rows, state))
        for ours, theirs in zip(write(rows, state), memory.write(rows, state), strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(key_dim=0), "must be positive"),
        (dict(heads=3, key_dim=4), "do not divide keys"),
        (dict(length=-1), "negative"),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Associative(**options)


def test_models_that_it_does_not_fit() -> None:
    model = ModelConfig(memory=Plan(long=Associative()), tokens=WriteTokens(num=2))
    for tokens in (None, MemoryTokens(num=2, write=False), MemoryTokens(num=0)):
        with pytest.raises(ValueError, match="written by memory tokens"):
            replace(model, tokens=tokens)
    with pytest.raises(ValueError, match="no layer has one"):
        replace(model, memory=Plan())
    with pytest.raises(ValueError, match="do not divide the width"):
        replace(model, memory=Plan(long=Associative(heads=3, key_dim=3)))
    with pytest.raises(ValueError, match="0 memory tokens"):
        WriteTokens(num=0)
