"""Answers of a model without training: prompts with an instruction and two examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mnemo.data.babilong.answers import is_right
from mnemo.data.babilong.samples import BabiLong, Sample
from mnemo.errors import MnemoError
from mnemo.hf.tuning.accuracy import NUM_EXAMPLES, TEST_SEED, Accuracy, Cost
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.tuning import Stage

INSTRUCTION = {
    "qa1": "Sentences about the places of persons are hidden in a text. Answer the question by these sentences only. "
    "If a person was at several places, the last one is right.",
    "qa2": "Sentences about persons, places and things are hidden in a text. Answer the question by these sentences "
    "only. A thing that a person carries is where the person is; a thing that was put down stays there.",
}
EXAMPLES = {
    "qa1": "Text: Anna went to the office. Peter moved to the garden. Anna travelled to the kitchen.\n"
    "Question: Where is Anna?\nAnswer: kitchen\n\n"
    "Text: Peter went back to the bathroom. Anna journeyed to the hallway.\n"
    "Question: Where is Peter?\nAnswer: bathroom",
    "qa2": "Text: Anna went to the office. Anna took the ball there. Anna moved to the garden.\n"
    "Question: Where is the ball?\nAnswer: garden\n\n"
    "Text: Peter got the book. Peter moved to the hallway. Peter left the book. Peter went to the kitchen.\n"
    "Question: Where is the book?\nAnswer: hallway",
}
PROMPT = "{instruction}\n\n{examples}\n\nText:{text}\nQuestion: {question}\nAnswer with one word."
NEW_TOKENS = 12


def zero_shot(
    model: Any,
    tokenizer: Any,
    task: BabiLong,
    name: str,
    stage: Stage,
    samples: int,
    *,
    batch: int,
    show: ShowProgress = silent,
) -> Accuracy:
    """Measure the accuracy of generated answers to prompts of the stage's length. There is no memory to cut."""
    if name not in INSTRUCTION:
        raise MnemoError(f"there is no prompt for {name}; there are prompts for {', '.join(INSTRUCTION)}")
    right, examples = 0, []
    with show(f"zero-shot {stage}", samples) as bar, Cost(model.device) as cost:
        for begin in range(0, samples, batch):
            numbers = range(begin, min(begin + batch, samples))
            prompts = [prompt_of(tokenizer, task, name, number, stage.length) for number in numbers]
            texts = generated(model, tokenizer, [prompt for prompt, _ in prompts])
            for (_, sample), text in zip(prompts, texts, strict=True):
                story = sample.story
                right += is_right(name, story.question, story.answer, text)
                facts = {"facts": list(story.facts), "question": story.question, "answer": story.answer}
                examples.append(facts | {"written": text})
            bar.advance(len(prompts))
    counts = (stage.segments, stage.tokens, samples, right, right)
    return Accuracy(*counts, cost.seconds, cost.gigabytes, examples=examples[:NUM_EXAMPLES])


def prompt_of(tokenizer: Any, task: BabiLong, name: str, number: int, length: int) -> tuple[list[int], Sample]:
    """Return the ids of a prompt of at most `length` tokens, with room for the answer, and its sample."""
    empty = len(_ids(tokenizer, name, "", task.stories[number % len(task)].question))
    room = length - empty - NEW_TOKENS
    while room > 0:
        sample = task.sample(number, room, TEST_SEED)
        found = _ids(tokenizer, name, tokenizer.decode(sample.context), sample.story.question)
        beyond = len(found) - (length - NEW_TOKENS)
        if beyond <= 0:
            return found, sample
        room -= beyond  # decoded text can have more tokens than it was made of
    raise MnemoError(f"{length} tokens have no room for a prompt of {empty} tokens with a text and an answer")


def _ids(tokenizer: Any, name: str, text: str, question: str) -> list[int]:
    prompt = PROMPT.format(instruction=INSTRUCTION[name], examples=EXAMPLES[name], text=text, question=question.strip())
    if tokenizer.chat_template is None:
        return tokenizer(f"{prompt}\nAnswer:")["input_ids"]
    message = [{"role": "user", "content": prompt}]
    written = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return tokenizer(written, add_special_tokens=False)["input_ids"]


@torch.no_grad()
def generated(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts that greedy decoding writes after each prompt."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    out = model.generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=tokenizer.eos_token_id,
    )
    return tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)
