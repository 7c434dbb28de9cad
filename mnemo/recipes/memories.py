"""The papers' memories by name: any recipe with another memory, and everything else unchanged.

    recipe = memory_recipe(preset("tiny-bytes"), "rmt")

`KINDS` lists the memories. `mnemo train PRESET --model.memory rmt` uses the same function, and so do the presets
`tiny-bytes-KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace

from mnemo.errors import MnemoError, unknown
from mnemo.memory import XL, AnyMemory, Associative, Compressive, Infinite, Lookahead, MemoryTokens, Plan, WriteTokens
from mnemo.memory.own import own_mechanisms
from mnemo.model import ModelConfig
from mnemo.model.positions import Relative
from mnemo.recipes.recipe import EvalConfig, Recipe, TrainConfig

MEMORY_TOKENS = 10
"""RMT's Table 2 has between 1 and 50; ten are near the best at every segment length."""
BPTT = 2
"""Earlier segments that the gradient of memory tokens reaches. RMT has up to 4: the first gains most, and each makes a
training step longer by one segment."""
COMPRESSION = 4
"""Rows that become one compressed slot (Rae et al., 2020, for WikiText-103)."""
WIDTHS = (0.03, 0.1)
"""Deviations of infinity-former's basis functions. The published (0.01, 0.05) are for hundreds of functions: fewer
must be wider to overlap."""
LONG, SHORT, SHARE = 6, 3, 6
"""Rae & Razavi (2020): a long memory of 6 segments in a sixth of the layers, and of a third of a segment elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One paper's memory."""

    model: str
    """Name of the model in its paper."""
    about: str
    source: str
    """The paper, and the sizes of this memory."""
    aliases: tuple[str, ...]
    """Further names that users may give."""
    mechanism: str = ""
    """The kind of configuration that it consists of, as the command line names it; empty if more than one makes it."""
    change: Callable[[ModelConfig, int], ModelConfig]
    """The same model with this memory, given the number of slots."""


def _layers(model: ModelConfig, memory: AnyMemory) -> ModelConfig:
    return replace(model, memory=Plan(long=memory), tokens=None)


def _without(model: ModelConfig, slots: int) -> ModelConfig:
    return _layers(model, XL(length=0))


def _xl(model: ModelConfig, slots: int) -> ModelConfig:
    return _layers(model, XL(length=slots))


