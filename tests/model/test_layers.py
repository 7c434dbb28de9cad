"""Options of newer models: rms norms, normalised queries and keys, residual branches that begin small."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.models import SMALL, random_model, random_tokens
from helpers.tolerances import assert_close

from mnemo.cost.flops import flops_per_token
from mnemo.memory import XL, Plan
from mnemo.model import InitConfig, Model, ModelConfig
from mnemo.model.layers import modules
from mnemo.model.layers.modules import RMSNorm
from mnemo.model.positions import Rotary
from mnemo.ops import relative_attention, using
from mnemo.recipes.presets import preset
from mnemo.training.data import build_stream

MODERN: dict[str, Any] = dict(
    positions=Rotary(), norm="pre", final_norm=True, norm_kind="rms", qk_norm=True, head_gate=True
)


def test_rms_norm_is_its_equation_in_the_type_of_its_input() -> None:
    torch.manual_seed(0)
    norm = RMSNorm(6, 1e-3).double()
    with torch.no_grad():
        norm.weight.normal_()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight)
    assert RMSNorm(6, 1e-3)(x.half()).dtype == torch.float16


def test_queries_and_keys_have_the_size_of_their_norms() -> None:
    model = random_model(**MODERN, norm_eps=0.0)
    layer = model.layers()[0]
    with torch.no_grad():
        layer.attention.norm_query.weight.fill_(2.0)  # type: ignore[operator, union-attr]
        layer.attention.norm_key.weight.fill_(3.0)  # type: ignore[operator, union-attr]
    x = torch.randn(2, 4, model.config.dim, dtype=torch.float64)
    keys, values = layer.keys_values(x)
    assert_close(
        layer.queries(x).square().mean(-1), torch.full((2, 2, 4), 4.0, dtype=torch.float64), check_stride=False
    )
    assert_close(keys.square().mean(-1), torch.full((2, 2, 4), 9.0, dtype=torch.float64), check_stride=False)
    assert values.square().mean(-1).std() > 0.1


def test_the_scale_of_query_weights_changes_nothing_behind_the_norm() -> None:
    model, tokens = random_model(**MODERN, norm_eps=1e-14), random_tokens(2, 5)
    before = model(tokens)[0].hidden
    with torch.no_grad():
        model.layers()[1].attention.query.weight.mul_(7.0)
    assert_close(model(tokens)[0].hidden, before)


def test_a_gate_scales_what_its_head_has_read() -> None:
    gated, open_ = random_model(**MODERN), random_model(**{**MODERN, "head_gate": False})
    open_.load_state_dict(gated.state_dict(), strict=False)
    x, context = torch.randn(2, 2, 4, SMALL["dim"], dtype=torch.float64)
    layer = gated.layers()[0]
    assert layer.gate is not None
    gates = torch.sigmoid(layer.norm_attention(x) @ layer.gate.linear.weight.T).repeat_interleave(6, -1)
    assert_close(layer.finish(x, context), open_.layers()[0].finish(x, context * gates))


@pytest.mark.native
def test_gates_and_joined_projections_in_kernels_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = random_model(**MODERN, memory=Plan(long=XL(length=5)), dtype=torch.float32).to(device)
    tokens, results = random_tokens(2, 6).to(device), []
    inside: list[bool] = []
    joined: list[bool] = []
    joins = modules.TransformerLayer._joins

    def noted(*args: Any) -> bool:
        joined.append(joins(*args))
        return joined[-1]

    def counted(*args: Any, gate: Any = None, **options: Any) -> Any:
        inside.append(gate is not None)
        return relative_attention(*args, gate=gate, **options)

    monkeypatch.setattr(modules, "relative_attention", counted)
    monkeypatch.setattr(modules.TransformerLayer, "_joins", noted)
    for impl in ("eager", "fused"):
        with using(impl):
            _, state = model(tokens)
            out, _ = model(tokens, state)
            gradients = torch.autograd.grad(out.hidden.square().sum(), list(model.stages.parameters()))
        results.append([out.hidden, *gradients])
    assert inside == [False] * 6 + [True] * 6 and joined == [False] * 6 + [True] * 6
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected)


def test_gates_are_counted() -> None:
    gated, without = random_model(**MODERN), random_model(**{**MODERN, "head_gate": False})
    ours, theirs = (flops_per_token(model, (5, 5, 5), segment=4) for model in (gated, without))
    assert ours.projections - theirs.projections == 3 * 2 * SMALL["dim"] * SMALL["num_heads"]
    assert ours[1:] == theirs[1:]


def test_reading_by_content_gives_no_gradient_to_weights() -> None:
    model = random_model(**MODERN)
    x = torch.randn(1, 3, model.config.dim, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(1, 4, model.config.dim, dtype=torch.float64, requires_grad=True)
    layer = model.layers()[0]
    layer.content_attention(x, rows, torch.tensor([4])).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.grad is not None and rows.grad is not None and rows.grad.abs().sum() > 0


def small_model(residual: str) -> Model:
    torch.manual_seed(0)
    config = ModelConfig(
        **{**SMALL, **MODERN, "dim": 64, "inner_dim": 128},
        init=InitConfig(residual=residual),  # type: ignore[arg-type]
    )
    return Model(config)


def test_residual_weights_begin_narrower_or_at_zero() -> None:
    same, scaled, zero = (small_model(kind).state_dict() for kind in ("same", "scaled", "zero"))
    for name, weight in same.items():
        writes = name.endswith(("attention.output.weight", "feed_forward.outer.weight"))
        assert_close(scaled[name], weight * 6**-0.5 if writes else weight)
        assert torch.equal(zero[name], torch.zeros_like(weight) if writes else weight)


def test_a_model_of_zero_branches_is_the_identity() -> None:
    model, tokens = small_model("zero"), random_tokens(2, 5)
    assert torch.equal(model(tokens)[0].hidden, model.norm(model.embedding(tokens)))


def test_the_parts_compile_into_one_graph() -> None:
    layer = random_model(**MODERN).layers()[0]

    def parts(x: torch.Tensor) -> torch.Tensor:
        keys, values = layer.keys_values(x)
        mixed = (layer.queries(x) * keys + values).transpose(1, 2).flatten(2)
        return layer.finish(x, mixed)

    x = torch.randn(2, 4, SMALL["dim"], dtype=torch.float64)
    assert_close(torch.compile(parts, fullgraph=True, backend="eager")(x), parts(x))


@pytest.mark.parametrize("name", ["novels", "enwik8", "enwik8-long"])
def test_the_speedruns_fit_their_limits(name: str) -> None:
    model = preset(f"speedrun-{name}").model
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in Model(model).parameters()) == 38_105_344 < 41_000_000
    assert model.memory.lengths(12) == (128, 128, 1024) * 4


def test_the_large_speedrun_has_four_long_memories_too() -> None:
    model = preset("speedrun-enwik8-large").model
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in Model(model).parameters()) == 99_690_752
    lengths = model.memory.lengths(14)
    assert lengths.count(1024) == 4 and lengths.count(128) == 10


def test_a_speedrun_batch_always_has_one_shape() -> None:
    """A shorter last segment would be compiled anew in every run."""
    recipe = preset("speedrun-novels")
    split = SimpleNamespace(ids=np.zeros(64 * 1300, dtype=np.uint8), documents=None)
    stream = build_stream(recipe, split, SimpleNamespace(vocab_size=256, name="novels"))  # type: ignore[arg-type]
    cursor, widths = stream.start(), []
    for _ in range(7):
        batch, cursor = stream.read(cursor)
        widths.append(None if batch is None else tuple(batch.tokens.shape))
    assert widths == [(64, 512), (64, 512), None, (64, 512), (64, 512), None, (64, 512)]


def test_longer_memories_of_the_long_layers_only() -> None:
    plan = Plan(long=XL(length=1024), short=XL(length=128), num_long=4)
    assert plan.lengths(12, 2048) == (128, 128, 2048) * 4
