"""The GPU's kernels against the plain path: in Triton's interpreter on a CPU, natively where there is a CUDA device.

Buffers that kernels fill are filled with NaN first, so that nothing unwritten can be read unseen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.marks import FURTHER, few
from torch import Tensor
from torch._subclasses import FakeTensorMode

from mnemo.memory.lookahead import Lookahead
from mnemo.memory.memory_tokens import MemoryTokens
from mnemo.memory.plan import Plan
from mnemo.model import ModelConfig, attention_obstacle
from mnemo.ops import Blocks, Causal, KeyLimit, Mask, call_obstacle, kernel_obstacle, relative_attention
from mnemo.ops.cuda import decode_kernels, decode_projection
from mnemo.ops.cuda.decode_attention import decode_attention_plain

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
dispatch = pytest.importorskip("mnemo.ops.cuda.dispatch")
from mnemo.ops.cuda import launch, operator  # noqa: E402
from mnemo.ops.cuda.forward_kernels import tile_of_program  # noqa: E402
from mnemo.ops.cuda.score_layout import Layout  # noqa: E402

pytestmark = pytest.mark.native
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HEADS = 2, 1
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 5e-3}
ROUNDED = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""bf16 keeps three bits less than fp16: the same sums, probabilities and gradients are rounded 8 times as far"""


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def inputs(
    num_queries: int,
    num_keys: int,
    columns: int,
    size: int = 16,
    parts: str = "ruw",
    dtype: torch.dtype = torch.float32,
    heads: int = HEADS,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "q": (BATCH, num_queries, heads, size),
        "k": (BATCH, num_keys, heads, size),
        "v": (BATCH, num_keys, heads, size),
        "r": (heads, columns, size),
        "u": (heads, size),
        "w": (heads, size),
        "b": (heads, columns),
        "g": (BATCH, num_queries, heads),
    }
    made = {name: torch.randn(shapes[name], generator=generator).to(DEVICE, dtype) for name in "qkv" + parts}
    by_head = {name: made[name].transpose(1, 2) for name in "qkv"}
    return {name: x.detach() for name, x in {**made, **by_head}.items()}


def outcome(tensors: dict[str, Any], impl: str, dtype: torch.dtype, **see: Any) -> dict[str, Tensor]:
    """Output, log-sum-exp and all gradients, with gradient through both."""
    leaves = {name: x.to(dtype).requires_grad_() for name, x in tensors.items()}
    named = {{"b": "bias", "g": "gate"}.get(name, name): x for name, x in leaves.items()}
    out, lse = relative_attention(**named, **see, with_lse=True, impl=impl)  # type: ignore[arg-type]
    assert lse is not None
    generator = torch.Generator().manual_seed(1)
    draw = [torch.randn(x.shape, generator=generator).to(x) for x in (out, lse)]
    loss = (out * draw[0]).sum() + (lse * draw[1]).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"out": out, "lse": lse, **dict(zip(leaves, gradients, strict=True))}


def assert_equal(tensors: dict[str, Any], tolerance: dict[torch.dtype, float] = TOLERANCE, **see: Any) -> None:
    dtype = tensors["q"].dtype
    got, want = outcome(tensors, "fused", dtype, **see), outcome(tensors, "eager", torch.float64, **see)
    for name, expected in want.items():
        assert dispatch.relative_error(got[name], expected) < tolerance[dtype], name


def lengths(*values: int) -> Tensor:
    return torch.tensor(values, device=DEVICE)


