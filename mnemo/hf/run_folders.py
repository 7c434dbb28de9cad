"""Convert run folders of mnemo to transformers models, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import torch

from mnemo.errors import MnemoError
from mnemo.hf.configuration import MnemoConfig
from mnemo.hf.modeling import MnemoForCausalLM
from mnemo.hf.tokenization import MnemoTokenizer
from mnemo.interop.convert.save import unknown_corpus, write_untrained_run
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.storage.run_folder import open_run
from mnemo.storage.run_header import TOKENIZER, RunHeader
from mnemo.storage.run_tokenizer import load_tokenizer


class Pretrained(NamedTuple):
    model: MnemoForCausalLM
    tokenizer: MnemoTokenizer | None
    """None if the run was not trained on text"""

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `AutoModelForCausalLM` and `AutoTokenizer` can load."""
        self.model.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)


def from_run(run: str | Path, which: Literal["best", "last"] = "best", device: str = "cpu") -> Pretrained:
    """Load a trained run, given by its folder or by its name under `runs`, as model and tokenizer."""
    opened = open_run(run, which, device)
    core = load_tokenizer(opened.path)
    if core is not None and core.vocab_size != opened.recipe.model.vocab_size:
        path = opened.path / TOKENIZER
        raise MnemoError(f"{path} has {core.vocab_size} symbols, the model {opened.recipe.model.vocab_size}")
    config = MnemoConfig(
        opened.recipe.model, segment=opened.recipe.train.segment, start=opened.start, decoding=opened.decoding
    )
    with torch.device("meta"):
        model = MnemoForCausalLM(config)
    model.model = opened.model
    config.dtype = next(opened.model.parameters()).dtype
    return Pretrained(model.eval(), None if core is None else MnemoTokenizer.of(core))


def to_run(model: MnemoForCausalLM, folder: str | Path, tokenizer: MnemoTokenizer | None = None) -> Path:
    """Write a run folder with these weights, which mnemo can evaluate and train further."""
    folder = Path(folder)
    if folder.exists():
        raise MnemoError(f"{folder} exists already: name a new folder")
    core = None if tokenizer is None else tokenizer.core
    if core is not None and core.vocab_size != model.config.vocab_size:
        raise MnemoError(f"the tokenizer has {core.vocab_size} symbols, the model {model.config.vocab_size}")
    weights = {name: tensor.detach().cpu() for name, tensor in model.model.state_dict().items()}
    types = {tensor.dtype for tensor in weights.values()}
    if not types <= {torch.float32, torch.float64} or len(types) > 1:
        raise MnemoError("a run keeps float32 or float64 weights: call model.float() first")
    precision = "fp64" if types == {torch.float64} else "fp32"
    recipe = Recipe(model=model.config.core, train=TrainConfig(segment=model.config.segment, precision=precision))
    corpus = unknown_corpus(recipe.data.corpus, core, recipe.model.vocab_size)
    source = {"starts_from": model.config.start, "decoding": model.config.decoding}
    header = RunHeader(recipe=recipe, corpus=corpus, source=source)
    write_untrained_run(folder, header, weights, core)
    return folder
