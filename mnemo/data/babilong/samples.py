"""A sample: facts in their order at random places between sentences of books, and the question at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mnemo.data.babilong.background import Background, Encode
from mnemo.data.babilong.stories import Story
from mnemo.errors import MnemoError

QUESTION = "\nQuestion: {question}\nAnswer:"
RECALL = "\nFacts:"
NO_LABEL = -100


@dataclass(frozen=True)
class Sample:
    story: Story
    context: np.ndarray
    """Token ids of the background with the facts"""
    places: tuple[int, ...]
    """Number of background sentences before each fact"""
    question: tuple[int, ...]
    """Token ids that follow the context"""
    answer: tuple[int, ...]
    """Token ids of the right answer, which ends the text"""
    num_sentences: int
    """Background sentences in the context; the last one may be cut"""
    recall: tuple[int, ...] = ()
    """Token ids between context and question which announce that the facts follow once more; in training only"""
    recalled: tuple[int, ...] = ()
    """Token ids of these facts, which the model learns to write"""

    @property
    def ids(self) -> np.ndarray:
        """Token ids of context, facts once more, question and answer."""
        parts = [self.context, self.recall, self.recalled, self.question, self.answer]
        return np.concatenate(parts).astype(np.int64)

    @property
    def labels(self) -> np.ndarray:
        """Token ids that the model learns to write, NO_LABEL elsewhere."""
        ids = self.ids
        wanted = np.zeros(len(ids), dtype=bool)
        begin = len(self.context) + len(self.recall)
        wanted[begin : begin + len(self.recalled)] = True
        wanted[len(ids) - len(self.answer) :] = True
        return np.where(wanted, ids, NO_LABEL)

    def pieces(self, size: int) -> Iterator[np.ndarray]:
        """Yield the context and the question, without the answer, in pieces of at most `size` tokens."""
        text = self.ids[: len(self.context) + len(self.question)]
        for begin in range(0, len(text), size):
            yield text[begin : begin + size]


def hide(
    facts: Sequence[Sequence[int]], background: np.ndarray, borders: np.ndarray, chance: np.random.Generator
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Insert encoded facts at random borders of sentences; returns the tokens and the chosen borders.

    The random numbers are drawn as by the published generator.
    """
    places = np.sort(chance.choice(len(borders), len(facts)))
    cuts = [0, *borders[places].tolist(), len(background)]
    pieces = [background[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]
    mixed = [piece for pair in zip(pieces, [*facts, []], strict=True) for piece in pair]
    return np.concatenate([np.asarray(piece, dtype=np.int32) for piece in mixed]), tuple(places.tolist())


def _until(borders: np.ndarray, last: int) -> np.ndarray:
    """Return the borders up to position `last`; at least the first one."""
    return borders[: max(1, int(np.searchsorted(borders, last, side="right")))]


class BabiLong:
    """Samples of any length. A sample depends on its number, the length and the seed only."""

    def __init__(
        self,
        stories: Sequence[Story],
        background: Background,
        encode: Encode,
        *,
        end: Sequence[int] = (),
        form: str = QUESTION,
    ) -> None:
        """`end`: ids after the answer, such as the end of a text. `form`: the text around the question."""
        self.stories, self.background = list(stories), background
        self._encode, self._end, self._form = encode, tuple(end), form
        self._known: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.stories)

    def sample(
        self,
        number: int,
        length: int,
        seed: int = 0,
        *,
        whole: bool = False,
        facts_within: int | None = None,
        recall_within: int = 0,
    ) -> Sample:
        """Return sample `number`, whose context has `length` tokens, or all its facts if they are longer.

        `whole`: all tokens together are `length`, with question and answer. `facts_within`: all facts lie in the first
        tokens, this many; or at the very beginning if they are longer. `recall_within`: before the question the facts
        follow once more, as many of the last ones as fit into this number of tokens with question and answer. Both are
        for training only: tests place facts anywhere and ask at once. Numbers beyond the last story start again with
        the first one, in other sentences and at other places.
        """
        chance = np.random.default_rng((seed, number, length))
        first = int(chance.integers(len(self.background)))
        story = self.stories[number % len(self.stories)]
        return self._sample(story, length, whole, first, chance, facts_within, recall_within)

    def in_published_order(self, length: int, seed: int = 42) -> Iterator[Sample]:
        """Yield a sample of every story but the last, as the published generator does without shuffling.

        Each sample continues the books after the last sentence of the one before; all share one random generator.
        """
        chance, first = np.random.default_rng(seed), 0
        for story in self.stories[:-1]:
            sample = self._sample(story, length, False, first, chance)
            yield sample
            first += sample.num_sentences

    def _sample(
        self,
        story: Story,
        length: int,
        whole: bool,
        first: int,
        chance: np.random.Generator,
        facts_within: int | None = None,
        recall_within: int = 0,
    ) -> Sample:
        facts, question, answer = self._facts(story), self._question(story), self._answer(story)
        recall, recalled = self._recalled(facts, recall_within - len(question) - len(answer))
        ending = len(recall) + len(recalled) + len(question) + len(answer)
        room = length - (ending if whole else 0) - sum(map(len, facts))
        if whole and room < 0:
            raise MnemoError(f"a sample of {length} tokens has no room for its facts and question: {length - room}")
        tokens, borders = self.background.span(first, max(0, room))
        allowed = borders if facts_within is None else _until(borders, facts_within - sum(map(len, facts)))
        context, places = hide(facts, tokens, allowed, chance)
        return Sample(story, context, places, question, answer, len(borders) - 1, recall, recalled)

    def _recalled(self, facts: Sequence[tuple[int, ...]], most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return an announcement and the last facts after it, which have at most `most` tokens; empty if none fits."""
        recall = self.encoded(RECALL)
        ends = np.cumsum([len(fact) for fact in reversed(facts)])
        fitting = int(np.searchsorted(ends, most - len(recall), side="right"))
        recalled = [token for fact in facts[len(facts) - fitting :] for token in fact]
        return (recall, tuple(recalled)) if fitting else ((), ())

    def longest_story(self) -> int:
        """Return the number of tokens of the longest facts, question and answer."""
        return max(map(self._story_length, self.stories))

    def _story_length(self, story: Story) -> int:
        return sum(map(len, (*self._facts(story), self._question(story), self._answer(story))))

    def _facts(self, story: Story) -> list[tuple[int, ...]]:
        return [self.encoded(f" {fact}") for fact in story.facts]

    def _question(self, story: Story) -> tuple[int, ...]:
        return self.encoded(self._form.format(question=story.question.strip()))

    def _answer(self, story: Story) -> tuple[int, ...]:
        return (*self.encoded(f" {story.answer}"), *self._end)

    def encoded(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text that occurs in many samples."""
        if text not in self._known:
            self._known[text] = tuple(self._encode([text])[0])
        return self._known[text]
