"""Compare with reference files of the LaMemo authors' code: losses, caches, memorising coefficients and gradients.

Keys: parameter names, `segT.NAME` and `grad.NAME`; all tensors have time first.
Shapes: B batch, L segment, M memory slots, m of them valid, H heads.
"""

from __future__ import annotations

from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.convert import lamemo as convert
from mnemo.interop.convert.tensor_map import import_tensors
from mnemo.interop.convert.transformer_xl import empty_model
from mnemo.interop.parity.reference import Reference
from mnemo.interop.parity.weights import check_frequencies, check_gradients, require_float64
from mnemo.memory import Lookahead, LookaheadState
from mnemo.memory.state import State
from mnemo.model import Model


def check(reference: Reference) -> None:
    memory = Lookahead(
        length=reference.setting("mem_len", int), epsilon=reference.config.get("eps", 1e-6), refresh_last=True
    )
    compare(reference, load(reference, memory.published()))


def load(reference: Reference, memory: Lookahead) -> Model:
    """Load the file's model as ours, with the given memory."""
    config = convert.config_from_authors(reference.config, memory)
    model = empty_model(config)
    tensor_map = convert.authors_tensor_map(model)
    parameters = require_float64({name: reference.take(name) for name in tensor_map if name in reference})
    model.load_state_dict(import_tensors(tensor_map, parameters, dict(model.named_parameters())), assign=True)
    check_frequencies(reference, "pos_emb.inv_freq", config.dim)
    return model.eval()


def compare(reference: Reference, model: Model) -> None:
    """Read the segments of the file and compare all their values."""
    state: State = model.init(reference.setting("bsz", int))
    loss = None
    # Gradients stay enabled in all segments, so that a memory that wrongly passes gradient is detected.
    for index in range(len(reference.setting("seg_lens", list))):
        loss, state = _check_segment(reference, model, state, f"seg{index}.")
    if loss is None:
        raise MnemoError("configuration: no segments")
    loss.mean().backward()
    check_gradients(reference, "grad.", model, convert.authors_tensor_map(model))


def _check_segment(reference: Reference, model: Model, state: State, key: str) -> tuple[Tensor, State]:
    """Read a segment, compare all its values in the file, and return its losses (B, L)."""
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
