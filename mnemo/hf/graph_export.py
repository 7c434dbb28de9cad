"""Export one step of a model as a graph, with the state as input and output: `torch.export` and ONNX.

A step takes a state and one segment with a fixed number of tokens, and returns the logits and the next state. A state
is a dictionary of tensors with the names of `mnemo.memory.state.leaves`; `step_state(model, batch)` is the initial one.
With `tokens=1` a segment is a single token, which enters the memory immediately.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.errors import MnemoError, install_command, one_line
from mnemo.hf.memory_tokens.backbone import CausalRows, logits_of
from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM
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
        # The reference path uses only operations that every runtime supports.
        out, after, _ = self.model.explain(tokens, tree_map(lambda _: next(given), self._form))
        return self.model.logits(out), dict(leaves(after))


class MemoryStep(nn.Module):
    """One segment of a transformers model with memory."""

    def __init__(self, model: MemoryForCausalLM, form: State) -> None:
        super().__init__()
        self.model, self._form = model, form
        self._rows = CausalRows(model.backbone, model.config)

    def forward(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        given = iter(state.values())
        before, embeddings = tree_map(lambda _: next(given), self._form), self.model.get_input_embeddings()(tokens)
        hidden, after = self.model.memory_tokens(embeddings, before, self._rows)
        return logits_of(self.model.backbone, hidden), dict(leaves(after))


AnyModel = MnemoForCausalLM | MemoryForCausalLM


def _start(model: AnyModel, batch: int) -> State:
    if isinstance(model, MemoryForCausalLM):
        return model.first_state(batch)
    return model.start_state(batch)


def _step(model: AnyModel, batch: int) -> nn.Module:
    start = _start(model, batch)
    return MemoryStep(model, start) if isinstance(model, MemoryForCausalLM) else Step(model.model, start)


def step_state(model: AnyModel, batch: int = 1) -> dict[str, Tensor]:
    """Return the state at the start of a text."""
    return dict(leaves(_start(model, batch)))


def export_step(model: AnyModel, *, batch: int = 1, tokens: int | None = None) -> torch.export.ExportedProgram:
    """Return a program: `logits, state = program.module()(tokens, state)` with tokens (batch, tokens).

    `tokens`: tokens of a step; by default the configured segment.
    """
    if not isinstance(model, AnyModel):
        raise MnemoError(f"a {type(model).__name__} cannot be exported: expected a language model with memory")
    width = model.config.segment if tokens is None else tokens
    if batch < 1 or width < 1:
        raise MnemoError(f"a step reads at least one token of one row, not {width} of {batch}")
    step = _step(model, batch).eval()
    example = torch.zeros(batch, width, dtype=torch.int64, device=model.device)
    with torch.no_grad():
        step(example, step_state(model, batch))  # fills the cache of position tables with real tensors before tracing
        return torch.export.export(step, (example, step_state(model, batch)))


def export_onnx(model: AnyModel, path: str | Path, *, batch: int = 1, tokens: int | None = None) -> Path:
    """Write a step as an ONNX file with inputs `tokens`, `state.NAME` and outputs `logits`, `next.NAME`.

    The file is run once and compared with the model; if they differ, the file is removed and an error is raised.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise MnemoError(f"ONNX needs further libraries: {install_command('onnx')}") from None
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
        raise MnemoError(f"this model cannot be exported to ONNX: {one_line(error)}") from None
    return Path(path)


def _check(session: Any, program: torch.export.ExportedProgram, tokens: Tensor, state: dict[str, Tensor]) -> None:
    wanted = {node.name for node in session.get_inputs()}
    given = {TOKENS: tokens} | {STATE + name: leaf for name, leaf in state.items()}
    (logits,) = session.run([LOGITS], {name: leaf.cpu().numpy() for name, leaf in given.items() if name in wanted})
    expected, _ = program.module()(tokens.to(next(iter(state.values())).device), state)
    torch.testing.assert_close(torch.from_numpy(logits), expected.detach().cpu(), rtol=1e-3, atol=1e-3)
