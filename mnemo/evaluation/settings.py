"""How a split is scored: the values that flags, recipe and defaults resolve to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemo.errors import MnemoError, require_not_negative, require_positive
from mnemo.memory.configuration import Start
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import EvalConfig, Recipe

Documents = Literal["ignore", "reset"]
Order = Literal["contiguous", "sentences"]


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    batch: int
    """Rows of text that are scored side by side."""
    segment: int
    """New tokens of a segment; tokens of a sliding window."""
    context: int = 0
    """Tokens before each segment that are encoded again and carry no loss."""
    memory: int | None = None
    """Memory length of the long-range layers; None: as configured."""
    clamp: int | None = None
    """Largest distance that relative positions distinguish; None: as configured."""
    same_length: bool | None = None
    """Every query sees the same number of keys; None: as configured."""
    limit: int | None = None
    """Score only this many symbols, the first ones."""
    documents: Documents = "ignore"
    """`reset`: segments end with their document, and the memory is emptied there."""
    order: Order = "contiguous"
    """`sentences`: documents are sentences packed into rows; no loss across two of them, the memory is kept."""
    start: Start = "empty"
    """`zeros`: the memory is full of zeros at first, which are attended to, as in TensorFlow and Hugging Face."""
    no_memory: bool = False
    """Empty the state before every segment, for all layers."""
    sliding: bool = False
    """Predict every token from its own window of `segment` tokens, without memory."""
    windows: int | None = None
    """Sliding windows in one batch; None: a number that suits the device."""

    def __post_init__(self) -> None:
        for name in ("batch", "limit", "clamp"):
            require_positive(name, getattr(self, name))
        require_positive("segment length", self.segment)
        require_positive("windows at a time", self.windows)
        require_not_negative("memory length", self.memory)
        if self.sliding and not self.is_one_text:
            raise MnemoError("sliding windows run over the whole text: they cannot be combined with documents")
        if self.start == "zeros" and (self.sliding or self.no_memory or not self.is_one_text):
            raise MnemoError("a memory that starts full of zeros must be kept through one text")

    @property
    def is_one_text(self) -> bool:
        """Whether the split is scored as one text, regardless of its documents."""
        return (self.documents, self.order) == ("ignore", "contiguous")

    @staticmethod
    def of_recipe(recipe: Recipe, config: EvalConfig) -> EvaluationSettings:
        """Segment, context, documents and order as in training, unless `config` has other lengths."""
        train, data = recipe.train, recipe.data
        return resolve(
            config,
            segment=train.segment,
            context=train.context,
            documents=data.documents,
            order=data.order,
        )


def resolve(
    config: EvalConfig,
    *,
    segment: int,
    context: int = 0,
    documents: Documents = "ignore",
    order: Order = "contiguous",
    start: Start = "empty",
) -> EvaluationSettings:
    """The settings of a configuration; `segment` and `context` are used if it has none."""
    return EvaluationSettings(
        batch=config.batch,
        segment=segment if config.segment is None else config.segment,
        context=context if config.context is None else config.context,
        memory=config.memory,
        clamp=config.clamp,
        same_length=config.same_length,
        limit=config.limit,
        documents=documents,
        order=order,
        start=start,
    )


def trained_memory(model: ModelConfig) -> int:
    """Memory length of the long-range layers in training."""
    return model.memory.long_length(model.memory.lengths(model.num_layers))


def training_remark(model: ModelConfig, memory: int) -> str:
    """The remark of an evaluation at another memory length than that of training; empty at the same length."""
    trained = trained_memory(model)
    return "" if memory == trained else f"evaluated at memory {memory:,}, trained at {trained:,}"