SEGMENTS: dict[str, dict[str, Any]] = {
    "memory and segment": {"queries": 40, "slots": 24, "heads": 2},
    "three heads": {"queries": 70, "slots": 64, "heads": 3},
    "whole tiles": {"queries": 64, "slots": 64},
    "odd lengths": {"queries": 37, "slots": 13},
    "no memory": {"queries": 33, "slots": 0},
    "one query": {"queries": 1, "slots": 20},
    "few queries, long memory": {"queries": 9, "slots": 95},
    "window": {"queries": 40, "slots": 60, "mask": Causal(window=33)},
    "rows with less memory": {"queries": 24, "slots": 40, "lengths": (24, 51)},
    "rows with less memory in a window": {"queries": 24, "slots": 40, "lengths": (24, 51), "mask": Causal(window=20)},
    "rows of limited keys": {"queries": 20, "slots": 0, "limits": (3, 17)},
    "many rows of few keys": {"queries": 150, "slots": 0, "limits": (2, 5), "heads": 2},
    "many rows of a tile of keys": {"queries": 140, "slots": 0, "limits": (64, 33)},
    "limited keys and a bias": {"queries": 100, "slots": 0, "limits": (7, 40), "parts": "rub"},
    "limited keys in half precision": {"queries": 200, "slots": 0, "limits": (70, 10), "dtype": torch.float16},
    "no positions": {"queries": 40, "slots": 24, "parts": ""},
    "no positions and a bias of the keys": {"queries": 40, "slots": 24, "parts": "u", "heads": 2},
    "learned table with a bias": {"queries": 24, "slots": 20, "parts": "rub"},
    "table longer than needed": {"queries": 24, "slots": 20, "more": 5},
    "head size between powers of 2": {"queries": 20, "slots": 12, "size": 41},
}


SLOW_SEGMENTS = (
    "three heads",
    "whole tiles",
    "no memory",
    "few queries, long memory",
    "window",
    "rows with less memory in a window",
    "many rows of few keys",
    "many rows of a tile of keys",
    "limited keys and a bias",
    "table longer than needed",
)
"""In the interpreter, with parts that other segments have too."""


@pytest.mark.parametrize("name", few(SEGMENTS, lambda name: name not in SLOW_SEGMENTS, FURTHER))
def test_kernels_equal_the_plain_path(name):
    case = SEGMENTS[name]
    queries, slots = case["queries"], case["slots"]
    keys, options = queries + slots, {name: case[name] for name in ("size", "parts", "heads", "dtype") if name in case}
    tensors = inputs(queries, keys, keys + case.get("more", 0), **options)
    mask: Mask = KeyLimit(lengths(*case["limits"])) if "limits" in case else case.get("mask", Causal())
    valid = lengths(*case["lengths"]) if "lengths" in case else None
    assert_equal(tensors, offset=slots, mask=mask, lengths=valid)


def test_looking_ahead_many_queries_read_few_keys():
    assert_equal(inputs(60, 20, 60), offset=0)


@pytest.mark.parametrize("sees", [False, True])
def test_blocks_of_memory_tokens(sees):
    memory, cached, tokens = 3, 9, lengths(26, 14)
    rows = 2 * memory + 26
    tensors = inputs(rows, rows + cached, rows + cached + memory - 1)
    mask = Blocks(memory, memory, tokens, memory_sees_cache=sees)
    assert_equal(tensors, offset=cached, ahead=memory - 1, mask=mask)


def test_blocks_without_positions_see_ahead() -> None:
    rows = 2 * 40 + 26
    mask = Blocks(40, 40, lengths(26, 14))
    assert_equal(inputs(rows, rows, rows, parts=""), offset=0, mask=mask)


HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter has no bf16 products
SEEN: dict[str, dict[str, Any]] = {
    "all": {},
    "rows with less memory": {"lengths": (134, 90)},
    "a window": {"mask": Causal(window=70)},
    "limited keys": {"limits": (134, 80)},
    "blocks": {"mask": Blocks(3, 3, lengths(64, 50)), "ahead": 2},
}


def test_half_precision() -> None:
    assert_equal(inputs(70, 134, 134, 32, dtype=HALF), offset=64)


