"""Reference files of LaMemo's authors: losses, caches, memorising coefficients and gradients.

Their keys: parameters by their bare names, `segT.NAME` and `grad.NAME`; time first everywhere.
Shapes: B batch, L segment, M memory slots, m of them valid, H heads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mnemo.convert import transformer_xl as convert
from mnemo.convert.layout import Layout, Place, put_all
from mnemo.errors import MnemoError, unknown
from mnemo.memory import Lookahead, LookaheadState, Plan
from mnemo.model import Model, ModelConfig
from mnemo.parity.reference import Reference
from mnemo.state import State

ATTENTION_TYPE = 3
"""Of LaMemo as published; their other numbers are Transformer-XL and ablations."""


def check(reference: Reference) -> None:
    memory = Lookahead(
        length=reference.setting("mem_len", int), epsilon=reference.config.get("eps", 1e-6), refresh_last=True
    )
    compare(reference, load(reference, memory.published()))


def load(reference: Reference, memory: Lookahead) -> Model:
    """The file's model, as ours with such a memory."""
    config = _config(reference, memory)
    model = convert.empty_model(config)
    layout = lamemo_layout(model)
    parameters = {name: reference.take(name) for name in layout if name in reference}
    if any(tensor.dtype != torch.float64 for tensor in parameters.values()):
        raise MnemoError("reference values must be float64")
    model.load_state_dict(put_all(layout, parameters, dict(model.named_parameters())), assign=True)
    exponents = torch.arange(0, config.dim, 2, dtype=torch.float64) / config.dim
    reference.check("positions", "pos_emb.inv_freq", 10000.0**-exponents)
    return model.eval()


def compare(reference: Reference, model: Model) -> None:
    """Read the file's segments and compare everything it holds of them."""
    state: State = model.init(reference.setting("bsz", int))
    loss = None
    # With gradients on for all segments, a memory that let them through would show.
    for index in range(len(reference.setting("seg_lens", list))):
        loss, state = _check_segment(reference, model, state, f"seg{index}.")
    if loss is None:
        raise MnemoError("configuration: no segments")
    loss.mean().backward()
    _check_gradients(reference, model)


def _config(reference: Reference, memory: Lookahead) -> ModelConfig:
    config = reference.config
    if config.get("attn_type", ATTENTION_TYPE) != ATTENTION_TYPE:
        raise MnemoError(f"attn_type {config['attn_type']} is not LaMemo's, which is {ATTENTION_TYPE}")
    norm_eps = config.get("layer_norm_eps", 1e-5)
    defaults = {"tie_weight": True, "same_length": False}
    like_xl = convert.config_from_authors({**defaults, **config, "attn_type": 0, "layer_norm_epsilon": norm_eps})
    try:
        return replace(like_xl, memory=Plan(long=memory))
    except ValueError as error:
        raise MnemoError(f"configuration: {error}") from None


def lamemo_layout(model: Model) -> Layout:
    """Every name in the authors' state dict: Transformer-XL's, with queries apart and the bias for what is ahead."""
    ahead = "stages.0.v_minus"
    layout = {"r_r_bias_future": Place(parts=(ahead,))} if ahead in dict(model.named_parameters()) else {}
    for name, place in convert.authors_layout(model).items():
        if name.endswith("qkv_net.weight"):
            query, key_value = place.parts
            layout[name.replace("qkv_net", "q_net")] = Place(parts=(query,))
            layout[name.replace("qkv_net", "kv_net")] = Place(parts=(key_value,))
        else:
            layout[name] = place
    return layout


def _check_segment(reference: Reference, model: Model, state: State, key: str) -> tuple[Tensor, State]:
    """Read a segment, compare everything the file holds of it, and give its losses (B, L)."""
    tokens, targets = (reference.ids(f"{key}{name}").T for name in ("data", "target"))
    (before,) = state
    if tokens.shape != targets.shape or len(tokens) != len(before.length):
        raise MnemoError(f"'{key}data' and '{key}target' do not fit together")
    alphas: dict[str, Tensor] = {}
    out, state = model(tokens, state, notes=alphas)
    loss = model.loss(out, targets)
    reference.check("losses", f"{key}loss", loss.T)
    (after,) = state
    for name, rows in _caches(after).items():
        if f"{key}mem.{name}" in reference:
            reference.check("memories", f"{key}mem.{name}", _as_theirs(rows, after))
    for name, alpha in alphas.items():
        if f"{key}{name}" in reference:
            reference.check("alphas", f"{key}{name}", _as_theirs(alpha, before))
    return loss, state


def _caches(state: LookaheadState) -> dict[str, Tensor]:
    return {
        "emb": state.inputs,
        **{f"recur.{layer}": contexts for layer, contexts in enumerate(state.contexts)},
        **{f"logden.{layer}": lse for layer, lse in enumerate(state.lse)},
    }


def _as_theirs(rows: Tensor, state: LookaheadState) -> Tensor:
    """(B, M, ...) -> (m, B, ...): the valid slots only."""
    return rows[:, rows.shape[1] - int(state.length[0]) :].transpose(0, 1)


def _check_gradients(reference: Reference, model: Model) -> None:
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }
    layout = lamemo_layout(model)
    for name in reference.group("grad."):
        if name not in layout:
            raise unknown("parameter", name, layout)
        reference.check("gradients", f"grad.{name}", layout[name].take(gradients))
