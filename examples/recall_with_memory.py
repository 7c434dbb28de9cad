"""Associative recall through memory tokens: pairs of a key and its value stand in the first segment, noise follows for
some segments, and the last one asks for the value of a key. A model without memory can only guess.

    python examples/recall_with_memory.py                   a toy on a CPU, some minutes
    python examples/recall_with_memory.py --size gpt2       GPT-2 small's sizes; --start gpt2 for its weights too

Training begins with everything in one segment and goes on to more of them, a segment at a time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from mnemo.hf import Curriculum, CurriculumCallback, add_memory

KEYS, VALUES, NOISE = 16, 16, 16
QUERY = KEYS + VALUES + NOISE
VOCABULARY = QUERY + 1
IGNORED = -100
SIZES = {
    "toy": dict(n_layer=2, n_head=4, n_embd=64, segment=12, tokens=4, batch=64, rate=2e-3),
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768, segment=256, tokens=16, batch=32, rate=1e-4),
}


class Recall(IterableDataset):
    """Endless samples of `segments` segments; the label is on the last token only."""

    def __init__(self, segment: int, pairs: int, seed: int) -> None:
        self.segment, self.pairs, self.seed, self.segments = segment, pairs, seed, 1

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield self.sample(generator)

    def sample(self, generator: torch.Generator) -> dict[str, Tensor]:
        def draw(number: int, begin: int, count: int) -> Tensor:
            return begin + torch.randperm(count, generator=generator)[:number]

        keys, values = draw(self.pairs, 0, KEYS), draw(self.pairs, KEYS, VALUES)
        asked = int(torch.randint(self.pairs, (), generator=generator))
        between = self.segment * self.segments - 2 * self.pairs - 3
        noise = KEYS + VALUES + torch.randint(NOISE, (between,), generator=generator)
        question = torch.tensor([QUERY, int(keys[asked]), int(values[asked])])
        tokens = torch.cat([torch.stack([keys, values], 1).flatten(), noise, question])
        labels = torch.full_like(tokens, IGNORED)
        labels[-1] = tokens[-1]
        return {"input_ids": tokens, "labels": labels}


def build(size: str, start: str | None) -> Any:
    """The model with memory, its weights drawn anew or those of a published model."""
    shape = SIZES[size]
    if start is not None:
        backbone = AutoModelForCausalLM.from_pretrained(start)
    else:
        sizes = {name: shape[name] for name in ("n_layer", "n_head", "n_embd")}
        drop = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        tokens = dict(bos_token_id=None, eos_token_id=None)
        backbone = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=1024, **sizes, **drop, **tokens))
    return add_memory(backbone, tokens=int(shape["tokens"]), segment=int(shape["segment"]), bptt=None, score=1)


@torch.no_grad()
def accuracy(model: Any, task: Recall, segments: int, samples: int = 256) -> float:
    """How often the answer to the question is the likeliest token."""
    task = Recall(task.segment, task.pairs, seed=task.seed + 1)
    task.segments = segments
    generator = torch.Generator().manual_seed(task.seed)
    tokens = torch.stack([task.sample(generator)["input_ids"] for _ in range(samples)]).to(model.device)
    model.eval()
    guesses = model(input_ids=tokens).logits[:, -2].argmax(-1)
    return (guesses == tokens[:, -1]).float().mean().item()


def train(size: str = "toy", steps: int = 1500, segments: int = 3, pairs: int = 3, start: str | None = None) -> Any:
    torch.manual_seed(0)
    shape, model = SIZES[size], build(size, start)
    task = Recall(int(shape["segment"]), pairs, seed=1)
    stages = tuple((steps * number // (segments + 1), number + 1) for number in range(segments))

    def use(number: int) -> None:
        task.segments = number

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=int(shape["batch"]),
            learning_rate=float(shape["rate"]),
            warmup_steps=min(100, steps // 10),
            lr_scheduler_type="constant_with_warmup",
            logging_steps=max(1, steps // 20),
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=False,
        )
        callback = CurriculumCallback(Curriculum(stages), use)
        Trainer(model=model, args=arguments, train_dataset=task, callbacks=[callback]).train()
    return model, {number: accuracy(model, task, number) for number in range(1, segments + 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument("--start", help="a model of the Hub or a folder to take the weights from")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--segments", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    _, found = train(**vars(options))
    for number, share in found.items():
        print(f"{number} segments: {share:.1%} right")


if __name__ == "__main__":
    main()
