"""The checkpoint formats of published code: how to recognise each, its configuration, and its tensor map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError, unknown
from mnemo.interop.convert import lamemo, nvidia, rmt, tensorflow, transformer_xl
from mnemo.interop.convert.infer_arguments import (
    Arguments,
    arguments_of_shapes,
    merge,
    require_settings,
    required_argument,
    shape,
)
from mnemo.interop.convert.tensor_map import TensorMap
from mnemo.memory.configuration import Start
from mnemo.model import Model, ModelConfig

Tensors = Mapping[str, Tensor]


def parameters(tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors without buffers, and their names without DataParallel's prefix."""
    named = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in named.items() if name not in transformer_xl.BUFFERS}


@dataclass(frozen=True, kw_only=True)
class Format:
    name: str
    title: str
    marks: tuple[str, ...]
    """Tensor names that together distinguish it from the formats after it in `FORMATS`."""
    start: Start
    """Initial memory of the published code: empty, or full of zeros that are attended to."""
    tensors: Callable[[Tensors], dict[str, Tensor]] = parameters
    """Select the weights: without optimizer state and computed buffers."""
    arguments: Callable[[Tensors, Arguments], Arguments]
    """All constructor arguments of the published model, from the weights and the given arguments."""
    config: Callable[[Arguments], ModelConfig]
    tensor_map: Callable[[Model], TensorMap]


def _authors_arguments(tensors: Tensors, given: Arguments) -> Arguments:
    arguments = merge(arguments_of_shapes(tensors, given), given)
    required_argument(arguments, "mem_len", "the weights do not say how long the memory is")
    require_settings(given)
    return {"same_length": False, **arguments}


def _nvidia_arguments(tensors: Tensors, given: Arguments) -> Arguments:
    return _authors_arguments(nvidia.authors_names(tensors), given)


def _lamemo_arguments(tensors: Tensors, given: Arguments) -> Arguments:
    others = {name: value for name, value in given.items() if name != "attn_type"}
    return _authors_arguments(tensors, others) | {"attn_type": given.get("attn_type", lamemo.ATTENTION_TYPE)}


def _rmt_arguments(tensors: Tensors, given: Arguments) -> Arguments:
    required_argument(
        given, "mem_at_end", "the weights do not say whether memory tokens are written (yes) or only read (no)"
    )
    num = merge({"num_mem_tokens": shape(tensors, "mem_tokens", 3)[0]}, given)["num_mem_tokens"]
    return _authors_arguments(tensors, given) | {"num_mem_tokens": num}


def _tensorflow_arguments(tensors: Tensors, given: Arguments) -> Arguments:
    arguments = merge(tensorflow.arguments_of_shapes(tensors, given), given)
    required_argument(arguments, "mem_len", "the variables do not say how long the memory is")
    if arguments.get("pre_lnorm"):
        raise MnemoError("--norm pre: the TensorFlow code has the norm after each residual sum only")
    return arguments


def _hugging_face_arguments(tensors: Tensors, given: Arguments) -> Arguments:
    if not given.keys() & {"vocab_size", "n_token", "d_model"}:
        raise MnemoError("there is no config.json beside the weights: Hugging Face keeps the configuration there")
    if "transformer.word_emb.emb_layers.0.weight" in tensors and "crit.out_layers.0.bias" not in tensors:
        raise MnemoError("the weights have no softmax ('crit.out_layers.0.bias'): they are not of TransfoXLLMHeadModel")
    arguments = {**transformer_xl.HUGGING_FACE_DEFAULTS, **given}
    if "n_token" in arguments:
        arguments.setdefault("vocab_size", arguments["n_token"])
    named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for kind in ("r_w_bias", "r_r_bias"):
        named.setdefault(kind, named.get(f"layers.0.dec_attn.{kind}", torch.empty(0)))
    merge(
        arguments_of_shapes(named, arguments), {**arguments, "n_token": arguments.get("vocab_size"), "tie_weight": None}
    )
    return arguments


