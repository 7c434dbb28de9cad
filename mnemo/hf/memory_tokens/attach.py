"""`add_memory`: add memory tokens or an associative memory to a transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.backbone import check_attention
from mnemo.hf.memory_tokens.checks import (
    check_checkpointing,
    check_kind,
    check_layers,
    check_positions,
    check_ties,
    embedding_weight,
    forget_gguf,
    try_out,
)
from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM, MemoryForSequenceClassification
from mnemo.hf.memory_tokens.options import (
    Align,
    Backward,
    Kind,
    MaskPolicy,
    MemoryConfig,
    PositionPolicy,
    Start,
    Window,
)
from mnemo.memory import Associative

AutoConfig.register(MemoryConfig.model_type, MemoryConfig, exist_ok=True)
AutoModelForCausalLM.register(MemoryConfig, MemoryForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(MemoryConfig, MemoryForSequenceClassification, exist_ok=True)


def add_memory(
    model: Any,
    tokens: int = 16,
    segment: int = 1024,
    bptt: int | None = 2,
    *,
    kind: Kind = "tokens",
    associative: Associative | None = None,
    mask: MaskPolicy = "causal",
    positions: PositionPolicy = "continue",
    align: Align = "left",
    window: Window = "sliding",
    score: int | None = None,
    backward: Backward = "checkpoint",
    wrap: tuple[int, int] | None = None,
    std: float | None = None,
    start: Start = "random",
    attend_previous: bool = False,
) -> MemoryForCausalLM | MemoryForSequenceClassification:
    """Add memory to a causal language model, or memory tokens to an encoder with a classification head.

    The given model becomes the backbone of the returned model; it is not copied.

    tokens:    number of memory tokens
    segment:   tokens per segment, without memory tokens
    bptt:      number of earlier segments that the gradient of a loss reaches; None for all
    kind:      "tokens" that are carried on (RMT); "associative" matrices of layers (ARMT), with options `associative`
    mask:      "causal" as in the backbone, or "block": memory tokens of a block attend to each other
    positions: "continue" through memory and text; "tokens": text as without memory; "fixed" for memory tokens
    align:     which segment of a row is shorter: the last one ("left") or the first one ("right")
    window:    "sliding": every loss reaches exactly `bptt` earlier segments; "tumbling": windows of bptt + 1 segments
    score:     number of last segments of a sample that have a loss; None for all
    backward:  "checkpoint": store the activations of one segment at a time; "plain": store those of all segments
    wrap:      encoders: ids of the tokens around every segment, such as [CLS] and [SEP]
    std:       standard deviation of the initial memory; by default that of the embeddings
    start:     "random" as published; "overlap": first the last tokens of the segment before, so as to do no harm
    attend_previous: tokens also attend to the tokens of the previous segment, without gradient
    """
    check_kind(model)
    forget_gguf(model)
    config = MemoryConfig(
        text_config=model.config,
        kind=kind,
        associative=associative,
        tokens=tokens,
        segment=segment,
        bptt=bptt,
        mask=mask,
        positions=positions,
        align=align,
        window=window,
        score=score,
        backward=backward,
        wrap=wrap,
        std=float(embedding_weight(model).detach().float().std()) if std is None else std,
        start=start,
        attend_previous=attend_previous,
        dtype=model.dtype,
    )
    return _wrap(model, config)


@torch.no_grad()
def start_from_text(model: Any, ids: Sequence[int]) -> None:
    """Set the initial memory tokens to the embeddings of a text's tokens, which begin again if they are fewer.

    What a model writes after such a text is close to its prediction of the following words. Random vectors tell it
    nothing: it must learn to write and to read at the same time.
    """
    if not ids:
        raise MnemoError("a text without tokens cannot be the start of memory tokens")
    initial = model.memory_tokens.initial
    places = torch.arange(len(initial), device=initial.device) % len(ids)
    initial.copy_(model.get_input_embeddings()(torch.tensor(ids, device=initial.device)[places]))


def _wrap(model: Any, config: MemoryConfig) -> MemoryForCausalLM | MemoryForSequenceClassification:
    wrapper = _kind_of(model)
    _check(model, config, wrapper._encoder)
    for module in model.modules():
        module._is_hf_initialized = True  # keep the given weights: do not initialise them again
    wrapped = wrapper(config, model)
    wrapped.train(model.training)
    if isinstance(wrapped, MemoryForCausalLM) and model.generation_config is not None:
        wrapped.generation_config = model.generation_config
    return wrapped


def _kind_of(model: Any) -> type[MemoryForCausalLM] | type[MemoryForSequenceClassification]:
    if model.get_output_embeddings() is not None:
        return MemoryForCausalLM
    if type(model).__name__.endswith("ForSequenceClassification"):
        return MemoryForSequenceClassification
    raise MnemoError(
        f"{type(model).__name__} is neither a language model with output embeddings nor a model for sequence "
        "classification"
    )


def _check(model: Any, config: MemoryConfig, encoder: bool) -> None:
    if encoder and config.mask != "causal":
        raise MnemoError("an encoder attends in both directions: mask policies are for language models")
    if encoder and config.score not in (None, 1):
        raise MnemoError("classification uses the last segment only: score is for language models")
    if encoder and config.start != "random":
        raise MnemoError('an encoder reads and writes the same memory tokens: start="overlap" is for language models')
    if encoder and config.kind != "tokens":
        raise MnemoError("an associative memory is for language models: encoders have memory tokens")
    if encoder and config.attend_previous:
        raise MnemoError("attend_previous is for language models: encoders attend in both directions")
    if config.kind == "associative":
        check_layers(model, config)
    check_checkpointing(model, config)
    if not encoder and config.wrap is not None:
        raise MnemoError("wrap is for encoders: a language model predicts across segment borders")
    check_attention(model, config)
    check_positions(model, config, write=not encoder)
    check_ties(model)
    try_out(model, config, causal=not encoder)