# The interpreter is slow, so that one size is enough without a GPU.
@pytest.mark.parametrize("size", few([16, 32, 64, 128], lambda size: size == 64 or DEVICE.type == "cuda"))
@pytest.mark.parametrize("name", few(SEEN, lambda name: name not in ("all", "rows with less memory"), FURTHER))
def test_half_precision_of_every_mask_and_head_size(name: str, size: int) -> None:
    """Each of these is a program of its own, and so is each size of heads."""
    case = dict(SEEN[name])
    valid = lengths(*case.pop("lengths")) if "lengths" in case else None
    case = {"mask": KeyLimit(lengths(*case["limits"]))} if "limits" in case else case
    narrow = 1.5 if size == 16 else 1.0  # errors average over fewer dimensions
    tolerance = {dtype: narrow * error for dtype, error in ROUNDED.items()}
    assert_equal(inputs(70, 134, 136, size, dtype=HALF), tolerance, offset=64, lengths=valid, **case)


def test_scores_too_large_for_16_bits_do_not_overflow():
    tensors = inputs(20, 40, 40, dtype=torch.float16)
    large = {"q": tensors["q"] * 100, "r": tensors["r"] * 5000}
    out, _ = relative_attention(**{**tensors, **large}, offset=20, impl="fused")
    assert bool(out.isfinite().all())


