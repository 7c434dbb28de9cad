"""Memory on text: Transformer-XL against none, a long memory in one layer against all, LaMemo against both.

All models are one recipe with different memories. Rows that two experiments share are trained once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mnemo.config import from_json, to_json
from mnemo.data.known_corpora import PYTHON
from mnemo.memory import XL, Lookahead, Plan
from mnemo.memory.plan import Arrangement
from mnemo.model import InitConfig, ModelConfig
from mnemo.papers.experiment import Budget, Experiment, Figure, Results, Sample, Table
from mnemo.papers.figures import learning_curves, score_bars
from mnemo.papers.grid import BPC, Grid, Row, training
from mnemo.papers.jobs import Place, job, train_and_score
from mnemo.papers.judge import AsGood, Better, Claim, Gain, judge
from mnemo.papers.laptop.songs import SPLITS, VERSES, songs, write_songs
from mnemo.papers.tables import grid_table, label, num_seeds, published, score
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.training.single_thread import single_threaded

BUDGETS: tuple[Budget, ...] = ("self-test", "laptop")
SEEDS = (1, 2, 3)
LAYERS, SEGMENT = 3, 16
LONG, SHORT = 64, 8
"""Slots of a long memory, more than a verse of a song, and of a short one."""
STEPS = 700
JOB = "laptop-songs"
CORPUS = "songs"


@job(JOB)
def train_on_songs(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Write the songs into the cell's folder; then as `train`, in one thread."""
    corpus = place.folder / CORPUS
    if not corpus.exists():
        write_songs(corpus, settings["songs"])
    recipe = from_json(Recipe, settings["recipe"], "recipe")
    recipe = replace(recipe, data=replace(recipe.data, corpus=str(corpus.resolve())))
    with single_threaded():
        return train_and_score(settings | {"recipe": to_json(recipe)}, place)


