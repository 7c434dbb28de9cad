"""The options of `add_memory`, and the configuration that stores them."""

from __future__ import annotations

from typing import Any, Literal, get_args

from transformers import AutoConfig, PreTrainedConfig

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError, unknown
from mnemo.memory import Associative, MemoryTokens, WriteTokens

FORMAT_VERSION = 1
MaskPolicy = Literal["causal", "block"]
PositionPolicy = Literal["continue", "tokens", "fixed"]
Align = Literal["left", "right"]
Window = Literal["sliding", "tumbling"]
Backward = Literal["checkpoint", "plain"]
Kind = Literal["tokens", "associative"]
Start = Literal["random", "overlap"]
CHOICES = {
    "kind": Kind,
    "start": Start,
    "mask": MaskPolicy,
    "positions": PositionPolicy,
    "align": Align,
    "window": Window,
    "backward": Backward,
}


def backbone_value(name: str) -> Any:
    """Return a property that is stored in the configuration of the backbone."""

    def get(config: MemoryConfig) -> Any:
        return None if config.text_config is None else getattr(config.text_config.get_text_config(), name, None)

    def store(config: MemoryConfig, value: Any) -> None:
        setattr(config.text_config.get_text_config(), name, value)

    return property(get, store)


class MemoryConfig(PreTrainedConfig):
    """The configuration of the backbone and of the memory, in one file."""

    model_type = "mnemo-memory"
    keys_to_ignore_at_inference = ["past_key_values", "memory"]

    text_config: Any = None
    """Configuration of the backbone"""
    kind: str = "tokens"
    """"tokens": memory tokens are carried from segment to segment (RMT); "associative": they write to a matrix of each
    layer, which is carried (ARMT)"""
    associative: Any = None
    """Options of the associative memory, the fields of `mnemo.memory.Associative`"""
    tokens: int = 16
    """Memory tokens; with 0, segments are independent of each other"""
    segment: int = 1024
    """Tokens per segment, without memory tokens"""
    bptt: int | None = 2
    """Number of earlier segments that the gradient of a loss reaches; None for all"""
    mask: str = "causal"
    """Which rows attend to each other, see MaskPolicy"""
    positions: str = "continue"
    """Position ids of the rows, see PositionPolicy"""
    align: str = "left"
    """Which segment of a row is shorter: the last one ("left") or the first one ("right")"""
    window: str = "sliding"
    """"sliding": every loss reaches exactly `bptt` earlier segments, which are read again for it; "tumbling": groups
    of bptt + 1 segments follow each other, and a loss reaches the start of its group"""
    score: int | None = None
    """Number of last segments of a sample that have a loss; None for all"""
    backward: str = "checkpoint"
    """"checkpoint": compute every segment again in the backward pass, which stores the activations of one segment at a
    time; "plain": store those of all segments"""
    wrap: tuple[int, int] | None = None
    """Encoders: ids of the tokens before and after every segment, such as [CLS] and [SEP]"""
    std: float = 1.0
    """Standard deviation of the initial memory"""
    start: str = "random"
    """"random": random memory tokens, as published, which disturb the backbone until they are trained; "overlap": the
    read block starts as the last tokens of the segment before, to which a small gate adds the written memory"""
    attend_previous: bool = False
    """Tokens also attend to the tokens of the previous segment, whose keys and values are carried without gradient"""
    format_version: int = FORMAT_VERSION

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.text_config, dict):
            self.text_config = AutoConfig.for_model(**self.text_config)
        self.wrap = None if self.wrap is None else tuple(self.wrap)  # type: ignore[assignment]
        if isinstance(self.associative, Associative):
            self.associative = to_json(self.associative)
        super().__post_init__(**kwargs)
        check_options(self)

    # Names by which libraries look up the sizes of a language model; the backbone's configuration holds their values.
    vocab_size = backbone_value("vocab_size")
    hidden_size = backbone_value("hidden_size")
    num_hidden_layers = backbone_value("num_hidden_layers")
    num_attention_heads = backbone_value("num_attention_heads")
    max_position_embeddings = backbone_value("max_position_embeddings")
    bos_token_id = backbone_value("bos_token_id")
    eos_token_id = backbone_value("eos_token_id")
    pad_token_id = backbone_value("pad_token_id")

    @property
    def num_read(self) -> int:
        """Rows before the tokens of a segment."""
        return self.tokens if self.kind == "tokens" else 0

    def associative_memory(self) -> Associative:
        """Return the core's configuration of the layers' memory."""
        return from_json(Associative, self.associative or {}, "associative")

    def write_tokens(self) -> WriteTokens:
        """Return the core's configuration of the memory tokens that write to an associative memory."""
        return WriteTokens(num=self.tokens, std=self.std)

    def memory_tokens(self, encoder: bool = False) -> MemoryTokens:
        """Return the core's configuration: a read block before and a write block after the tokens.

        Encoders have one block before the tokens, which is read and written.
        """
        mask = "causal" if encoder else self.mask
        return MemoryTokens(num=self.tokens, write=not encoder, carry_read=encoder, mask=mask, std=self.std)  # type: ignore[arg-type]


def check_options(config: MemoryConfig) -> None:
    """Refuse options that are wrong for every backbone."""
    if config.format_version > FORMAT_VERSION:
        raise MnemoError(
            f"this model was saved with format_version {config.format_version}; this version of mnemo loads "
            f"{FORMAT_VERSION} and older"
        )
    for name, choices in CHOICES.items():
        value = getattr(config, name)
        if value not in get_args(choices):
            raise unknown(f"{name} policy", str(value), get_args(choices))
    for name, least in (("tokens", 0), ("segment", 1), ("bptt", 0), ("score", 1)):
        value = getattr(config, name)
        if value is None and name in ("bptt", "score"):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise MnemoError(f"{name}={value!r} must be a whole number of at least {least}")
    if not isinstance(config.attend_previous, bool):
        raise MnemoError(f"attend_previous={config.attend_previous!r} must be True or False")
    if config.kind == "associative":
        check_associative(config)
    elif config.associative is not None:
        raise MnemoError('options of an associative memory need kind="associative"')
    if config.start == "overlap" and config.kind == "associative":
        raise MnemoError('an associative memory is empty at first and changes nothing: it needs no start="overlap"')
    if config.start == "overlap" and config.std == 0:
        raise MnemoError('std=0 would multiply the memory by zero: start="overlap" needs std > 0')
    if not isinstance(config.std, int | float) or not config.std >= 0:
        raise MnemoError(f"std={config.std!r} must be a number of at least 0")
    if config.wrap is not None and (len(config.wrap) != 2 or config.segment < 3):
        raise MnemoError("wrap needs two token ids, and a segment that has room for at least one more token")


def check_associative(config: MemoryConfig) -> None:
    """Refuse options that do not fit an associative memory."""
    if config.tokens < 1:
        raise MnemoError("an associative memory is written by memory tokens: tokens must be at least 1")
    if config.mask != "causal":
        raise MnemoError('memory tokens of an associative memory see earlier rows only: use mask="causal"')
    if config.associative_memory().length:
        raise MnemoError(
            "length is for Mnemo's own models: use attend_previous=True for attention to the previous segment"
        )