def test_a_second_backward_pass_equals_the_first():
    """The first one uses up the scores that the forward pass kept."""
    leaves: dict[str, Any] = {name: x.requires_grad_() for name, x in inputs(24, 40, 40).items()}
    out, _ = relative_attention(**leaves, offset=16, impl="fused")
    first = torch.autograd.grad(out.sum(), list(leaves.values()), retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(out.sum(), list(leaves.values())), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("limit", ["KEPT_SHARE", "KEPT_BY_ALL"])
def test_scores_made_again_equal_those_kept(limit, monkeypatch):
    tensors = inputs(24, 40, 40)
    kept = outcome(tensors, "fused", torch.float32, offset=16)
    monkeypatch.setattr(launch, limit, 0.0)
    for name, again in outcome(tensors, "fused", torch.float32, offset=16).items():
        assert torch.equal(again, kept[name]), name


def test_many_layers_with_many_keys_keep_no_scores():
    """On an H200, whose memory the interpreter assumes: each call is small enough, 24 of them are not."""

    def keeps(num_calls, slots):
        q, k = (torch.empty(16, 8, rows, 128, dtype=torch.bfloat16, device="meta") for rows in (384, 384 + slots))
        r = torch.empty(8, 384 + slots, 128, dtype=torch.bfloat16, device="meta")
        u = torch.empty(8, 128, dtype=torch.bfloat16, device="meta")
        nothing = dict.fromkeys(("bias", "gate", "begin", "low", "high", "limit", "seed"))
        numbers = {"offset": slots, "ahead": 0, "window": 0, "rate": 0.0, "root": 1.0, "num_calls": num_calls}
        call: Any = {"q": q, "k": k, "v": k, "r": r, "u": u, "w": u, **nothing, **numbers}
        return launch.keep_scores(launch.Arguments(**call))

    assert keeps(4, 2304) and keeps(24, 128) and not keeps(24, 2304)


def test_dropout_is_the_same_in_both_passes():
    """Identity matrices as values show the probabilities after dropout: the plain formula then has every gradient."""
    size, rate = 32, 0.4
    tensors = inputs(size, size, size, size)
    tensors["v"] = torch.eye(size, device=DEVICE).expand(BATCH, HEADS, size, size).contiguous()
    leaves: dict[str, Any] = {name: x.requires_grad_() for name, x in tensors.items()}
    out, _ = relative_attention(**leaves, offset=0, dropout=rate, impl="fused")
    keep = (out.detach() != 0) / (1 - rate)
    share = float((keep == 0).sum() - BATCH * HEADS * size * (size - 1) / 2) / (BATCH * HEADS * size * (size + 1) / 2)
    assert abs(share - rate) < 0.05
    draw = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    got = torch.autograd.grad((out * draw).sum(), list(leaves.values()))
    exact = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    plain = relative_attention_probabilities(exact) * keep.double() @ exact["v"]
    want = torch.autograd.grad((plain * draw.double()).sum(), list(exact.values()))
    assert dispatch.relative_error(out, plain) < 1e-5
    for name, a, b in zip(leaves, got, want, strict=True):
        assert dispatch.relative_error(a, b) < 1e-5, name


def test_dropout_is_independent_across_queries_keys_heads_and_calls():
    size, rate = 64, 0.5
    zeros: dict[str, Any] = {name: torch.zeros_like(x) for name, x in inputs(size, size, size, size, heads=2).items()}
    zeros["v"] = torch.eye(size, device=DEVICE).expand(BATCH, 2, size, size).contiguous()
    first, second = (
        torch.sign(relative_attention(**zeros, offset=0, dropout=rate, impl="fused")[0]) * 2 - 1 for _ in range(2)
    )
    pairs = {
        "calls": first * second,
        "queries": first[:, :, 1:] * first[:, :, :-1],
        "keys": first[..., 1:] * first[..., :-1],
        "heads": first[:, 1:] * first[:, :-1],
        "rows of the batch": first[1:] * first[:-1],
    }
    for name, products in pairs.items():
        seen = products[..., size // 2 :, : size // 2 - 1]
        assert abs(float(seen.mean())) < 5 * seen.numel() ** -0.5, name


def relative_attention_probabilities(tensors: dict[str, Any]) -> Tensor:
    from mnemo.ops import relative_attention_reference

    return relative_attention_reference(**tensors, offset=0).probabilities


def test_operators_hold_what_torch_asks_of_them():
    """Schemas, fake kernels and autograd registration."""
    from mnemo.ops.cuda.operator import relative_attention as operator

    q, k, v, r, u, w = inputs(16, 24, 24).values()
    gate = torch.randn(BATCH, 16, HEADS, device=DEVICE)
    *leaves, gate = [x.clone().requires_grad_() for x in (q, k, v, r, u, w, gate)]
    arguments = (*leaves, None, gate, None, None, None, None, None, 8, 0, 0, 0.0, 0.25, 1, True)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(operator, arguments, test_utils=tests)


def test_one_graph_without_breaks():
    tensors: dict[str, Any] = {name: x.requires_grad_() for name, x in inputs(16, 24, 24).items()}

    def loss(tensors: dict[str, Any]) -> Tensor:
        out, lse = relative_attention(**tensors, offset=8, impl="fused", with_lse=True)
        assert lse is not None
        return out.square().sum() + lse.sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for expected, got in zip(
        *(torch.autograd.grad(f(tensors), list(tensors.values())) for f in (loss, compiled)), strict=True
    ):
        torch.testing.assert_close(got, expected)


def test_checkpointed_layers_recompute_the_same():
    from torch.utils.checkpoint import checkpoint

    tensors: dict[str, Any] = {name: x.requires_grad_() for name, x in inputs(16, 24, 24).items()}

    def loss() -> Tensor:
        return relative_attention(**tensors, offset=8, impl="fused")[0].square().sum()

    plain = torch.autograd.grad(loss(), list(tensors.values()))
    again = torch.autograd.grad(checkpoint(loss, use_reentrant=False), list(tensors.values()))  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.parametrize("batch, queries, slots", [(1, 1, 0), (3, 5, 2), (2, 17, 40), (22, 64, 8), (5, 9, 0)])
def test_the_two_views_of_scores_are_one(batch, queries, slots):
    """By key and by distance, every visible pair is the same element, and no row's keys fall on another's."""
    layout = Layout(batch, 2, queries, queries + slots, queries + slots)
    marks = torch.zeros(layout.num_elements)
    by_key, by_distance = layout.by_key(marks), layout.by_distance(marks)
    for i in range(queries):
        by_key[:, :, i // 8, i % 8] = float("nan")  # everything that a kernel may write of this row
    for i in range(queries):
        for j in range(i + slots + 1):
            by_key[1, batch - 1, i // 8, i % 8, j] = 1 + i * layout.num_keys + j
    for i in range(queries):
        row = (8 + i % 8) * layout.group_rows + i // 8 * batch + batch - 1
        for j in range(i + slots + 1):
            column = j - i + queries - 1 + i % 8 + layout.pad
            assert by_distance[row, column] == 1 + i * layout.num_keys + j
    assert by_key.stride()[-1] == 1 and all(stride % 8 == 0 for stride in by_key.stride()[:-1])
    assert layout.first % 8 == 0 and layout.pitch % 16 == 0


@triton.jit
def list_programs(PLACES, num_tiles):
    tile, sequence = tile_of_program(num_tiles)  # pyright: ignore[reportGeneralTypeIssues]
    tl.store(PLACES + 2 * tl.program_id(0), sequence)
    tl.store(PLACES + 2 * tl.program_id(0) + 1, tile)


GATED: dict[str, dict[str, Any]] = {
    "no positions": {"parts": "g", "heads": 2},
    "positions": {"parts": "ruwg", "heads": 3},
    "odd heads in half precision": {"parts": "g", "size": 41, "dtype": torch.float16},
    "rows with less memory": {"parts": "g", "see": {"lengths": lengths(40, 51)}},
    "window": {"parts": "rg", "see": {"mask": Causal(window=20)}},
}


@pytest.mark.parametrize("name", few(GATED, lambda name: name != "window"))
def test_gates_inside_are_gates_after_attention(name: str) -> None:
    """Outputs and all gradients, with gradient through the log-sum-exps too."""
    case = GATED[name]
    options = {option: case[option] for option in ("parts", "size", "dtype", "heads") if option in case}
    see = {"offset": 30, **case.get("see", {})}
    assert_equal(inputs(37, 67, 67, **options), {**TOLERANCE, **ROUNDED}, **see)


def test_gates_that_are_almost_shut_or_open_have_finite_gradients() -> None:
    tensors = inputs(33, 40, 40, parts="g", heads=2)
    tensors["g"] = torch.linspace(-300, 300, tensors["g"].numel(), device=DEVICE).view(tensors["g"].shape)
    got = outcome(tensors, "fused", torch.float32, offset=7)
    want = outcome(tensors, "eager", torch.float64, offset=7)
    for name, expected in want.items():
        assert dispatch.relative_error(got[name], expected) < TOLERANCE[torch.float32], name


def test_gates_are_tested_before_their_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch._gate_failure(DEVICE, torch.float32, 16) is None
    monkeypatch.setattr(dispatch, "apply_gate", lambda out, gate: out + 0 * gate.sum())
    assert (dispatch._gate_failure(DEVICE, torch.float32, 16) or "").startswith("error")


@pytest.mark.parametrize(("sequences", "tiles"), [(3, 5), (90, 8), pytest.param(2, 600, marks=FURTHER)])
def test_every_tile_of_every_sequence_has_one_program(sequences: int, tiles: int) -> None:
    places = torch.full((sequences * tiles, 2), -1, device=DEVICE)
    list_programs[(sequences * tiles,)](places, tiles)
    listed = [tuple(place) for place in places.tolist()]
    assert sorted(listed) == [(sequence, tile) for sequence in range(sequences) for tile in range(tiles)]
    last = min(sequences, -(-512 // tiles))
    assert all(tile == tiles - 1 for _, tile in listed[-last:])


def test_compilers_are_told_how_all_outputs_are_stored():
    """Also where tables are views of something else, as Shaw's are."""
    tensors = inputs(10, 25, 25, parts="ruwb", heads=2)
    for name in "ruwb":
        tensors[name] = tensors[name].transpose(0, 1).contiguous().transpose(0, 1)
    assert not any(tensors[name].is_contiguous() for name in "ruwb")

    def outputs(tensors: dict[str, Tensor]) -> list[Tensor]:
        gate = torch.zeros(10, BATCH, 2, device=tensors["q"].device).transpose(0, 1)
        operands = [*tensors.values(), gate, *[None] * 5, 15, 0, 0, 0.0, 0.25, 1]
        out, lse, scores = operator.relative_attention(*operands, True)
        gradients = operator.relative_attention_backward(out, lse, out, lse, scores, *operands)
        return [out, lse, scores, *gradients]

    with FakeTensorMode() as mode:
        told = outputs({name: mode.from_tensor(x) for name, x in tensors.items()})
    for want, got in zip(outputs(tensors), told, strict=True):
        assert (want.shape, want.stride(), want.dtype) == (got.shape, got.stride(), got.dtype)


def test_who_does_not_get_kernels_hears_why(monkeypatch):
    cpu, half = torch.device("cpu"), torch.float16
    assert "CUDA" in (kernel_obstacle(cpu, half, 64) or "")
    monkeypatch.setattr("mnemo.ops.HAS_TRITON", False)
    assert "Triton" in (kernel_obstacle(torch.device("cuda"), half, 64) or "")
    assert "float64" in (dispatch.kernel_obstacle(cpu, torch.float64, 64) or "")
    assert "256" in (dispatch.kernel_obstacle(cpu, half, 256) or "")
    assert "bias" in (call_obstacle(False, True, "signed") or "")
    assert "wrap" in (call_obstacle(True, False, "wrap") or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert "bf16" in (dispatch.device_obstacle(torch.device("cuda"), torch.bfloat16, 64) or "")


@pytest.mark.parametrize(
    ("missing", "dtype", "size", "why"),
    [
        ("TRITON_INTERPRET", torch.float32, 16, "CUDA device"),
        (None, torch.float64, 16, "float64"),
        (None, torch.float32, 200, "wider"),
        ("triton", torch.float32, 16, "CUDA device"),
    ],
)
def test_kernels_that_were_asked_for_in_vain_are_replaced_with_one_notice(
    missing: str | None, dtype: torch.dtype, size: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available() and why == "CUDA device":
        pytest.skip("here they are not asked for in vain")
    monkeypatch.setattr("mnemo.ops._warned", set())
    if missing == "triton":
        monkeypatch.setattr("mnemo.ops.HAS_TRITON", False)
    elif missing is not None:
        monkeypatch.delenv(missing)
    tensors = inputs(3, 5, 5, size, dtype=dtype)
    with pytest.warns(UserWarning, match=f"plain PyTorch, which is slower: .*{why}"):
        out, _ = relative_attention(**tensors, offset=2, impl="fused")
    again, _ = relative_attention(**tensors, offset=2, impl="fused")  # a second warning would be an error here
    assert torch.equal(out, again)
    assert torch.equal(out, relative_attention(**tensors, offset=2, impl="eager")[0])


def test_an_implementation_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="'flash' is none of auto, reference, eager, fused"):
        relative_attention(**inputs(3, 5, 5), offset=2, impl="flash")  # type: ignore[arg-type]


def test_decoding_kernels_that_do_not_run_are_replaced_with_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(decode_kernels, "attend", fail)
    monkeypatch.setattr(decode_kernels, "_found", {})
    with pytest.warns(UserWarning, match="decoding runs in plain PyTorch, which is slower: .*no such instruction"):
        assert not decode_kernels.works(torch.device("cpu"), torch.float32)
    assert not decode_kernels.works(torch.device("cpu"), torch.float32)
    monkeypatch.setattr(decode_kernels, "attend", decode_attention_plain)
    monkeypatch.setattr(decode_kernels, "_found", {})
    assert decode_kernels.works(torch.device("cpu"), torch.float32)


def test_products_of_few_rows_that_do_not_run_are_replaced_with_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.T + 1

    if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no kernel runs here")
    monkeypatch.setattr(decode_projection, "_found", {})
    assert decode_projection.works(DEVICE, torch.float32)
    monkeypatch.setattr(decode_projection, "project", wrong)
    monkeypatch.setattr(decode_projection, "_found", {})
    with pytest.warns(UserWarning, match="few rows are decoded by more kernels, which is slower: its kernels are off"):
        assert not decode_projection.works(DEVICE, torch.float32)
    assert not decode_projection.works(DEVICE, torch.float32)


@pytest.mark.parametrize("error", [float("inf"), RuntimeError("no such instruction")])
def test_kernels_that_err_are_not_trusted(monkeypatch, error):
    def errors(*_: Any) -> dict[str, float]:
        if isinstance(error, Exception):
            raise error
        return {"out": error}

    monkeypatch.setattr(dispatch, "_errors", errors)
    monkeypatch.setattr(dispatch, "OFF", None)
    monkeypatch.setattr(dispatch, "_tested", set())
    monkeypatch.setenv("MNEMO_TEST_KERNELS", "1")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.warns(UserWarning, match="going on slower"):
        assert dispatch.device_obstacle(DEVICE, torch.float32, 16)
    assert str(error) in (dispatch.device_obstacle(DEVICE, torch.float32, 16) or "")  # said once


def test_kernels_for_spans_are_tested_only_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []

    def errors(device: torch.device, dtype: torch.dtype, size: int, kind: str) -> dict[str, float]:
        kinds.append(kind)
        return {"out": 0.0}

    monkeypatch.setattr(dispatch, "_errors", errors)
    monkeypatch.setattr(dispatch, "OFF", None)
    monkeypatch.setattr(dispatch, "_tested", set())
    monkeypatch.setenv("MNEMO_TEST_KERNELS", "1")
    monkeypatch.setattr(dispatch, "note_passed", lambda *test: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert dispatch.kernel_obstacle(DEVICE, torch.float32, 16, spans=False) is None
    assert kinds == ["causal"]
    assert dispatch.kernel_obstacle(DEVICE, torch.float32, 16) is None
    assert kinds == ["causal", "spans"]


@pytest.mark.parametrize(
    ("change", "spans"),
    [({}, False), ({"memory": Plan(long=Lookahead(length=4))}, True), ({"tokens": MemoryTokens(num=2)}, True)],
)
def test_a_model_of_plain_memories_needs_no_kernels_for_spans(
    change: dict[str, Any], spans: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("mnemo.model.model.kernel_obstacle", lambda *call, spans: asked.append(spans) or "none here")
    config = ModelConfig(vocab_size=8, num_layers=2, dim=32, num_heads=2, head_dim=16, inner_dim=32, **change)
    assert attention_obstacle(config, DEVICE, torch.float32) == "none here"
    assert asked == [spans]


def test_launchers_are_made_in_the_threads_that_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemo.ops.cuda import compile_together

    made: list[tuple[str, int]] = []

    class Card:
        @staticmethod
        def launcher_cls(src: str, metadata: int) -> None:
            made.append((src, metadata))
            raise RuntimeError("no C compiler")

    monkeypatch.setattr(compile_together, "driver", SimpleNamespace(active=Card))
    with compile_together.CompileThreads(2) as threads:
        kernel = threads.submit(lambda source: SimpleNamespace(src=source, metadata=3), "code").result()
    assert kernel.src == "code" and made == [("code", 3)]


def test_every_call_draws_a_seed_of_its_own_when_compiled() -> None:
    from mnemo.ops.cuda.operator import draw_seed

    def loss(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first, second = draw_seed(q.detach(), k.detach()), draw_seed(q.detach(), q.detach())
        return (q * first + k * second).sum(), first, second

    q, k = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    seen: set[int] = set()
    for _ in range(2):
        total, first, second = compiled(q, k)
        by_q, by_k = torch.autograd.grad(total, [q, k])
        assert int(by_q[0, 0]) == pytest.approx(int(first), rel=1e-6) and by_k[0, 0] == second.float()
        seen |= {int(first), int(second)}
    assert len(seen) == 4
