"""Stories in the form of bAbI's tasks 1 and 2, and sentences to hide them in, generated from a seed.

They need no files. The sentences have a small vocabulary and never name a person, an object or a place of the stories.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from mnemo.data.babilong.stories import Story
from mnemo.errors import unknown

PERSONS = ("John", "Mary", "Sandra", "Daniel")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
OBJECTS = ("apple", "football", "milk")
MOVES = ("moved to", "went to", "journeyed to", "travelled to", "went back to")
TAKES, DROPS = ("took", "got", "picked up", "grabbed"), ("dropped", "left", "put down", "discarded")
NUM_QUESTIONS = 2
TASKS = ("qa1", "qa2")

SUBJECTS = ("The old man", "A little girl", "The big dog", "The bird", "His friend", "The rain", "A cat", "The sun")
VERBS = ("played with", "looked at", "found", "saw", "wanted", "liked", "ran to", "was happy with")
THINGS = ("the tree", "a red ball", "the river", "a nice flower", "the house", "a big box", "the blue sky", "a toy car")
ENDINGS = ("and smiled", "all day long", "in the morning", "with his mom", "and was very happy", "again and again")


def check_task(task: str) -> None:
    """Raise MnemoError if stories of a task cannot be generated."""
    if task not in TASKS:
        raise unknown("task without files", task, TASKS)


def generated_stories(task: str, count: int, seed: int) -> list[Story]:
    """Return stories of task qa1 (where is a person?) or qa2 (where is an object?)."""
    check_task(task)
    kinds = {"qa1": _person_stories, "qa2": _object_stories}
    chance = random.Random(f"{task} {seed}")
    stories: list[Story] = []
    while len(stories) < count:
        stories += kinds[task](chance)
    return stories[:count]


def _person_stories(chance: random.Random) -> list[Story]:
    """Return one story for each question: two more facts, then a question about a person that was named."""
    stories, facts, last = [], [], {}
    for _ in range(NUM_QUESTIONS):
        for _ in range(2):
            person, place = chance.choice(PERSONS), chance.choice(PLACES)
            fact = f"{person} {chance.choice(MOVES)} the {place}."
            facts.append(fact)
            last[person] = (place, fact)
        person = chance.choice(sorted(last))
        stories.append(Story(tuple(facts), f"Where is {person}?", last[person][0], (last[person][1],)))
    return stories


class _World:
    """Persons that walk and carry objects; `places` are the known places of objects."""

    def __init__(self) -> None:
        self.where: dict[str, str] = {}
        self.holder: dict[str, str] = {}
        self.places: dict[str, str] = {}

    def step(self, chance: random.Random) -> str:
        person = chance.choice(PERSONS)
        held = sorted(thing for thing, holder in self.holder.items() if holder == person)
        free = sorted(set(OBJECTS) - set(self.holder))
        action = chance.choice(["move", "move", *(["take"] if free else []), *(["drop"] if held else [])])
        if action == "move" or person not in self.where:
            self.where[person] = chance.choice(PLACES)
            self.places.update({thing: self.where[person] for thing in held})
            return f"{person} {chance.choice(MOVES)} the {self.where[person]}."
        thing = chance.choice(free if action == "take" else held)
        self.places[thing] = self.where[person]
        if action == "drop":
            del self.holder[thing]
            return f"{person} {chance.choice(DROPS)} the {thing}."
        self.holder[thing] = person
        return f"{person} {chance.choice(TAKES)} the {thing}."


def _object_stories(chance: random.Random) -> list[Story]:
    world, facts, stories = _World(), [], []
    while len(stories) < NUM_QUESTIONS:
        facts += [world.step(chance) for _ in range(2)]
        if world.places:
            thing = chance.choice(sorted(world.places))
            stories.append(Story(tuple(facts), f"Where is the {thing}?", world.places[thing]))
    return stories


def generated_sentences(count: int, seed: int) -> Iterator[str]:
    """Yield sentences without any fact of a story."""
    chance = random.Random(f"sentences {seed}")
    for _ in range(count):
        words = (chance.choice(kind) for kind in (SUBJECTS, VERBS, THINGS, ENDINGS))
        yield " ".join(words) + "."
