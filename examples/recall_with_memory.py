"""Associative recall through memory tokens.

The first segment of a sample contains pairs of a key and a value. Segments of noise follow, and the last segment
contains the keys again, each of which must be followed by its value. With more than one segment, the model can know
the pairs only through its memory tokens: without them it can only guess.

    python examples/recall_with_memory.py                   a toy, for a CPU
    python examples/recall_with_memory.py --size gpt2       the sizes of GPT-2 small; --start gpt2 uses its weights

Training starts with samples of one segment and adds one segment at a time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from mnemo.hf import Curriculum, CurriculumCallback, add_memory

SYMBOLS = 8
KEY, VALUE, NOISE = SYMBOLS**2, SYMBOLS**2 + SYMBOLS, SYMBOLS**2 + 2 * SYMBOLS
VOCABULARY = NOISE + SYMBOLS
"""Ids: one for each pair of a key and a value, then the keys, the values and the noise."""
IGNORED = -100


@dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    width: int
    segment: int
    tokens: int
    pairs: int
    batch: int
    rate: float
    deviation: float


SIZES = {
    "toy": Size(layers=2, heads=4, width=64, segment=9, tokens=4, pairs=3, batch=64, rate=3e-3, deviation=0.1),
    "gpt2": Size(layers=12, heads=12, width=768, segment=128, tokens=16, pairs=8, batch=32, rate=1e-4, deviation=0.02),
}


class Recall(IterableDataset):
    """Endless samples; their number of `segments` may change during training. Only the last values are labels."""

    def __init__(self, size: Size, seed: int, segments: int = 1) -> None:
        self.size, self.seed, self.segments = size, seed, segments

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        chance = torch.Generator().manual_seed(self.seed)
        while True:
            yield self.sample(chance)

    def sample(self, chance: torch.Generator) -> dict[str, Tensor]:
        pairs = self.size.pairs
        keys = torch.randperm(SYMBOLS, generator=chance)[:pairs]
        values = torch.randint(SYMBOLS, (pairs,), generator=chance)
        noise = torch.randint(SYMBOLS, (self.size.segment * self.segments - 3 * pairs,), generator=chance)
        asked = torch.randperm(pairs, generator=chance)
        questions = torch.stack([KEY + keys[asked], VALUE + values[asked]], 1).flatten()
        tokens = torch.cat([keys * SYMBOLS + values, NOISE + noise, questions])
        labels = torch.full_like(tokens, IGNORED)
        labels[-2 * pairs + 1 :: 2] = VALUE + values[asked]
        return {"input_ids": tokens, "labels": labels}


def build(size: str, start: str | None = None) -> Any:
    """Return a model with memory: with random weights, or with those of the pretrained model `start`."""
    chosen = SIZES[size]
    if start is None:
        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_layer=chosen.layers,
            n_head=chosen.heads,
            n_embd=chosen.width,
            initializer_range=chosen.deviation,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
        backbone: Any = GPT2LMHeadModel(config)
    else:
        backbone = AutoModelForCausalLM.from_pretrained(start)
    return add_memory(backbone, tokens=chosen.tokens, segment=chosen.segment, bptt=None, score=1)


@torch.no_grad()
def accuracy(model: Any, size: str, segments: int, samples: int = 128) -> float:
    """Return the share of values that are predicted correctly, in samples that are not used in training."""
    task, chance = Recall(SIZES[size], seed=0, segments=segments), torch.Generator().manual_seed(2)
    batch = [task.sample(chance) for _ in range(samples)]
    tokens, labels = (torch.stack([sample[name] for sample in batch]) for name in ("input_ids", "labels"))
    model.eval()
    guesses = model(input_ids=tokens.to(model.device)).logits[:, :-1].argmax(-1).cpu()
    asked = labels[:, 1:] != IGNORED
    return (guesses == labels[:, 1:])[asked].float().mean().item()


def train(size: str = "toy", steps: int = 750, segments: int = 3, start: str | None = None) -> tuple[Any, dict]:
    """Return a trained model, and its accuracy by number of segments, up to one more than in training."""
    torch.manual_seed(0)
    chosen, model = SIZES[size], build(size, start)
    task = Recall(chosen, seed=1)
    curriculum = Curriculum(tuple((steps * number // segments, number + 1) for number in range(segments)))

    def follow(number: int) -> None:
        task.segments = number

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=chosen.batch,
            learning_rate=chosen.rate,
            adam_beta2=0.98,
            warmup_steps=min(50, steps // 10),
            lr_scheduler_type="constant_with_warmup",
            logging_steps=max(1, steps // 20),
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=False,
        )
        Trainer(
            model=model, args=arguments, train_dataset=task, callbacks=[CurriculumCallback(curriculum, follow)]
        ).train()
    return model, {number: accuracy(model, size, number) for number in range(1, segments + 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Associative recall through memory tokens.")
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument("--start", help="a model of the Hub, or a folder, whose weights to start from")
    parser.add_argument("--steps", type=int, default=750)
    parser.add_argument("--segments", type=int, default=3)
    _, found = train(**vars(parser.parse_args()))
    for number, share in found.items():
        print(f"{number} segments: {share:.1%} of the values correct")


if __name__ == "__main__":
    main()