def _long_range(model: ModelConfig, slots: int) -> ModelConfig:
    long, short = XL(length=LONG * slots), XL(length=max(1, slots // SHORT))
    plan = Plan(long=long, short=short, num_long=max(1, model.num_layers // SHARE))
    return replace(model, memory=plan, tokens=None)


def _lookahead(model: ModelConfig, slots: int) -> ModelConfig:
    return _layers(model, Lookahead(length=slots))


def _compressive(model: ModelConfig, slots: int) -> ModelConfig:
    return _layers(model, Compressive(length=slots, compressed=slots, ratio=COMPRESSION))


def _infinite(model: ModelConfig, slots: int) -> ModelConfig:
    basis = slots + slots % len(WIDTHS)
    memory = Infinite(length=slots, basis=basis, block=slots, samples=slots, widths=WIDTHS, sticky=True, gate="shared")
    return _layers(model, memory)


def _tokens(model: ModelConfig, write: bool) -> ModelConfig:
    num = MEMORY_TOKENS if model.tokens is None else model.tokens.num
    return replace(model, memory=Plan(long=XL(length=0)), tokens=MemoryTokens(num=num, write=write))


def _armt(model: ModelConfig, slots: int) -> ModelConfig:
    num = MEMORY_TOKENS if model.tokens is None else model.tokens.num
    return replace(model, memory=Plan(long=Associative()), tokens=WriteTokens(num=num))


def _rmt(model: ModelConfig, slots: int) -> ModelConfig:
    return _tokens(model, write=True)


def _mt(model: ModelConfig, slots: int) -> ModelConfig:
    return _tokens(model, write=False)


KINDS: dict[str, Kind] = {
    "none": Kind(
        model="Transformer",
        about="no memory, every segment is read alone",
        source="The baseline of all papers: relative positions, and no memory.",
        aliases=("no-memory", "transformer", "vanilla"),
        change=_without,
    ),
    "xl": Kind(
        model="Transformer-XL",
        about="every layer keeps its last inputs",
        source="Dai et al. (2019): as many slots as a segment has tokens, here also in tests.",
        aliases=("transformer-xl", "txl", "transfo-xl"),
        mechanism="xl",
        change=_xl,
    ),
    "long-range": Kind(
        model="Transformer-XL",
        about="a few layers have a long memory",
        source=f"Rae & Razavi (2020): one layer in {SHARE} has {LONG} times as many slots as a segment has tokens, "
        "the others a third as many.",
        aliases=("plan", "long", "long-range-memory"),
        change=_long_range,
    ),
    "lamemo": Kind(
        model="LaMemo",
        about="memory slots attend to later tokens",
        source="Ji et al. (2022): look-ahead memory with as many slots as a segment has tokens.",
        aliases=("lookahead", "look-ahead"),
        mechanism="lookahead",
        change=_lookahead,
    ),
    "rmt": Kind(
        model="RMT",
        about="memory tokens that every segment reads and writes",
        source=f"Bulatov et al. (2022): {MEMORY_TOKENS} memory tokens, no slots, and gradients through {BPTT} earlier "
        "segments.",
        aliases=("memory-tokens", "recurrent-memory-transformer"),
        mechanism="memory-tokens",
        change=_rmt,
    ),
    "armt": Kind(
        model="ARMT",
        about="memory tokens write to a matrix of every layer",
        source=f"Rodkin et al. (2024): {MEMORY_TOKENS} memory tokens after every segment, keys of width 64, no slots, "
        f"and gradients through {BPTT} earlier segments.",
        aliases=("associative", "associative-recurrent-memory-transformer"),
        mechanism="associative",
        change=_armt,
    ),
    "mt": Kind(
        model="Memory Transformer",
        about="memory tokens that are only read",
        source=f"Burtsev et al. (2020), a baseline of RMT: {MEMORY_TOKENS} memory tokens that every segment reads "
        "anew, so that nothing passes from segment to segment.",
        aliases=("memory-transformer",),
        change=_mt,
    ),
    "compressive": Kind(
        model="Compressive Transformer",
        about="rows that leave the memory are compressed",
        source=f"Rae et al. (2020): as many slots as a segment has tokens, and as many compressed slots, each of "
        f"{COMPRESSION} rows by a convolution, trained to preserve attention.",
        aliases=("compressive-transformer",),
        mechanism="compressive",
        change=_compressive,
    ),
    "infinite": Kind(
        model="infinity-former",
        about="rows that leave the memory become a continuous signal",
        source="Martins et al. (2022): as many slots and as many basis functions as a segment has tokens, sticky "
        "memories, one gate for all layers. Widths of the basis functions and the number of samples are our choice.",
        aliases=("infinity-former", "infinite-former", "inf-former"),
        mechanism="infinite",
        change=_infinite,
    ),
}
_NAMES = {name: kind for kind, found in KINDS.items() for name in (kind, *found.aliases)}


def memory_kind(name: str) -> str | None:
    """The key in `KINDS` of a memory or its paper, in any spelling that users may give; None if there is none."""
    return _NAMES.get(name.strip().lower().replace("_", "-").replace(" ", "-"))


def known_memories() -> dict[str, Kind]:
    """All memories that `memory_recipe` accepts: those of the papers, then the user's own mechanisms."""
    return KINDS | {name: _own_kind(cls) for name, cls in own_mechanisms().items()}


def memory_name(name: str) -> str:
    """The key in `known_memories` of a memory, in any spelling that users may give."""
    plain = memory_kind(name) or name.strip().lower().replace("_", "-")
    if plain not in known_memories():
        raise unknown("memory", name, known_memories())
    return plain


def _own_kind(cls: type) -> Kind:
    """A mechanism from outside of the package in every layer, with its defaults; a length without one is `slots`."""

    def change(model: ModelConfig, slots: int) -> ModelConfig:
        needs_length = any(field.name == "length" and field.default is MISSING for field in fields(cls))
        return _layers(model, cls(length=slots) if needs_length else cls())

    return Kind(model=cls.__name__, about="a memory of your own", source="", aliases=(), change=change)


def mechanism_of(name: str) -> str:
    """The kind of configuration of a paper's memory, as the command line names it; empty if there is none."""
    kind = memory_kind(name)
    return "" if kind is None else KINDS[kind].mechanism


def names_of(name: str) -> set[str]:
    """All names of a paper's memory, given one of them; any other name has itself only."""
    kind = memory_kind(name)
    return {name.lower()} if kind is None else {kind, KINDS[kind].model.lower(), *KINDS[kind].aliases}


def memory_recipe(recipe: Recipe, name: str) -> Recipe:
    """The same recipe with another paper's memory, given by a key of `known_memories` or an alias.

    Every memory has as many slots as the longest memory of `recipe`, or as a segment has tokens if it has none. RMT has
    no slots: its memory tokens are the only memory, and gradients reach earlier segments. Validation and tests use the
    segments and the memory of training, so that the memories can be compared.
    """
    kind = memory_name(name)
    model, train = recipe.model, recipe.train
    slots = max(model.memory.lengths(model.num_layers)) or train.segment
    try:
        positions = Relative() if model.positions.none else model.positions
        changed = known_memories()[kind].change(
            replace(model, positions=positions, memory=Plan(long=XL(length=0))), slots
        )
        return replace(
            recipe,
            model=_fitting(changed, train.segment),
            train=_gradient_through_segments(train, changed),
            evaluation=_as_trained(recipe.evaluation),
            test=_as_trained(recipe.test),
        )
    except ValueError as error:
        raise MnemoError(f"this recipe cannot have the memory '{kind}': {error}") from None


def _fitting(model: ModelConfig, segment: int) -> ModelConfig:
    """At most as many memory tokens as tokens in a segment."""
    if model.tokens is None or model.tokens.num <= segment:
        return model
    return replace(model, tokens=replace(model.tokens, num=segment))


def _gradient_through_segments(train: TrainConfig, model: ModelConfig) -> TrainConfig:
    """Memory tokens that are carried on and associative memories need it; tumbling windows suit every memory."""
    if model.carries_gradient:
        return replace(train, bptt=train.bptt or BPTT)
    return train if train.bptt_window == "tumbling" else replace(train, bptt=0, bptt_stale=False)


def _as_trained(config: EvalConfig) -> EvalConfig:
    return replace(config, segment=None, memory=None, clamp=None, same_length=None)
