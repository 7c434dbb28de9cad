"""What was trained, in a folder of its own: the memory, the LoRA weights where there are any, and which model they
belong to. The backbone's weights stay where they are.

    mnemo_adapter.json   options, and the backbone by name and size; written last, so that a folder with it is whole
    memory.safetensors   the learned memory
    lora/                as peft writes it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.safe_load import tensors_problem
from mnemo.hf.memory.attach import add_memory
from mnemo.hf.memory.curriculum import memory_model
from mnemo.hf.memory.modeling import MemoryForCausalLM
from mnemo.hf.memory.options import FORMAT_VERSION

OPTIONS = ("tokens", "segment", "bptt", "mask", "positions", "align", "window", "score", "backward", "wrap", "std")
DESCRIPTION = "mnemo_adapter.json"
MEMORY = "memory.safetensors"
LORA = "lora"


def save_adapter(model: Any, folder: str | Path) -> None:
    """Write the memory, and the LoRA weights of a peft model, without the backbone."""
    inner = memory_model(model)
    folder = Path(folder)
    if folder.is_file():
        raise MnemoError(f"{folder} is a file, and the adapter is a folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).unlink(missing_ok=True)
    with_lora = model is not inner
    if with_lora:
        model.save_pretrained(folder / LORA, save_embedding_layers=False)
    with atomic.new_file(folder / MEMORY) as partial:
        save_file({"initial": inner.memory_tokens.initial.detach().cpu().contiguous()}, partial, {"format": "pt"})
    _write_json(folder / DESCRIPTION, _describe(inner) | {"lora": with_lora})


def _describe(model: Any) -> dict[str, Any]:
    return {
        "format": "mnemo-adapter",
        "format_version": FORMAT_VERSION,
        "head": "causal" if isinstance(model, MemoryForCausalLM) else "classification",
        "backbone": {"name": model.backbone.name_or_path or "", **_size(model.backbone)},
        "options": {name: getattr(model.config, name) for name in OPTIONS},
    }


def _size(backbone: Any) -> dict[str, Any]:
    vocabulary, width = backbone.get_input_embeddings().weight.shape
    return {"model_type": backbone.config.model_type, "vocabulary": vocabulary, "width": width}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic.new_file(path) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_adapter(folder: str | Path, backbone: Any = None, *, trainable: bool = False) -> Any:
    """The model that was saved, around `backbone`, or around the one that the folder names.

    `trainable`: LoRA weights can be trained on; else they are frozen.
    """
    folder = Path(folder)
    saved = _read_description(folder / DESCRIPTION)
    memory = _read_memory(folder / MEMORY)
    if backbone is None:
        backbone = _named_backbone(saved, folder)
    expected = {key: saved["backbone"][key] for key in ("model_type", "vocabulary", "width")}
    if _size(backbone) != expected:
        raise MnemoError(f"{folder} belongs to a backbone of {expected}, and this one is {_size(backbone)}")
    options = saved["options"]
    if memory.shape != (options["tokens"], expected["width"]):
        raise MnemoError(f"{folder / MEMORY} holds {tuple(memory.shape)}, not {options['tokens']} tokens of the width")
    model = add_memory(backbone, **options)
    with torch.no_grad():
        model.memory_tokens.initial.copy_(memory)
    return _with_lora(model, folder / LORA, trainable) if saved["lora"] else model


def _with_lora(model: Any, folder: Path, trainable: bool) -> Any:
    if not (folder / "adapter_model.safetensors").is_file():
        raise MnemoError(f"{folder} has no adapter_model.safetensors")
    try:
        from peft import PeftModel
    except ImportError:
        raise MnemoError("LoRA weights need the peft package") from None
    return PeftModel.from_pretrained(model, folder, is_trainable=trainable)


def _read_description(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MnemoError(f"{path} is missing")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        names = set(saved["options"]), set(saved["backbone"]), {type(saved["lora"]), type(saved["head"])}
    except (ValueError, KeyError, TypeError):
        raise MnemoError(f"{path} is not the description of an adapter") from None
    version = saved.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise MnemoError(f"{path} has format {version}, and this version of mnemo reads {FORMAT_VERSION} and older")
    if names != (set(OPTIONS), {"name", "model_type", "vocabulary", "width"}, {bool, str}):
        raise MnemoError(f"{path} is not the description of an adapter")
    return saved


def _read_memory(path: Path) -> Tensor:
    problem = tensors_problem(path)
    if problem:
        raise MnemoError(f"{path} {problem}")
    try:
        return load_file(path)["initial"]
    except (SafetensorError, KeyError) as error:
        raise MnemoError(f"{path} holds no memory: {error}") from None


def _named_backbone(saved: dict[str, Any], folder: Path) -> Any:
    name = saved["backbone"]["name"]
    if not name:
        raise MnemoError(f"{folder} does not say where its backbone is: give it as `backbone`")
    auto = AutoModelForCausalLM if saved["head"] == "causal" else AutoModelForSequenceClassification
    try:
        return auto.from_pretrained(name)
    except OSError as error:
        raise MnemoError(f"the backbone '{name}' of {folder} cannot be loaded: {str(error).splitlines()[0]}") from None
