"""The configuration of a Mnemo model in the form of transformers' config.json."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from transformers import PretrainedConfig

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError, unknown
from mnemo.memory.configuration import Decoding, Start
from mnemo.model import ModelConfig

FORMAT_VERSION = 1


class MnemoConfig(PretrainedConfig):
    """Configuration of a `MnemoForCausalLM`.

    `model`: a `mnemo.ModelConfig`, or its JSON form by `mnemo.config.to_json`
    `segment`: tokens of a segment; longer inputs are split inside the model
    `start`: memory at the start of a text: empty, or full of zeros that are attended to (as in TransfoXL)
    `decoding`: "segments": continued text fills segments of `segment` tokens; "calls": each call with a cache reads its
        input as one segment, so that `generate` takes the prompt, then every token, as a segment (as TransfoXL did)

    The padding id is `vocab_size`, one more than the largest token id.
    """

    model_type = "mnemo"
    keys_to_ignore_at_inference = ["past_key_values"]
    has_no_defaults_at_init = False

    def __init__(
        self,
        model: ModelConfig | dict[str, Any] | None = None,
        segment: int = 128,
        start: Start = "empty",
        decoding: Decoding = "segments",
        use_cache: bool = True,
        format_version: int = FORMAT_VERSION,
        **kwargs: Any,
    ) -> None:
        if format_version != FORMAT_VERSION:
            raise MnemoError(f"config.json has format_version {format_version}; this version supports {FORMAT_VERSION}")
        if type(segment) is not int or segment < 1:
            raise MnemoError(f"segment length {segment} must be a positive number")
        if start not in ("empty", "zeros"):
            raise unknown("start", str(start), ("empty", "zeros"))
        if decoding not in ("segments", "calls"):
            raise unknown("decoding", str(decoding), ("segments", "calls"))
        core = model if isinstance(model, ModelConfig) else _core_config(model)
        self.format_version, self.segment, self.start, self.use_cache = format_version, segment, start, use_cache
        self.decoding = decoding
        self.model = to_json(core)
        self.vocab_size, self.hidden_size = core.vocab_size, core.dim
        self.num_hidden_layers, self.num_attention_heads = core.num_layers, core.num_heads
        derived = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings")
        super().__init__(**{name: value for name, value in kwargs.items() if name not in derived})
        self.tie_word_embeddings = False  # the core ties weights itself; transformers must not tie any

    @cached_property
    def core(self) -> ModelConfig:
        return _core_config(self.model)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name != "core"}


def _core_config(model: dict[str, Any] | None) -> ModelConfig:
    return ModelConfig() if model is None else from_json(ModelConfig, model, "config.json: model")
