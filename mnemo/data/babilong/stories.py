"""Stories of the bAbI tasks (Weston et al., 2015): numbered facts, and questions with an answer between them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mnemo.errors import MnemoError, shorten

TASKS = ("qa1", "qa2", "qa3", "qa4", "qa5")


@dataclass(frozen=True)
class Story:
    facts: tuple[str, ...]
    """All facts before the question, in order; earlier questions are left out."""
    question: str
    answer: str
    references: tuple[str, ...] = ()
    """The facts that the answer follows from."""


def load_stories(path: Path | str) -> list[Story]:
    """Load a file of the bAbI tasks, such as qa1_single-supporting-fact_train.txt."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise MnemoError(f"{path} is not a text of the bAbI tasks") from None
    return parse_stories(text, str(path))


def parse_stories(text: str, source: str = "the text") -> list[Story]:
    """Return one story for every question, in the order of the text."""
    stories: list[Story] = []
    facts: dict[int, str] = {}
    for line in text.strip().splitlines():
        number, phrase, answer, references = _parts(line, source)
        if number == 1:
            facts = {}
        if answer is None:
            facts[number] = phrase
            continue
        supporting = tuple(fact for place, fact in facts.items() if place in references)
        stories.append(Story(tuple(facts.values()), phrase, answer, supporting))
    if not stories:
        raise MnemoError(f"{source} has no questions of the bAbI tasks")
    return stories


def _parts(line: str, source: str) -> tuple[int, str, str | None, set[int]]:
    """Return number and text of a line; for a question also its answer and the numbers of supporting facts."""
    number, _, rest = line.partition(" ")
    phrase, *columns = rest.split("\t")
    try:
        references = {int(word) for column in columns[1:] for word in column.split()}
        return int(number), phrase, columns[0] if columns else None, references
    except ValueError:
        raise MnemoError(f"{source} is not a text of the bAbI tasks: '{shorten(line)}'") from None
