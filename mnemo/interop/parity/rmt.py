"""Compare with reference files of the Recurrent Memory Transformer authors' code (LM-RMT).

Keys: `weights/NAME`, `data/t` and `target/t` of segment t. The following may have the prefix of a variant: results of
the segments in order (`losses/t`, `mem_after/t`, `cache_after/t/LEVEL`, `attn_mask/t`, `eval_mean_loss`), gradients
(`grad_*/NAME`), and the last step of the authors' training loop (`trainpy_*`). All tensors have time first.
Shapes: B batch, L segment, m memory tokens, Q rows of a segment with its memory tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.convert import rmt as convert
from mnemo.interop.convert.transformer_xl import empty_model
from mnemo.interop.parity.reference import Reference
from mnemo.interop.parity.weights import check_frequencies, check_gradients, require_float64
from mnemo.memory import TokensState
from mnemo.memory.state import State
from mnemo.model import Model, Output
from mnemo.ops import Causal
from mnemo.training.bptt import Method, Scored, SegmentResult, SlidingHistory, backward

VARIANTS: dict[str, dict[str, bool]] = {
    "": {},
    "rmfc0/": {"memory_sees_cache": False},
    "rmfc1/": {"memory_sees_cache": True},
    "carry/": {"carry_read": True},
    "static/": {"carry_read": False},
}
"""Prefixes of the variants in a file, and how their models differ from the file's configuration."""
METHODS: tuple[Method, ...] = get_args(Method)


class Text(NamedTuple):
    """One segment, (B, L) each."""

    tokens: Tensor
    targets: Tensor
    caches: tuple[Any, ...] | None = None
    """Caches of the layers before the segment, if it is read again"""


def check(reference: Reference) -> None:
    texts = [_text(reference, index) for index in range(reference.setting("n_seg", int))]
    found = {prefix: changes for prefix, changes in VARIANTS.items() if f"{prefix}losses/0" in reference}
    if not texts or not found:
        raise MnemoError("the file holds no losses")
    for prefix, changes in found.items():
        model = load(reference, changes)
        states = _check_evaluation(reference, prefix, model, texts)
        _check_gradients(reference, prefix, model, texts)
        _check_windows(reference, prefix, model, texts, states)
        if f"{prefix}trainpy_window_mem_start" in reference:
            _check_published_loop(reference, prefix, model, texts)


def _text(reference: Reference, index: int) -> Text:
    tokens, targets = (reference.ids(f"{name}/{index}").T.contiguous() for name in ("data", "target"))
    if tokens.shape != targets.shape or len(tokens) != reference.setting("batch", int):
        raise MnemoError(f"'data/{index}' and 'target/{index}' do not fit together")
    return Text(tokens, targets)


def load(reference: Reference, changes: dict[str, bool]) -> Model:
    """Load the file's model as ours, with changed options of memory tokens."""
    config = convert.config_from_authors(reference.config)
    assert config.tokens is not None
    try:
        config = replace(config, tokens=replace(config.tokens, **changes))
    except ValueError as error:
        raise MnemoError(f"configuration: {error}") from None
    parameters = require_float64(reference.group("weights/"))
    model = empty_model(config)
    model.load_state_dict(convert.weights_from_authors(parameters, config), assign=True)
    check_frequencies(reference, "weights/pos_emb.inv_freq", config.dim)
    return model.eval()


def _time_first(rows: Tensor) -> Tensor:
    return rows.transpose(0, 1)


@torch.no_grad()
def _check_evaluation(reference: Reference, prefix: str, model: Model, texts: list[Text]) -> list[State]:
    """Compare the results of all segments in order; returns the states before each and after the last."""
    memory = _Evaluation(model, len(texts[0].tokens))
    states, losses = [memory.state], []
    for index, text in enumerate(texts):
        valid = memory.num_cached
        loss = memory.read(text)
        losses.append(loss)
        states.append(memory.state)
        reference.check("losses", f"{prefix}losses/{index}", _time_first(loss))
        reference.check("memories", f"{prefix}mem_after/{index}", _time_first(memory.tokens()))
        if f"{prefix}attn_mask/{index}" in reference:
            reference.check("masks", f"{prefix}attn_mask/{index}", memory.hidden_keys(valid))
        for level, rows in enumerate(memory.caches()):
            if f"{prefix}cache_after/{index}/{level}" in reference:
                reference.check("caches", f"{prefix}cache_after/{index}/{level}", _time_first(rows))
    if f"{prefix}eval_mean_loss" in reference:
        reference.check("evaluation", f"{prefix}eval_mean_loss", torch.cat(losses, 1).mean())
    return states


