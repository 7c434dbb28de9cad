"""Sessions of small random models, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.models import random_model

from mnemo.data.tokenizers import AnyTokenizer, ByteTokenizer
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.session.session import Session
from mnemo.session.text_run import OpenedRun
from mnemo.storage.run_folder import LoadedRun

SEGMENT = 4
TEXT = "abcdefghijklmnopqrstuvw"
TOKENIZER = ByteTokenizer(TEXT.encode())


def random_run(tokenizer: AnyTokenizer = TOKENIZER, **changes: Any) -> OpenedRun:
    """A run of an untrained model whose alphabet are the first 23 letters."""
    model = random_model(**changes)
    recipe = Recipe(model=model.config, train=TrainConfig(segment=SEGMENT))
    return OpenedRun(LoadedRun(Path("random"), recipe, model, 0, {}, "empty"), tokenizer)


def random_session(seed: int = 0, **changes: Any) -> Session:
    return Session(random_run(**changes), seed=seed)
