"""Right answers and their share: the benchmark's rule for generated text, and an interval for a proportion."""

from __future__ import annotations

import math

_PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
ANSWERS = {task: _PLACES for task in ("qa1", "qa2", "qa3", "qa4")} | {
    "qa5": ("bill", "fred", "jeff", "mary", "apple", "football", "milk")
}
"""All answers of a task, in lower case"""
ENDS = (".", "<context>", "<example>")
"""Text after one of these is not part of an answer"""


def is_right(task: str, question: str, answer: str, output: str) -> bool:
    """Whether the first sentence of a generated text names the right answer and no other one.

    Answers that the question names are ignored. This is the rule of the benchmark's `compare_answers`.
    """
    sentence, question = output.lower(), question.lower()
    for end in ENDS:
        sentence = sentence.partition(end)[0]
    named = {word for word in ANSWERS[task] if word in sentence and word not in question}
    return named == {answer.lower()}


def wilson_interval(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the interval of Wilson (1927) for a proportion; 95% by default."""
    if count == 0:
        return 0.0, 1.0
    share, weight = right / count, z * z / count
    middle = share + weight / 2
    half = z * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    return max(0.0, (middle - half) / (1 + weight)), min(1.0, (middle + half) / (1 + weight))
