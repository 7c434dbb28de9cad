"""Save a converted model as a run folder of mnemo, or as a folder for published code; both are written atomically."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from mnemo import __version__
from mnemo.data.tokenizers import AnyTokenizer
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.interop.convert import formats, vocabulary
from mnemo.interop.convert.destination import check_free
from mnemo.interop.convert.load import CONFIG, ConvertedModel
from mnemo.interop.convert.tensor_map import export_tensors
from mnemo.interop.convert.to_published import published_arguments
from mnemo.interop.convert.transformer_xl import empty_model
from mnemo.model import ModelConfig
from mnemo.model.positions import Relative, Sinusoidal
from mnemo.recipes.recipe import DataConfig, Recipe, TrainConfig
from mnemo.storage.checkpoint import save_checkpoint
from mnemo.storage.run_folder import write_header
from mnemo.storage.run_header import RunHeader


def write_run(model: ConvertedModel, dest: Path, *, source: Path, corpus: str, corpus_info: dict[str, Any]) -> Recipe:
    """Write a run folder with the converted weights, which mnemo can evaluate, generate with and train further."""
    double = any(tensor.dtype == torch.float64 for tensor in model.weights.values())
    try:
        train = TrainConfig(segment=model.segment, precision="fp64" if double else "fp32")
        recipe = Recipe(model=model.config, data=DataConfig(corpus=corpus), train=train)
    except ValueError as error:
        raise MnemoError(f"configuration: {error}") from None
    origin = {"run": str(source.resolve()), "step": 0, "format": model.format, "starts_from": model.start}
    if model.decoding != "segments":
        origin["decoding"] = model.decoding
    check_free(dest)
    write_untrained_run(
        dest, RunHeader(recipe=recipe, corpus=corpus_info, source=origin), model.weights, model.tokenizer
    )
    return recipe


def write_untrained_run(
    dest: Path, header: RunHeader, weights: dict[str, Tensor], tokenizer: AnyTokenizer | None
) -> None:
    """Write a run folder with a checkpoint of the given weights at step 0."""
    with atomic.new_folder(dest) as folder:
        write_header(folder, header, None if tokenizer is None else tokenizer.to_json())
        parts: dict[str, dict[str, Tensor]] = {"weights": weights, "training": {}, "memory": {}}
        save_checkpoint(folder, {"step": 0, "average_count": 0}, parts)


def unknown_corpus(name: str, tokenizer: AnyTokenizer | None, vocab_size: int) -> dict[str, Any]:
    """Describe the corpus in the header of a run whose training text is unknown."""
    unit = None if tokenizer is None else tokenizer.unit
    return {"name": name, "unit": unit, "vocab_size": vocab_size, "fingerprint": None}


def write_published(model: ConvertedModel, target: str, dest: Path) -> None:
    """Write weights and configuration in the format of published code, which then computes the same numbers."""
    known = formats.named(target)
    arguments = published_arguments(model.config, model.segment, target)
    theirs = export_tensors(known.tensor_map(empty_model(model.config)), model.weights)
    theirs |= _frequencies(model.config, target)
    check_free(dest)
    with atomic.new_folder(dest) as folder:
        WRITERS.get(target, _write_state_dict)(folder, theirs, arguments)
        about = {"mnemo_version": __version__, "format_version": 1}
        (folder / CONFIG).write_text(json.dumps(arguments | about, indent=1), encoding="utf-8")
        symbols = None if model.tokenizer is None else vocabulary.symbols_of(model.tokenizer)
        if symbols is not None:
            ids = {symbol: index for index, symbol in enumerate(symbols)}
            (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")


def _frequencies(config: ModelConfig, target: str) -> dict[str, Tensor]:
    """Return the buffer of sinusoid frequencies that their PyTorch modules store with the weights."""
    if target == "tf" or not isinstance(config.positions, (Relative, Sinusoidal)):
        return {}
    exponents = torch.arange(0.0, config.dim, 2.0) / config.dim
    name = "transformer.pos_emb.inv_freq" if target == "hf" else "pos_emb.inv_freq"
    return {name: 1 / 10000**exponents}


def _write_state_dict(folder: Path, theirs: dict[str, Tensor], arguments: dict[str, Any]) -> None:
    torch.save(theirs, folder / "state_dict.pt")


def _write_nvidia(folder: Path, theirs: dict[str, Tensor], arguments: dict[str, Any]) -> None:
    torch.save({"model_config": arguments, "model_state": theirs}, folder / "checkpoint_last.pt")


def _write_hugging_face(folder: Path, theirs: dict[str, Tensor], arguments: dict[str, Any]) -> None:
    """Omit softmax weights shared with the embedding, as transformers does; it ties them when loading."""
    first = {id(tensor): name for name, tensor in reversed(theirs.items())}
    kept = {name: tensor for name, tensor in theirs.items() if first[id(tensor)] == name or "crit." not in name}
    save_file({name: tensor.clone() for name, tensor in kept.items()}, folder / "model.safetensors", {"format": "pt"})


def _write_variables(folder: Path, theirs: dict[str, Tensor], arguments: dict[str, Any]) -> None:
    np.savez(folder / "variables.npz", **{name: tensor.numpy() for name, tensor in theirs.items()})  # type: ignore[arg-type]


WRITERS: dict[str, Callable[[Path, dict[str, Tensor], dict[str, Any]], None]] = {
    "hf": _write_hugging_face,
    "nvidia": _write_nvidia,
    "tf": _write_variables,
}
