"""Table 4: One Billion Word, sentences without a context; elsewhere, lines that have lost their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mnemo.config import from_json, to_json
from mnemo.memory import LSTM
from mnemo.papers.experiment import Budget, Cell
from mnemo.papers.jobs import Place, job, train_and_score
from mnemo.papers.xl.benchmark import AsQuoted, Beats, Benchmark, Entry, Quoted
from mnemo.papers.xl.language_modelling import WORDS_LSTM, by_budget, scored_in_steps, smoke_lstm
from mnemo.papers.xl.recipes import recurrent, small_words, smoke
from mnemo.papers.xl.sentences import FOLDER, SHUFFLE
from mnemo.recipes.recipe import DataConfig, Recipe
from mnemo.recipes.transformer_xl import everywhere

TRAIN = "xl-train-sentences"
SENTENCES = "sentences"
SEGMENT = 32
"""As in the paper's model: a sentence or two."""


def shuffled(recipe: Recipe) -> Recipe:
    return replace(recipe, data=DataConfig(corpus=recipe.data.corpus, order="sentences"))


def words() -> Recipe:
    return shuffled(small_words(segment=SEGMENT))


def words_without_memory() -> Recipe:
    recipe = words()
    return scored_in_steps(replace(recipe, model=replace(recipe.model, memory=everywhere(0))))


def words_lstm() -> Recipe:
    return recurrent(words(), LSTM(width=WORDS_LSTM))


def smoke_words() -> Recipe:
    return shuffled(smoke())


def smoke_words_lstm() -> Recipe:
    return replace(smoke_words(), model=smoke_lstm().model)


ONE_BILLION = Benchmark(
    name="xl-one-billion",
    title="One Billion Word: sentences without a context",
    table="Table 4",
    claim="Transformer-XL is better than recurrent networks even where sentences have lost their order.",
    unit="ppl",
    corpus="One Billion Word",
    stand_in="the lines of WikiText-2 in random order",
    entries=(
        Entry("lstm", "LSTM", by_budget(published=None, small=words_lstm, tiny=smoke_words_lstm)),
        Entry(
            "no-memory",
            "Transformer-XL without memory",
            by_budget(published=None, small=words_without_memory),
        ),
        Entry("xl", "Transformer-XL", by_budget(published="lm1b-0.46b", small=words, tiny=smoke_words), 23.5),
        Entry("xl-large", "Transformer-XL, later and larger", by_budget(published="lm1b-large", small=None), 21.8),
    ),
    quoted=(
        Quoted("Sparse Non-Negative (Shazeer et al., 2014)", "33B", "52.9"),
        Quoted("RNN-1024 + 9 Gram (Chelba et al., 2013)", "20B", "51.3"),
        Quoted("LSTM-2048-512 (Jozefowicz et al., 2016)", "0.83B", "43.7"),
        Quoted("BIG G-LSTM-2 (Kuchaiev & Ginsburg, 2017)", "-", "36.0"),
        Quoted("GCNN-14 bottleneck (Dauphin et al., 2016)", "-", "31.9"),
        Quoted("LSTM-8192-1024 (Jozefowicz et al., 2016)", "1.8B", "30.6"),
        Quoted("LSTM-8192-1024 (Jozefowicz et al., 2016)", "1.04B", "30.0"),
        Quoted("Low-Budget MoE (Shazeer et al., 2017)", "~5B", "34.1"),
        Quoted("High-Budget MoE (Shazeer et al., 2017)", "~5B", "28.0"),
    ),
    beats=(
        Beats(
            "Transformer-XL is better than an LSTM of its size.",
            "23.5 against 30.0 and more",
            "xl",
            "lstm",
            AsQuoted(
                "Transformer-XL is better than the best LSTM as quoted, which is larger.",
                "LSTM-8192-1024 (Jozefowicz et al., 2016)",
                30.0,
            ),
        ),
        Beats("The larger model is better.", "21.8 against 23.5", "xl-large", "xl"),
    ),
    small_seeds=2,
    notes=(
        "small: the lines of WikiText-2, shuffled, in segments of 32; nothing is predicted across two of them.",
        "No script has the 0.46B parameters of Table 4: widths in between are our choice. The later, larger model's "
        "21.8 is in the authors' README.",
    ),
)


def cells(budget: Budget) -> list[Cell]:
    """Away from the paper's corpus, lines are shuffled first and trained on then."""
    training = ONE_BILLION.cells(budget)
    if budget == "paper":
        return training
    corpus = from_json(Recipe, training[0].settings["recipe"]).data.corpus
    settings = {"corpus": corpus, "longest": 4000 if budget == "smoke" else None}
    shuffle = Cell(name=SENTENCES, job=SHUFFLE, settings=settings, labels={"part": SENTENCES})
    return [shuffle, *(replace(cell, job=TRAIN, after=(SENTENCES,)) for cell in training)]


@job(TRAIN)
def train_on_sentences(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    recipe = from_json(Recipe, settings["recipe"])
    corpus = str((place.of(SENTENCES) / FOLDER).resolve())
    recipe = replace(recipe, data=replace(recipe.data, corpus=corpus))
    return train_and_score(settings | {"recipe": to_json(recipe)}, place)


EXPERIMENT = replace(ONE_BILLION.experiment(), cells=cells)
