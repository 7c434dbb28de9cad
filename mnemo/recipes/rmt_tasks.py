"""The algorithmic tasks of the Recurrent Memory Transformer (Bulatov et al., 2022): Figures 4, 5 and 7, Table 1.

    rmt-TASK-segN                    no memory (the baseline), segments of N
    rmt-TASK-segN-xlM                Transformer-XL with M slots
    rmt-TASK-segN-mtM                Memory Transformer with M memory tokens, which are only read
    rmt-TASK-segN-mM                 RMT: M memory tokens, with gradient through all segments of a sample

TASK is copy or reverse (24 symbols, or the number after the name), retrieval or quadratic. An update is a batch of
whole samples with all their segments, as in the published code, although the caption of Figure 4 says that no gradient
passes between segments. The paper gives layers, heads, widths and memory sizes; batches, head sizes, dropout, learning
rates and steps come from the authors' result files. `NAME@published` has the quirks of the published code, where
Transformer-XL's cache is kept from one sample to the next. One published model is missing: reverse of 120 symbols in
segments of 40 with 60 memory tokens, because more memory tokens than tokens of a segment are not supported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mnemo.data.tasks import AnyTask, Copy, Quadratic, Retrieval, Reverse
from mnemo.model import ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.recipes.preset_table import Table
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.recipes.rmt import with_cache, with_tokens
from mnemo.recipes.transformer_xl import everywhere

PRESETS = Table()


@dataclass(frozen=True, kw_only=True)
class Published:
    """Published settings that differ between tasks."""

    num_layers: int
    dim: int
    num_heads: int
    head_dim: int
    inner_dim: int
    patience: int
    eval_every: int = 12_000
    min_lr: float = 1e-6
    batch: int = 32


SHORT = Published(num_layers=4, dim=128, num_heads=4, head_dim=64, inner_dim=256, patience=8)
LONG = replace(SHORT, patience=5, eval_every=40_000, min_lr=1e-5, batch=128)
PAIRS = Published(num_layers=6, dim=64, num_heads=4, head_dim=32, inner_dim=128, patience=10)
EQUATIONS = Published(num_layers=6, dim=128, num_heads=6, head_dim=64, inner_dim=256, patience=10)


def task_recipe(task: AnyTask, published: Published, *, segment: int, steps: int) -> Recipe:
    """Return the recipe of a model without memory, trained on whole samples, as published."""
    model = ModelConfig(
        vocab_size=task.vocab_size,
        num_layers=published.num_layers,
        dim=published.dim,
        num_heads=published.num_heads,
        head_dim=published.head_dim,
        inner_dim=published.inner_dim,
        memory=everywhere(0),
        dropout=DropoutConfig.published(0.1),
    )
    train = TrainConfig(
        steps=steps,
        batch=published.batch,
        segment=segment,
        bptt=task.num_segments(segment) - 1,
        bptt_window="tumbling",
        optimizer=OptimizerConfig(lr=1e-4, clip=0.25),
        schedule=ScheduleConfig(kind="plateau", factor=0.5, patience=published.patience, min_lr=published.min_lr),
        log_every=200,
        eval_every=published.eval_every,
        checkpoint_every=published.eval_every,
    )
    evaluation = EvalConfig(batch=500)
    return Recipe(model=model, data=DataConfig(task=task), train=train, evaluation=evaluation, test=evaluation)


KINDS: dict[str, tuple[str, Callable[[Recipe, int], Recipe]]] = {
    "xl": ("Transformer-XL with {} slots", with_cache),
    "mt": ("Memory Transformer with {} memory tokens", functools.partial(with_tokens, write=False)),
    "m": ("RMT with {} memory tokens, full BPTT", with_tokens),
}


def _add(
    name: str,
    task: AnyTask,
    published: Published,
    segment: int,
    steps: int,
    source: str,
    baseline: str,
    results: Iterable[tuple[str, int, str]],
) -> None:
    """Add a baseline and the models with memory that are compared with it: kind, memory and result of each."""
    count = task.num_segments(segment)
    cut = f"{count} segments of {segment}" if count > 1 else f"one segment of {segment}"
    base_name = f"rmt-{name}-seg{segment}"

    def base() -> Recipe:
        return task_recipe(task, published, segment=segment, steps=steps)

    base.__doc__ = (
        f"RMT's baseline on {name}, {cut}, no memory: accuracy {baseline}.\n\n{source}. "
        f"{published.num_layers} layers of "
        f"width {published.dim}, {published.num_heads} heads of {published.head_dim}, {published.inner_dim} inside, "
        f"dropout 0.1, batch {published.batch}, Adam with a learning rate of 1e-4 that is halved after "
        f"{published.patience} evaluations without improvement, an evaluation every {published.eval_every:,} steps, "
        f"gradient norms clipped at 0.25, {steps:,} steps (published runs of one model differ in the number of steps, "
        "and have more of them if there are more segments)."
    )
    PRESETS.add(base_name)(base)
    for kind, memory, result in results:
        words, change = KINDS[kind]
        summary = f"{words.format(memory)} on {name}, {cut}: accuracy {result}."
        PRESETS.add_variant(f"{base_name}-{kind}{memory}", summary, base, functools.partial(_changed, change, memory))


def _changed(change: Callable[[Recipe, int], Recipe], memory: int, recipe: Recipe) -> Recipe:
    return change(recipe, memory)


FIGURE = "Figure 4 and, with half the memory, Figure 7"
_add("copy", Copy(), SHORT, 72, 250_000, FIGURE, "1.0", [])
_add(
    "copy",
    Copy(),
    SHORT,
    24,
    250_000,
    FIGURE,
    "0.118",
    [("xl", 24, "1.0"), ("mt", 24, "0.119"), ("m", 24, "1.0"), ("xl", 12, "0.832"), ("m", 12, "1.0")],
)
_add(
    "copy",
    Copy(),
    SHORT,
    12,
    500_000,
    FIGURE,
    "0.102",
    [("xl", 12, "0.967"), ("mt", 12, "0.101"), ("m", 12, "1.0"), ("xl", 6, "0.542"), ("m", 6, "1.0")],
)
_add("copy", Copy(), SHORT, 8, 900_000, FIGURE, "0.102", [("xl", 8, "0.278"), ("mt", 8, "0.100"), ("m", 8, "1.0")])
_add("reverse", Reverse(), SHORT, 48, 250_000, FIGURE, "(not given)", [])
_add(
    "reverse",
    Reverse(),
    SHORT,
    24,
    250_000,
    FIGURE,
    "0.102",
    [("xl", 24, "0.783"), ("mt", 24, "0.102"), ("m", 24, "1.0"), ("xl", 12, "0.996"), ("m", 12, "1.0")],
)
_add(
    "reverse",
    Reverse(),
    SHORT,
    12,
    500_000,
    FIGURE,
    "0.101",
    [("xl", 12, "0.861"), ("mt", 12, "(not given)"), ("m", 12, "1.0"), ("xl", 6, "0.800"), ("m", 6, "1.0")],
)
_add(
    "reverse",
    Reverse(),
    SHORT,
    8,
    900_000,
    FIGURE,
    "0.102",
    [("xl", 8, "0.666"), ("mt", 8, "(not given)"), ("m", 8, "0.90")],
)
RETRIEVAL = "Figure 4, where points '3' and '4' are 2 segments with memory 4 and 3 segments with memory 3"
_add("retrieval", Retrieval(), PAIRS, 10, 400_000, RETRIEVAL, "1.0", [])
_add(
    "retrieval",
    Retrieval(),
    PAIRS,
    5,
    400_000,
    RETRIEVAL,
    "0.496",
    [("xl", 5, "1.0"), ("mt", 5, "0.191"), ("m", 5, "0.990"), ("xl", 4, "1.0"), ("m", 4, "0.999")],
)
_add(
    "retrieval",
    Retrieval(),
    PAIRS,
    4,
    600_000,
    RETRIEVAL,
    "0.099",
    [("xl", 3, "0.849"), ("mt", 3, "0.139"), ("m", 3, "0.992")],
)
_add(
    "retrieval",
    Retrieval(),
    PAIRS,
    2,
    1_000_000,
    RETRIEVAL,
    "0.099",
    [("xl", 2, "0.988"), ("mt", 2, "0.109"), ("m", 2, "0.965")],
)


def _long(kind: type[Copy] | type[Reverse], symbols: int) -> AnyTask:
    return kind(symbols=symbols, alphabet=8, valid=10_000, test=20_000)


SIZES = "Figure 5a and 5b"
_add("copy120", _long(Copy, 120), replace(LONG, num_layers=6), 360, 100_000, SIZES, "1.0", [])
_add("copy120", _long(Copy, 120), LONG, 120, 200_000, SIZES, "0.125", [("xl", 60, "0.779"), ("m", 60, "1.0")])
_add("copy120", _long(Copy, 120), LONG, 60, 400_000, SIZES, "(not given)", [("xl", 30, "0.125"), ("m", 30, "1.0")])
_add("copy120", _long(Copy, 120), LONG, 40, 600_000, SIZES, "(not given)", [("xl", 40, "0.136"), ("m", 40, "1.0")])
_add("copy240", _long(Copy, 240), LONG, 120, 400_000, SIZES, "(not given)", [("xl", 60, "0.125"), ("m", 60, "0.883")])
_add("copy360", _long(Copy, 360), LONG, 120, 600_000, SIZES, "(not given)", [("xl", 60, "0.125"), ("m", 60, "0.579")])
_add(
    "reverse120",
    _long(Reverse, 120),
    LONG,
    120,
    200_000,
    SIZES,
    "(not given)",
    [("xl", 60, "0.861"), ("m", 60, "0.959")],
)
_add(
    "reverse120",
    _long(Reverse, 120),
    LONG,
    60,
    400_000,
    SIZES,
    "(not given)",
    [("xl", 60, "0.614"), ("m", 60, "0.997")],
)
_add(
    "reverse120",
    _long(Reverse, 120),
    LONG,
    40,
    600_000,
    SIZES,
    "(not given)",
    [("xl", 60, "0.668"), ("xl", 40, "0.462")],
)

EQUATION = (
    "Table 1 and Appendix A.3: share of equations with a correct answer. Six parts of 30 symbols each; the smallest "
    "learning rate is unknown, 1e-6 is that of the copy task"
)
_add("quadratic", Quadratic(), EQUATIONS, 180, 600_000, EQUATION, "0.99", [])
_add("quadratic", Quadratic(), EQUATIONS, 30, 600_000, EQUATION, "(not given)", [("xl", 30, "0.93"), ("m", 30, "0.99")])
