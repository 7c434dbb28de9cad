"""Save the trained parts without the backbone: the learned memory, and the LoRA weights if there are any.

mnemo_adapter.json   options, and the name and size of the backbone; written last, so it marks a complete folder
README.md            says how to load it
memory.safetensors   the learned memory
lora/                as peft writes it
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from mnemo.errors import MnemoError, one_line
from mnemo.files.json_file import load_json, write_json
from mnemo.files.tensor_file import load_tensors, write_tensors
from mnemo.hf.memory_tokens.attach import add_memory
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM
from mnemo.hf.model_card import write_card

OPTIONS = ("tokens", "segment", "bptt", "mask", "positions", "align", "window", "score", "backward", "wrap", "std")
LATER_OPTIONS = ("kind", "associative", "start", "attend_previous")
"""Options that adapters of version 0.1.0 lack"""
DESCRIPTION = "mnemo_adapter.json"
MEMORY = "memory.safetensors"
LORA = "lora"


def save_adapter(model: Any, folder: str | Path) -> None:
    """Write the memory, and the LoRA weights of a peft model, but not the backbone."""
    inner = memory_model(model)
    folder = Path(folder)
    if folder.is_file():
        raise MnemoError(f"{folder} is a file; an adapter needs a folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).unlink(missing_ok=True)
    with_lora = model is not inner
    if with_lora:
        model.save_pretrained(folder / LORA, save_embedding_layers=False)
    write_tensors(folder / MEMORY, {name: weight.cpu() for name, weight in _memory_weights(inner).items()})
    write_card(folder, inner.config, adapter=True)
    write_json(folder / DESCRIPTION, _describe(inner) | {"lora": with_lora})


def _describe(model: Any) -> dict[str, Any]:
    return {
        "format": "mnemo-adapter",
        "head": "causal" if isinstance(model, MemoryForCausalLM) else "classification",
        "backbone": {"name": model.backbone.name_or_path or "", **_size(model.backbone)},
        "options": {name: getattr(model.config, name) for name in OPTIONS + LATER_OPTIONS},
    }


def _size(backbone: Any) -> dict[str, Any]:
    vocabulary, width = backbone.get_input_embeddings().weight.shape
    return {"model_type": backbone.config.model_type, "vocabulary": vocabulary, "width": width}


def load_adapter(folder: str | Path, backbone: Any = None, *, trainable: bool = False) -> Any:
    """Load a saved adapter around `backbone`, or around the backbone that the folder names.

    `trainable`: LoRA weights can be trained further; otherwise they are frozen.
    """
    folder = Path(folder)
    saved = _load_description(folder / DESCRIPTION)
    memory = load_tensors(folder / MEMORY)
    if backbone is None:
        backbone = _named_backbone(saved, folder)
    expected = {key: saved["backbone"][key] for key in ("model_type", "vocabulary", "width")}
    if _size(backbone) != expected:
        raise MnemoError(f"{folder} belongs to a backbone with {expected}; this one has {_size(backbone)}")
    options = saved["options"]
    model = add_memory(backbone, **options)
    _copy_memory(model, memory, folder / MEMORY)
    return _with_lora(model, folder / LORA, trainable) if saved["lora"] else model


def _with_lora(model: Any, folder: Path, trainable: bool) -> Any:
    if not (folder / "adapter_model.safetensors").is_file():
        raise MnemoError(f"{folder} has no adapter_model.safetensors")
    try:
        from peft import PeftModel
    except ImportError:
        raise MnemoError("LoRA weights need the peft package") from None
    return PeftModel.from_pretrained(model, folder, is_trainable=trainable)


def _load_description(path: Path) -> dict[str, Any]:
    saved = load_json(path)
    try:
        names = (
            set(saved["options"]) - set(LATER_OPTIONS),
            set(saved["backbone"]),
            {type(saved["lora"]), type(saved["head"])},
        )
    except (KeyError, TypeError):
        names = None
    if names != (set(OPTIONS), {"name", "model_type", "vocabulary", "width"}, {bool, str}):
        raise MnemoError(f"{path} is not the description of an adapter")
    return saved


def _memory_weights(model: Any) -> dict[str, Tensor]:
    """Return the learned memory tokens, and the weights of an associative memory."""
    memory = model.memory_tokens
    if model.config.start == "overlap":
        return {"initial": memory.initial, "gate": memory.gate}
    if model.config.kind == "tokens":
        return {"initial": memory.initial}
    return {"initial": memory.initial} | {f"layers.{name}": weight for name, weight in memory.layers.named_parameters()}


@torch.no_grad()
def _copy_memory(model: Any, saved: dict[str, Tensor], path: Path) -> None:
    weights = _memory_weights(model)
    shapes, expected = ({name: tuple(each.shape) for name, each in found.items()} for found in (saved, weights))
    if shapes != expected:
        name = next(name for name in sorted(shapes | expected) if shapes.get(name) != expected.get(name))
        raise MnemoError(f"{path}: '{name}' has shape {shapes.get(name)}, expected {expected.get(name)}")
    for name, weight in weights.items():
        weight.copy_(saved[name])


def _named_backbone(saved: dict[str, Any], folder: Path) -> Any:
    name = saved["backbone"]["name"]
    if not name:
        raise MnemoError(f"{folder} does not name its backbone: pass it as `backbone`")
    auto = AutoModelForCausalLM if saved["head"] == "causal" else AutoModelForSequenceClassification
    try:
        return auto.from_pretrained(name)
    except (OSError, ValueError) as error:
        files = sorted(path.name for path in Path(name).glob("*.gguf"))
        if files:
            raise MnemoError(
                f"the backbone of {folder} is a GGUF file: pass it as load_adapter({str(folder)!r}, "
                f"AutoModelForCausalLM.from_pretrained({name!r}, gguf_file={files[0]!r}))"
            ) from None
        raise MnemoError(f"the backbone '{name}' of {folder} cannot be loaded: {one_line(error)}") from None
