"""One step of a model as a graph, with the state in and out: `torch.export`, and ONNX from it.

A step reads one segment of a fixed number of tokens behind a state and gives the logits and the next state. A state is
a dictionary of tensors, named as `mnemo.memory.state.leaves` names them; `step_state(model, batch)` is the first one.
With `tokens=1` every token is a segment of its own, which enters the memory at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.errors import MnemoError
from mnemo.hf.modeling import MnemoForCausalLM
from mnemo.memory.state import State, leaves, tree_map
from mnemo.model import Model

TOKENS, LOGITS, STATE, NEXT = "tokens", "logits", "state.", "next."


class Step(nn.Module):
    def __init__(self, model: Model, form: State) -> None:
        super().__init__()
        self.model, self._form = model, form

    def forward(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        given = iter(state.values())
        # the reference path: plain operations that every runtime has
        out, after, _ = self.model.explain(tokens, tree_map(lambda _: next(given), self._form))
        return self.model.logits(out), dict(leaves(after))


def step_state(model: MnemoForCausalLM, batch: int = 1) -> dict[str, Tensor]:
    """What a text starts with."""
    return dict(leaves(model.start_state(batch)))


def export_step(model: MnemoForCausalLM, *, batch: int = 1, tokens: int | None = None) -> torch.export.ExportedProgram:
    """`logits, state = program.module()(tokens, state)` for tokens (batch, tokens); a segment when left out."""
    width = model.config.segment if tokens is None else tokens
    if batch < 1 or width < 1:
        raise MnemoError(f"a step reads at least one token of one row, not {width} of {batch}")
    step = Step(model.model, model.start_state(batch)).eval()
    example = torch.zeros(batch, width, dtype=torch.int64, device=model.device)
    with torch.no_grad():
        step(example, step_state(model, batch))  # tables of positions are kept from call to call: let them be real ones
        return torch.export.export(step, (example, step_state(model, batch)))


def export_onnx(model: MnemoForCausalLM, path: str | Path, *, batch: int = 1, tokens: int | None = None) -> Path:
    """Write a step as an ONNX file: inputs `tokens` and `state.NAME`, outputs `logits` and `next.NAME`.

    The file is run once and must give the model's numbers; else it is removed.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise MnemoError("ONNX needs further libraries: pip install 'mnemo-lm[onnx]'") from None
    program = export_step(model, batch=batch, tokens=tokens)
    names = list(step_state(model, batch))
    options: dict[str, Any] = {
        "input_names": [TOKENS, *[STATE + name for name in names]],
        "output_names": [LOGITS, *[NEXT + name for name in names]],
    }
    torch.onnx.export(program, (), str(path), dynamo=True, verbose=False, **options)
    tokens_of = torch.zeros(batch, model.config.segment if tokens is None else tokens, dtype=torch.int64)
    try:
        _check(onnxruntime.InferenceSession(str(path)), program, tokens_of, step_state(model, batch))
    except Exception as error:
        Path(path).unlink(missing_ok=True)
        raise MnemoError(f"this model's memory does not fit ONNX: {str(error).splitlines()[0]}") from None
    return Path(path)


def _check(session: Any, program: torch.export.ExportedProgram, tokens: Tensor, state: dict[str, Tensor]) -> None:
    wanted = {node.name for node in session.get_inputs()}
    given = {TOKENS: tokens} | {STATE + name: leaf for name, leaf in state.items()}
    (logits,) = session.run([LOGITS], {name: leaf.cpu().numpy() for name, leaf in given.items() if name in wanted})
    expected, _ = program.module()(tokens.to(next(iter(state.values())).device), state)
    torch.testing.assert_close(torch.from_numpy(logits), expected.detach().cpu(), rtol=1e-3, atol=1e-3)
