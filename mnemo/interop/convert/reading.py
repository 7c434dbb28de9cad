"""Published weights as a model of ours: `read(path, given)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemo.data import tokenizers
from mnemo.data.tokenizers import AnyTokenizer
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json
from mnemo.interop.convert import files, formats, vocabulary
from mnemo.interop.convert.files import Content
from mnemo.interop.convert.formats import Format
from mnemo.interop.convert.infer import Terms, check_types
from mnemo.interop.convert.layout import put_all
from mnemo.interop.convert.transformer_xl import empty_model
from mnemo.memory.state import Start
from mnemo.model import ModelConfig
from mnemo.storage.run_folder import RECIPE, TOKENIZER, open_run

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
"""Files that published code leaves in its folders, the first that is there counts."""
DEFAULT_SEGMENT = 128


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user adds to the files."""

    terms: Mapping[str, Any]
    """Constructor arguments by the authors' names, from flags."""
    config: Path | None = None
    """A JSON file of further ones."""
    vocab: Path | None = None
    without_vocab: bool = False


@dataclass(frozen=True, kw_only=True)
class Converted:
    config: ModelConfig
    weights: dict[str, Tensor]
    segment: int
    tokenizer: AnyTokenizer | None
    format: str
    start: Start
    """What the model's own code starts from."""
    notes: tuple[str, ...] = ()


def read(path: Path, given: Given) -> Converted:
    """A model from any of the known sources; nothing is written, and no code of a file runs."""
    if (path / RECIPE).is_file():
        return _read_mnemo(path, given)
    weights = _weights_file(path)
    content = files.read(weights)
    known = formats.recognise(content.tensors, str(weights))
    try:
        return convert(known, content, weights, given)
    except MnemoError as error:
        raise MnemoError(f"{weights}: {error}") from None


def _read_mnemo(path: Path, given: Given) -> Converted:
    if given.terms or given.config or given.vocab:
        raise MnemoError(f"{path} is a run of mnemo, which knows its own configuration: leave the flags out")
    run = open_run(path, device="cpu")
    known = None
    if (path / TOKENIZER).exists():
        known = tokenizers.from_json(load_json(path / TOKENIZER).get("tokenizer"))
    return Converted(
        config=run.recipe.model,
        weights=dict(run.model.state_dict()),
        segment=run.recipe.train.segment,
        tokenizer=known,
        format="mnemo",
        start=run.start,
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


def convert(known: Format, content: Content, path: Path, given: Given) -> Converted:
    """A model from weights in a known format, that lie at `path`."""
    tensors = _floats(known.tensors(content.tensors))
    said = _given_terms(content, path, given)
    terms = known.terms(tensors, said)
    config = known.config(terms)
    model = empty_model(config)
    weights = put_all(known.layout(model), tensors, dict(model.named_parameters()))
    symbols = _symbols(content, path.parent, given)
    if symbols is not None:
        vocabulary.check_size(symbols, config.vocab_size, "the vocabulary")
    notes = [f"read as {known.title}", f"taken as: {formats.describe_terms(terms)}"]
    longer = max(config.memory.lengths(config.num_layers)) - terms["mem_len"]
    if longer > 0:
        notes.append(f"its same_length lets a token see one key more than ours: the memory is {longer} longer for that")
    if known.start == "zeros":
        notes.append("its own code starts from a memory full of zeros: so does a run of it")
    return Converted(
        config=config,
        weights=weights,
        segment=terms.get("tgt_len") or DEFAULT_SEGMENT,
        tokenizer=None if symbols is None else vocabulary.tokenizer(symbols),
        format=known.name,
        start=known.start,
        notes=tuple(notes),
    )


def _floats(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All in one type that holds every number exactly."""
    strange = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if strange:
        raise MnemoError(f"'{strange[0]}' holds no floating-point numbers")
    double = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    return {name: tensor.to(torch.float64 if double else torch.float32) for name, tensor in tensors.items()}


def _given_terms(content: Content, path: Path, given: Given) -> Terms:
    """From the checkpoint itself, its config.json or the one that was named, and flags, which count most."""
    inside = content.others.get("model_config")
    beside = path.parent / CONFIG
    terms = inside if isinstance(inside, dict) else {}
    if given.config is not None or beside.is_file():
        terms = terms | _read_config(given.config or beside)
    terms = terms | dict(given.terms)
    if isinstance(terms.get("d_embed"), int) and terms["d_embed"] < 0:
        terms = terms | {"d_embed": None}
    terms = {name: value for name, value in terms.items() if value is not None}
    check_types(terms)
    if terms.get("sample_softmax", -1) > 0:
        raise MnemoError(f"sample_softmax {terms['sample_softmax']}: no published code has one that runs")
    return terms


def _read_config(path: Path) -> Terms:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MnemoError(f"{path} is missing") from None
    except ValueError:
        raise MnemoError(f"{path} is damaged or truncated: it is not JSON") from None
    if not isinstance(data, dict):
        raise MnemoError(f"{path} holds no configuration")
    kind = data.get("model_type", "transfo-xl")
    if kind != "transfo-xl":
        raise MnemoError(f"{path} is of a model of type '{kind}', not 'transfo-xl'")
    return data


def _symbols(content: Content, folder: Path, given: Given) -> list[str] | None:
    if given.without_vocab:
        return None
    if given.vocab is not None:
        return vocabulary.read(given.vocab)
    inside = content.others.get("vocab")
    if isinstance(inside, dict) and isinstance(inside.get("idx2sym"), list):
        return inside["idx2sym"]
    try:
        beside = vocabulary.find(folder)
    except MnemoError as error:
        raise MnemoError(f"{error} (or convert the weights alone with --no-vocab)") from None
    return None if beside is None else vocabulary.read(beside)
