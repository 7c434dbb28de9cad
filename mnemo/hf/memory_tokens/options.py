"""What can be chosen when memory is added to a model, and the configuration file that keeps it."""

from __future__ import annotations

from typing import Any, Literal, get_args

from transformers import AutoConfig, PreTrainedConfig

from mnemo.errors import MnemoError, unknown
from mnemo.memory import MemoryTokens

FORMAT_VERSION = 1
MaskPolicy = Literal["causal", "block"]
PositionPolicy = Literal["continue", "tokens", "fixed"]
Align = Literal["left", "right"]
Window = Literal["sliding", "tumbling"]
Backward = Literal["checkpoint", "plain"]
CHOICES = {
    "mask": MaskPolicy,
    "positions": PositionPolicy,
    "align": Align,
    "window": Window,
    "backward": Backward,
}


class MemoryConfig(PreTrainedConfig):
    """The backbone's configuration and the memory's, in one file."""

    model_type = "mnemo-memory"
    keys_to_ignore_at_inference = ["past_key_values", "memory"]

    text_config: Any = None
    """The backbone's own configuration"""
    tokens: int = 16
    """Memory tokens; 0 cuts the text into segments that know nothing of each other"""
    segment: int = 1024
    """Tokens that the backbone reads at once, memory not counted"""
    bptt: int | None = 2
    """Segments before its own that a loss sends gradient to; None for all of them"""
    mask: str = "causal"
    """How rows see each other, see MaskPolicy"""
    positions: str = "continue"
    """Where rows stand, see PositionPolicy"""
    align: str = "left"
    """Which segment is the short one: the last ("left") or the first ("right")"""
    window: str = "sliding"
    """Every loss reaches back exactly `bptt` segments, which costs reading them again; or windows of bptt + 1 segments
    follow each other, and a loss reaches to the beginning of its window ("tumbling")"""
    score: int | None = None
    """How many of the last segments of a sample have a loss; None for all of them"""
    backward: str = "checkpoint"
    """Compute every segment again in the backward pass, which needs the activations of one; or keep all of them"""
    wrap: tuple[int, int] | None = None
    """Encoders: the tokens that stand in front of and behind every segment, such as [CLS] and [SEP]"""
    std: float = 1.0
    """Deviation of the learned memory at first"""
    format_version: int = FORMAT_VERSION

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.text_config, dict):
            self.text_config = AutoConfig.for_model(**self.text_config)
        self.wrap = None if self.wrap is None else tuple(self.wrap)  # type: ignore[assignment]
        super().__post_init__(**kwargs)
        check_options(self)

    def memory_tokens(self, encoder: bool = False) -> MemoryTokens:
        """The core's part: a block in front and one behind; one in front, read and written, for encoders."""
        mask = "causal" if encoder else self.mask
        return MemoryTokens(num=self.tokens, write=not encoder, carry_read=encoder, mask=mask, std=self.std)  # type: ignore[arg-type]


def check_options(config: MemoryConfig) -> None:
    """Refuse what contradicts itself whatever the backbone is."""
    if config.format_version > FORMAT_VERSION:
        raise MnemoError(
            f"this model was saved in format {config.format_version}, and this version of mnemo reads "
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
    if not isinstance(config.std, int | float) or not config.std >= 0:
        raise MnemoError(f"std={config.std!r} must be a number of at least 0")
    if config.wrap is not None and (len(config.wrap) != 2 or config.segment < 3):
        raise MnemoError("wrap is two token ids around each segment, which must have room for at least one more token")
