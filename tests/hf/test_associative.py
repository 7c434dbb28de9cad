"""An associative memory (ARMT) around models of transformers: the authors' numbers, decoding, saving, gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.golden import GOLDEN
from helpers.tolerances import PARITY, assert_close
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from mnemo.errors import MnemoError
from mnemo.hf import add_memory, load_adapter, save_adapter
from mnemo.interop.parity.reference import Reference
from mnemo.memory import Associative
from mnemo.memory.state import leaves

FILES = sorted((GOLDEN / "armt-hf").glob("*.safetensors"))


def wrapped_as_published(reference: Reference) -> Any:
    """The model of a reference file, with its weights."""
    config = reference.config
    backbone = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config["backbone"])).double()
    weights = reference.group("weights/")
    tokens = len(weights["memory_tokens.tokens.initial"])
    options = {"kind": "associative", "associative": Associative(**config["associative"]), "bptt": None}
    model = add_memory(backbone, tokens, config["segment"], **options, **previous(config))
    lacking, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown and all(name.endswith("lm_head.weight") for name in lacking)  # GPT-2's is tied
    if config["frozen"]:
        model.backbone.requires_grad_(False)
    return model.eval()


def previous(config: dict[str, Any]) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("path", [path for path in FILES if "previous" not in path.stem], ids=lambda path: path.stem)
def test_parity_with_the_authors_module(path: Path) -> None:
    reference = Reference.open(path)
    model = wrapped_as_published(reference)
    tokens = reference.ids("tokens")
    segment = reference.setting("segment", int)
    out = model(input_ids=tokens, labels=tokens)
    reference.check("losses", "loss", out.loss)
    out.loss.backward()
    state = None
    for number, scores in enumerate(out.logits.split(segment, 1)):
        reference.check("logits", f"seg{number}/logits", scores)
        read = model(input_ids=tokens[:, number * segment : (number + 1) * segment], memory=state)
        state = read.memory
        for layer, memory in enumerate(state):
            reference.check("states", f"seg{number}/matrix.{layer}", memory.matrix)
            reference.check("states", f"seg{number}/normaliser.{layer}", memory.normaliser)
    for name, parameter in model.named_parameters():
        if f"grad/{name}" in reference:
            reference.check("gradients", f"grad/{name}", parameter.grad)
        else:
            assert parameter.grad is None
    reference.refuse_leftovers()
    assert set(reference.errors) == {"losses", "logits", "states", "gradients"}
    assert max(reference.errors.values()) <= PARITY, reference.worst