class _Evaluation:
    """Evaluates our model on segments in order, and exposes the rows between embeddings and softmax."""

    def __init__(self, model: Model, batch: int) -> None:
        self.model = model
        self.state: TokensState = model.init(batch)
        self.top = torch.zeros(batch, 0, model.config.dim, dtype=torch.float64)
        """Outputs of the last layer, which the published code caches too"""
        self.rows, self.mask = self.top, Causal()
        """Output rows (B, Q, D) and attention mask of the latest segment"""

    @property
    def num_cached(self) -> int:
        return int(self.state.inner[0].length[0])

    def read(self, text: Text) -> Tensor:
        """Read a segment and return its losses (B, L)."""
        assert self.model.memory_tokens is not None

        def backbone(rows: Tensor, state: State, **how: Any) -> tuple[Tensor, State]:
            self.rows, state = self.model.run(rows, state, **how)
            self.mask = how["mask"]
            return self.rows, state

        embedded = self.model.embedding(text.tokens)
        hidden, self.state = self.model.memory_tokens(embedded, self.state, backbone)
        top = torch.cat([self.top, self.rows], 1)
        self.top = top[:, top.shape[1] - self.num_cached :]
        return self.model.loss(Output(hidden, {}), text.targets)

    def tokens(self) -> Tensor:
        """Return the memory after the segment; without recurrence, the outputs of the read block."""
        config = self.model.config.tokens
        assert config is not None
        return self.state.memory if config.carries else self.rows[:, : config.num]

    def hidden_keys(self, valid: int) -> Tensor:
        """Return (Q, K), 1 where a row does not see a key; the first `valid` keys are cached."""
        mask, rows = self.mask, self.rows.shape[1]
        if self.model.config.same_length:
            mask = Causal(window=max(self.model.memory_lengths(self.state)))
        visible = mask.visible(rows, valid + rows, valid, self.rows.device)
        return (~visible.view(-1, rows, valid + rows)[0]).to(torch.uint8)

    def caches(self) -> list[Tensor]:
        """Return the cached rows (B, M, D) of the embeddings and of every layer."""
        kept = self.num_cached
        return [*(layer.hidden[:, layer.hidden.shape[1] - kept :] for layer in self.state.inner), self.top]


def _check_gradients(reference: Reference, prefix: str, model: Model, texts: list[Text]) -> None:
    """Compare gradients of all segments in order, with and without gradient between them."""
    start = model.init(len(texts[0].tokens))
    windows = {"grad_bptt0": [[text] for text in texts], "grad_full": [texts]}
    for name, parts in windows.items():
        if _has(reference, f"{prefix}{name}/"):
            for method in METHODS:
                model.zero_grad()
                state = start
                for part in parts:
                    state = _backward(model, part, state, "all", method)[-1].state
                _compare_gradients(reference, f"{prefix}{name}/", model)


def _check_windows(
    reference: Reference, prefix: str, model: Model, texts: list[Text], states: Sequence[TokensState]
) -> None:
    """Compare gradients of the last segments, with gradient between them and a constant memory before them."""
    first = max(0, len(texts) - 1 - reference.config.get("bptt", 0))
    scored: dict[str, Scored] = {"grad_sum": "all", "grad_last": "last"}
    start = states[first]
    if f"{prefix}window_mem_start" in reference:
        memory = _memory_before(model, start)
        reference.check("memories", f"{prefix}window_mem_start", memory)
        # Detached even if it is the learned memory.
        start = TokensState(_time_first(memory).detach(), torch.ones_like(start.started), start.inner)
    for name, which in scored.items():
        if _has(reference, f"{prefix}{name}/"):
            for method in METHODS:
                model.zero_grad()
                _backward(model, texts[first:], start, which, method)
                _compare_gradients(reference, f"{prefix}{name}/", model)


def _check_published_loop(reference: Reference, prefix: str, model: Model, texts: list[Text]) -> None:
    """Compare with their training loop, where a step wrongly rereads segments from the previous step's last memory."""
    depth, key = reference.config.get("bptt", 0), f"{prefix}trainpy_"
    past, caches, reads = SlidingHistory(model.init(len(texts[0].tokens))), None, []
    scored: dict[str, Scored] = {"grad_last": "last", "grad_sum": "all"}
    for index, text in enumerate(texts):
        for name, which in scored.items():
            model.zero_grad()
            reads = _backward(model, [*past.segments, text], past.state, which, "plain")
            if index == len(texts) - 1 and _has(reference, f"{key}{name}/"):
                _compare_gradients(reference, f"{key}{name}/", model)
        if index < len(texts) - 1:
            past = past.after(text._replace(caches=caches), reads, depth, stale=True)
            caches = reads[-1].state.inner
    reference.check("memories", f"{key}window_mem_start", _memory_before(model, past.state))
    for number, read in enumerate(reads):
        reference.check("losses", f"{key}window_losses/{number}", _time_first(read.report))
        reference.check("memories", f"{key}window_mem_after/{number}", _time_first(read.state.memory))


def _memory_before(model: Model, state: TokensState) -> Tensor:
    assert model.memory_tokens is not None
    return _time_first(model.memory_tokens.rows(state))


def _backward(model: Model, texts: Sequence[Text], state: State, scored: Scored, method: Method) -> list[SegmentResult]:
    def step(text: Text, state: State, wanted: bool) -> SegmentResult:
        if text.caches is not None:
            state = state._replace(inner=text.caches)
        out, state = model(text.tokens, state)
        loss = model.loss(out, text.targets)
        return SegmentResult(loss.mean() if wanted else None, state, loss.detach())

    return backward(step, texts, state, scored=scored, method=method)


def _has(reference: Reference, prefix: str) -> bool:
    return bool(reference.group(prefix))


def _compare_gradients(reference: Reference, prefix: str, model: Model) -> None:
    check_gradients(reference, prefix, model, convert.authors_tensor_map(model))
