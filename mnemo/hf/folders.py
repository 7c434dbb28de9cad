"""Runs of mnemo and folders of the transformers library: one into the other, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import torch

from mnemo.data.tokenizers import AnyTokenizer, from_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json
from mnemo.hf.configuration import MnemoConfig
from mnemo.hf.modeling import MnemoForCausalLM
from mnemo.hf.tokenization import MnemoTokenizer
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.storage.checkpoint import save_checkpoint
from mnemo.storage.run_folder import TOKENIZER, RunHeader, open_run, write_header


class Pretrained(NamedTuple):
    model: MnemoForCausalLM
    tokenizer: MnemoTokenizer | None
    """None where the run was not trained on text"""

    def save_pretrained(self, folder: str | Path) -> None:
        """A folder that `AutoModelForCausalLM` and `AutoTokenizer` read."""
        self.model.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)


def from_run(run: str | Path, which: Literal["best", "last"] = "best", device: str = "cpu") -> Pretrained:
    """A trained run, given by its folder or by its name under `runs`, as model and tokenizer."""
    opened = open_run(run, which, device)
    path = opened.path / TOKENIZER
    core = from_json(load_json(path).get("tokenizer")) if path.exists() else None
    if core is not None and core.vocab_size != opened.recipe.model.vocab_size:
        raise MnemoError(f"{path} has {core.vocab_size} symbols, the model {opened.recipe.model.vocab_size}")
    config = MnemoConfig(opened.recipe.model, segment=opened.recipe.train.segment, start=opened.start)
    with torch.device("meta"):
        model = MnemoForCausalLM(config)
    model.model = opened.model
    config.dtype = next(opened.model.parameters()).dtype
    return Pretrained(model.eval(), None if core is None else MnemoTokenizer.of(core))


def to_run(model: MnemoForCausalLM, folder: str | Path, tokenizer: MnemoTokenizer | None = None) -> Path:
    """A run folder with these weights, as if they had been trained there: mnemo evaluates and trains on from it."""
    folder = Path(folder)
    if folder.exists():
        raise MnemoError(f"{folder} exists: name a folder that does not")
    core = None if tokenizer is None else tokenizer.core
    if core is not None and core.vocab_size != model.config.vocab_size:
        raise MnemoError(f"the tokenizer has {core.vocab_size} symbols, the model {model.config.vocab_size}")
    weights = {name: tensor.detach().cpu() for name, tensor in model.model.state_dict().items()}
    types = {tensor.dtype for tensor in weights.values()}
    if not types <= {torch.float32, torch.float64} or len(types) > 1:
        raise MnemoError("a run keeps float32 or float64 weights: call model.float() first")
    precision = "fp64" if types == {torch.float64} else "fp32"
    recipe = Recipe(model=model.config.core, train=TrainConfig(segment=model.config.segment, precision=precision))
    source = {"starts_from": model.config.start}
    header = RunHeader(recipe=recipe, corpus=_corpus(recipe, core), source=source)
    write_header(folder, header, None if core is None else core.to_json())
    save_checkpoint(folder, {"step": 0, "average_count": 0}, {"weights": weights, "training": {}, "memory": {}})
    return folder


def _corpus(recipe: Recipe, tokenizer: AnyTokenizer | None) -> dict[str, object]:
    unit = None if tokenizer is None else tokenizer.unit
    return {"name": recipe.data.corpus, "unit": unit, "vocab_size": recipe.model.vocab_size, "fingerprint": None}
