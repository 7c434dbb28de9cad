"""Compare two memories on a text: train the same small model with each, and score text that it has not seen.

    python examples/compare_memories.py                                   generated songs, no memory against XL
    python examples/compare_memories.py mybook.txt --memories xl rmt      your text, other memories

You will see the bits per byte of each model on the held-out text: lower is better. By default the text consists of
songs of made-up words, in which every line is sung four times. A segment of 16 bytes is shorter than a line, so only
a model with memory can know the line that it repeats. The songs are chosen for that: on Python source code so few steps
showed no clear effect of memory. docs/memories.md lists the names of the memories. One seed is only an impression;
`mnemo sweep mybook.txt --memory none,xl` trains several and judges the difference.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import mnemo
from mnemo.papers.laptop.songs import songs
from mnemo.recipes.memories import memory_recipe
from mnemo.recipes.recipe import OptimizerConfig, ScheduleConfig


def small_recipe(corpus: Path, steps: int, slots: int) -> mnemo.Recipe:
    """A model of 120,000 weights that learns to use its memory in seconds."""
    memory = mnemo.Plan(long=mnemo.XL(length=slots))
    size = {"num_layers": 3, "dim": 64, "num_heads": 4, "head_dim": 16, "inner_dim": 128}
    model = mnemo.ModelConfig(**size, norm="pre", final_norm=True, memory=memory, init=mnemo.InitConfig(std=0.1))
    rates = {"optimizer": OptimizerConfig(lr=4e-3, clip=1.0), "schedule": ScheduleConfig(warmup=steps // 10)}
    train = mnemo.TrainConfig(**rates, steps=steps, batch=32, segment=16, eval_every=steps, device="cpu")
    return mnemo.Recipe(model=model, data=mnemo.DataConfig(corpus=str(corpus)), train=train)


def compare(text: str | None, memories: Sequence[str], steps: int, slots: int) -> None:
    source = text or "".join(songs("train", 2000)).encode()
    with tempfile.TemporaryDirectory() as folder:
        corpus = mnemo.prepare("text", source, "bytes", root=folder)
        print(f"{text or 'songs'}: {corpus.splits['train'].count:,} bytes for training, {steps} steps per memory")
        for name in memories:
            recipe = memory_recipe(small_recipe(corpus.path, steps, slots), name)
            run = mnemo.train(mnemo.create_run(recipe, Path(folder, name))).folder
            model = mnemo.open_run(run, device="cpu").model
            score = mnemo.evaluate(model, corpus.split("test"), recipe.test, segment=recipe.train.segment)
            print(f"{name:>12}: {score.bits_per_token:.3f} bits per byte", flush=True)


def main(memories: tuple[str, ...] = ("none", "xl"), steps: int = 300, slots: int = 64) -> None:
    parser = argparse.ArgumentParser(description="Compare memories on a text.")
    parser.add_argument("text", nargs="?", help="a text file; default: generated songs")
    parser.add_argument("--memories", nargs="+", default=memories, metavar="NAME", help="see docs/memories.md")
    parser.add_argument("--steps", type=int, default=steps, help="training steps of each model")
    parser.add_argument("--slots", type=int, default=slots, help="slots of the memory in each layer")
    compare(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
