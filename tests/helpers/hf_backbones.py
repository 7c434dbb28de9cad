"""Small models of the transformers library with random weights."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
)

VOCABULARY = 40
PAD = 0
NO_SPECIALS: dict[str, Any] = dict(bos_token_id=None, eos_token_id=None, pad_token_id=PAD)
SIZES: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
    initializer_range=0.3,
    **NO_SPECIALS,
)

logging.getLogger("transformers").setLevel(logging.ERROR)
transformers.utils.logging.disable_progress_bar()


NO_DROP: dict[str, Any] = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3)


def build(model: Any, config: Any, *parts: dict[str, Any]) -> Any:
    """A model whose configuration is merged from several parts; later parts take precedence."""
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part
    return model(config(**merged))


def gpt2(**changes: Any) -> Any:
    sizes = dict(vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
    drop = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return build(GPT2LMHeadModel, GPT2Config, sizes, drop, NO_SPECIALS, changes)


def llama(**changes: Any) -> Any:
    return build(LlamaForCausalLM, LlamaConfig, SIZES, dict(num_key_value_heads=1), changes)


def qwen2(**changes: Any) -> Any:
    return build(Qwen2ForCausalLM, Qwen2Config, SIZES, dict(num_key_value_heads=1), changes)


def qwen3(**changes: Any) -> Any:
    return build(Qwen3ForCausalLM, Qwen3Config, SIZES, dict(num_key_value_heads=1, head_dim=8), changes)


def neox(**changes: Any) -> Any:
    drop = dict(hidden_dropout=0.0, attention_dropout=0.0)
    return build(GPTNeoXForCausalLM, GPTNeoXConfig, SIZES, drop, changes)


CAUSAL = {"gpt2": gpt2, "llama": llama, "qwen2": qwen2, "qwen3": qwen3, "neox": neox}


def bert(**changes: Any) -> Any:
    return build(BertForSequenceClassification, BertConfig, SIZES, NO_DROP, changes)


def roberta(**changes: Any) -> Any:
    places = dict(pad_token_id=1, max_position_embeddings=66)
    return build(RobertaForSequenceClassification, RobertaConfig, SIZES, NO_DROP, places, changes)


def tokens(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Random token ids without the special ones."""
    return torch.randint(5, VOCABULARY, (rows, columns), generator=torch.Generator().manual_seed(seed))
