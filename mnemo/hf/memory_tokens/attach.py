"""`add_memory`: memory for a model that has none."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.backbone import check_attention
from mnemo.hf.memory_tokens.checks import check_kind, check_positions, check_ties, embedding_weight, try_out
from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM, MemoryForSequenceClassification
from mnemo.hf.memory_tokens.options import Align, Backward, MaskPolicy, MemoryConfig, PositionPolicy, Window

AutoConfig.register(MemoryConfig.model_type, MemoryConfig, exist_ok=True)
AutoModelForCausalLM.register(MemoryConfig, MemoryForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(MemoryConfig, MemoryForSequenceClassification, exist_ok=True)


def add_memory(
    model: Any,
    tokens: int = 16,
    segment: int = 1024,
    bptt: int | None = 2,
    *,
    mask: MaskPolicy = "causal",
    positions: PositionPolicy = "continue",
    align: Align = "left",
    window: Window = "sliding",
    score: int | None = None,
    backward: Backward = "checkpoint",
    wrap: tuple[int, int] | None = None,
    std: float | None = None,
) -> MemoryForCausalLM | MemoryForSequenceClassification:
    """Recurrent memory tokens for a causal language model or an encoder with a classification head.

    The given model becomes the backbone of the new one, weights and all; it is not copied.

    tokens:    memory tokens
    segment:   tokens that the backbone reads at once, memory not counted
    bptt:      segments before its own that a loss sends gradient to; None for all
    mask:      "causal", as the backbone has it, or "block": memory tokens of a block see each other
    positions: "continue" through memory and text; "tokens" keep the places they have without memory; "fixed" memory
    align:     the short segment is a row's last one ("left") or its first ("right")
    window:    "sliding": exactly `bptt` segments for every loss; "tumbling": windows of bptt + 1, each read once
    score:     so many of the last segments of a sample have a loss; None for all
    backward:  "checkpoint": the activations of one segment; "plain": those of all
    wrap:      encoders: ids of the tokens around every segment, such as [CLS] and [SEP]
    std:       deviation of the learned memory at first; that of the embeddings when left out
    """
    check_kind(model)
    deviation = float(embedding_weight(model).detach().float().std()) if std is None else std
    config = MemoryConfig(
        text_config=model.config,
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
        std=deviation,
        dtype=model.dtype,
    )
    kind = _kind_of(model)
    _check(model, config, kind._encoder)
    for module in model.modules():
        module._is_hf_initialized = True  # its weights are what they are: nothing is to be drawn again
    wrapped = kind(config, model)
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
        f"{type(model).__name__} is neither a language model, which has output embeddings, nor a model for sequence "
        "classification"
    )


def _check(model: Any, config: MemoryConfig, encoder: bool) -> None:
    if encoder and config.mask != "causal":
        raise MnemoError("an encoder's rows all see each other: mask policies are for language models")
    if encoder and config.score not in (None, 1):
        raise MnemoError("classification is on the last segment: score is for language models")
    if not encoder and config.wrap is not None:
        raise MnemoError("wrap is for encoders: a language model's text goes on across borders")
    check_attention(model, config)
    check_positions(model, config, write=not encoder)
    check_ties(model)
    try_out(model, config, causal=not encoder)
