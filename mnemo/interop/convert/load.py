"""Load published weights as a Mnemo model: `load_model(path, given)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemo.data.tokenizers import AnyTokenizer
from mnemo.errors import MnemoError
from mnemo.files.safe_load import load_object
from mnemo.interop.convert import formats, vocabulary, weight_files
from mnemo.interop.convert.formats import Format
from mnemo.interop.convert.infer_arguments import Arguments, check_types
from mnemo.interop.convert.tensor_map import import_tensors
from mnemo.interop.convert.transformer_xl import empty_model
from mnemo.interop.convert.weight_files import WeightsFile
from mnemo.memory.configuration import Decoding, Start
from mnemo.model import ModelConfig
from mnemo.storage.run_folder import open_run
from mnemo.storage.run_header import RECIPE
from mnemo.storage.run_tokenizer import load_tokenizer

CONFIG = "config.json"
WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "state_dict.pt",
    "checkpoint_best.pt",
    "checkpoint_last.pt",
    "variables.npz",
    "model.pt",
)
"""File names of weights in published folders; the first one that exists is loaded."""
DEFAULT_SEGMENT = 128
WRITES_BY_CALL = (
    "text is written as by transformers 4: the prompt is one segment, then every token, which enters the memory at once"
)


@dataclass(frozen=True, kw_only=True)
class UserOptions:
    """Options from the user that supplement the files."""

    arguments: Mapping[str, Any]
    """Constructor arguments from flags, by the authors' names."""
    config: Path | None = None
    """A JSON file with further constructor arguments."""
    vocab: Path | None = None
    without_vocab: bool = False


@dataclass(frozen=True, kw_only=True)
class ConvertedModel:
    """Weights of published code under Mnemo's names, with the configuration of the model."""

    config: ModelConfig
    weights: dict[str, Tensor]
    segment: int
    tokenizer: AnyTokenizer | None
    format: str
    start: Start
    """Initial memory in the published code."""
    decoding: Decoding = "segments"
    """Segments of the published code when it continues a text."""
    notes: tuple[str, ...] = ()


def load_model(path: Path, given: UserOptions) -> ConvertedModel:
    """Load a model in any known format. Nothing is written, and no code in a file is run."""
    if (path / RECIPE).is_file():
        return _load_run(path, given)
    weights = _weights_file(path)
    content = weight_files.load_weights(weights)
    known = formats.recognise(content.tensors, str(weights))
    try:
        return convert(known, content, weights, given)
    except MnemoError as error:
        raise MnemoError(f"{weights}: {error}") from None


def _load_run(path: Path, given: UserOptions) -> ConvertedModel:
    if given.arguments or given.config or given.vocab:
        raise MnemoError(f"{path} is a run of mnemo, which includes its configuration: leave the flags out")
    run = open_run(path, device="cpu")
    return ConvertedModel(
        config=run.recipe.model,
        weights=dict(run.model.state_dict()),
        segment=run.recipe.train.segment,
        tokenizer=load_tokenizer(path),
        format="mnemo",
        start=run.start,
        decoding=run.decoding,
    )


def _weights_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in WEIGHTS:
        if (path / name).is_file():
            return path / name
    found = sorted(item.name for item in path.iterdir())[:6]
    raise MnemoError(
        f"{path} is neither a run of mnemo nor a folder of published weights: found {', '.join(found) or 'nothing'}; "
        f"expected {RECIPE} or one of {', '.join(WEIGHTS)}"
    )


def convert(known: Format, content: WeightsFile, path: Path, given: UserOptions) -> ConvertedModel:
    """Convert weights in a known format, loaded from `path`."""
    tensors = _floats(known.tensors(content.tensors))
    given_arguments = _given_arguments(content, path, given)
    arguments = known.arguments(tensors, given_arguments)
    config = known.config(arguments)
    model = empty_model(config)
    weights = import_tensors(known.tensor_map(model), tensors, dict(model.named_parameters()))
    symbols = _symbols(content, path.parent, given)
    if symbols is not None:
        vocabulary.check_size(symbols, config.vocab_size, "the vocabulary")
    notes = [f"recognised as {known.title}", f"settings: {formats.describe_arguments(arguments)}"]
    longer = max(config.memory.lengths(config.num_layers)) - arguments["mem_len"]
    if longer > 0:
        notes.append(f"its same_length lets a token see one key more than ours: the memory is {longer} longer")
    if known.start == "zeros":
        notes.append("the published code starts from a memory full of zeros, and so does the converted run")
    if known.name == "hf":
        notes.append(WRITES_BY_CALL)
    return ConvertedModel(
        config=config,
        weights=weights,
        segment=arguments.get("tgt_len") or DEFAULT_SEGMENT,
        tokenizer=None if symbols is None else vocabulary.tokenizer(symbols),
        format=known.name,
        start=known.start,
        decoding="calls" if known.name == "hf" else "segments",
        notes=tuple(notes),
    )


def _floats(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert all tensors to one type that represents every value exactly."""
    strange = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if strange:
        raise MnemoError(f"'{strange[0]}' holds no floating-point numbers")
    double = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    return {name: tensor.to(torch.float64 if double else torch.float32) for name, tensor in tensors.items()}


def _given_arguments(content: WeightsFile, path: Path, given: UserOptions) -> Arguments:
    """Merge arguments from the checkpoint, from config.json or the given file, and from flags; flags win."""
    inside = content.others.get("model_config")
    beside = path.parent / CONFIG
    arguments = inside if isinstance(inside, dict) else {}
    if given.config is not None or beside.is_file():
        arguments = arguments | _load_config(given.config or beside)
    arguments = arguments | dict(given.arguments)
    if isinstance(arguments.get("d_embed"), int) and arguments["d_embed"] < 0:
        arguments = arguments | {"d_embed": None}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    check_types(arguments)
    if arguments.get("sample_softmax", -1) > 0:
        raise MnemoError(f"sample_softmax {arguments['sample_softmax']} is not supported: it runs in no published code")
    return arguments


def _load_config(path: Path) -> Arguments:
    data = load_object(path)
    kind = data.get("model_type", "transfo-xl")
    if kind != "transfo-xl":
        raise MnemoError(f"{path} describes a model of type '{kind}', not 'transfo-xl'")
    return data


def _symbols(content: WeightsFile, folder: Path, given: UserOptions) -> list[str] | None:
    if given.without_vocab:
        return None
    if given.vocab is not None:
        return vocabulary.load_symbols(given.vocab)
    inside = content.others.get("vocab")
    if isinstance(inside, dict) and isinstance(inside.get("idx2sym"), list):
        return inside["idx2sym"]
    try:
        beside = vocabulary.find(folder)
    except MnemoError as error:
        raise MnemoError(f"{error} (or convert the weights alone with --no-vocab)") from None
    return None if beside is None else vocabulary.load_symbols(beside)