def song_recipe(plan: Plan, budget: Budget) -> Recipe:
    """120 thousand weights. With pre-norm and wide initial weights, verses are copied after some hundred steps.

    The corpus is a stand-in, since each cell writes its songs into its own folder.
    """
    steps, batch = (STEPS, 16) if budget == "laptop" else (2, 2)
    evaluation = EvalConfig(batch=batch, limit=6000 if budget == "laptop" else 64)
    return Recipe(
        model=ModelConfig(
            num_layers=LAYERS,
            dim=64,
            num_heads=4,
            head_dim=16,
            inner_dim=128,
            norm="pre",
            final_norm=True,
            memory=plan,
            init=InitConfig(std=0.1),
        ),
        data=DataConfig(corpus=PYTHON),
        train=TrainConfig(
            steps=steps,
            batch=batch,
            segment=SEGMENT,
            optimizer=OptimizerConfig(lr=3e-3, clip=1.0, betas=(0.9, 0.98)),
            schedule=ScheduleConfig(warmup=steps // 10),
            log_every=max(1, steps // 20),
            eval_every=max(1, steps // 5),
            checkpoint_every=steps,
            keep=1,
            compile=False,
            device="cpu",
        ),
        evaluation=evaluation,
    )


def song_row(key: str, label: str, plan: Plan, color: int, paper: str, budget: Budget) -> Row:
    """A model on the songs, trained once for each seed."""
    is_test = budget == "self-test"
    test = {"split": "test", "batch": 2 if is_test else 16} | ({"limit": 64} if is_test else {})
    trained = training(song_recipe(plan, budget), {"test": test})
    counts = dict.fromkeys(SPLITS, 2) if is_test else SPLITS
    return Row(
        key=key,
        name=key.replace(" ", "-"),
        label=label,
        seeds=SEEDS[:1] if is_test else SEEDS,
        settings=lambda seed: trained(seed) | {"songs": counts},
        job=JOB,
        labels={"model": label},
        paper=(paper,),
        color=color,
    )


def plan_of(num_long: int, arrangement: Arrangement) -> Plan:
    return Plan(long=XL(length=LONG), short=XL(length=SHORT), num_long=num_long, arrangement=arrangement)


EVERYWHERE = Plan(long=XL(length=LONG))
MODELS: dict[str, tuple[str, Plan, int]] = {
    "none": ("no memory", Plan(long=XL(length=0)), 1),
    "memory": (f"Transformer-XL, memory {LONG} in all layers", EVERYWHERE, 0),
    "short": (f"memory {SHORT} in all layers", plan_of(0, "last"), 3),
    "one long": (f"memory {LONG} in the middle layer, {SHORT} in the others", plan_of(1, "middle"), 2),
    "look-ahead": (f"LaMemo, memory {LONG} in all layers", Plan(long=Lookahead(length=LONG)), 4),
}
"""By key: label, memory, colour."""


@dataclass(frozen=True, kw_only=True)
class SongClaims:
    """One paper's claims about models on the songs."""

    name: str
    title: str
    paper: str
    covers: tuple[str, ...]
    claim: str
    claims: tuple[Claim, ...]
    rows: dict[str, str]
    """Keys of its rows, with the paper's numbers."""
    notes: tuple[str, ...]

    def grid(self, budget: Budget) -> Grid:
        rows = []
        for key, quoted in self.rows.items():
            words, plan, color = MODELS[key]
            rows.append(song_row(key, words, plan, color, quoted, budget))
        return Grid(rows=rows, measure=BPC)

    def experiment(self) -> Experiment:
        return Experiment(
            name=self.name,
            title=self.title,
            paper=self.paper,
            covers=self.covers,
            claim=self.claim,
            cells=lambda budget: self.grid(budget).cells,
            verdicts=self._with_grid(lambda grid, results: judge(grid, results, self.claims)),
            figures=self._with_grid(song_figures),
            tables=self._with_grid(song_table),
            samples=lambda results: song_sample(),
            budgets=BUDGETS,
            notes=(*self.notes, *NOTES),
        )

    def _with_grid(self, make: Callable[[Grid, Results], list[Any]]) -> Callable[[Results], list[Any]]:
        return lambda results: make(self.grid(results.budget), results)


def song_figures(grid: Grid, results: Results) -> list[Figure]:
    return [*score_bars(grid, results), *learning_curves(grid, results)]


def song_table(grid: Grid, results: Results) -> list[Table]:
    columns = (label("model"), score("bits per character"), num_seeds(), published("paper's"))
    return grid_table(
        grid,
        results,
        *columns,
        title="Bits per character on new songs",
        caption="Test set, lower is better. The paper's numbers are for its own text and size.",
    )


def song_sample() -> list[Sample]:
    note = "Words are made up for every song: a model that does not see the verse before must guess their letters."
    return [Sample("One song of the test set", next(songs("test", 1)), note)]


NOTES = (
    "The papers train large models on real text. Here, the text is synthetic: songs of made-up words, whose verse is "
    f"sung {VERSES} times. What memory is worth in real text shows only after far more training.",
    f"{LAYERS} layers of width 64, segments of {SEGMENT} characters, {STEPS} steps of 16 segments, on one CPU core. "
    "Models are tested with the memory of their training.",
    "Norms come before the branches, which learns faster than the published order.",
)
EXPERIMENTS = [
    SongClaims(
        name="laptop-xl",
        title="On a laptop: memory on text",
        paper="Transformer-XL",
        covers=("Tables 1 to 3, the main claim",),
        claim="A model with the hidden states of earlier segments as memory predicts text better than the same model "
        "without.",
        claims=(
            Better("Transformer-XL's memory is better than none.", "1.06 against 1.11 bpc on enwik8", "memory", "none"),
        ),
        rows={"none": "1.11", "memory": "1.06"},
        notes=("The paper's model without memory is another one (Al-Rfou et al., 2018), of the same depth.",),
    ).experiment(),
    SongClaims(
        name="laptop-long-range",
        title="On a laptop: a long memory in one layer",
        paper="Do Transformers Need Deep Long-Range Memory?",
        covers=("Figure 3, the main claim",),
        claim="Long memories in a few layers do as well as in all layers.",
        claims=(
            Better(
                "Long memories in all layers are better than in none.",
                "Figure 3: long-range dependency is not superfluous",
                "memory",
                "short",
            ),
            AsGood(
                "A long memory in one layer of three is as good as in all.",
                "4 of 24 layers: 0.9916 against 0.9846 bpc",
                "one long",
                "memory",
                Gain("memory", "short"),
            ),
            Better("A long memory in one layer is better than in none.", "Figure 3", "one long", "short"),
        ),
        rows={"memory": "0.9846", "one long": "0.9916", "short": "-"},
        notes=(
            f"The paper has 24 layers with memories of 2,304 and 128; here, {LAYERS} with {LONG} and {SHORT}.",
            "The long memory is in the middle layer, a choice made after a first trial: in the last layer, two of "
            "three seeds learned to copy in these steps, and one did not.",
        ),
    ).experiment(),
    SongClaims(
        name="laptop-lamemo",
        title="On a laptop: a memory that looks ahead",
        paper="LaMemo: Language Modeling with Look-Ahead Memory",
        covers=("Tables 1 and 2, the main claim",),
        claim="A memory that attends to the text after it is better than none, and better than one that does not.",
        claims=(
            Better("A memory that looks ahead is better than none.", "1.107 against 1.240 bpc", "look-ahead", "none"),
            Better(
                "A memory that looks ahead is better than Transformer-XL's.",
                "1.107 against 1.128 bpc",
                "look-ahead",
                "memory",
            ),
        ),
        rows={"none": "1.240", "memory": "1.128", "look-ahead": "1.107"},
        notes=("docs/lamemo.md lists why, without dropout, look-ahead may be worse than Transformer-XL.",),
    ).experiment(),
]
