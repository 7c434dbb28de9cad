"""A plain transformer of Hugging Face that keeps all keys and values of a conversation, to compare with."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from mnemo.model import Model

READ_TOKENS = 2048
"""Tokens that are read in one call."""
MOST_POSITIONS = 2**20


class GrowingCacheConversation:
    """One text in a Llama with random weights, of the size of a Mnemo model.

    Layers, width and heads are the model's. A Llama's feed-forward layer has three matrices where Mnemo's has two, so
    its width is two thirds. Kernels are launched one by one from Python (eager mode), which is the default of
    transformers, and takes most of the time of a small model on a GPU.
    """

    name = "Llama in transformers (eager), growing cache"

    def __init__(self, like: Model) -> None:
        config = like.config
        weight = next(like.parameters())
        self.device = weight.device
        torch.manual_seed(0)
        sizes = LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            head_dim=config.head_dim,
            intermediate_size=config.inner_dim * 2 // 3,
            max_position_embeddings=MOST_POSITIONS,
            use_cache=True,
        )
        model: Any = LlamaForCausalLM(sizes)
        self.model = model.to(self.device, weight.dtype).eval()
        self.cache = DynamicCache(config=sizes)
        self.next: Tensor | None = None
        """(1, 1): the likeliest token after the text"""

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def read(self, ids: Tensor) -> None:
        for part in ids.split(READ_TOKENS):
            self._feed(part[None].to(self.device))

    def write(self, num_tokens: int) -> list[float]:
        stamps = []
        for _ in range(num_tokens):
            assert self.next is not None
            self.next.item()  # a server hands out every token
            stamps.append(time.perf_counter())
            self._feed(self.next)
        return stamps

    @torch.no_grad()
    def _feed(self, ids: Tensor) -> None:
        out = self.model(ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.next = out.logits[:, -1].argmax(-1, keepdim=True)

    def nbytes(self) -> int:
        layers: Any = self.cache.layers
        return sum(part.numel() * part.element_size() for layer in layers for part in (layer.keys, layer.values))

    def close(self) -> None:
        self.cache, self.next = DynamicCache(), None