FORMATS = (
    Format(
        name="rmt",
        title="the Recurrent Memory Transformer's state dict (LM-RMT)",
        marks=("mem_tokens", "word_emb.emb_layers.0.weight"),
        start="empty",
        arguments=_rmt_arguments,
        config=rmt.config_from_authors,
        tensor_map=rmt.authors_tensor_map,
    ),
    Format(
        name="nvidia",
        title="NVIDIA's checkpoint (DeepLearningExamples)",
        marks=("word_emb.emb_layers.0.weight", "crit.out_layers_biases.0"),
        start="empty",
        arguments=_nvidia_arguments,
        config=nvidia.config_from_nvidia,
        tensor_map=nvidia.nvidia_tensor_map,
    ),
    Format(
        name="lamemo",
        title="LaMemo's state dict",
        marks=("word_emb.emb_layers.0.weight", "layers.0.dec_attn.kv_net.weight", "layers.0.dec_attn.r_net.weight"),
        start="empty",
        arguments=_lamemo_arguments,
        config=lamemo.config_from_authors,
        tensor_map=lamemo.authors_tensor_map,
    ),
    Format(
        name="authors",
        title="the authors' state dict (kimiyoung/transformer-xl)",
        marks=("word_emb.emb_layers.0.weight", "crit.out_layers.0.bias", "layers.0.pos_ff.CoreNet.0.weight"),
        start="empty",
        arguments=_authors_arguments,
        config=transformer_xl.config_from_authors,
        tensor_map=transformer_xl.authors_tensor_map,
    ),
    Format(
        name="hf",
        title="a Hugging Face TransfoXL folder",
        marks=("transformer.word_emb.emb_layers.0.weight",),
        start="zeros",
        arguments=_hugging_face_arguments,
        config=transformer_xl.config_from_hugging_face,
        tensor_map=transformer_xl.hugging_face_tensor_map,
    ),
    Format(
        name="tf",
        title="the TensorFlow checkpoint's variables (.npz)",
        marks=("transformer/r_w_bias", "transformer/layer_0/ff/layer_1/kernel"),
        start="zeros",
        tensors=lambda tensors: tensorflow.with_identities(tensorflow.variables(tensors)),
        arguments=_tensorflow_arguments,
        config=tensorflow.config_from_tensorflow,
        tensor_map=tensorflow.tensorflow_tensor_map,
    ),
)
BY_NAME = {tensor_map.name: tensor_map for tensor_map in FORMATS}


def recognise(tensors: Tensors, where: str) -> Format:
    """Return the format that these tensor names belong to."""
    names = {name.removeprefix("module.") for name in tensors} | set(tensorflow.variables(tensors))
    for known in FORMATS:
        if names.issuperset(known.marks):
            return known
    expected = "; ".join(f"{known.title} has {_few(known.marks)}" for known in FORMATS)
    found = f"{len(tensors)} tensors: {_few(sorted(tensors))}" if tensors else "no tensors"
    raise MnemoError(f"{where} has an unknown format: found {found}; expected one of: {expected}")


def _few(names: Iterable[str], most: int = 3) -> str:
    names = [f"'{name}'" for name in names]
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def named(name: str) -> Format:
    if name not in BY_NAME:
        raise unknown("format", name, BY_NAME)
    return BY_NAME[name]


def describe_arguments(arguments: Mapping[str, Any]) -> str:
    """Describe the arguments that cannot be inferred from the weights."""
    clamp = transformer_xl.clamp_from_authors(arguments.get("clamp_len"))
    return ", ".join(
        [
            f"memory {arguments['mem_len']}",
            f"norm {'pre' if arguments.get('pre_lnorm') else 'post'}",
            f"clamp {clamp if clamp else 'none'}",
            f"same length {'on' if arguments.get('same_length') else 'off'}",
        ]
    )
